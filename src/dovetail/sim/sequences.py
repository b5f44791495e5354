"""Kernel sequences made from the catalogue's distributions, and the host that launches them.

A sequence is what a model is: the same kernels with the same typical times in each run. A run of it scatters around
that. The host is what fills or starves the device's queue: how long it takes to launch each kernel, and how many it
may launch before the first of them has ended.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from itertools import accumulate
from statistics import NormalDist

import msgspec

from ..profile.catalogue.kernels import KernelKind, SequenceEntry, sequence, sequences
from ..state.worker import FULL_SHARE
from ..units import US
from ..workflow.graph import StageSpec

__all__ = [
    "AHEAD",
    "HOSTS",
    "HOST_BOUND",
    "SYNC",
    "Host",
    "Kernel",
    "KernelSequence",
    "catalogue_sequences",
    "host_ns",
    "make_sequence",
]

#: Between two kernels that are both in the device's queue. Kineto traces of a V100: 0.5 to 1.5 µs, median 0.75.
SETUP_NS = 750


class Host(msgspec.Struct, frozen=True):
    """How a task's kernels are launched."""

    name: str
    #: Kernels that may be launched beyond the one that has last ended. 0: each is waited for.
    depth: int
    #: Share of launches that take `quick_ns`; the others are log-normal with this median and deviation.
    quick: float
    quick_ns: int
    median_ns: int
    sigma: float
    #: Deviation of ln(time) from run to run. Assumed.
    scatter: float = 0.2


#: Launches are ahead of the device: a launch call takes 5 to 10 µs (Kineto), CUDA queues about 1,000 of them.
AHEAD = Host("ahead", depth=1024, quick=1.0, quick_ns=5 * US, median_ns=5 * US, sigma=0.0)
#: The host is slower than the device, as in eager mode with small batches: a third to a half of the gaps are short,
#: the median of all is 20 to 105 µs (Kineto traces of a V100 and an A100). It does not wait for results.
HOST_BOUND = Host("host", depth=1024, quick=0.35, quick_ns=4 * US, median_ns=60 * US, sigma=0.9)
#: The same, and each result is waited for before the next launch: the most that a device can be made to wait.
SYNC = msgspec.structs.replace(HOST_BOUND, name="sync", depth=0)
HOSTS = {host.name: host for host in (AHEAD, HOST_BOUND, SYNC)}


class Kernel(msgspec.Struct, frozen=True):
    """One kernel of a sequence; times are typical ones."""

    ident: str
    kind: KernelKind
    share_pct: int
    duration_ns: int
    #: Time of the host to launch it, from the launch before or from the result that is waited for.
    host_ns: int


