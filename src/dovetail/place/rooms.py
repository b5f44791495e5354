"""Workers by how much of them is free: who has room for a batch is found without a look at all of them.

Sets of workers are integers, a bit for each worker in order of joining: whoever has a model *and* half of a device
free is one `&` of two integers. Of ten thousand workers that is 157 machine words, some tenths of a microsecond.

Rules of this file
- A worker stands under the share that is free on it (none if others are in line there), under the lowest class that
  it runs, and under its next expected end, in steps of time. All three are looked up, not scanned.
- The tightest fit is taken, and among equals the one that joined first: so the last ones stay idle.
- A change of a worker costs the same however many models it holds: what it holds is another set.
- A configuration that is meant for one kind of device (`Config.kind`) fits on no other: kinds are sets, too.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final

from ..state import NEVER_NS, Config, Worker
from ..units import MS

__all__ = ["Group", "Rooms"]

#: Workers that are looked at before the soonest of them is taken: ends are expected, not known.
_LOOKS: Final = 4
#: Of so few workers the ends are compared one by one.
_FEW: Final = 16
#: Ends are filed in steps of this.
_STEP_NS: Final = 4 * MS
#: No end: it runs nothing.
_NO_STEP: Final = -1
#: Places of workers that are gone are kept until there are so many more of them than of workers.
_GONE: Final = 64


class Rooms:
    """All workers of one kind, and where each of them stands."""

    __slots__ = (
        "_ends",
        "_filed",
        "_free",
        "_lows",
        "_mask",
        "_places",
        "_steps",
        "groups",
        "kinds",
        "promised",
        "roomy",
        "soon",
        "workers",
    )

    def __init__(self) -> None:
        #: Place -> worker; None if it is gone. And the place of each.
        self.workers: list[Worker | None] = []
        self._places: dict[int, int] = {}
        #: Kind of device -> workers.
        self.kinds: dict[str, int] = {}
        #: Place -> free share, lowest class and step of the next end that it stands under.
        self._filed: dict[int, tuple[int, int, int]] = {}
        #: Free share -> workers; bit p of the mask is set if there are any.
        self._free: list[int] = [0] * 101
        self._mask = 0
        #: Those that have anything free.
        self.roomy = 0
        #: Those of which all that runs has is promised to others in line.
        self.promised = 0
        #: Lowest class that runs -> workers.
        self._lows: dict[int, int] = {}
        #: Place -> next end. Step -> workers whose next end is in it; and those steps, in order.
        self._ends: dict[int, int] = {}
        self._steps: dict[int, int] = {}
        self.soon: list[int] = []
        #: Sets of them that others keep.
        self.groups: list[Group] = []

    def __contains__(self, worker: Worker) -> bool:
        return worker.id in self._places

    def join(self, worker: Worker) -> None:
        """It is here from now on."""
        if worker.id not in self._places:
            place = self._places[worker.id] = len(self.workers)
            self.workers.append(worker)
            self.kinds[worker.spec.kind] = self.kinds.get(worker.spec.kind, 0) | 1 << place
            self.changed(worker)

    def leave(self, worker: Worker) -> None:
        """It is gone, from all groups as well."""
        place = self._places.pop(worker.id, -1)
        if place < 0:
            return
        self.kinds[worker.spec.kind] &= ~(1 << place)
        self._unfile(place)
        self._ends.pop(place, None)
        self.promised &= ~(1 << place)
        self.workers[place] = None
        for group in self.groups:
            group.drop_place(place)
        if len(self.workers) > 2 * len(self._places) + _GONE:
            self._close_up()

    def bit(self, worker: Worker) -> int:
        """The set of this worker alone; 0 if it is not here."""
        place = self._places.get(worker.id, -1)
        return 0 if place < 0 else 1 << place

    def changed(self, worker: Worker) -> None:
        """What it runs, or what is free on it, is not what it was."""
        place = self._places.get(worker.id, -1)
        if place < 0:
            return
        free_pct = 0 if worker.line or worker.free_cpus <= 0 else worker.free_pct
        low, end_ns = 0, -1
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
            if end_ns < 0 or at_ns < end_ns:
                end_ns = at_ns
        bit = 1 << place
        if (owed_pct >= held_pct) != bool(self.promised & bit):
            self.promised ^= bit
        if end_ns < 0:
            step = _NO_STEP
            self._ends.pop(place, None)
        else:
            step = end_ns // _STEP_NS
            self._ends[place] = end_ns
        if self._filed.get(place) != (free_pct, low, step):
            self._unfile(place)
            self._file(place, free_pct, low, step)

    def _file(self, place: int, free_pct: int, low: int, step: int) -> None:
        bit = 1 << place
        self._filed[place] = free_pct, low, step
        self._free[free_pct] |= bit
        self._mask |= 1 << free_pct
        if free_pct:
            self.roomy |= bit
        self._lows[low] = self._lows.get(low, 0) | bit
        if step != _NO_STEP:
            others = self._steps.get(step, 0)
            if not others:
                insort(self.soon, step)
            self._steps[step] = others | bit

    def _unfile(self, place: int) -> None:
        found = self._filed.pop(place, None)
        if found is None:
            return
        free_pct, low, step = found
        bit = 1 << place
        left = self._free[free_pct] = self._free[free_pct] ^ bit
        if not left:
            self._mask ^= 1 << free_pct
        if free_pct:
            self.roomy ^= bit
        self._lows[low] ^= bit
        if not self._lows[low]:
            del self._lows[low]
        if step != _NO_STEP:
            others = self._steps[step] ^ bit
            if others:
                self._steps[step] = others
            else:
                del self._steps[step]
                del self.soon[bisect_left(self.soon, step)]

    def _close_up(self) -> None:
        """Give those that are left new places, in the same order."""
        kept = [worker for worker in self.workers if worker is not None]
        members = [[w for w in kept if group.has(w)] for group in self.groups]
        for place in list(self._filed):
            self._unfile(place)
        self.workers = []
        self._places.clear()
        self.kinds.clear()
        self._ends.clear()
        self.promised = 0
        for worker in kept:
            self.join(worker)
        for group, rows in zip(self.groups, members, strict=True):
            group.refill(rows)

    # -- questions --------------------------------------------------------------------------------------------

    def fitting(self, among: int, config: Config, most: int) -> list[Worker]:
        """Some of a set that have room for a batch now, the tightest first."""
        pct, cpus = config.share_pct, config.cpus
        mask = self._mask >> pct
        found: list[Worker] = []
        while mask:
            skip = (mask & -mask).bit_length() - 1
            pct += skip
            bits = self._free[pct] & among
            while bits:
                place = (bits & -bits).bit_length() - 1
                worker = self.workers[place]
                if worker is not None and worker.free_cpus >= cpus:
                    found.append(worker)
                    if len(found) >= most:
                        return found
                bits &= bits - 1
            mask >>= skip + 1
            pct += 1
        return found

    def lowest(self, among: int) -> int:
        """The lowest class that any of a set runs; 0 if they run nothing."""
        lowest = 0
        for low, bits in self._lows.items():
            if low > lowest and bits & among:
                lowest = low
        return lowest

    def lower(self, among: int, priority: int) -> list[Worker]:
        """Some of a set that run something of a lower class than this, the lowest first."""
        found: list[Worker] = []
        for low in sorted(self._lows, reverse=True):
            if low <= priority:
                break
            found += self.some(self._lows[low] & among, _LOOKS)
        return found

    def ending(self, among: int) -> list[Worker]:
        """Some of a set whose next end is expected first."""
        found: list[Worker] = []
        if among.bit_count() <= _FEW:
            ends = sorted([(self._ends[place], place) for place in _places(among) if place in self._ends])
            return [worker for _, place in ends[:_LOOKS] if (worker := self.workers[place]) is not None]
        for step in self.soon:
            bits = self._steps[step] & among
            if bits:
                found += self.some(bits, _LOOKS - len(found))
                if len(found) >= _LOOKS:
                    break
        return found

    def first_step_ns(self, among: int) -> int:
        """No next end of a set is expected before that; 0 if none is expected."""
        for step in self.soon:
            if self._steps[step] & among:
                return step * _STEP_NS
        return 0

    def some(self, bits: int, most: int) -> list[Worker]:
        """The first workers of a set."""
        found: list[Worker] = []
        while bits and len(found) < most:
            worker = self.workers[(bits & -bits).bit_length() - 1]
            if worker is not None:
                found.append(worker)
            bits &= bits - 1
        return found


def _places(bits: int) -> Iterator[int]:
    """Which bits are set."""
    while bits:
        yield (bits & -bits).bit_length() - 1
        bits &= bits - 1


class Group:
    """Workers that could all run the same thing."""

    __slots__ = ("_bits", "_preempts", "_rooms", "count")

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._bits = 0
        self._preempts = False
        #: How many they are.
        self.count = 0
        rooms.groups.append(self)

    def __len__(self) -> int:
        return self.count

    def has(self, worker: Worker) -> bool:
        """Whether it belongs here."""
        return bool(self._bits & self._rooms.bit(worker))

    def first(self) -> Worker | None:
        """The member that joined first."""
        found = self._rooms.some(self._bits, 1)
        return found[0] if found else None

    def add(self, worker: Worker) -> None:
        """It belongs here from now on."""
        bit = self._rooms.bit(worker)
        if bit and not self._bits & bit:
            self._bits |= bit
            self.count += 1
            self._preempts = self._preempts or worker.spec.preempts

    def drop(self, worker: Worker) -> None:
        """It does not any more."""
        bit = self._rooms.bit(worker)
        if self._bits & bit:
            self._bits ^= bit
            self.count -= 1

    def drop_place(self, place: int) -> None:
        """Whoever had this place is gone."""
        if self._bits >> place & 1:
            self._bits ^= 1 << place
            self.count -= 1

    def refill(self, workers: list[Worker]) -> None:
        """The same members have other places."""
        self._bits = 0
        for worker in workers:
            self._bits |= self._rooms.bit(worker)

    # -- questions --------------------------------------------------------------------------------------------

    def roomy(self) -> bool:
        """Whether anything at all is free."""
        return bool(self._bits & self._rooms.roomy)

    def promised(self, priority: int) -> bool:
        """Whether nothing can be sent to any member before something ends: all that they have is promised.

        Members that run a class below `priority` may stop for it.
        """
        rooms, bits = self._rooms, self._bits
        return not bits & ~rooms.promised and (not self._preempts or rooms.lowest(bits) <= priority)

    def tightest(self, config: Config) -> Worker | None:
        """The member that has room for a batch now, with the least share left over."""
        found = self._rooms.fitting(self._meant(config), config, 1)
        return found[0] if found else None

    def fitting(self, config: Config, most: int) -> list[Worker]:
        """Some members that have room for a batch now, the tightest first."""
        return self._rooms.fitting(self._meant(config), config, most)

    def meant(self, config: Config) -> int:
        """How many members a configuration is meant for."""
        return self._meant(config).bit_count() if config.kind else self.count

    def _meant(self, config: Config) -> int:
        """Members that a configuration is meant for."""
        return self._bits & self._rooms.kinds.get(config.kind, 0) if config.kind else self._bits

    def soonest(self, config: Config, priority: int, now_ns: int, early_ns: int) -> tuple[Worker, int] | None:
        """Of members without room now, one that should have it first, and when."""
        rooms, bits = self._rooms, self._meant(config)
        if self._preempts:
            for worker in rooms.lower(bits, priority):
                if worker.spec.preempts and worker.room_at(config, priority, now_ns, early_ns) <= now_ns:
                    return worker, now_ns
        best: tuple[Worker, int] | None = None
        for worker in rooms.ending(bits):
            at_ns = worker.room_at(config, priority, now_ns, early_ns)
            if at_ns < NEVER_NS and (best is None or at_ns < best[1]):
                best = worker, at_ns
        return best

    def next_end_ns(self) -> int:
        """No member should have room before that; 0 if one may, by letting a class in."""
        return 0 if self._preempts else self._rooms.first_step_ns(self._bits)
