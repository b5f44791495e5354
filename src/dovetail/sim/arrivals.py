"""When requests arrive: random processes and recorded traces, as endless or finite streams of nanoseconds.

Rules of this file
- Everything is lazy: ten million requests take no more memory than a block of them. The one exception is a trace
  that is not in order of arrival, which must be sorted (8 bytes per request).
- A stream depends on its generator and on nothing else, and each stream has its own (`stream_rng`), so that adding a
  second stream to a scenario leaves the first as it was.
- Random numbers are drawn in blocks with numpy: ten times as fast as one by one, and the gaps are the same.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice, repeat
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from ..control import RequestArrived
from ..units import SECOND

__all__ = [
    "Bursts", "Constant", "Diurnal", "Gamma", "Poisson", "Process", "Steps", "Stream", "merge", "requests",
    "stream_rng",
]  # fmt: skip

#: Draws at a time. Larger blocks are no faster and delay the first arrival.
_BLOCK = 2048


class Process(Protocol):
    """Something that requests arrive by."""

    def times_ns(self, rng: np.random.Generator) -> Iterator[int]:
        """Times of arrival, never going back, from 0 on."""
        ...


def stream_rng(seed: int, stream: int) -> np.random.Generator:
    """The generator of stream number `stream`: independent of the others of that seed (numpy's spawn keys)."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(stream,))))


class Poisson(msgspec.Struct, frozen=True):
    """Independent clients: exponential gaps."""

    rate_per_s: float

    def times_ns(self, rng: np.random.Generator) -> Iterator[int]:
        """Endless."""
        mean_ns = SECOND / self.rate_per_s
        return _renewal(lambda: rng.exponential(mean_ns, _BLOCK))


class Constant(msgspec.Struct, frozen=True):
    """A beat: equal gaps."""

    rate_per_s: float

    def times_ns(self, rng: np.random.Generator | None = None) -> Iterator[int]:
        """Endless; nothing is random."""
        gap_ns = SECOND / self.rate_per_s
        return (round(number * gap_ns) for number in count())


class Bursts(msgspec.Struct, frozen=True):
    """So many at once, again and again: the bursts are a Poisson process."""

    rate_per_s: float
    size: int

    def times_ns(self, rng: np.random.Generator) -> Iterator[int]:
        """Endless."""
        bursts = Poisson(self.rate_per_s / self.size).times_ns(rng)
        return (at_ns for at_ns in bursts for _ in range(self.size))


class Gamma(msgspec.Struct, frozen=True):
    """Gamma gaps: bursts for a coefficient of variation `cv` above 1, a steadier beat below; 1 is Poisson."""

    rate_per_s: float
    cv: float

    def times_ns(self, rng: np.random.Generator) -> Iterator[int]:
        """Endless."""
        shape = 1.0 / (self.cv * self.cv)
        scale_ns = SECOND / self.rate_per_s / shape
        return _renewal(lambda: rng.gamma(shape, scale_ns, _BLOCK))


class Steps(msgspec.Struct, frozen=True):
    """A Poisson process whose rate is constant for a while, then another; over after the last step."""

    #: (duration in ns, rate per second); a rate of nought is a pause.
    steps: tuple[tuple[int, float], ...]

    def times_ns(self, rng: np.random.Generator) -> Iterator[int]:
        """Exact, by inversion: unit-rate arrivals are mapped through the inverse of the expected count."""
        durations_ns = np.array([duration for duration, _ in self.steps], np.float64)
        rates_per_ns = np.array([rate for _, rate in self.steps], np.float64) / SECOND
        starts_ns = np.concatenate(([0.0], np.cumsum(durations_ns)))
        expected = np.concatenate(([0.0], np.cumsum(durations_ns * rates_per_ns)))
        last = 0.0
        while last < expected[-1]:
            counts = last + np.cumsum(rng.exponential(1.0, _BLOCK))
            last = float(counts[-1])
            counts = counts[counts < expected[-1]]
            step = np.searchsorted(expected, counts, side="right") - 1  # "right" steps over pauses
            times = starts_ns[step] + (counts - expected[step]) / rates_per_ns[step]
            yield from times.astype(np.int64).tolist()


class Diurnal(msgspec.Struct, frozen=True):
    """A Poisson process whose rate swings like day and night: ``mean × (1 + amplitude × sin(2πt / period))``."""

    mean_per_s: float
    #: From 0 (steady) to 1 (down to nothing at night).
    amplitude: float
    period_ns: int

    def times_ns(self, rng: np.random.Generator) -> Iterator[int]:
        """Endless; by thinning (Lewis and Shedler 1979) of a process at the highest rate."""
        peak = 1.0 + self.amplitude
        for block in _blocks(lambda: rng.exponential(SECOND / (self.mean_per_s * peak), _BLOCK)):
            rate = 1.0 + self.amplitude * np.sin(2 * math.pi * (block % self.period_ns) / self.period_ns)
            yield from block[rng.random(_BLOCK) * peak < rate].tolist()


def _renewal(gaps_ns: Callable[[], npt.NDArray[np.float64]]) -> Iterator[int]:
    """Times of a process with independent gaps."""
    for block in _blocks(gaps_ns):
        yield from block.tolist()


def _blocks(gaps_ns: Callable[[], npt.NDArray[np.float64]]) -> Iterator[npt.NDArray[np.int64]]:
    """Gaps added up in whole nanoseconds, so that the ten-millionth is as exact as the first."""
    last = 0
    while True:
        block = last + np.cumsum(np.rint(gaps_ns()).astype(np.int64))
        last = int(block[-1])
        yield block


class Stream(msgspec.Struct, frozen=True):
    """Requests of one workflow and class."""

    process: Process
    graph: int
    #: 0 takes the workflow's own class.
    priority: int = 0
    #: How long after its arrival a request is given up; 0 is never.
    timeout_ns: int = 0


def merge(times: Sequence[Iterator[int]]) -> Iterator[tuple[int, int]]:
    """(time, number of its iterator) in order of time; at equal times the earlier iterator goes first."""
    numbered = [zip(iterator, repeat(number)) for number, iterator in enumerate(times)]
    return numbered[0] if len(numbered) == 1 else heapq.merge(*numbered)


def requests(
    streams: Sequence[Stream],
    seed: int,
    *,
    until_ns: int | None = None,
    limit: int | None = None,
    counts: Callable[[int, int], tuple[int, ...]] | None = None,
) -> Iterator[RequestArrived]:
    """The streams as one, numbered from 1 on; at most `limit` requests, none at or after `until_ns`.

    `counts(request, graph)` says how long the lists among a request's inputs are.
    """
    times = [stream.process.times_ns(stream_rng(seed, i)) for i, stream in enumerate(streams)]
    for ident, (at_ns, number) in enumerate(islice(merge(times), limit), start=1):
        if until_ns is not None and at_ns >= until_ns:
            return
        stream = streams[number]
        deadline_ns = at_ns + stream.timeout_ns if stream.timeout_ns else 0
        input_counts = counts(ident, stream.graph) if counts is not None else ()
        yield RequestArrived(at_ns, 0, ident, stream.graph, stream.priority, 0, deadline_ns, input_counts)
