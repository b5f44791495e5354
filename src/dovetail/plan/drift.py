"""What the frontiers of a workflow were made with, and whether that is still so: fan-outs, arrivals, times, scatter.

Rules of this file: a change of more than a quarter counts. It is noted (`stale`), and nothing else is done about it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..predict import Estimate, Predictor
from ..predict.running import MILLION, Mean
from ..state import Config
from ..workflow.graph import Graph, StageSpec

__all__ = ["MOST_SPREAD", "UNKNOWN_NS", "PlannedWith"]

#: Frontiers are made again when a fan-out, an interval between arrivals or a learned time has changed by more than a
#: quarter.
_CHANGE = 0.25
#: And when the usual company of a profiled stage makes it longer or shorter by more than this.
_COMPANY = 0.08
#: The largest spread that is planned with. Planned for the 99th percentile of a guess, or of what was seen once, all
#: configurations would be late, and none would be worth its price. [our choice]
MOST_SPREAD = 0.5
#: Wait for one more item where arrivals are not known yet: no batch is planned on.
UNKNOWN_NS = 1 << 50
#: Stage, kind of device, configuration.
_Timed = tuple[StageSpec, str, Config]


class PlannedWith:
    """What was planned with, beside what is seen."""

    def __init__(self, graph: Graph, predictor: Predictor) -> None:
        self._predictor = predictor
        #: Mapped node -> items per request, in millionths, as seen and as planned with.
        self._sizes = {i: Mean() for i, n in enumerate(graph.nodes) if n.mapped}
        self._planned_sizes = dict.fromkeys(self._sizes, MILLION)
        #: Stage -> interval between arrivals in its queue, as planned with.
        self._intervals_ns: dict[str, int] = {}
        #: Times that may change, as planned with: those without a profile.
        self._learned: dict[_Timed, Estimate] = {}
        #: Times of profiles, as planned with: how far they scatter is learned, and so is what neighbours add to them.
        self._profiled: dict[_Timed, Estimate] = {}
        #: All of both, and which of them was looked at last.
        self._looks: list[_Timed] = []
        self._looked = 0
        #: Fan-outs, arrivals or learned times are not what they were.
        self.stale = False

    def begin(self, graph: Graph, intervals_ns: Mapping[str, int]) -> None:
        """Plan with fan-outs and arrivals as they are now; times are entered one by one."""
        self.stale = False
        self._intervals_ns = {s.name: intervals_ns.get(s.name, UNKNOWN_NS) for s in graph.stages}
        for node in self._sizes:
            if self._sizes[node].count:
                self._planned_sizes[node] = max(1, self._sizes[node].value)
        self._learned.clear()
        self._profiled.clear()

    def begun(self) -> None:
        """All times are entered."""
        self._looks = [*self._learned, *self._profiled]
        self._looked = 0

    @property
    def profiled(self) -> bool:
        """Whether all times are those of profiles; the others may be out of date."""
        return not self._learned

    def saw_size(self, node: int, size: int) -> None:
        """A fan-out had this many items."""
        mean = self._sizes[node]
        mean.add(size * MILLION)
        planned = self._planned_sizes[node]
        if abs(mean.value - planned) > _CHANGE * planned:
            self.stale = True

    def saw_intervals(self, intervals_ns: Mapping[str, int]) -> None:
        """Arrivals are at these intervals now."""
        for stage, planned in self._intervals_ns.items():
            if abs(intervals_ns.get(stage, UNKNOWN_NS) - planned) > _CHANGE * planned:
                self.stale = True

    def saw_times(self, most: int | None = None) -> None:
        """Look whether what was learned of run times since has changed them, or made them surer.

        With `most`, at so many of them: the next time at those that follow.
        """
        if self.stale:
            return  # its successor looks at all of them
        looks = self._looks
        for _ in range(len(looks) if most is None else min(most, len(looks))):
            self._looked = (self._looked + 1) % len(looks)
            key = looks[self._looked]
            if self._differs(key):
                self.stale = True
                return

    def _differs(self, key: _Timed) -> bool:
        """Whether a time is not any more what was planned with."""
        stage, kind, config = key
        now = self._predictor.usual(stage, kind, config.batch, config)
        planned = self._learned.get(key)
        if planned is None:
            planned = self._profiled[key]
            longer = abs(now.mean_ns - planned.mean_ns) > _COMPANY * planned.mean_ns
            return longer or abs(now.spread - planned.spread) > _CHANGE * planned.spread
        surer = (now.spread <= MOST_SPREAD) != (planned.spread <= MOST_SPREAD) or now.source != planned.source
        if surer:
            return True
        planned_ns = _reach_ns(planned)
        return abs(_reach_ns(now) - planned_ns) > _CHANGE * planned_ns


def _reach_ns(estimate: Estimate) -> float:
    """A time that is rarely exceeded."""
    return estimate.mean_ns * (1 + (estimate.spread if estimate.spread < MOST_SPREAD else MOST_SPREAD))
