"""A worker, what it was asked and what it said. Laws that can be read off are checked as it speaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from tests.contract.sim_world import World
from tests.contract.worlds import Setup

from dovetail.control import BatchFailed, BatchFinished, Event, LoadFailed, ModelEvicted, ModelLoaded, RunBatch
from dovetail.state.run_batch import NEVER_NS
from dovetail.workflow.graph import StageSpec

__all__ = ["TRIES", "Key", "Observed"]

#: How often batches may miss each other, on a machine that is busy with something else.
TRIES = 20
#: A batch: its ingress and its number there.
Key = tuple[int, int]


class _Books:
    """What one ingress knows of the worker's models."""

    def __init__(self, resident: dict[str, int]) -> None:
        self.resident = resident
        self.loads: Counter[str] = Counter()
        self.evictions: list[ModelEvicted] = []
        self.failures: list[LoadFailed] = []


class Observed:
    """A world that is asked by `ingress`, unless another one is named.

    Every batch is answered once, to whom it belongs, inside its window and on a model that was there; the bytes of
    models that are there are within the budget; every eviction has a reason and is of a model that was there.
    """

    def __init__(self, setup: Setup, world: World, stages: dict[str, StageSpec]) -> None:
        self.setup = setup
        self.world = world
        self.stages = stages
        self.ingress = 0
        self.answers: dict[Key, Any] = {}
        #: Batches that are not answered yet.
        self.open: dict[Key, RunBatch] = {}
        self.books: dict[int, _Books] = {0: _Books({})}
        self._sizes: dict[str, int] = {}
        #: Each ingress counts its own batches: number of the last.
        self._numbers: Counter[int] = Counter()

    # -- asking -------------------------------------------------------------------------------------------------

    def run(
        self, stage: str = "quick", *, items: int = 1, value: Any = None, ingress: int | None = None, **options: Any
    ) -> Key:
        """Ask for a batch."""
        ingress = self.ingress if ingress is None else ingress
        self._numbers[ingress] = number = self._numbers[ingress] + 1
        decided = RunBatch(
            number,
            number,
            1,
            stage,
            tuple((i + 1, 0, 0) for i in range(items)),
            1,
            options.pop("share_pct", 100),
            options.pop("earliest_ns", 0),
            options.pop("latest_ns", NEVER_NS),
            0,
            ingress=ingress,
            **options,
        )
        self.open[ingress, number] = decided
        self.world.run(decided, value)
        return ingress, number

    def count_alike(self) -> None:
        """The next batches of all ingresses have the same numbers."""
        last = max(self._numbers.values())
        for ingress in self.books:
            self._numbers[ingress] = last

    def while_busy(self, ask: Callable[[], list[Key]]) -> tuple[list[Key], list[Key]]:
        """What `ask` asks for comes while the device is busy with the highest class; both, when all is answered."""
        self.answer("long")
        for _ in range(TRIES):
            first = [self.run("long") for _ in range(2)]
            self.until_taken(self.ingress)
            asked = ask()
            for ingress in sorted(self.books.keys() - {self.ingress}):
                self.until_taken(ingress)
            self.until_taken(self.ingress)
            # What has not ended before the last word of this ingress was heard had not when the others were.
            busy = first[-1] in self.open
            self.until_answered()
            if busy:
                return first, asked
        raise AssertionError("the device was never busy for so long")

    def until_taken(self, ingress: int) -> None:
        """Messages of an ingress are taken in order: when one is refused, all before it are in the queue."""
        self.until_answered(self.run("unknown", ingress=ingress))

    def load(self, stage: str, *, keep: bool = True, ingress: int | None = None) -> None:
        """Order a model, or hint at it."""
        self.world.load(stage, self.ingress if ingress is None else ingress, keep=keep)

    def evict(self, stage: str, ingress: int | None = None) -> None:
        """Ask that a model goes."""
        self.world.evict(stage, self.ingress if ingress is None else ingress)

    def join(self, ingress: int) -> None:
        """Another ingress comes, if it is not here."""
        if ingress not in self.books:
            resident = self.world.join(ingress)
            self.books[ingress] = _Books({weights: self._sizes[weights] for weights in resident})

    def leave(self, ingress: int) -> None:
        """It goes, with whatever it has asked for."""
        if ingress in self.books:
            self.world.leave(ingress)
            self.forget(ingress)

    def forget(self, ingress: int) -> None:
        """It is gone."""
        del self.books[ingress]
        for key in [key for key in self.open if key[0] == ingress]:
            del self.open[key]

    # -- hearing ------------------------------------------------------------------------------------------------

    def hear(self) -> tuple[int, Event]:
        """The next event, and which ingress has heard it."""
        ingress, event = self.world.next_event()
        books = self.books[ingress]
        if isinstance(event, ModelLoaded):
            weights = self.stages[event.stage].weights
            books.loads[weights] += weights not in books.resident
            books.resident[weights] = self._sizes[weights] = event.nbytes
            assert not self.setup.scarce or sum(books.resident.values()) <= self.setup.memory_bytes
        elif isinstance(event, ModelEvicted):
            assert books.resident.pop(event.weights) == event.nbytes
            assert event.reason
            books.evictions.append(event)
        elif isinstance(event, LoadFailed):
            books.failures.append(event)
        elif isinstance(event, BatchFinished | BatchFailed):
            assert event.ingress == ingress
            self._answered(ingress, event)
        return ingress, event

    def _answered(self, ingress: int, event: BatchFinished | BatchFailed) -> None:
        key = ingress, event.batch
        asked = self.open.pop(key)  # KeyError: answered twice, or never asked for
        self.answers[key] = event
        assert event.cause == asked.cause
        assert event.begin_ns <= event.end_ns <= event.at_ns
        if isinstance(event, BatchFinished):
            assert asked.earliest_ns <= event.begin_ns <= asked.latest_ns
            assert self.stages[asked.stage].weights in self.books[ingress].resident, (
                "ran on a model that was not here"
            )
        elif event.reason == "too_late":
            assert event.begin_ns == event.end_ns, "refused without running"
            assert key not in self.world.results

    def answer(self, stage: str = "quick", **options: Any) -> Any:
        """The answer to one batch, when all that was asked before is answered, too."""
        key = self.run(stage, **options)
        self.until_answered()
        return self.answers[key]

    def until_answered(self, *keys: Key) -> None:
        """Hear until these batches are answered, or all."""
        while self.open and (not keys or any(key in self.open for key in keys)):
            self.hear()

    def until_told(self, kind: type[Any], stage: str, ingress: int | None = None) -> Any:
        """Hear until an ingress was told such a thing of the model of a stage."""
        wanted = self.ingress if ingress is None else ingress
        weights = self.stages[stage].weights
        while True:
            who, event = self.hear()
            if who != wanted or not isinstance(event, kind):
                continue
            about = event.weights if isinstance(event, ModelEvicted) else self.stages[event.stage].weights
            if about == weights:
                return event

    def order(self, keys: Collection[Key]) -> list[Key]:
        """These batches in the order in which they were answered."""
        return [key for key in self.answers if key in keys]

    # -- between tests ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """All is answered; two more batches of each ingress, one after the other: what would come twice has come."""
        for _ in range(2):
            for ingress in sorted(self.books):
                self.until_answered()
                self.run("quick", ingress=ingress)
        self.until_answered()

    def empty(self) -> None:
        """Leave the worker without a model but that of `quick`, which is small; and start counting."""
        self.settle()
        for stage, spec in self.stages.items():
            if stage != "quick" and any(spec.weights in books.resident for books in self.books.values()):
                for ingress in sorted(self.books):  # whoever has ordered it
                    self.evict(stage, ingress)
                while any(spec.weights in books.resident for books in self.books.values()):
                    self.hear()
        self.settle()
        for books in self.books.values():
            books.loads.clear()
            books.evictions.clear()
            books.failures.clear()
        self.answers.clear()

    # -- what this ingress knows --------------------------------------------------------------------------------

    def weights(self, *stages: str) -> set[str]:
        """Models of these stages."""
        return {self.stages[stage].weights for stage in stages}

    @property
    def mine(self) -> _Books:
        """The books of the ingress that asks."""
        return self.books[self.ingress]
