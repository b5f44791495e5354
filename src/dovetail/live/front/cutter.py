"""Models that workers want to run kernel by kernel: where to cut them is found out once for all, one after the other.

Rules of this file
- What workers ask for is found out in a process of its own (`kernels.cutting`), and never twice for one model.
- Workers with a strict budget only read what was cut: then it is written to files, which go when the server ends.
- It is of use, not of need: a process that fails or takes too long leaves the model whole, and that is said once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable

import msgspec

from ..kernels.cutting import Found, Wanted

__all__ = ["Cutter"]

#: Longer than any model took; a process that hangs is ended then.
PATIENCE_SECONDS = 300.0
#: Models that are remembered to have been asked for.
MOST_MODELS = 4096


class Cutter:
    """Finds out how models are best cut; `found` is told of each."""

    def __init__(
        self, found: Callable[[Wanted, Found], None], say: Callable[[str], None], *, writes: bool = False
    ) -> None:
        """With `writes` what was cut is written to files."""
        self._scratch = tempfile.TemporaryDirectory(prefix="dovetail-cuts-") if writes else None
        self._found = found
        self._say = say
        self._asked: set[str] = set()
        self._waiting: deque[Wanted] = deque()
        self._task: asyncio.Task[None] | None = None
        #: What only has to be written does not wait for what has to be found out.
        self._quick: set[asyncio.Task[None]] = set()

    def want(self, wanted: Wanted) -> None:
        """A worker would run this model kernel by kernel."""
        if wanted.stage.model in self._asked or len(self._asked) >= MOST_MODELS:
            return
        if self._scratch is not None:
            files = os.path.join(self._scratch.name, str(len(self._asked)))
            os.mkdir(files)
            wanted = msgspec.structs.replace(wanted, files=files)
        self._asked.add(wanted.stage.model)
        if wanted.known:
            quick = asyncio.ensure_future(self._find(wanted))
            self._quick.add(quick)
            quick.add_done_callback(self._quick.discard)
            return
        self._waiting.append(wanted)
        if self._task is None:
            self._task = asyncio.ensure_future(self._work())

    @property
    def busy(self) -> bool:
        """Whether something is being found out."""
        return self._task is not None or bool(self._quick)

    async def _work(self) -> None:
        while self._waiting:
            await self._find(self._waiting.popleft())
        self._task = None

    async def _find(self, wanted: Wanted) -> None:
        try:
            found = await asyncio.wait_for(self._cut(wanted), PATIENCE_SECONDS)
        except (OSError, TimeoutError, msgspec.DecodeError) as error:
            self._say(f"stage {wanted.stage.name!r} stays whole, its model could not be cut: {error or 'too slow'}")
            return
        if found is not None:
            self._found(wanted, found)

    async def _cut(self, wanted: Wanted) -> Found | None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "dovetail.live.kernels.cutting",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},  # what makes torch modules
        )
        try:
            out, _ = await process.communicate(msgspec.msgpack.encode(wanted))
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return msgspec.msgpack.decode(out, type=Found) if out else None

    async def close(self) -> None:
        """Find out no more."""
        self._waiting.clear()
        for task in [*self._quick, *([] if self._task is None else [self._task])]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._task = None
        if self._scratch is not None:
            self._scratch.cleanup()
