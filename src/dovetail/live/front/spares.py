"""Worker processes that are there before anybody asks for them: one more begins at once, and not in seconds.

A spare is a whole worker. It has started and introduced itself, and its models are loaded. Only the controller does
not know of it, until `Fleet.grow` puts it among the workers.

Rules of this file
- There are so many at the most, and never more workers and spares together than there may be workers.
- A spare that is missing is started some seconds after the last change, so that it is not in the way of a worker that
  has just been asked for.
- What a spare says of itself is kept until it joins. Models that the controller orders then are there, which is
  answered as ever.
- Models are loaded as far as they fit together. Where they do not, the spare brings what its batches need.
- One that dies is started again, more and more rarely. It is nobody's loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...state import WorkerSpec
from ...workflow.graph import StageSpec
from ..links.wire import FromWorker, Load, Ready, State, ToWorker
from .process import WorkerProcess

__all__ = ["Spares"]

#: How long after the last change a missing spare is started [our choice]: a worker takes two seconds to start.
CALM_SECONDS: Final = 3.0
#: The longest pause after one that died.
MOST_CALM_SECONDS: Final = 60.0


class Spares:
    """Keeps `most` of them. `next_one` says which worker would come next, or None if there may be no more."""

    def __init__(
        self,
        most: int,
        stages: Iterable[StageSpec],
        next_one: Callable[[], WorkerSpec | None],
        start: Callable[[WorkerSpec], WorkerProcess],
        say: Callable[[str], None],
    ) -> None:
        #: Those that are there, by number, the oldest first.
        self.workers: dict[int, WorkerProcess] = {}
        self._most = most
        self._stages = list(stages)
        self._next_one = next_one
        self._start = start
        self._say = say
        self._heard: dict[int, list[FromWorker]] = {}
        self._deaths = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def look(self, wait_s: float = CALM_SECONDS) -> None:
        """Something has changed: see in a while whether one is missing."""
        if self._most:
            self.rest()
            self._timer = self._loop.call_later(wait_s, self._fill)

    def rest(self) -> None:
        """Start none from now on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fill(self) -> None:
        self._timer = None
        if len(self.workers) >= self._most or (spec := self._next_one()) is None:
            return
        try:
            worker = self._start(spec)
        except OSError as error:
            self._say(f"spare worker {spec.name} could not be started: {error}")
            self._again()
            return
        self.workers[worker.ident] = worker
        self._heard[worker.ident] = []
        self.look()

    def _again(self) -> None:
        self._deaths += 1
        self.look(min(MOST_CALM_SECONDS, CALM_SECONDS * 2**self._deaths))

    def take(self) -> tuple[WorkerProcess, Sequence[FromWorker]] | None:
        """The oldest one, which joins, and what it has said of itself; None if there is none."""
        ident = next(iter(self.workers), 0)
        if not ident:
            return None
        self._deaths = 0
        self.look()
        return self.workers.pop(ident), self._heard.pop(ident)

    def heard(self, worker: WorkerProcess, message: FromWorker) -> None:
        """A spare has said something."""
        if isinstance(message, Ready):
            self._heard[worker.ident].append(message)
            self._load(worker)
        elif isinstance(message, State):  # the last one counts
            self._heard[worker.ident][1:] = [message]

    def _load(self, worker: WorkerProcess) -> None:
        budget = worker.spec.memory_bytes
        models = {s.weights: s for s in self._stages if s.kind in worker.spec.runs}
        if not budget or sum(stage.weights_bytes for stage in models.values()) <= budget:
            for stage in models.values():
                worker.send(Load(stage.name, 0))

    def tell(self, message: ToWorker) -> None:
        """What all workers are told, those that have introduced themselves."""
        for worker in self.workers.values():
            if worker.arena is not None:
                worker.send(message)

    def lost(self, worker: WorkerProcess, why: str) -> None:
        """One has died."""
        del self.workers[worker.ident], self._heard[worker.ident]
        if worker.arena is not None:
            worker.arena.close()
        self._say(f"spare worker {worker.spec.name} (pid {worker.pid}) is lost: {why}")
        self._again()

    async def stop(self) -> None:
        """End all of them."""
        self.rest()
        await asyncio.gather(*(worker.stop() for worker in self.workers.values()))
        for worker in self.workers.values():
            if worker.arena is not None:
                worker.arena.close()
        self.workers.clear()
