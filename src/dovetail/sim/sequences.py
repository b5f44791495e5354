"""Kernel sequences made from the catalogue's distributions.

A sequence is what a model is: the same kernels with the same typical times in each run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from itertools import accumulate
from statistics import NormalDist

import msgspec

from ..profile.catalogue.kernels import KernelKind, SequenceEntry, sequence, sequences
from ..profile.kernels import numbered
from ..state.worker import FULL_SHARE
from ..units import US
from ..workflow.graph import StageSpec

__all__ = ["SETUP_NS", "Kernel", "KernelSequence", "catalogue_sequences", "make_kernels", "make_sequence"]

#: Between two kernels that are both in the device's queue. Kineto traces of a V100: 0.5 to 1.5 µs, median 0.75.
SETUP_NS = 750


class Kernel(msgspec.Struct, frozen=True):
    """One kernel of a sequence; times are typical ones."""

    ident: str
    kind: KernelKind
    share_pct: int
    duration_ns: int


class KernelSequence(msgspec.Struct, frozen=True):
    """The kernels of a task, in the order of launch."""

    name: str
    kernels: tuple[Kernel, ...]

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


def make_sequence(name: str, seed: int) -> KernelSequence:
    """A sequence as the catalogue describes it; the seed decides on the order and on who is long."""
    entry = sequence(name)
    return KernelSequence(entry.name, make_kernels(entry, random.Random(f"{entry.name}/{seed}")))


def make_kernels(entry: SequenceEntry, rng: random.Random, scale: float = 1.0) -> tuple[Kernel, ...]:
    """Kernels as the catalogue describes them; `scale` makes all of them longer or shorter.

    Durations are spread evenly over the fitted distribution instead of being drawn from it, so that two seeds give
    sequences that differ in order, hardly in total; none is longer than the longest that was measured.
    """
    kinds = _kinds(entry, rng)
    durations: dict[str, list[float]] = {}
    shares: dict[str, list[int]] = {}
    for kind in entry.kinds:
        drawn = _spread(kind.count, kind.mu, kind.sigma, rng)
        durations[kind.kind] = [scale * min(us, entry.longest_us) for us in drawn]
        drawn = _spread(kind.count, math.log(max(kind.share_pct, 1)), kind.share_sigma, rng)
        shares[kind.kind] = [max(1, min(FULL_SHARE, round(x))) for x in drawn]
    times_us = [durations[kind].pop() for kind in kinds]
    idents = _idents(entry, kinds, times_us, rng)
    return tuple(
        Kernel(ident, kind, shares[kind].pop(), round(us * US) + SETUP_NS)
        for ident, kind, us in zip(idents, kinds, times_us, strict=True)
    )


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


def _idents(
    entry: SequenceEntry, kinds: list[KernelKind], times_us: list[float], rng: random.Random
) -> tuple[str, ...]:
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
    return numbered(names)
