"""A worker's ingresses: its end of the doorbell to each, and which models they want to stay.

Answers go at once, or wait here until there is room for them. A model goes when the last ingress that wanted it has
dropped it, or is gone.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections import deque
from collections.abc import Iterable, Sequence

from ...workflow.graph import StageSpec
from ..links.doorbell import Doorbell
from ..links.wire import FromWorker, State, ToWorker
from .executor import BadMessage

__all__ = ["HEAR", "Link", "Orders"]

#: A thread that is woken for a descriptor has it for itself until it asks to hear of it again.
HEAR = select.EPOLLIN | select.EPOLLONESHOT
HEAR_ALL = HEAR | select.EPOLLOUT


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
        with self._lock:
            try:  # noqa: SIM105 - this is done for every message
                self._poll.modify(self.doorbell.fileno(), HEAR_ALL if self._answers else HEAR)
            except (FileNotFoundError, ValueError):
                pass  # it was closed meanwhile

    def close(self) -> None:
        """Hang up; what waits is dropped."""
        with self._lock:
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(self.doorbell.fileno())
            self.doorbell.close()
            self._answers.clear()


class Orders:
    """Orders of all ingresses of one worker."""

    def __init__(self, stages: Iterable[StageSpec]) -> None:
        self._weights = {stage.name: stage.weights for stage in stages}
        #: Weights -> who wants them, and the stage by which each has asked.
        self._wanted: dict[str, dict[int, str]] = {}

    def check(self, stage: str) -> str:
        """The weights of a stage that this worker was told of."""
        weights = self._weights.get(stage)
        if weights is None:
            raise BadMessage(f"nobody has told this worker of a stage {stage!r}")
        return weights

    def keep(self, ingress: int, stage: str) -> None:
        """An ingress wants the model of a stage to stay."""
        self._wanted.setdefault(self.check(stage), {})[ingress] = stage

    def drop(self, ingress: int, stage: str) -> bool:
        """An ingress wants it gone; whether it may, since no other one wants it to stay."""
        weights = self.check(stage)
        wanted = self._wanted.get(weights, {})
        wanted.pop(ingress, None)
        if wanted:
            return False
        self._wanted.pop(weights, None)
        return True

    def leave(self, ingress: int) -> list[str]:
        """An ingress is gone; stages whose models nobody else wants to stay."""
        mine = [wanted[ingress] for wanted in self._wanted.values() if ingress in wanted]
        return [stage for stage in mine if self.drop(ingress, stage)]
