"""The front's end of a worker's doorbell: what is sent and heard, in order, and nothing ever waits.

How a worker came to be is not known here. `process` starts one, `joined` joins one that another front has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from ...state import WorkerSpec
from ..links.doorbell import Doorbell
from ..links.wire import Done, FromWorker, Ready, Refused, ToWorker, Welcome
from ..tensors.arena import Arena

__all__ = ["WorkerLink", "close_all"]


class WorkerLink(ABC):
    """One worker. `on_message` is called by the event loop."""

    ident: int
    spec: WorkerSpec
    _doorbell: Doorbell[FromWorker]

    def __init__(self, on_message: Callable[[WorkerLink, FromWorker], None]) -> None:
        #: Set once the worker has introduced itself.
        self.arena: Arena | None = None
        #: It hung or crashed at its work, and was not taken away.
        self.at_fault = False
        #: When it is lost, another one is started in its place.
        self.replaced = False
        #: It has run a batch: it works.
        self.answered = False
        self._on_message = on_message
        self._backlog: deque[tuple[ToWorker, list[int]]] = deque()
        self._loop = asyncio.get_running_loop()
        #: Why it is to be gone, if it was us who decided, or what it said itself.
        self._why = ""
        self._ringing = False

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id."""

    @abstractmethod
    def kill(self, why: str) -> None:
        """End the process, whoever has started it. Its loss is reported with this reason."""

    @abstractmethod
    async def stop(self) -> None:
        """Be done with it; its loss is not reported."""

    @abstractmethod
    def _introduced(self, message: Ready | Welcome) -> None:
        """It says who it is. Raises ValueError if it should not."""

    @abstractmethod
    def _hung_up(self) -> None:
        """The other end was closed."""

    def _connect(self, sock: socket.socket) -> None:
        """The socket is the doorbell from now on."""
        sock.setblocking(False)
        self._doorbell = Doorbell(sock, FromWorker)
        self._ringing = True
        # One message a turn: no worker keeps the loop from the others, and a second is mostly not there.
        self._loop.add_reader(self._doorbell.fileno(), self._take_one)

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
                return  # it is dying, as we shall hear
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
            close_all(fds)
        self._drop_backlog()
        self._loop.remove_writer(self._doorbell.fileno())

    def _drop_backlog(self) -> None:
        while self._backlog:
            close_all(self._backlog.popleft()[1])

    def _take_one(self) -> bool:
        """Take one message; False if there is none."""
        try:
            packet = self._doorbell.receive()
        except BlockingIOError:
            return False
        except (OSError, msgspec.DecodeError) as error:
            if isinstance(error, ConnectionResetError):
                self._hung_up()  # it died with messages unread
            else:
                self.kill(f"its doorbell broke: {error}")
            return False
        if packet is None:
            self._hung_up()
            return False
        message, fds = packet
        try:
            if type(message) is Done:  # nearly all are
                self.answered = True
            elif isinstance(message, Ready | Welcome):
                self._introduced(message)
                self.arena = Arena.attach(self.ident, fds.pop(0))
            elif isinstance(message, Refused):
                self._why = message.detail
        except (IndexError, OSError, ValueError) as error:
            self.kill(f"it brought no arena: {error}")
            return False
        finally:
            if fds:
                close_all(fds)
        self._on_message(self, message)
        return True

    def _hang_up(self) -> None:
        if self._ringing:
            self._ringing = False
            self._loop.remove_reader(self._doorbell.fileno())
            self._loop.remove_writer(self._doorbell.fileno())
            self._doorbell.close()
            self._drop_backlog()


def close_all(fds: list[int]) -> None:
    """Close descriptors that nobody took."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
