"""Which models of a worker are to run in kernels, by what workflows declare and by what is seen of batches.

Rules of this file
- A model is to be cut where a batch of a lower class could be in the way of a higher one.
- So is one whose batches take longer than their stage's quota of a window: each would overrun its token, and what
  its client has of the time would come in steps of a whole batch. It takes several batches in a row to say so: the
  machine may be slow for a moment. What was said once stays. That is so among equals only: a batch of the highest of
  several classes is not to be stopped half-way because its quota is used up.
- "always" and "never" override both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from ...state.run_batch import FULL_QUOTA
from ...state.slice import QUOTA_WINDOW_NS

__all__ = ["OVERRUNS", "CutWish"]

#: So many batches in a row have to take longer than their quota of a window [our choice].
OVERRUNS: Final = 2


class CutWish:
    """Knows the classes that were seen, and the batches that took long."""

    def __init__(
        self,
        mode: Literal["auto", "always", "never"],
        lowest: Mapping[str, int],
        highest: int,
        quotas: Mapping[str, int],
    ) -> None:
        """`lowest` is the lowest class of each stage, `quotas` those that stages declare, in per cent."""
        self._mode = mode
        self._lowest = dict(lowest)
        #: The highest class of all.
        self.highest = highest
        self._quotas = {stage: pct for stage, pct in quotas.items() if pct}
        #: Stage -> batches in a row that took longer than its quota of a window; it stays at `OVERRUNS`.
        self._overruns: dict[str, int] = {}
        self._overran = False
        #: Whether it matters here how long kernels take: batches of several classes may meet, or one overruns.
        self.several = False
        self._meet()

    def _meet(self) -> None:
        lower = max(self._lowest.values(), default=1) > self.highest
        self.several = self._mode == "always" or (
            self._mode == "auto" and (lower or OVERRUNS in self._overruns.values())
        )

    def wanted(self, stages: Iterable[str], *, heavy: bool = False) -> bool:
        """Whether the model of these stages is to be cut; a heavy one takes too much memory in kernels."""
        if self._mode != "auto" or heavy:
            return self._mode == "always"
        lowest, highest = self._lowest, self.highest
        overruns = self._overruns if max(lowest.values(), default=1) == highest else {}
        return any(lowest.get(name, 1) > highest or overruns.get(name) == OVERRUNS for name in stages)

    def saw(self, stage: str, priority: int) -> bool:
        """A batch of this class has come for a stage; whether other models may be wanted in kernels since."""
        if self._mode != "auto":
            return False
        known = priority >= self.highest and priority <= self._lowest.get(stage, 1)
        if known and not self._overran:
            return False
        self._overran = False
        self.highest = min(self.highest, priority)
        self._lowest[stage] = max(self._lowest.get(stage, 1), priority)
        self._meet()
        return True

    def took(self, stage: str, busy_ns: int) -> None:
        """A batch of a stage has ended, not the first of its size, and kept a lane for so long; `saw` tells of it."""
        quota_pct, before = self._quotas.get(stage, 0), self._overruns.get(stage, 0)
        if quota_pct and before < OVERRUNS:
            over = busy_ns * FULL_QUOTA > quota_pct * QUOTA_WINDOW_NS
            self._overruns[stage] = now = before + 1 if over else 0
            self._overran = self._overran or now == OVERRUNS
