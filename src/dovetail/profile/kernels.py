"""What is known of a task's kernels: how long each takes, and how long the device waits for the next one.

Rules of this file
- A kernel is known by what it does (operator or part of a graph, and shapes) and, where the same comes again, by
  which of them it is. Nothing in an identity changes from run to run: no pointer, no time, no process number.
- Memory does not grow with the number of runs: a mean, a variance and a histogram of logarithmic buckets each.
- What was seen fewer than `MIN_COUNT` times is unknown, and says so.
- Statistics that no longer fit what is seen are stale, and say why.

FIKIT keeps one mean per identity (reconstructed); a mean of six runs one of which was disturbed put a kernel above
every gap and starved the task behind it (measured), so what is asked for here is a low quantile by default.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Literal

import msgspec

__all__ = [
    "MIN_COUNT", "Cut", "KernelStats", "Spread", "Stale", "kernel_ids", "kernel_name", "numbered", "sequence_model",
    "sequence_name",
]  # fmt: skip

#: Fewer observations than this are no knowledge.
MIN_COUNT = 5
#: Quantile of a kernel's duration that is asked for if nothing else is said: between the 20th and the 50th
#: percentile a profile taken beside other work is still that of the kernel.
USUAL_QUANTILE = 0.4
#: Logarithm of the steps per power of two of the histograms: a quantile is within 6 % (a step) of the true one.
_STEP_BITS = 4
#: From this many observations on, all are counted half before the next is added, so that old ones fade.
_FADE_COUNT = 1024
#: Weight of the newest observation in the running comparison with the statistics.
_DRIFT_WEIGHT = 1 / 64
#: The same for kernels that are ready early; and the share of them from which on a task counts as launching ahead.
#: One that waits for every kernel has none.
_EARLY_WEIGHT = 1 / 256
EARLY_SHARE = 0.02
#: Durations that are on average this many times as long, or as short, as the statistics say are a drift.
DRIFT_FACTOR = 1.5
#: Shapes of a model whose kernels are remembered.
MOST_SHAPES = 256
#: Digits of a model's content hash in the name of a sequence.
_MODEL_DIGITS = 16

Shape = tuple[int, ...]


def kernel_ids(kernels: Iterable[tuple[str, Sequence[Sequence[int]]]]) -> tuple[str, ...]:
    """Identities of a sequence of (operator or part of a graph, shapes of its inputs), in the order of launch.

    ``conv2d[1x3x224x224,64x3x7x7]``; the second of the same is ``...#1``, and so on.
    """
    return numbered(f"{what}{_shapes_text(shapes)}" for what, shapes in kernels)


def numbered(names: Iterable[str]) -> tuple[str, ...]:
    """Names that come again get a number from the second time on."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}#{seen[name]}" if name in seen else name)
        seen[name] += 1
    return tuple(found)


def _shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    return f"[{','.join('x'.join(map(str, shape)) for shape in shapes)}]"


def kernel_name(ident: str) -> str:
    """An identity without its number: what FIKIT goes by."""
    return ident.partition("#")[0]


def sequence_name(stage: str, shapes: Sequence[Shape], model: str, cut: str) -> str:
    """What statistics of a stage's batches are kept by: shapes of its inputs, content hash of the model, and its cut.

    ``read[1x3x48x320]@b5bb9d8014a0f9b1/3c9d1f02``; two sequences of one name have the same kernels.
    """
    return f"{stage}{_shapes_text(shapes)}@{model[:_MODEL_DIGITS]}/{cut}"


def sequence_model(name: str) -> str:
    """The beginning of the content hash in the name of a sequence; empty if it has none."""
    return name.rpartition("@")[2].partition("/")[0] if "@" in name else ""


