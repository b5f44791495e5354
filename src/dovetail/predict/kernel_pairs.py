"""What kernels cost each other that run side by side on one kind of device: asked and told by its arbiters.

Rules of this file
- Before anything was seen it is what the prior of `interference` says of any pair.
- It is learned from kernels whose time alone is known. An arbiter knows exactly who was there when.
- An answer stands until an eighth more was seen: it is asked for every kernel that might be let in.
"""

from __future__ import annotations

from collections.abc import Sequence

from .interference import Beside, Interference, Load

__all__ = ["KernelPairs"]


class KernelPairs:
    """Slow-downs of sequences of kernels by their neighbours."""

    __slots__ = ("_kind", "_model", "_said", "seen")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._model = Interference()
        #: Kernels beside others that were seen.
        self.seen = 0
        #: Who beside whom -> what had been seen when it was worked out, and the answer.
        self._said: dict[tuple[Load, ...], tuple[int, float]] = {}

    def extra(self, victim: Load, others: Sequence[Load]) -> float:
        """By which part of its time alone a kernel takes longer beside these."""
        key = victim, *others
        seen, extra = self._said.get(key, (-1, 0.0))
        if not 0 <= self.seen - seen <= seen // 8:
            extra = self._model.slowdown(self._kind, victim, others) - 1
            self._said[key] = self.seen, extra
        return extra

    def observe(self, victim: Load, alone_ns: int, took_ns: int, beside: Sequence[Beside]) -> None:
        """A kernel, or several in a row, took so long beside these."""
        if beside and alone_ns > 0 and took_ns > 0:
            self.seen += 1
            self._model.observe(self._kind, victim, alone_ns, took_ns, beside)
