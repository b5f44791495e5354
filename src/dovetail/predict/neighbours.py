"""What an estimator asks of the model of interference, and what it tells it.

Rules of this file
- Where neighbours are not felt (`interference.presence`), every time is the time alone: plans do not change because
  somebody might be there. Who ran beside whom is told there now and then only, which keeps the cost down.
- Where they are felt, what they cost is taken off a time before it counts for the time alone.
- What a plan counts on that does not know its neighbours yet is the usual company of its model, and somewhat more.
  Company that is dearer than usual makes somebody late, and cheaper company gains little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from ..state.worker import FULL_SHARE
from .estimate import Estimate
from .interference import Beside, Interference, InterferenceState, Load, Work, ends_ns

__all__ = ["Neighbours"]

#: Where nothing is felt after so many batches beside others, it is enough to look now and then. [our choice]
_FIRST: Final = 64
#: A batch alone says what the time alone is for so many batches beside others, and many of them for so many at most.
_ALONE_FOR: Final = 4
_MOST_FOR: Final = 32
#: Usual company is told in steps of about five per cent, so that plans are not made anew for nothing. [our choice]
_STEPS: Final = 20
#: Deviations above the mean that a plan counts on. Of 0, 0.5 and 1 this left the fewest late in both classes on 12
#: simulated seeds, and of 0, 0.3, 0.5 and 0.7 on 20 others (docs/results/interference.md). [our choice]
_CAUTION: Final = 0.5


class Neighbours:
    """The model of interference as the estimator uses it."""

    __slots__ = ("_alone", "model")

    def __init__(self, model: Interference) -> None:
        self.model = model
        #: (kind, model, items, share) -> for how many more batches beside others its time alone is known well.
        self._alone: dict[tuple[str, str, int, int], int] = {}

    def felt(self, kind: str) -> bool:
        """Whether neighbours are known to cost anything on this kind of device."""
        return self.model.felt(kind)

    def curious(self, kind: str) -> bool:
        """Whether every batch is of interest: while little was seen, and where neighbours are felt."""
        return not self.model.has_seen(kind) or self.felt(kind) or self.model.kind(kind).presence.count < _FIRST

    def beside(self, kind: str, load: Load, alone: Estimate, others: Sequence[Load]) -> Estimate:
        """The time alone and what neighbours add to it; both may be wrong, independently."""
        if not self.model.felt(kind):
            return alone
        said = self.model.predict(kind, load, alone.mean_ns, others)
        return Estimate(said.median_ns, math.hypot(alone.spread, said.deviation * said.caution), alone.source)

    def usual(self, kind: str, load: Load, alone: Estimate) -> Estimate:
        """The time in the company that batches of this model have of late."""
        if load.share_pct >= FULL_SHARE or not self.model.felt(kind):
            return alone
        mean, variance = self.model.kind(kind).stretches.of(load.model)
        deviation = math.sqrt(variance)
        steps, wider = round(_STEPS * (mean + _CAUTION * deviation)), round(_STEPS * deviation)
        if steps <= 0 and wider <= 0:
            return alone
        spread = math.hypot(alone.spread, wider / _STEPS)
        return Estimate(round(alone.mean_ns * math.exp(max(0, steps) / _STEPS)), spread, alone.source)

    def ends_ns(self, kind: str, works: Sequence[Work]) -> list[float]:
        """When each of these ends who run on one device, and who wait there for room: the work integral."""
        if len(works) == 1 or not self.model.felt(kind):
            return ends_ns(works, _nobody, room_pct=FULL_SHARE)
        return ends_ns(works, self.model.slowdowns(kind), room_pct=FULL_SHARE)

    def slowdown(self, kind: str, load: Load, others: Sequence[Load]) -> float:
        """How many times as long it takes beside these."""
        return self.model.slowdown(kind, load, others) if others and self.model.felt(kind) else 1.0

    def factor(self, kind: str, load: Load, others: Sequence[Load], level: float) -> float:
        """How many times as long as predicted it takes at most, with this chance."""
        return self.model.factor(kind, load, others, level)

    def held(self, kind: str, said_ns: int, duration_ns: int) -> None:
        """A batch was said to take so long when it began, and took so long: whoever came later is in it."""
        if said_ns > 0 and duration_ns > 0 and self.model.felt(kind):
            self.model.kind(kind).held(math.log(duration_ns / said_ns))

    def saw_alone(self, kind: str, load: Load, alone: Estimate, duration_ns: int) -> None:
        """A batch was alone. That is of interest only where others are not."""
        if not self.model.has_seen(kind) or alone.source == "guess":
            return
        key = kind, load.model, load.items, load.share_pct
        self._alone[key] = min(_MOST_FOR, self._alone.get(key, 0) + _ALONE_FOR)
        of = self.model.kind(kind)
        of.presence.saw_alone(math.log(max(1, duration_ns) / max(1, alone.mean_ns)))
        if of.presence.felt and load.share_pct < FULL_SHARE:
            of.stretches.add(load.model, 0.0)

    def saw(self, kind: str, load: Load, alone: Estimate, duration_ns: int, beside: Sequence[Beside]) -> int:
        """Learn from a batch that was not alone.

        Returns how long it would have taken alone, as far as is known; 0 if that is known better from others.
        """
        model = self.model
        if alone.source == "guess" or alone.mean_ns <= 0 or duration_ns <= 0:
            return duration_ns
        if not model.has_seen(kind):
            model.observe(kind, load, alone.mean_ns, duration_ns, beside)
            model.kind(kind).presence.saw_beside(math.log(duration_ns / alone.mean_ns))
            return duration_ns
        of = model.kind(kind)
        of.presence.saw_beside(math.log(duration_ns / alone.mean_ns))
        if not of.presence.felt:
            model.observe(kind, load, alone.mean_ns, duration_ns, beside)
            return 0 if self._knows_better(kind, load, alone) else duration_ns
        slow = model.over(kind, load, alone.mean_ns, beside) / alone.mean_ns
        if load.share_pct < FULL_SHARE:
            of.stretches.add(load.model, math.log(slow))
        model.observe(kind, load, alone.mean_ns, duration_ns, beside)
        return 0 if self._knows_better(kind, load, alone) else round(duration_ns / slow)

    def _knows_better(self, kind: str, load: Load, alone: Estimate) -> bool:
        """Whether a learned time alone is known from batches that were alone."""
        key = kind, load.model, load.items, load.share_pct
        known = self._alone.get(key, 0)
        if known:
            self._alone[key] = known - 1
        return known > 0 and alone.source == "learned"

    def state(self) -> InterferenceState | msgspec.UnsetType:
        """All that was learned; nothing at all while nobody was beside anybody."""
        return self.model.state() or msgspec.UNSET


def _nobody(victim: Load, others: Sequence[Load]) -> float:
    return 1.0
