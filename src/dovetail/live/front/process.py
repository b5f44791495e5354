"""One worker process as the front sees it: started, spoken to, and noticed at once when it dies.

The doorbell is the channel, the pidfd the alarm: it becomes readable in the instant the process ends, for whatever
reason, even if a child that the worker forked still holds its end of the doorbell. Nothing here waits for the
process; whoever breaks the protocol is killed, and its death is then reported as any other.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from ..links.doorbell import pair
from ..links.wire import FromWorker, Hello, Ready, Stop, Welcome
from ..tensors.arena import Arena
from .link import WorkerLink
from .output import WorkerOutput

__all__ = ["WorkerProcess", "is_stopped"]

#: How long a worker may take to end after `Stop` before it is killed.
STOP_SECONDS = 5.0
#: Signals by which a process ends that did something wrong itself; others were sent by somebody.
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGSYS}


class WorkerProcess(WorkerLink):
    """One started worker. `on_message` and `on_lost` are called by the event loop, `on_lost` once and last."""

    def __init__(
        self,
        hello: Hello,
        front_arena: Arena,
        on_message: Callable[[WorkerLink, FromWorker], None],
        on_lost: Callable[[WorkerProcess, str], None],
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(on_message)
        self.ident = hello.worker
        self.spec = hello.spec
        self._on_lost = on_lost
        self._stopping = False
        self._gone = asyncio.Event()
        ours, theirs = pair()
        try:
            # What a user's stage prints must not end up among our results, and must not wait for who reads ours.
            self._output = WorkerOutput(hello.spec.name, say, self._loop)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dovetail.live.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output.write_fd,
                stderr=self._output.write_fd,
                env=_environment(),
            )
        except BaseException:
            ours.close()
            self._output.close()
            raise
        finally:
            theirs.close()
            os.close(self._output.write_fd)
        try:
            self._pidfd = os.pidfd_open(self.process.pid)
        except OSError:  # no descriptors left: nobody would notice its end
            self.process.kill()
            self.process.wait()
            self._output.close()
            ours.close()
            raise
        self._connect(ours)
        self._loop.add_reader(self._pidfd, self._ended)
        self.send(hello, [front_arena.fd])

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def _introduced(self, message: Ready | Welcome) -> None:
        if self.arena is not None or isinstance(message, Welcome):
            raise ValueError("it has introduced itself before")

    def _hung_up(self) -> None:
        self.kill("")  # it is ending, or of no use

    def kill(self, why: str) -> None:
        """End it the hard way, by its own process id. Its loss is reported with this reason."""
        self._why = self._why or why
        self._hang_up()
        self.process.kill()

    def _ended(self) -> None:
        """The process has ended; take its last words, then report the loss."""
        while self._ringing and self._take_one():
            pass
        self._hang_up()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._output.close()
        code = self.process.wait()
        self._gone.set()
        self.at_fault = self.at_fault or (not self._why and (code >= 0 or -code in CRASHES))
        if not self._stopping:
            ending = f"killed by signal {-code}" if code < 0 else f"exited with status {code}"
            self._on_lost(self, self._why or ending)

    async def stop(self) -> None:
        """Ask it to end, and see that it does; its loss is not reported."""
        self._stopping = True
        self.send(Stop())
        try:
            await asyncio.wait_for(self._gone.wait(), STOP_SECONDS)
        except TimeoutError:
            self.process.kill()
            await self._gone.wait()


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped a process (SIGSTOP, a debugger): then it hangs through no fault of its work."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] in (b"T", b"t")
    except OSError:
        return False


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    # One lane is one core's work; libraries that bring threads of their own would take the others'.
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    environment.setdefault("PYTHONUNBUFFERED", "1")  # what a stage prints is wanted before it dies
    return environment
