"""Workers that another front has started and shares, and the fleet of a front that has joined them.

Rules of this file
- A worker is joined at its socket, once. One that was started again has a new number and a new socket.
- Its loss is the end of the connection. The front that started it brings another, and this one finds it.
- A worker that hangs or breaks the protocol is killed, whoever has started it: no front is served by it any more.
- Python stages run in host workers of this front's own, so that every front has its own copy of the user's code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from ...state import WorkerSpec
from ..links.doorbell import widen
from ..links.wire import FromWorker, Join, Ready, Refused, Welcome
from ..tensors.arena import Arena
from .fleet import Fleet
from .link import WorkerLink
from .settings import Settings
from .share import JoinedFront

__all__ = ["JoinedFleet", "JoinedWorker"]

_CREDENTIALS = struct.Struct("3i")  # process, user and group of the other end


class JoinedWorker(WorkerLink):
    """One worker that listens at `path`. Raises OSError if nobody does. `on_lost` is called once and last."""

    def __init__(
        self,
        path: Path,
        ingress: int,
        front_arena: Arena,
        on_message: Callable[[WorkerLink, FromWorker], None],
        on_lost: Callable[[JoinedWorker, str], None],
    ) -> None:
        super().__init__(on_message)
        self.ident = -1  # until it has said who it is
        self.path = path
        self._on_lost = on_lost
        self._lost = False
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.setblocking(False)
            widen(sock)
            sock.connect(os.fspath(path))
            credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            self._pid = int(_CREDENTIALS.unpack(credentials)[0])
            self._pidfd = os.pidfd_open(self._pid)
        except BaseException:
            sock.close()
            raise
        self._connect(sock)
        self.send(Join(ingress), [front_arena.fd])

    @property
    def pid(self) -> int:
        """Process id."""
        return self._pid

    def kill(self, why: str) -> None:
        """End the process. Its loss is reported with this reason."""
        self._why = self._why or why
        self._hang_up()
        if not self._lost:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self._loop.call_soon(self._hung_up)

    async def stop(self) -> None:
        """Leave it to the others."""
        self.leave()

    def leave(self) -> bool:
        """Leave it to the others; its loss is not reported. Says whether it was joined until now."""
        if self._lost:
            return False
        self._lost = True
        self._hang_up()
        os.close(self._pidfd)
        return True

    def _introduced(self, message: Ready | Welcome) -> None:
        if self.arena is not None or isinstance(message, Ready):
            raise ValueError("it has introduced itself before")
        self.ident, self.spec = message.worker, message.spec

    def _hung_up(self) -> None:
        if self.leave():
            self._on_lost(self, self._why or "the connection has ended")


class JoinedFleet(Fleet):
    """Workers that are shared by the front that started them, and host workers of our own."""

    def __init__(
        self,
        settings: Settings,
        share: JoinedFront,
        on_message: Callable[[WorkerLink, FromWorker], None],
        on_lost: Callable[[WorkerLink, str], None],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(settings, share.origin_ns, on_message, on_lost, say, share=share)
        self._directory = share
        #: Workers that were asked, and those that were joined and lost, by socket.
        self._joined: dict[Path, JoinedWorker] = {}
        self._over: set[Path] = set()

    def start(self, specs: Sequence[WorkerSpec]) -> None:
        """Start host workers, and join all others that are there."""
        super().start([spec for spec in specs if spec.on_host])
        self.sweep()

    def sweep(self) -> None:
        """Join workers that have come."""
        found = self._directory.sockets()
        self._over.intersection_update(found)
        for path in found:
            if path not in self._joined and path not in self._over:
                # Nobody listens there if its worker is starting, or was killed together with its front.
                with contextlib.suppress(OSError):
                    self._joined[path] = JoinedWorker(path, self._ingress, self.memory.front, self._heard, self._left)

    def _heard(self, worker: WorkerLink, message: FromWorker) -> None:
        assert isinstance(worker, JoinedWorker)
        if isinstance(message, Refused):
            # It is asked again at the next sweep: what a predecessor of ours has asked for may have ended by then.
            self._forget(worker)
        elif not isinstance(message, Welcome):
            self._on_message(worker, message)
        elif message.origin_ns != self._origin_ns:
            self._over.add(worker.path)
            self._forget(worker)
            self._say(
                f"worker {worker.spec.name} (pid {worker.pid}) counts time from another moment than this front and "
                f"is not joined; start this front again"
            )
        else:
            self.workers[worker.ident] = worker
            if message.ready.weighed:
                self.weighed[worker.spec.kind] = message.ready.weighed
            self._on_message(worker, message.ready)

    def _forget(self, worker: JoinedWorker) -> None:
        del self._joined[worker.path]
        worker.leave()
        if worker.arena is not None:
            worker.arena.close()

    def _left(self, worker: JoinedWorker, why: str) -> None:
        del self._joined[worker.path]
        if self.workers.pop(worker.ident, None) is None:
            return
        self._over.add(worker.path)
        self._on_lost(worker, why)
        self.memory.lose(worker.ident)
        self._say(f"worker {worker.spec.name} (pid {worker.pid}) is lost: {why}; joining it again when it is back")

    async def stop(self) -> None:
        """End our host workers, and leave the others."""
        for worker in self._joined.values():
            worker.leave()
        await super().stop()
