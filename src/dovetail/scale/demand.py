"""How much of a stage is asked for: reactive, with a forecast as a floor.

Rules of this file
- The rate is a mean over some seconds. A count that no mean of that kind would explain (three standard deviations of
  a Poisson count) is taken at once: a surge is not averaged away, and neither is its end.
- What waits and cannot be had from the rate's own capacity is to be gone within `drain_ns`.
- A forecast (the line through the last means, as far ahead as a new device takes) only ever raises what is asked for.
  Dynamo's planner found reactive scaling to beat predictive; so a wrong forecast may cost, and never starves.
- On the way down the highest need of the last `settle_ns` counts: that is the cool-down.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

import msgspec

from ..units import SECOND

__all__ = ["NO_RATE_PER_S", "Demand", "DemandSettings", "Need"]

#: Counts are looked at so many times in the mean's time constant [our choice].
BINS: Final = 4
#: So many more than expected are a surge, whatever the rate was [our choice].
SURGE: Final = 4
#: A rate below this is none.
NO_RATE_PER_S: Final = 0.01


class DemandSettings(msgspec.Struct, frozen=True):
    """Knobs, tuned on other parts of the traces than are reported [our choice]."""

    #: The mean's time constant, if objectives are short.
    mean_ns: int = 4 * SECOND
    #: Standard deviations beyond which a count is news.
    sigmas: float = 3.0
    #: What has piled up should be gone within this.
    drain_ns: int = 1 * SECOND
    #: Needs of so long ago still count on the way down.
    settle_ns: int = 1 * SECOND
    #: All these times are at least so many times what an item may take, and in the same proportion.
    limits: float = 1.0
    #: Means that the forecast's line goes through.
    line: int = 12


class Need(msgspec.Struct, frozen=True):
    """What a stage needs, in items per second, and why."""

    per_s: float
    #: Measured.
    rate_per_s: float
    #: Of items that have piled up.
    queued_per_s: float
    #: As the line says; below the rate it is of no account.
    forecast_per_s: float
    #: The highest need of the last seconds, which counts on the way down.
    settled_per_s: float


class Demand:
    """Arrivals of one stage."""

    def __init__(self, settings: DemandSettings, lead_ns: int, limit_ns: int = 0) -> None:
        """`limit_ns` is how long an item may take: what may wait for longer is averaged over a longer time."""
        times = max(1.0, settings.limits * limit_ns / settings.mean_ns)
        self._settings = msgspec.structs.replace(
            settings,
            mean_ns=round(settings.mean_ns * times),
            drain_ns=round(settings.drain_ns * times),
            settle_ns=round(settings.settle_ns * times),
        )
        self._lead_ns = lead_ns
        self._arrived = 0
        self._at_ns = -1
        self._mean_per_s = 0.0
        #: (time, mean), for the forecast; (time, need), for the way down.
        self._means: deque[tuple[int, float]] = deque(maxlen=settings.line)
        self._needs: deque[tuple[int, float]] = deque()
        #: When something last arrived or waited.
        self.busy_ns = 0

    def look(self, arrived: int, waiting: int, own_ns: int, now_ns: int) -> Need:
        """Items that have ever arrived, those that wait, and how long items wait as a rule (`own_ns`)."""
        if self._at_ns < 0:
            self._at_ns = now_ns
        count, passed_ns = arrived - self._arrived, now_ns - self._at_ns
        if count or waiting:
            self.busy_ns = now_ns
        if passed_ns * BINS >= self._settings.mean_ns or (passed_ns > 0 and self._surges(count, passed_ns)):
            self._arrived, self._at_ns = arrived, now_ns
            self._mean(count, passed_ns)
            self._means.append((now_ns, self._mean_per_s))
        elif count and not self._mean_per_s:  # the very first: nobody knows over which time it came
            self._mean_per_s = count * BINS * SECOND / self._settings.mean_ns
        rate = self._mean_per_s
        forecast = self._forecast(now_ns)
        excess = max(0.0, waiting - rate * own_ns / SECOND)
        queued = excess * SECOND / self._settings.drain_ns
        need = max(rate, forecast) + queued
        while self._needs and self._needs[0][0] <= now_ns - self._settings.settle_ns:
            self._needs.popleft()
        self._needs.append((now_ns, max(rate, forecast)))
        settled = max(need, *(past for _, past in self._needs))
        return Need(need, rate, queued, forecast, settled)

    def _surges(self, count: int, passed_ns: int) -> bool:
        """Whether more has come already than a whole interval would explain."""
        expected = self._mean_per_s * self._settings.mean_ns / BINS / SECOND
        return count > expected + self._settings.sigmas * math.sqrt(expected) + SURGE

    def _mean(self, count: int, passed_ns: int) -> None:
        seconds = passed_ns / SECOND
        expected = self._mean_per_s * seconds
        if abs(count - expected) > self._settings.sigmas * math.sqrt(expected) + 1:
            self._mean_per_s = count / seconds
            self._means.clear()
        else:
            weight = 1 - math.exp(-passed_ns / self._settings.mean_ns)
            self._mean_per_s += weight * (count / seconds - self._mean_per_s)
        if not count and self._mean_per_s < NO_RATE_PER_S:
            self._mean_per_s = 0.0

    def _forecast(self, now_ns: int) -> float:
        """The line through the last means, a lead ahead; nought until there are enough of them."""
        means = self._means
        if len(means) < self._settings.line:
            return 0.0
        middle_ns = sum(at for at, _ in means) / len(means)
        mean = sum(value for _, value in means) / len(means)
        spread = sum((at - middle_ns) ** 2 for at, _ in means)
        if not spread:
            return 0.0
        slope = sum((at - middle_ns) * (value - mean) for at, value in means) / spread
        return mean + slope * (now_ns + self._lead_ns - middle_ns) if slope > 0 else 0.0
