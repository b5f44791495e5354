"""A worker's end of the doorbell to one ingress: answers go at once, or wait here until there is room for them."""

from __future__ import annotations

import contextlib
import select
import threading
from collections import deque
from collections.abc import Sequence

from ..links.doorbell import Doorbell
from ..links.wire import FromWorker, State, ToWorker

__all__ = ["HEAR", "Link"]

#: A thread that is woken for a descriptor has it for itself until it asks to hear of it again.
HEAR = select.EPOLLIN | select.EPOLLONESHOT


class Link:
    """One ingress. Safe to send to from any thread."""

    __slots__ = ("_answers", "_lock", "_poll", "doorbell", "ingress")

    def __init__(self, doorbell: Doorbell[ToWorker], ingress: int, poll: select.epoll) -> None:
        self.doorbell = doorbell
        #: -1 until it has said who it is.
        self.ingress = ingress
        self._poll = poll
        self._answers: deque[tuple[FromWorker, list[int]]] = deque()
        self._lock = threading.Lock()

    def send(self, message: FromWorker, fds: Sequence[int] = ()) -> None:
        """Send at once; whoever listens takes over if the doorbell is full. Raises OSError if the ingress is gone."""
        with self._lock:
            if not self._answers:
                try:
                    self.doorbell.send(message, fds)
                    return
                except BlockingIOError:
                    pass
            elif isinstance(message, State):
                return  # it would be old when its turn comes, and for one that does not listen they would pile up
            self._answers.append((message, list(fds)))
        self.hear()

    def flush(self) -> None:
        """Send what waits, as far as there is room. Raises OSError if the ingress is gone."""
        with self._lock:
            while self._answers:
                try:
                    self.doorbell.send(*self._answers[0])
                except BlockingIOError:
                    return
                self._answers.popleft()

    def hear(self) -> None:
        """Let a thread be woken by the doorbell again."""
        with self._lock, contextlib.suppress(FileNotFoundError, ValueError):
            blocked = select.EPOLLOUT if self._answers else 0
            self._poll.modify(self.doorbell.fileno(), HEAR | blocked)

    def close(self) -> None:
        """Hang up; what waits is dropped."""
        with self._lock:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(self.doorbell.fileno())
            self.doorbell.close()
            self._answers.clear()
