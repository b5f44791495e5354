"""One copy of each model's weights for all workers of a machine: files in a directory of the server's.

Rules of this file
- Whoever needs a model first writes its copy (`optimised`); others wait for that and read it. Whoever dies while he
  writes or first reads it has shown that it cannot be done, and it is not tried again.
- A model of which no copy can be made, for want of room or because onnxruntime does not read what it wrote, is loaded
  from its own file by everybody, and that is said once by each.
- The directory goes when the server ends. What a server left that was killed goes when the next one starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...errors import ModelError
from ...workflow.graph import StageSpec
from .optimised import GRAPH, mapped_bytes, write_optimised
from .segment_run import load_session

__all__ = ["WeightDirectory", "WeightFiles"]

_PREFIX = "dovetail-weights-"
#: Locked by the server for as long as it lives.
_OWNER = "owner"


class WeightDirectory:
    """The directory, as the server that makes it sees it."""

    def __init__(self) -> None:
        _sweep(Path(tempfile.gettempdir()))
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._owner = (self.path / _OWNER).open("w")
        fcntl.flock(self._owner, fcntl.LOCK_EX)

    def close(self) -> None:
        """Nobody needs it any more. What is mapped stays mapped."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._owner.close()


def _sweep(temporary: Path) -> None:
    """Remove what servers left that were killed."""
    for left in temporary.glob(f"{_PREFIX}*"):
        # Others' directories cannot be opened, and one that is just being made has no owner yet.
        with contextlib.suppress(OSError), (left / _OWNER).open("r+") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)


class WeightFiles:
    """The same directory, as workers see it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[str, Path | None] = {}

    def copy_of(self, spec: StageSpec) -> Path | None:
        """Where the copy of a model is, made if it has to be; None: there can be none. Raises if it is no model."""
        if spec.kind != "onnx":
            return None
        if spec.weights not in self._known:
            self._known[spec.weights] = self._copy(spec)
        return self._known[spec.weights]

    def nbytes(self, spec: StageSpec) -> int:
        """Bytes of the copy that a session maps; 0 without a copy."""
        copy = self.copy_of(spec)
        return 0 if copy is None else mapped_bytes(copy)

    def _copy(self, spec: StageSpec) -> Path | None:
        key = hashlib.sha256(spec.weights.encode()).hexdigest()[:16]
        made, part = self._directory / key, self._directory / f"{key}.part"
        try:
            with _alone(self._directory / f"{key}.lock"):
                if not made.exists():
                    if part.exists():
                        raise OSError("a worker ended while it made the copy")
                    part.mkdir()
                    try:
                        write_optimised(Path(spec.path), part)
                        load_session(part / GRAPH, lean=True)
                    except ModelError as error:
                        if not _loads(spec):
                            shutil.rmtree(part)  # the file may come back
                            raise ModelError(f"stage {spec.name!r}: {error}") from error
                        raise OSError("onnxruntime does not read what it wrote") from None
                    part.rename(made)
        except OSError as error:
            print(f"dovetail: {spec.path} is loaded by every worker for itself: {error}", file=sys.stderr, flush=True)
            return None
        return made


def _loads(spec: StageSpec) -> bool:
    """Whether the model can be loaded as it is."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    try:
        ort.InferenceSession(spec.path, settings, providers=["CPUExecutionProvider"])
    except Exception:
        return False
    return True


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with open(os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
