"""What executors share: how they answer, and the values that batches read and write.

An executor carries out batches on one device. Both keep the worker contract (tests/contract) by the same Device
machine: `device_executor` runs models on this machine's cores, `emulated` takes times from a profile. The worker's
threads call them in turn, never two at once, and no call takes long. A batch that may start now is returned, and the
thread that asked runs it once others may listen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ...device import Device
from ...errors import DovetailError
from ...units import format_bytes
from ...workflow.local import count_of, pick
from ..links.wire import Argument, FromWorker, Run, State
from ..tensors.arena import Arena, ArenaFull
from ..tensors.codec import decode, encode
from ..tensors.ref import Ref
from ..tensors.values import part

__all__ = [
    "MAX_DETAIL_CHARS",
    "Answer",
    "BadMessage",
    "Values",
    "WakeAt",
    "Work",
    "counts",
    "either",
    "error_text",
    "state_of",
]

#: (ingress, what to say to it)
Answer = Callable[[int, FromWorker], None]
#: What a thread of the worker is to do before it listens again.
Work = Callable[[], None]
#: (when, what to hand to `wake` then); to be called by the thread whose turn it is, or at the end of `Work`.
WakeAt = Callable[[int, object], None]
#: Longest error text that goes back: enough for a message, too little to flood a log.
MAX_DETAIL_CHARS = 2000


class BadMessage(DovetailError):
    """What an ingress says makes no sense, or is not its business: it is not listened to any longer."""


class Values:
    """Reads arguments from all arenas and writes results into the worker's own. Safe to use from any thread."""

    def __init__(self, arenas: dict[int, Arena], own: Arena, first: int = 0) -> None:
        self.arenas = arenas
        self._own = own
        self._lock = threading.Lock()
        #: For those who wait for room, which is rare; and how many they are.
        self._freed = threading.Condition(self._lock)
        self._waiting = 0
        #: Blocks of each ingress, which somebody has to free when it is gone. The `first` has started the worker.
        self._blocks: dict[int, set[int]] = {first: set()}

    def columns(self, message: Run) -> list[list[Any]]:
        """The batch's arguments; a value that several items use is decoded once."""
        decoded: dict[tuple[int, int], Any] = {}
        return [[self._argument(a, decoded) for a in column] for column in message.columns]

    def _argument(self, a: Argument, decoded: dict[tuple[int, int], Any]) -> Any:
        if not a.path and a.element < 0 and not a.gather and a.refs:
            ref = a.refs[0]
            value = decoded.get((ref.arena, ref.offset))
            if value is None:
                value = decoded[ref.arena, ref.offset] = decode(ref, self.arenas)
            return value
        if a.gather:
            return [part(self._value(ref, decoded), a.path) for ref in a.refs]
        if not a.refs:
            return None  # a step that its condition skipped, without an `otherwise`
        whole = part(self._value(a.refs[0], decoded), a.path)
        return whole if a.element < 0 else whole[a.element]

    def _value(self, ref: Ref, decoded: dict[tuple[int, int], Any]) -> Any:
        key = (ref.arena, ref.offset)
        if key not in decoded:
            decoded[key] = decode(ref, self.arenas)
        return decoded[key]

    @property
    def used_bytes(self) -> int:
        """Bytes of results that somebody may still read."""
        return self._own.used_bytes

    def rest(self) -> None:
        """Nothing has come for a while: memory of results that were read goes back to the machine."""
        with self._lock:
            self._own.give_back()

    def join(self, ingress: int) -> None:
        """An ingress may have results from now on."""
        with self._lock:
            self._blocks[ingress] = set()

    def leave(self, ingress: int) -> None:
        """Nobody frees the results of this ingress any more."""
        with self._lock:
            for offset in self._blocks.pop(ingress, ()):
                self._own.free(offset)
            if self._waiting:
                self._freed.notify_all()

    def store(self, values: list[Any], wait_s: float = 0.0, ingress: int = 0) -> list[Ref]:
        """Results for an ingress into the arena, all or nothing; waits so long for room if there is none."""
        give_up = 0.0
        with self._lock:
            while True:
                try:
                    if ingress not in self._blocks:
                        raise DovetailError(f"ingress {ingress} is gone, and nobody wants these results")
                    refs = self._store(values)
                    self._blocks[ingress].update([ref.offset for ref in refs])
                    return refs
                except ArenaFull:
                    needed = sum(map(_tensor_bytes, values))
                    if needed > self._own.size:
                        raise DovetailError(
                            f"the results of a batch of {len(values)} take {format_bytes(needed)}, more than the "
                            f"arena of {format_bytes(self._own.size)}; serve it with a larger --arena"
                        ) from None
                    now = time.monotonic()
                    give_up = give_up or now + wait_s
                    if give_up <= now or not self._wait(give_up - now):
                        raise

    def _wait(self, left_s: float) -> bool:
        """Wait for blocks to be freed; False if none was."""
        self._waiting += 1
        try:
            return self._freed.wait(left_s)
        finally:
            self._waiting -= 1

    def _store(self, values: list[Any]) -> list[Ref]:
        refs: list[Ref] = []
        try:
            for value in values:
                refs.append(encode(value, self._own))  # noqa: PERF401 - those so far are freed if one fails
        except DovetailError:
            for ref in refs:
                self._own.free(ref.offset)
            raise
        return refs

    def free(self, offsets: list[int], ingress: int = 0) -> None:
        """Nobody reads these blocks of an ingress any more."""
        with self._lock:
            theirs = self._blocks[ingress]
            for offset in offsets:
                if offset not in theirs:
                    raise BadMessage(f"ingress {ingress} has no block at {offset}")
                theirs.remove(offset)
                self._own.free(offset)
            if self._waiting:
                self._freed.notify_all()


def _tensor_bytes(value: Any) -> int:
    """Bytes of the tensors in a value, which is nearly all of it."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, list | tuple):
        return sum(map(_tensor_bytes, value))
    return sum(map(_tensor_bytes, value.values())) if isinstance(value, dict) else 0


def either(mine: Work | None, more: Work | None, hand: Callable[[Work], None]) -> Work | None:
    """One is for the thread that asks; another one is handed on."""
    if mine is None:
        return more
    if more is not None:
        hand(more)
    return mine


def state_of(
    machine: Device, now_ns: int, counts: tuple[int, int, int, int], ingresses: int, values: Values
) -> State:
    """What a worker says of itself; `counts` are hits, misses, loads and evictions."""
    cache = machine.cache
    held = (cache.used_bytes, cache.usable_bytes)
    return State(machine.row(now_ns), *counts, *held, ingresses, values.used_bytes)


def counts(values: list[Any], counted: list[tuple[int, ...]]) -> tuple[int, ...]:
    """For each item in turn, the counts of the outputs that are mapped over or tested."""
    return tuple(
        [count_of(pick(value, output)) for value, outputs in zip(values, counted, strict=True) for output in outputs]
    )


def error_text(error: BaseException) -> str:
    """What is said of an error; ours speak for themselves."""
    try:
        text = str(error)
    except Exception:  # its own text may be broken, too
        text = "it cannot say why"
    if not isinstance(error, DovetailError):
        text = f"{type(error).__name__}: {text}"
    # Half a surrogate is text to Python and cannot be sent.
    return text[:MAX_DETAIL_CHARS].encode(errors="backslashreplace").decode()
