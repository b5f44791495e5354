"""What is known of sequences of kernels, and what of it others have not been told yet.

Rules of this file
- Statistics are kept of a bounded number of sequences; of others nothing is known. What others have learned counts
  against that bound only once such a sequence has come.
- Statistics that do not fit what is launched today, or what was seen of late, begin anew.
- What is learned is added to what was known before, and kept apart as well: that is what there is to be told
  (`news`), and others who learn the same can add it to theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..profile.kernels import KernelStats

__all__ = ["MOST_SEQUENCES", "KernelTimes"]

#: Sequences that statistics are kept of.
MOST_SEQUENCES = 512


class _Learning(KernelStats):
    """Statistics that also keep apart what was observed since the last `news`."""

    since: KernelStats | None = None

    @classmethod
    def of(cls, stats: KernelStats) -> _Learning:
        """The same, with nothing observed yet."""
        return cls(*(getattr(stats, name) for name in KernelStats.__struct_fields__))

    def observe(self, position: int, duration_ns: int) -> None:
        """A kernel took so long."""
        super().observe(position, duration_ns)
        self._latest().observe(position, duration_ns)

    def observe_gap(self, after: int, gap_ns: int, *, early: bool = False) -> None:
        """The next kernel was ready so long after the end of this one."""
        super().observe_gap(after, gap_ns, early=early)
        self._latest().observe_gap(after, gap_ns, early=early)

    def merge(self, newer: KernelStats) -> None:
        """Add what others observed; what was seen here of other kernels is not worth telling any more."""
        super().merge(newer)
        if self.since is not None and self.since.kernels != self.kernels:
            self.since = None

    def _latest(self) -> KernelStats:
        if self.since is None:
            self.since = KernelStats.empty(self.name, self.kernels, min_count=self.min_count)
            self.since.early = self.early
        return self.since


class KernelTimes:
    """Statistics by sequence."""

    __slots__ = ("_make", "_most", "_told", "stats")

    def __init__(self, most: int = MOST_SEQUENCES, *, tells: bool = True) -> None:
        """Without `tells` there is no news: nothing is kept apart for others. It costs half as much."""
        self._make = _Learning.of if tells else _copy
        #: What arbiters read, and what they observe into.
        self.stats: dict[str, KernelStats] = {}
        #: What others have learned of sequences that did not come here yet.
        self._told: dict[str, KernelStats] = {}
        self._most = most

    def sequence(self, name: str, identities: Sequence[str]) -> KernelStats | None:
        """A task of this sequence begins: its statistics, made if there are none. None: it goes without."""
        stats = self.stats.get(name)
        if stats is None:
            if not name or len(self.stats) >= self._most:
                return None
            told = self._told.pop(name, None)
            if told is not None:
                stats = self.stats[name] = self._make(told)
        if stats is None or stats.stale(identities) is not None:
            stats = self.stats[name] = self._make(KernelStats.empty(name, identities))
        return stats

    def learn(self, others: Iterable[KernelStats]) -> None:
        """Add what others have observed."""
        for other in others:
            known = self.stats.get(other.name) or self._told.get(other.name)
            if known is not None:
                known.merge(_copy(other))
            elif len(self._told) < self._most:
                self._told[other.name] = _copy(other)

    def news(self, most: int) -> list[KernelStats]:
        """What was observed since this was last asked, of so many sequences; the others come first next time."""
        found = []
        for name in [n for n, s in self.stats.items() if isinstance(s, _Learning) and s.since is not None][:most]:
            stats = self.stats[name] = self.stats.pop(name)
            assert isinstance(stats, _Learning) and stats.since is not None
            found.append(stats.since)
            stats.since = None
        return found

    def state(self) -> tuple[tuple[KernelStats, ...], tuple[KernelStats, ...]]:
        """Copies of what is known of sequences that came, and of those that did not."""
        return tuple(map(_copy, self.stats.values())), tuple(map(_copy, self._told.values()))

    def restore(self, came: Iterable[KernelStats], told: Iterable[KernelStats]) -> None:
        """What `state` gave."""
        self.stats = {stats.name: self._make(_copy(stats)) for stats in came}
        self._told = {stats.name: _copy(stats) for stats in told}


def _copy(stats: KernelStats) -> KernelStats:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(stats), type=KernelStats)
