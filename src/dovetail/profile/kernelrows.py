"""What was learned of kernels, as the store keeps it: packed, of bounded size, and looked over before it is used.

Rules of this file: plain data; it knows neither files nor clocks. A store travels, and what a worker reports may be
wrong: nothing is trusted further than it was checked here, and what is wrong with it is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TypeVar

import msgspec

from ..errors import ProfileError
from .kernels import Cut, KernelStats, Spread
from .record import Key

__all__ = ["DAMAGED", "KernelStatus", "pack", "unpack_cut", "unpack_stats"]

#: State of a row that cannot be read, beside those of `record`.
DAMAGED = "damaged"
#: Largest row. A sequence of 2,000 kernels that all vary takes less than half of it.
MAX_ROW_BYTES = 2 << 20
MAX_NAME_CHARS = 1000
MAX_KERNELS = 20_000
#: No histogram has a bucket beyond that of the largest time that fits into 64 bits.
MAX_BUCKET = 64 << 4
MAX_COUNT = 1 << 40

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_decode_stats = msgspec.msgpack.Decoder(KernelStats).decode
_decode_cut = msgspec.msgpack.Decoder(Cut).decode


class KernelStatus(msgspec.Struct, frozen=True):
    """What the store knows of one sequence, and whether it holds here and now."""

    key: Key
    state: str
    reasons: tuple[str, ...]
    learned_at: str
    #: None if the row is damaged.
    stats: KernelStats | None

    def __str__(self) -> str:
        return f"what is known of the kernels of {self.key.stage!r} is {self.state}: {'; '.join(self.reasons)}"


def pack(value: KernelStats | Cut) -> bytes:
    """A row; what no reader would take is refused."""
    trouble = _stats_trouble(value) if isinstance(value, KernelStats) else _cut_trouble(value)
    data = _encode(value)
    if trouble or len(data) > MAX_ROW_BYTES:
        raise ProfileError(f"what was learned of kernels cannot be kept: {trouble or f'{len(data)} bytes of it'}")
    return data


def unpack_stats(data: bytes) -> KernelStats:
    """The statistics in a row; ProfileError if they are not what they should be."""
    return _unpack(data, _decode_stats, _stats_trouble, "statistics of kernels")


def unpack_cut(data: bytes) -> Cut:
    """The cut in a row; ProfileError if it is none."""
    return _unpack(data, _decode_cut, _cut_trouble, "a model's cut")


def _unpack(data: bytes, decode: Callable[[bytes], T], trouble_of: Callable[[T], str], what: str) -> T:
    try:
        value = decode(_sized(data))
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise ProfileError(f"not {what}: {error}") from error
    if trouble := trouble_of(value):
        raise ProfileError(f"not {what}: {trouble}")
    return value


def _sized(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise TypeError(f"it is {type(data).__name__}")
    if len(data) > MAX_ROW_BYTES:
        raise ValueError(f"it has {len(data)} bytes")
    return data


def _stats_trouble(stats: KernelStats) -> str:
    kernels = len(stats.kernels)
    if not 0 < len(stats.name) <= MAX_NAME_CHARS:
        return f"a name of {len(stats.name)} characters"
    if not 0 < kernels <= MAX_KERNELS or (len(stats.durations), len(stats.gaps)) != (kernels, kernels + 1):
        return f"{kernels} kernels, {len(stats.durations)} durations and {len(stats.gaps)} waits"
    if not (math.isfinite(stats.drift) and 0 <= stats.early <= 1 and 0 < stats.min_count <= MAX_COUNT):
        return "a running mean is out of its range"
    if not all(0 <= i < kernels and 0 < share <= 100 for i, share in stats.shares.items()):
        return "a share is out of its range"
    wrong = next((spread for spread in (*stats.durations, *stats.gaps) if not _sound(spread)), None)
    return "" if wrong is None else f"a histogram does not fit its count of {wrong.count}"


def _sound(spread: Spread) -> bool:
    return (
        0 <= spread.count <= MAX_COUNT
        and spread.count == sum(spread.buckets.values())
        and math.isfinite(spread.mean_ns)
        and 0 <= spread.squares < math.inf
        and all(0 <= bucket < MAX_BUCKET and count > 0 for bucket, count in spread.buckets.items())
    )


def _cut_trouble(cut: Cut) -> str:
    if not cut.model or not 0 < cut.step <= MAX_COUNT or not all(shape and min(shape) >= 0 for shape in cut.item):
        return "no model, step or shapes"
    if len(cut.at) > 2 or not all(_rises((0, *at)) for at in cut.at):
        return "cuts that are not in order"
    if not all(0 <= which < len(cut.at) and ends and _rises((0, *ends)) for which, _, ends in cut.kernels):
        return "kernels that are not in order"
    return ""


def _rises(numbers: tuple[int, ...]) -> bool:
    return len(numbers) <= MAX_KERNELS and all(a < b for a, b in pairwise(numbers))