class Spread(msgspec.Struct):
    """Running statistics of a duration in constant memory."""

    count: int = 0
    mean_ns: float = 0.0
    #: Sum of squared deviations from the mean (Welford).
    squares: float = 0.0
    #: Logarithmic bucket -> how many.
    buckets: dict[int, int] = msgspec.field(default_factory=dict)

    def add(self, ns: int) -> None:
        """Count one duration."""
        if self.count >= _FADE_COUNT:
            self._fade()
        self.count += 1
        off = ns - self.mean_ns
        self.mean_ns += off / self.count
        self.squares += off * (ns - self.mean_ns)
        bucket = _bucket(ns)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1

    def merge(self, other: Spread) -> None:
        """Add another's observations."""
        if not other.count:
            return
        total = self.count + other.count
        off = other.mean_ns - self.mean_ns
        self.squares += other.squares + off * off * self.count * other.count / total
        self.mean_ns += off * other.count / total
        self.count = total
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def absorb(self, newer: Spread) -> None:
        """Add another's observations, which are newer; these fade as they do in `add`."""
        while self.count and self.count + newer.count > _FADE_COUNT:
            self._fade()
        if not self.count:
            self.squares = 0.0
        self.merge(newer)

    @property
    def variance(self) -> float:
        """Of a single observation; 0 while there are fewer than two."""
        return self.squares / (self.count - 1) if self.count > 1 else 0.0

    def quantile_ns(self, q: float) -> int:
        """The duration that a share `q` of the observations does not exceed, to a bucket; 0 if there are none.

        Inside a bucket it is interpolated.
        """
        wanted, seen = q * self.count, 0
        for bucket in sorted(self.buckets):
            here = self.buckets[bucket]
            if seen + here >= wanted:
                low, high = bucket_edges(bucket)
                return round(low + (high - low) * (wanted - seen) / here)
            seen += here
        return 0

    def expected_delay_ns(self, duration_ns: int, elapsed_ns: int = 0) -> float:
        """By how much something that takes `duration_ns` is expected to outlast this wait: E[(d - rest)+ | not over].

        `elapsed_ns` of the wait have passed. Where it was never seen to last that long, nothing is known of the rest
        but that it may end at any moment: the whole duration counts.
        """
        end_ns = elapsed_ns + duration_ns
        weight = delay = 0.0
        for bucket, count in self.buckets.items():
            low, high = bucket_edges(bucket)
            if high <= elapsed_ns:
                continue
            part: float = count
            if low < elapsed_ns:
                part *= (high - elapsed_ns) / (high - low)
                low = elapsed_ns
            middle = (low + high) / 2
            weight += part
            if middle < end_ns:
                delay += part * (end_ns - middle)
        return delay / weight if weight else float(duration_ns)

    def _fade(self) -> None:
        self.buckets = {bucket: count // 2 for bucket, count in self.buckets.items() if count > 1}
        self.count = sum(self.buckets.values())
        self.squares /= 2


def _bucket(ns: int) -> int:
    shift = ns.bit_length() - _STEP_BITS - 1
    return (shift << _STEP_BITS) + (ns >> shift) if shift > 0 else max(ns, 0)


@cache
def bucket_edges(bucket: int) -> tuple[int, int]:
    """From where to where a bucket of `Spread` reaches."""
    shift = (bucket >> _STEP_BITS) - 1
    if shift <= 0:
        return bucket, bucket + 1
    mantissa = bucket - (shift << _STEP_BITS)
    return mantissa << shift, (mantissa + 1) << shift


class Stale(msgspec.Struct, frozen=True):
    """Why statistics no longer hold."""

    why: Literal["kernels changed", "durations drifted"]
    detail: str


class KernelStats(msgspec.Struct):
    """What is known of the kernels of one sequence: a model with a batch size on a kind of device.

    Positions count from 0. The wait after position -1 is the one from the beginning of a task to its first kernel.
    A msgspec Struct, so that `msgspec.json.encode` and `decode(..., type=KernelStats)` are all it takes to keep it.
    """

    #: What `TaskBegan.sequence` says.
    name: str
    #: Identities in the order of launch, as `kernel_ids` makes them.
    kernels: tuple[str, ...]
    durations: list[Spread]
    #: One more than kernels: the wait before the first, and the wait after each.
    gaps: list[Spread]
    min_count: int = MIN_COUNT
    #: Running mean of ln(observed / mean).
    drift: float = 0.0
    #: Running share of kernels that were ready before the one before had ended.
    early: float = 0.0
    #: Share of the device that each kernel asks for, where one was told; the whole where not.
    shares: dict[int, int] = msgspec.field(default_factory=dict)

    @classmethod
    def empty(cls, name: str, kernels: Sequence[str], *, min_count: int = MIN_COUNT) -> KernelStats:
        """Of a sequence that nobody has seen yet."""
        count = len(kernels)
        return cls(
            name, tuple(kernels), [Spread() for _ in range(count)], [Spread() for _ in range(count + 1)], min_count
        )

    def observe(self, position: int, duration_ns: int) -> None:
        """A kernel took so long."""
        spread = self.durations[position]
        if spread.count >= self.min_count and duration_ns > 0 and spread.mean_ns > 0:
            self.drift += _DRIFT_WEIGHT * (math.log(duration_ns / spread.mean_ns) - self.drift)
        spread.add(duration_ns)

    def observe_gap(self, after: int, gap_ns: int, *, early: bool = False) -> None:
        """The next kernel was ready so long after the end of this one (-1: after the task began).

        `early`: it was ready before that end, so whoever launches them does not wait for each.
        """
        self.gaps[after + 1].add(gap_ns)
        self.early += _EARLY_WEIGHT * (early - self.early)

    @property
    def launches_ahead(self) -> bool:
        """Whether kernels are launched without waiting for the ones before; the launcher then catches up."""
        return self.early > EARLY_SHARE

    def merge(self, newer: KernelStats) -> None:
        """Add what was observed since. If that is of other kernels, or they take other times now, it counts alone."""
        if newer.kernels != self.kernels or self._drifted_to(newer):
            self.kernels, self.durations = newer.kernels, newer.durations
            self.gaps, self.shares = newer.gaps, newer.shares
        else:
            for spread, more in zip((*self.durations, *self.gaps), (*newer.durations, *newer.gaps), strict=True):
                spread.absorb(more)
            self.shares |= newer.shares
        self.drift, self.early = 0.0, newer.early

    def _drifted_to(self, newer: KernelStats) -> bool:
        pairs = zip(self.durations, newer.durations, strict=True)
        ratios = [
            math.log(new.mean_ns / old.mean_ns)
            for old, new in pairs
            if min(old.count, new.count) >= self.min_count and min(old.mean_ns, new.mean_ns) > 0
        ]
        return bool(ratios) and abs(sum(ratios)) > math.log(DRIFT_FACTOR) * len(ratios)

    @property
    def seen(self) -> int:
        """How often every kernel was seen at least, of late."""
        return min((spread.count for spread in self.durations), default=0)

    def known(self, position: int) -> bool:
        """Whether the kernel was seen often enough to be counted on."""
        return 0 <= position < len(self.durations) and self.durations[position].count >= self.min_count

    def duration_ns(self, position: int, quantile: float = USUAL_QUANTILE) -> int | None:
        """How long the kernel takes; None where that is unknown."""
        return self.durations[position].quantile_ns(quantile) if self.known(position) else None

    def gap(self, after: int) -> Spread | None:
        """The wait after a kernel (-1: before the first), or None where it is unknown."""
        if not -1 <= after < len(self.kernels):
            return None
        spread = self.gaps[after + 1]
        return spread if spread.count >= self.min_count else None

    def is_last(self, position: int) -> bool:
        """Whether no kernel comes after this one."""
        return position >= len(self.kernels) - 1

    def stale(self, kernels: Sequence[str] | None = None) -> Stale | None:
        """Why these statistics do not hold, if so: for what is launched today, and by what was seen of late."""
        if kernels is not None and tuple(kernels) != self.kernels:
            return Stale("kernels changed", _difference(self.kernels, tuple(kernels)))
        if abs(self.drift) > math.log(DRIFT_FACTOR):
            return Stale("durations drifted", f"{self.name}: kernels take {math.exp(self.drift):.2f} times as long")
        return None


class Cut(msgspec.Struct, frozen=True):
    """Where a model was cut into kernels: cut elsewhere at the next start, nothing learned of them would hold."""

    #: Content hash.
    model: str
    #: Shapes of the inputs for one item, with the batch axis.
    item: tuple[Shape, ...]
    #: Items that are run together at most.
    step: int
    #: Nodes of the optimised graph before which it is cut, for small steps and for large ones; empty: it is whole.
    at: tuple[tuple[int, ...], ...] = ()
    #: (which of these cuts, shapes of a step, where in the row of segments its kernels end).
    kernels: tuple[tuple[int, tuple[Shape, ...], tuple[int, ...]], ...] = ()

    def joined(self, newer: Cut) -> Cut:
        """What to remember: this one, with more shapes if the other is cut alike; the other if batches have grown."""
        if not self.at and newer.step > self.step:
            return newer
        if (self.model, self.step, self.at) != (newer.model, newer.step, newer.at):
            return self
        ends = {(which, shapes): ends for which, shapes, ends in (*newer.kernels, *self.kernels)}
        kernels = tuple((*key, ends) for key, ends in ends.items())[:MOST_SHAPES]
        return msgspec.structs.replace(self, kernels=kernels)


def _difference(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    for position, (old, new) in enumerate(zip(before, now, strict=False)):
        if old != new:
            return f"kernel {position} was {old} and is {new}"
    return f"{len(before)} kernels before, {len(now)} now"
