"""What a device asks the one predictor: how long loads, kernels and turn-arounds take here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..predict import Predictor
from ..predict.kernel_pairs import KernelPairs
from ..profile.kernels import KernelStats

__all__ = ["MOST_PENDING", "WELL_KNOWN", "DeviceTimes"]

#: From so many observations on a sequence is well known.
WELL_KNOWN = 32
#: So many grants wait to be learned from at most.
MOST_PENDING = 64


def _no_time(weights: str) -> int:
    """Letting go of a model takes no time: its weights are only read, so nothing needs to be copied."""
    return 0


class DeviceTimes:
    """The predictor's answers for one kind of device; it learns from what it is told."""

    def __init__(
        self,
        predictor: Predictor,
        kind: str,
        nbytes: Mapping[str, int],
        *,
        cold_factor: float = 1.0,
        unload_ns: Callable[[str], int] | None = None,
        learn: bool = True,
        learn_every: int = 1,
        lazy: bool = False,
    ) -> None:
        """`nbytes` are sizes by weights. A load from outside takes `cold_factor` times one from host memory.

        `unload_ns` is how long a model takes out of the device; it counts with `Rules.fetch_blocks` only. Without
        `learn` nothing that is told is kept. Of grants over several kernels of a well-known sequence one in
        `learn_every` is learned from: on a processor that takes some 8 µs a kernel, in which nothing runs. With
        `lazy` what is told of kernels is looked at when there is time (`catch_up`), or has become too much.
        """
        self._predictor = predictor
        self._kind = kind
        self._nbytes = nbytes
        self._cold_factor = cold_factor
        self.unload_ns = unload_ns or _no_time
        self._learn = learn
        self._learn_every = learn_every
        #: Sequence -> grants over several kernels of it.
        self._grants: dict[str, int] = {}
        self._lazy = lazy
        self._pending: list[tuple[str, int, Sequence[tuple[int, int]], Sequence[int]]] = []

    @property
    def kernels(self) -> Mapping[str, KernelStats]:
        """What is known of kernels, by sequence: always as it is now."""
        return self._predictor.kernels

    @property
    def pairs(self) -> KernelPairs | None:
        """What kernels cost each other that run side by side here; None where nothing is learned."""
        return self._predictor.pairs(self._kind) if self._learn else None

    def load_ns(self, weights: str, tier: str) -> int:
        """How long a load from host memory ("host") or from outside ("absent") takes."""
        mean_ns = self._predictor.load(weights, self._nbytes.get(weights, 0), self._kind).mean_ns
        return mean_ns if tier == "host" else round(mean_ns * self._cold_factor)

    def turnaround_ns(self) -> int:
        """From the end of a batch to the arrival of its requests' next one."""
        return self._predictor.turnaround(self._kind).mean_ns

    def sequence(self, name: str, idents: Sequence[str]) -> str:
        """The name under which these kernels are known from now on; empty: nothing is kept of them."""
        return "" if self._predictor.sequence(name, idents) is None else name

    def observe_kernels(
        self, sequence: str, first: int, spans: Sequence[tuple[int, int]], gaps: Sequence[int] = ()
    ) -> None:
        """Kernels from this one on ran from begin to end, alone on the device; `gaps` as in `GrantEnded`."""
        if not self._learn:
            return
        if self._lazy:
            self._pending.append((sequence, first, spans, gaps))
            if len(self._pending) > MOST_PENDING:
                self.catch_up()
        else:
            self._observe(sequence, first, spans, gaps)

    def observe_gap(self, sequence: str, after: int, gap_ns: int) -> None:
        """The host launched the next kernel so long after this one had ended."""
        self.observe_kernels(sequence, after, (), (gap_ns,))

    def catch_up(self) -> None:
        """Learn from what was told: there is time, or somebody wants to know."""
        for told in self._pending:
            self._observe(*told)
        self._pending.clear()

    def _observe(self, sequence: str, first: int, spans: Sequence[tuple[int, int]], gaps: Sequence[int]) -> None:
        stats = self._predictor.kernels.get(sequence)
        if stats is None:
            return
        if len(spans) > 1 and self._learn_every > 1:
            self._grants[sequence] = grants = self._grants.get(sequence, 0) + 1
            # The last of them was seen the least.
            if stats.durations[first + len(spans) - 1].count >= WELL_KNOWN and grants % self._learn_every:
                return
        for position, (begin_ns, end_ns) in enumerate(spans, first):
            stats.observe(position, end_ns - begin_ns)
        for position, gap_ns in enumerate(gaps, first):
            stats.observe_gap(position, max(0, gap_ns), early=gap_ns < 0)

    def observe_turnaround(self, took_ns: int) -> None:
        """An expected batch came so long after the end of the one before it; below nought: none was expected."""
        if took_ns >= 0 and self._learn:
            self._predictor.observe_turnaround(took_ns, self._kind)
