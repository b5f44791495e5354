"""Workers by how much of them is free: who has room for a batch is found without a look at all of them.

Rules of this file
- A worker stands under the share that is free on it (none if others are in line there), under its next expected end,
  and under the lowest class that it runs. All three are looked up, not scanned.
- The tightest fit is taken, and among equals the one that joined first: so the last ones stay idle.
- What has changed is noted in one list (`Changes`), and a group reads on when it is next asked: a change costs the
  same however many models a worker holds, and groups that nobody asks cost nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush

from ..state import NEVER_NS, Config, Worker

__all__ = ["Changes", "Group"]

#: Entries that a list of changes may have beyond a few per worker before it is begun anew.
_SLACK = 64
#: Workers that are looked at before the soonest of them is taken: ends are expected, not known.
_LOOKS = 4


class Changes:
    """Which workers have changed, in order. Begun anew now and then: who reads an older one starts from scratch."""

    __slots__ = ("log", "number", "workers")

    def __init__(self) -> None:
        self.log: list[Worker] = []
        self.number = 0
        #: How many workers there are.
        self.workers = 0

    def add(self, worker: Worker) -> None:
        """Something about a worker is different."""
        log = self.log
        if len(log) > 4 * self.workers + _SLACK:
            self.log = log = []
            self.number += 1
        log.append(worker)


class Group:
    """Workers that could all run the same thing."""

    __slots__ = (
        "_at", "_busy", "_changes", "_counts", "_ends", "_filed", "_log", "_lows", "_mask", "_preempts", "_promised",
        "_read", "members",
    )  # fmt: skip

    def __init__(self, changes: Changes) -> None:
        self.members: dict[int, Worker] = {}
        self._preempts = False
        self._changes = changes
        self._log, self._read = changes.number, len(changes.log)
        #: Bit p is set if some member has p per cent free.
        self._mask = 0
        #: Share that is free -> numbers of members, as a heap; some of them may stand elsewhere by now.
        self._at: dict[int, list[int]] = {}
        self._counts: dict[int, int] = {}
        #: (expected end, worker) of members that run something.
        self._ends: list[tuple[int, int]] = []
        self._busy: dict[int, int] = {}
        #: Lowest class that runs -> members.
        self._lows: dict[int, dict[int, Worker]] = {}
        #: Members of which all that runs has is promised to those in line.
        self._promised: set[int] = set()
        #: Worker -> share and class that it stands under.
        self._filed: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.members)

    def add(self, worker: Worker) -> None:
        """It belongs here from now on."""
        if worker.id not in self.members:
            self._sync()
            self.members[worker.id] = worker
            self._preempts = self._preempts or worker.spec.preempts
            self._file(worker)

    def drop(self, worker: Worker) -> None:
        """It does not any more."""
        if self.members.pop(worker.id, None) is not None:
            self._unfile(worker.id)
            self._promised.discard(worker.id)

    # -- questions --------------------------------------------------------------------------------------------

    def roomy(self) -> bool:
        """Whether anything at all is free."""
        self._sync()
        return self._mask > 1

    def promised(self, priority: int) -> bool:
        """Whether nothing can be sent to any member before something ends: all that they have is promised.

        Members that run a class below `priority` may stop for it.
        """
        self._sync()
        return len(self._promised) == len(self.members) and (
            not self._preempts or max(self._lows, default=0) <= priority
        )

    def tightest(self, config: Config) -> Worker | None:
        """The member that has room for a batch now, with the least share left over."""
        found = self.fitting(config, 1)
        return found[0] if found else None

    def fitting(self, config: Config, most: int) -> list[Worker]:
        """Some members that have room for a batch now, the tightest first."""
        self._sync()
        pct = config.share_pct
        mask = self._mask >> pct
        found: list[Worker] = []
        while mask:
            skip = (mask & -mask).bit_length() - 1
            pct += skip
            self._take(pct, config.cpus, most, found)
            if len(found) >= most:
                break
            mask >>= skip + 1
            pct += 1
        return found

    def _take(self, pct: int, cpus: int, most: int, found: list[Worker]) -> None:
        """Members that have so much free, in the order of their numbers, as far as there is need of them."""
        heap, filed, members = self._at[pct], self._filed, self.members
        looked: list[int] = []
        last = -1
        while heap and len(found) < most:
            ident = heap[0]
            place = filed.get(ident)
            if ident == last or place is None or place[0] != pct:
                heappop(heap)
                continue
            last = ident
            worker = members[ident]
            if worker.free_cpus >= cpus:
                found.append(worker)
                if len(found) >= most:
                    break
            looked.append(heappop(heap))
        for ident in looked:
            heappush(heap, ident)

    def soonest(self, config: Config, priority: int, now_ns: int, early_ns: int) -> tuple[Worker, int] | None:
        """Of members without room now, one that should have it first, and when."""
        self._sync()
        best: tuple[Worker, int] | None = None
        for low in sorted(self._lows, reverse=True):
            if low <= priority:
                break
            for looked, worker in enumerate(self._lows[low].values()):
                if looked == _LOOKS:
                    break
                if worker.spec.preempts and worker.room_at(config, priority, now_ns, early_ns) <= now_ns:
                    return worker, now_ns
        for worker in self._first_to_end():
            at_ns = worker.room_at(config, priority, now_ns, early_ns)
            if at_ns < NEVER_NS and (best is None or at_ns < best[1]):
                best = worker, at_ns
        return best

    def next_end_ns(self) -> int:
        """When the first batch of any member should end; 0 if one may have room before, by letting a class in."""
        self._sync()
        ends, busy = self._ends, self._busy
        while ends and busy.get(ends[0][1]) != ends[0][0]:
            heappop(ends)
        return ends[0][0] if ends and not self._preempts else 0

    def _first_to_end(self) -> list[Worker]:
        """The members whose next end is expected first."""
        ends, busy = self._ends, self._busy
        found: dict[int, tuple[int, int]] = {}
        while ends and len(found) < _LOOKS:
            entry = heappop(ends)
            if busy.get(entry[1]) == entry[0]:
                found[entry[1]] = entry
        for entry in found.values():
            heappush(ends, entry)
        return [self.members[ident] for ident in found]

    # -- books ------------------------------------------------------------------------------------------------

    def _sync(self) -> None:
        changes = self._changes
        log = changes.log
        if self._log == changes.number:
            if self._read == len(log):
                return
            changed = log[self._read :]
        else:
            changed = list(self.members.values())
        members = self.members
        for worker in changed if len(changed) < 3 else dict.fromkeys(changed):
            if worker.id in members:
                self._file(worker)
        self._log, self._read = changes.number, len(log)

    def _file(self, worker: Worker) -> None:
        """Put a member where it stands now."""
        ident = worker.id
        free_pct = 0 if worker.line or worker.free_cpus <= 0 else worker.free_pct
        low, end_ns = 0, 0
        held_pct, owed_pct = worker.free_pct, 0
        for batch in worker.running.values():
            if batch.fetches:
                continue
            priority = batch.priority()
            if priority > low:
                low = priority
            if batch.waits:
                owed_pct += batch.config.share_pct - batch.got_pct
                continue
            held_pct += batch.got_pct
            at_ns = batch.begun_ns + batch.expected_ns
            if not end_ns or at_ns < end_ns:
                end_ns = at_ns
        if owed_pct >= held_pct:
            self._promised.add(ident)
        else:
            self._promised.discard(ident)
        place = free_pct, low
        if self._filed.get(ident) != place:
            self._unfile(ident)
            self._filed[ident] = place
            row = self._at.setdefault(free_pct, [])
            heappush(row, ident)
            count = self._counts[free_pct] = self._counts.get(free_pct, 0) + 1
            if len(row) > 4 * count + _SLACK:
                row[:] = sorted(w for w, (pct, _) in self._filed.items() if pct == free_pct)
            self._mask |= 1 << free_pct
            self._lows.setdefault(low, {})[ident] = worker
        if end_ns:
            if self._busy.get(ident) != end_ns:
                self._busy[ident] = end_ns
                heappush(self._ends, (end_ns, ident))
                if len(self._ends) > 4 * len(self.members) + _SLACK:
                    self._ends = sorted((end, w) for w, end in self._busy.items())
        else:
            self._busy.pop(ident, None)

    def _unfile(self, ident: int) -> None:
        place = self._filed.pop(ident, None)
        if place is not None:
            free_pct, low = place
            self._counts[free_pct] -= 1
            if not self._counts[free_pct]:
                self._mask &= ~(1 << free_pct)
                self._at[free_pct].clear()
            lows = self._lows[low]
            del lows[ident]
            if not lows:
                del self._lows[low]
        if ident not in self.members:
            self._busy.pop(ident, None)
