"""One worker process as the front sees it: started, spoken to, noticed at once when it dies, started again.

The doorbell is both the channel and the alarm: when the process ends for whatever reason, its end closes and the
event loop wakes up in the same instant. A worker that comes back is a new worker with a new number and a new arena;
the old arena stays mapped as long as values in it are of use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable

import msgspec

from .arena import Arena
from .wire import FromWorker, Hello, Ready, Stop, ToWorker, pair, receive, send

__all__ = ["WorkerProcess"]

#: How long a worker may take to end after `Stop` before it is killed.
STOP_SECONDS = 5.0


class WorkerProcess:
    """One started worker."""

    def __init__(
        self,
        hello: Hello,
        front_arena: Arena,
        on_message: Callable[[WorkerProcess, FromWorker], None],
        on_lost: Callable[[WorkerProcess, str], None],
    ) -> None:
        self.ident = hello.worker
        self.hello = hello
        self.spec = hello.spec
        #: Set once the worker has introduced itself.
        self.arena: Arena | None = None
        self._on_message = on_message
        self._on_lost = on_lost
        self._decoder = msgspec.msgpack.Decoder(FromWorker)
        self._backlog: deque[tuple[ToWorker, list[int] | None]] = deque()
        self._loop = asyncio.get_running_loop()
        self._open = True
        self._stopping = False
        self._sock, theirs = pair()
        self._sock.setblocking(False)
        environment = dict(os.environ)
        # One lane is one core's work; libraries that bring threads of their own would take the others'.
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dovetail.live.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        theirs.close()
        self._loop.add_reader(self._sock.fileno(), self._readable)
        self.send(hello, [front_arena.fd])

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def send(self, message: ToWorker, fds: list[int] | None = None) -> None:
        """Send now if the doorbell has room, else as soon as it has; order is kept."""
        if not self._open:
            return
        if not self._backlog:
            try:
                send(self._sock, message, fds)
                return
            except BlockingIOError:
                self._loop.add_writer(self._sock.fileno(), self._writable)
            except (BrokenPipeError, ConnectionResetError):
                return  # the reader side will report the loss
        # The descriptor may be closed by its owner before it can be sent.
        self._backlog.append((message, None if fds is None else [os.dup(fd) for fd in fds]))

    def _writable(self) -> None:
        while self._backlog:
            message, fds = self._backlog[0]
            try:
                send(self._sock, message, fds)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._backlog.clear()
                break
            for fd in fds or ():
                os.close(fd)
            self._backlog.popleft()
        self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        # A bounded number of packets each time, so that one busy worker cannot keep the loop from the others.
        for _ in range(64):
            try:
                packet = receive(self._sock, self._decoder)
            except BlockingIOError:
                return
            except (ConnectionResetError, msgspec.DecodeError) as error:
                self._lost(f"its doorbell broke: {error}")
                return
            if packet is None:
                self._lost("")
                return
            message, fds = packet
            if isinstance(message, Ready):
                self.arena = Arena.attach(self.ident, fds[0])
            self._on_message(self, message)
            if not self._open:
                return

    def _lost(self, why: str) -> None:
        self._shut()
        if self._stopping:
            return
        try:
            code: int | None = self.process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if not why:
            why = f"killed by signal {-code}" if code and code < 0 else f"exited with status {code}"
        self._on_lost(self, why)

    def _shut(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()

    async def stop(self) -> None:
        """Ask it to end, and see that it does."""
        self._stopping = True
        self.send(Stop())
        for _ in range(round(STOP_SECONDS / 0.02)):
            if self.process.poll() is not None:
                break
            await asyncio.sleep(0.02)
        else:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=1.0)
        self._shut()

    def kill(self) -> None:
        """End it the hard way, now."""
        self._stopping = True
        self.process.kill()
        self.process.wait()
        self._shut()
