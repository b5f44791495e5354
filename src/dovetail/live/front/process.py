"""One worker process as the front sees it: started, spoken to, and noticed at once when it dies.

The doorbell is the channel, the pidfd the alarm: it becomes readable in the instant the process ends, for whatever
reason, even if a child that the worker forked still holds its end of the doorbell. Nothing here waits for the
process; whoever breaks the protocol is killed, and its death is then reported as any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from ..links.wire import Done, Doorbell, FromWorker, Hello, Ready, Refused, Stop, ToWorker, pair
from ..tensors.arena import Arena

__all__ = ["WorkerProcess"]

#: How long a worker may take to end after `Stop` before it is killed.
STOP_SECONDS = 5.0


class WorkerProcess:
    """One started worker. `on_message` and `on_lost` are called by the event loop, `on_lost` once and last."""

    def __init__(
        self,
        hello: Hello,
        front_arena: Arena,
        on_message: Callable[[WorkerProcess, FromWorker], None],
        on_lost: Callable[[WorkerProcess, str], None],
    ) -> None:
        self.ident = hello.worker
        self.spec = hello.spec
        #: Set once the worker has introduced itself.
        self.arena: Arena | None = None
        #: It has run a batch: it works.
        self.answered = False
        self._on_message = on_message
        self._on_lost = on_lost
        self._backlog: deque[tuple[ToWorker, list[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        #: Why it is to be gone, if it was us who decided.
        self._why = ""
        self._stopping = False
        self._gone = asyncio.Event()
        ours, theirs = pair()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dovetail.live.worker.main", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a user's stage prints must not end up among our results
                env=_environment(),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._pidfd = os.pidfd_open(self.process.pid)
        ours.setblocking(False)
        self._doorbell: Doorbell[FromWorker] = Doorbell(ours, FromWorker)
        self._ringing = True
        self._loop.add_reader(self._doorbell.fileno(), self._readable)
        self._loop.add_reader(self._pidfd, self._ended)
        self.send(hello, [front_arena.fd])

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def send(self, message: ToWorker, fds: Sequence[int] = ()) -> None:
        """Send now if the doorbell has room, else as soon as it has; order is kept. Nothing is sent to the dead."""
        if not self._ringing:
            return
        if not self._backlog:
            try:
                self._doorbell.send(message, fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self._doorbell.fileno(), self._writable)
            except (BrokenPipeError, ConnectionResetError):
                return  # it is dying: the pidfd will tell
        # The descriptor may be closed by its owner before it can be sent.
        self._backlog.append((message, [os.dup(fd) for fd in fds]))

    def _writable(self) -> None:
        while self._backlog:
            message, fds = self._backlog[0]
            try:
                self._doorbell.send(message, fds)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                break
            self._backlog.popleft()
            _close(fds)
        self._drop_backlog()
        self._loop.remove_writer(self._doorbell.fileno())

    def _drop_backlog(self) -> None:
        while self._backlog:
            _close(self._backlog.popleft()[1])

    def _readable(self) -> None:
        # One message a turn: no worker keeps the loop from the others, and a second is mostly not there.
        self._take_one()

    def _take_one(self) -> bool:
        """Take one message; False if there is none."""
        try:
            packet = self._doorbell.receive()
        except BlockingIOError:
            return False
        except (OSError, msgspec.DecodeError) as error:
            gone = isinstance(error, ConnectionResetError)  # it died with messages unread
            self.kill("" if gone else f"its doorbell broke: {error}")
            return False
        if packet is None:
            self.kill("")  # it has closed its end, so it is ending or of no use
            return False
        message, fds = packet
        if isinstance(message, Ready):
            try:
                self.arena = Arena.attach(self.ident, fds.pop(0))
            except (IndexError, OSError, ValueError) as error:
                self.kill(f"it brought no arena: {error}")
                return False
        elif isinstance(message, Done):
            self.answered = True
        elif isinstance(message, Refused):
            self._why = message.detail
        _close(fds)
        self._on_message(self, message)
        return True

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
        code = self.process.wait()
        self._gone.set()
        if not self._stopping:
            ending = f"killed by signal {-code}" if code < 0 else f"exited with status {code}"
            self._on_lost(self, self._why or ending)

    def _hang_up(self) -> None:
        if self._ringing:
            self._ringing = False
            self._loop.remove_reader(self._doorbell.fileno())
            self._loop.remove_writer(self._doorbell.fileno())
            self._doorbell.close()
            self._drop_backlog()

    async def stop(self) -> None:
        """Ask it to end, and see that it does; its loss is not reported."""
        self._stopping = True
        self.send(Stop())
        try:
            await asyncio.wait_for(self._gone.wait(), STOP_SECONDS)
        except TimeoutError:
            self.process.kill()
            await self._gone.wait()


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    # One lane is one core's work; libraries that bring threads of their own would take the others'.
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")
    environment.setdefault("PYTHONUNBUFFERED", "1")  # what a stage prints is wanted before it dies
    return environment


def _close(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