class KernelSequence(msgspec.Struct, frozen=True):
    """The kernels of a task, in the order of launch."""

    name: str
    kernels: tuple[Kernel, ...]
    host: Host
    #: Deviation of ln(duration) from run to run. Assumed: GPU kernels repeat well.
    scatter: float = 0.03

    @property
    def work_ns(self) -> int:
        """Time on the device."""
        return sum(kernel.duration_ns for kernel in self.kernels)

    @property
    def bound(self) -> str:
        """What bounds most of its time."""
        times: dict[str, int] = {}
        for kernel in self.kernels:
            times[kernel.kind] = times.get(kernel.kind, 0) + kernel.duration_ns
        return max(times, key=lambda kind: times[kind], default="")

    def ends_ns(self, total_ns: int) -> tuple[int, ...]:
        """Work up to the end of each kernel, if all of them take so long together."""
        so_far = list(accumulate(kernel.duration_ns for kernel in self.kernels))
        return tuple(max(1, total_ns * end_ns // so_far[-1]) for end_ns in so_far)

    def draw(self, rng: random.Random) -> tuple[list[int], list[int]]:
        """Durations and host times of one run."""
        gauss, exp = rng.gauss, math.exp
        durations = [max(1, round(k.duration_ns * exp(gauss(0.0, self.scatter)))) for k in self.kernels]
        host = [round(k.host_ns * exp(gauss(0.0, self.host.scatter))) for k in self.kernels]
        return durations, host


def make_sequence(name: str, seed: int, host: Host = HOST_BOUND, *, scale: float = 1.0) -> KernelSequence:
    """A sequence as the catalogue describes it; the seed decides on the order and on who is long.

    Durations are spread evenly over the fitted distribution instead of being drawn from it, so that two seeds give
    sequences that differ in order, hardly in total; none is longer than the longest that was measured. `scale` makes
    all kernels longer or shorter.
    """
    entry = sequence(name)
    rng = random.Random(f"{entry.name}/{seed}")
    kinds = _kinds(entry, rng)
    durations: dict[str, list[float]] = {}
    shares: dict[str, list[int]] = {}
    for kind in entry.kinds:
        drawn = _spread(kind.count, kind.mu, kind.sigma, rng)
        durations[kind.kind] = [scale * min(us, entry.longest_us) for us in drawn]
        middle = math.log(max(kind.share_pct, 1))
        drawn = _spread(kind.count, middle, kind.share_sigma, rng)
        shares[kind.kind] = [max(1, min(FULL_SHARE, round(x))) for x in drawn]
    times_us = [durations[kind].pop() for kind in kinds]
    idents = _idents(entry, kinds, times_us, rng)
    kernels = tuple(
        Kernel(ident, kind, shares[kind].pop(), round(us * US) + SETUP_NS, host_ns(host, rng))
        for ident, kind, us in zip(idents, kinds, times_us, strict=True)
    )
    return KernelSequence(entry.name, kernels, host)


def catalogue_sequences(stages: Iterable[StageSpec], seed: int = 1) -> dict[str, KernelSequence]:
    """The kernels of stages that are, or are like, a model whose kernels were measured."""
    found = {}
    for stage in stages:
        for name in (stage.like, stage.model):
            if name in sequences():
                found[stage.name] = make_sequence(name, seed)
                break
    return found


def _kinds(entry: SequenceEntry, rng: random.Random) -> list[KernelKind]:
    """A walk through the kinds by how they follow one another, with as many of each as there are."""
    left = [kind.count for kind in entry.kinds]
    at = rng.choices(range(len(left)), left)[0]
    walk = []
    for _ in range(entry.count):
        if not left[at]:
            at = rng.choices(range(len(left)), left)[0]
        left[at] -= 1
        walk.append(entry.kinds[at].kind)
        # What is left weighs in, so that no kind is kept for the end.
        weights = [p * n for p, n in zip(entry.follow[at], left, strict=True)]
        if sum(weights) > 0:
            at = rng.choices(range(len(left)), weights)[0]
    return walk


def _spread(count: int, mu: float, sigma: float, rng: random.Random) -> list[float]:
    normal = NormalDist()
    values = [math.exp(mu + sigma * normal.inv_cdf((i + 0.5) / count)) for i in range(count)]
    rng.shuffle(values)
    return values


def _idents(entry: SequenceEntry, kinds: list[KernelKind], times_us: list[float], rng: random.Random) -> list[str]:
    """Identities: as many different names as the model has, each for kernels of one kind and similar duration."""
    names = [""] * entry.count
    for kind in entry.kinds:
        if not kind.count:
            continue
        own = [i for i, k in enumerate(kinds) if k == kind.kind]
        own.sort(key=lambda i: math.log(times_us[i]) + rng.gauss(0.0, entry.name_sigma))
        groups = max(1, round(entry.names * kind.count / entry.count))
        for order, i in enumerate(own):
            names[i] = f"{kind.kind}{order * groups // len(own)}"
    seen: dict[str, int] = {}
    found = []
    for name in names:
        number = seen.get(name, 0)
        seen[name] = number + 1
        found.append(f"{name}#{number}" if number else name)
    return found


def host_ns(host: Host, rng: random.Random) -> int:
    """How long the host typically takes to launch a kernel."""
    if rng.random() < host.quick:
        return host.quick_ns
    return round(host.median_ns * math.exp(rng.gauss(0.0, host.sigma)))
