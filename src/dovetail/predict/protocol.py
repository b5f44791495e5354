"""What everybody asks who wants to know how long something takes: the only place that says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ..profile.kernels import KernelStats
from ..state import Config
from ..workflow.graph import StageSpec
from .estimate import Estimate
from .interference import Beside, Load, Work
from .kernel_pairs import KernelPairs
from .state import EstimatorState

__all__ = ["Predictor"]


class Predictor(Protocol):
    """Answers how long, and is told how long it was."""

    @property
    def kernels(self) -> Mapping[str, KernelStats]:
        """What is known of sequences of kernels, by name: always as it is now."""
        ...

    @property
    def knows_neighbours(self) -> bool:
        """Whether it learns what neighbours cost, and so wants to be told who ran beside whom."""
        ...

    def run(self, stage: StageSpec, kind: str, items: int, config: Config, beside: Sequence[Load] = ()) -> Estimate:
        """Run time of a batch of `items` of `stage` in `config` on a device of that kind, beside these."""
        ...

    def usual(self, stage: StageSpec, kind: str, items: int, config: Config) -> Estimate:
        """The same in the company that batches of this stage have of late: what a plan counts on."""
        ...

    def felt(self, kind: str) -> bool:
        """Whether neighbours are known to cost anything on this kind of device."""
        ...

    def curious(self, kind: str) -> bool:
        """Whether it wants to be told of every batch who was beside it, or only now and then."""
        ...

    def slowdown(self, kind: str, load: Load, others: Sequence[Load]) -> float:
        """How many times as long such a batch takes beside these."""
        ...

    def ends_ns(self, kind: str, works: Sequence[Work]) -> list[float]:
        """When each of these ends who share a device, from now on: those who run, and then those who wait for room.

        Work that is left falls at the rate 1/slow-down, looked at again whenever somebody ends or begins.
        """
        ...

    def factor(self, kind: str, load: Load, others: Sequence[Load], level: float) -> float:
        """How many times as long as predicted such a batch takes beside these at most, with this chance."""
        ...

    def load_of(self, stage: StageSpec, kind: str, items: int, config: Config) -> Load:
        """Such a batch as its neighbours feel it."""
        ...

    def load(self, weights: str, nbytes: int, kind: str) -> Estimate:
        """Time to bring a model (`StageSpec.weights`) of so many bytes into the memory of a device of that kind."""
        ...

    def turnaround(self, kind: str = "") -> Estimate:
        """From the end of a batch to the arrival of its requests' next one at the same device."""
        ...

    def declare(self, stages: Iterable[StageSpec]) -> None:
        """These stages will be asked for: what their profiles say of loads counts for their models."""
        ...

    def observe_run(
        self,
        stage: StageSpec,
        kind: str,
        items: int,
        config: Config,
        duration_ns: int,
        beside: Sequence[Beside] = (),
        said_ns: int = 0,
    ) -> None:
        """A batch had the device for so long, beside these; when it began it was said to take `said_ns`, if not 0."""
        ...

    def observe_load(self, weights: str, kind: str, duration_ns: int) -> None:
        """A load took so long."""
        ...

    def observe_turnaround(self, duration_ns: int, kind: str = "") -> None:
        """The next batch came so long after the end of the one before."""
        ...

    def sequence(self, name: str, identities: Sequence[str]) -> KernelStats | None:
        """A task of these kernels begins: the statistics to read and to observe into. None: none are kept of it."""
        ...

    def pairs(self, kind: str) -> KernelPairs:
        """What kernels cost each other that run side by side on a device of that kind."""
        ...

    def learn(self, others: Iterable[KernelStats]) -> None:
        """Add what others have observed of kernels."""
        ...

    def state(self) -> EstimatorState:
        """All that was learned, as plain data."""
        ...

    def news(self, most: int) -> list[KernelStats]:
        """What was observed of kernels here since this was last asked, of at most so many sequences."""
        ...
