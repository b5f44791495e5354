"""How often a configuration must be run until its mean is known: a stopping rule, in rounds over all of them.

Rules of this file: no clock (a `Timer` is passed in) and no stages; the same timings give the same answer.

- Interference only ever adds time, so the slowest tenth is left out of the mean.
- A point is settled when the 95 % interval of that mean is narrow, or when it has had its time.
- Points take turns, so that a bad moment of a shared machine falls on all of them and not on one batch size.
- Items may be of unequal size. Then a point has several variants of its batch that are run one after the other, and
  the statistics of the mean are those of whole cycles: what is trimmed is interference, never the large items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, fsum, inf, sqrt
from time import perf_counter_ns

import msgspec

from ..units import MS, SECOND
from .record import Measured

__all__ = ["FULL", "QUICK", "Rule", "Series", "Timer", "measure", "robust_mean", "wall_timer"]

#: Calls its argument once and gives the nanoseconds that took.
Timer = Callable[[Callable[[], object]], int]

#: Share of the runs that is taken for interference: the slowest tenth.
TRIM = 0.1


class Rule(msgspec.Struct, frozen=True):
    """When to stop."""

    #: Half-width of the 95 % interval over the mean.
    target: float = 0.02
    #: Cycles that are not counted; the first run of a shape allocates, the second may still page in.
    warmups: int = 2
    least_cycles: int = 5
    #: Turns before a point may settle, so that even the fastest is seen at several moments.
    least_turns: int = 3
    #: Measured time after which a point settles as it is; `least_cycles` goes before.
    cap_ns: int = SECOND
    #: A turn lasts about so long: short runs come in bursts and find warm caches, long ones alternate singly.
    turn_ns: int = 10 * MS
    turn_cycles: int = 100
    most_cycles: int = 1000
    quick: bool = False


FULL = Rule()
QUICK = Rule(target=0.05, least_turns=2, cap_ns=SECOND // 5, quick=True)


def wall_timer(run: Callable[[], object]) -> int:
    """Time by the clock."""
    begin_ns = perf_counter_ns()
    run()
    return perf_counter_ns() - begin_ns


class Series:
    """One configuration and its runs so far."""

    def __init__(self, batch: int, cpus: int, variants: Sequence[Callable[[], object]]) -> None:
        self.batch = batch
        self.cpus = cpus
        self._variants = variants
        self._runs_ns: list[int] = []
        #: Mean run time of each cycle over the variants.
        self._cycles_ns: list[float] = []
        self._turns = 0
        self._spent_ns = 0
        self.settled = False

    def warm_up(self, rule: Rule, timer: Timer) -> None:
        """Run without counting."""
        for _ in range(rule.warmups):
            for run in self._variants:
                timer(run)

    def turn(self, rule: Rule, timer: Timer) -> None:
        """At least one cycle; then see whether it is enough."""
        end_ns, end_cycles = self._spent_ns + rule.turn_ns, len(self._cycles_ns) + rule.turn_cycles
        while self._spent_ns < end_ns and len(self._cycles_ns) < min(end_cycles, rule.most_cycles):
            cycle_ns = [max(1, timer(run)) for run in self._variants]
            self._runs_ns += cycle_ns
            self._cycles_ns.append(sum(cycle_ns) / len(cycle_ns))
            self._spent_ns += sum(cycle_ns)
        self._turns += 1
        spent = self._spent_ns >= rule.cap_ns or len(self._cycles_ns) >= rule.most_cycles
        narrow = self._turns >= rule.least_turns and robust_mean(self._cycles_ns)[1] <= rule.target
        self.settled = self.enough(rule) and (spent or narrow)

    def enough(self, rule: Rule) -> bool:
        """True when there are cycles enough for a figure, good or not."""
        return len(self._cycles_ns) >= rule.least_cycles

    def progress(self, rule: Rule) -> float:
        """How far it is, from 0 to 1: the share of its time, since nobody knows when the interval will do."""
        return 1.0 if self.settled else min(0.95, self._spent_ns / rule.cap_ns)

    def result(self, rule: Rule) -> Measured:
        """The figures; `quick` if it was cut short."""
        mean_ns, error = robust_mean(self._cycles_ns)
        runs = sorted(self._runs_ns)
        return Measured(
            batch=self.batch,
            cpus=self.cpus,
            mean_ns=round(mean_ns),
            p50_ns=runs[ceil(0.50 * len(runs)) - 1],
            p95_ns=runs[ceil(0.95 * len(runs)) - 1],
            spread=_drawn_in_deviation(runs) / mean_ns,
            error=error,
            runs=len(runs),
            quick=rule.quick or not self.settled,
        )


def measure(series: Sequence[Series], rule: Rule, timer: Timer = wall_timer) -> Iterator[float]:
    """Run all series in rounds until each is settled; how far it is, from 0 to 1, after each turn.

    The caller may stop at any time, also by an exception, and keep the series that have `enough`.
    """
    for one in series:
        one.warm_up(rule, timer)
    while todo := [one for one in series if not one.settled]:
        for one in todo:
            one.turn(rule, timer)
            yield sum(s.progress(rule) for s in series) / len(series)


def robust_mean(values: Sequence[float]) -> tuple[float, float]:
    """Mean without the slowest tenth, and the half-width of its 95 % interval over the mean.

    The interval is Tukey and McLaughlin's for trimmed means (Sankhya A 25, 1963), here with one side trimmed:
    t · s / ((1 - g) √n), s the deviation with the trimmed values drawn in to the largest kept, g the share trimmed.
    """
    ordered = sorted(values)
    kept = ordered[: _kept(len(ordered))]
    mean = fsum(kept) / len(kept)
    if len(kept) < 2:
        return mean, inf
    share_kept = len(kept) / len(ordered)
    half_width = _t95(len(kept) - 1) * _drawn_in_deviation(ordered) / (share_kept * sqrt(len(ordered)))
    return mean, half_width / mean


def _kept(count: int) -> int:
    return max(1, count - ceil(TRIM * count))


def _drawn_in_deviation(ordered: Sequence[float]) -> float:
    """Standard deviation with the slowest tenth set to the slowest of the others (winsorised)."""
    kept = ordered[: _kept(len(ordered))]
    drawn_in = [*kept, *[kept[-1]] * (len(ordered) - len(kept))]
    mean = fsum(drawn_in) / len(drawn_in)
    return sqrt(fsum((v - mean) ** 2 for v in drawn_in) / max(1, len(drawn_in) - 1))


def _t95(freedom: int) -> float:
    """Two-sided 95 % point of Student's t: Abramowitz and Stegun 26.7.5; within 1 % from 3 degrees of freedom on."""
    z = 1.959964
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
