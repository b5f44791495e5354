"""Workers by when they are free, so that the best of them is found without looking at all of them.

A worker is known by three things: when it is expected to be free, which models it holds, and how many bytes of its
memory are free. The question is Compass's (`best`): which worker can start a task first,

    start(w) = max(free_at(w), arrive(w)) + fetch(w),    or with the fetch beside the wait,
    start(w) = max(free_at(w), arrive(w), fetch_from + fetch(w))

where fetch(w) is nothing if w holds the model, `fits_ns` if it has room for it and `evicts_ns` if it has not, and
arrive(w) differs only for the few workers that have an input already (`near`), where it is not later than elsewhere.

Rules of this file:
1. Workers stand in groups: one per model (who holds it) and one per bucket (how many of the known sizes of models
   fit into their free bytes: for a given model, all workers of a bucket have room or none has). Inside a group all
   have the same fetch and, but for those near, the same arrival, and start(w) never falls when free_at(w) grows; so
   the first by free_at stands for the group. Candidates are the firsts of the groups, and those near.
2. The first of a bucket may hold the model itself, and never hides a better one by that: with the fetch it is charged
   here it is no worse than anyone behind it, and without it, as a candidate of the model's group, no worse again.
   The same holds for the first that is near: its true arrival is not later than the one it stands for.
3. Who is free already is as good as anyone else who is: those stand in a list, of which any may be taken by `spread`
   (herds of controllers that all take the lowest number are how stale views hurt).
4. An update costs a heap push per model held. Old entries stay in a heap until they surface or outnumber the valid
   ones, whichever comes first; so memory is bounded by the number of workers and what they hold.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush

import msgspec

__all__ = ["Candidate", "Group", "Known", "Need", "WorkerIndex", "start_at"]

#: A heap is rebuilt when it has more than twice its valid entries and this many.
_SLACK = 32
#: Entries of a heap that may be out of date before the search for somebody is given up; at most half of them are.
_TRIES = 8


class Need(msgspec.Struct, gc=False):
    """What a task needs of a worker."""

    now_ns: int
    #: When its inputs can be at a worker that has none of them.
    arrive_ns: int
    #: Its model; no bytes if it needs none.
    weights: str = ""
    weights_bytes: int = 0
    fits_ns: int = 0
    evicts_ns: int = 0
    #: What an eviction is charged when candidates are compared, on top of the start: it takes a model from others.
    toll_ns: int = 0
    #: When a fetch can begin beside the wait; below nought it begins only after the wait, as Compass plans.
    fetch_from_ns: int = -1


class Candidate(msgspec.Struct, frozen=True, gc=False, order=True):
    """A worker and when it could start; candidates sort by start and toll, then by who has least to fetch."""

    score_ns: int
    fetch_ns: int
    worker: int
    start_ns: int


class Group:
    """Workers of one kind of cost, by when they are free. Those free at `now_ns` are a list, the others a heap."""

    __slots__ = ("busy", "heap", "idle", "place")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int]] = []
        #: Worker -> when it is free; an entry of the heap that says otherwise is out of date.
        self.busy: dict[int, int] = {}
        self.idle: list[int] = []
        #: Worker -> where it stands in `idle`.
        self.place: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.busy) + len(self.idle)

    def __contains__(self, worker: int) -> bool:
        return worker in self.busy or worker in self.place

    def put(self, worker: int, free_ns: int) -> None:
        """Add a worker or change when it is free; 0 is already."""
        if free_ns <= 0:
            self.busy.pop(worker, None)
            self._rest(worker)
            return
        if worker in self.place:
            self._wake(worker)
        self.busy[worker] = free_ns
        heap = self.heap
        heappush(heap, (free_ns, worker))
        if len(heap) > 2 * len(self.busy) + _SLACK:
            heap[:] = [(f, w) for w, f in self.busy.items()]
            heapify(heap)

    def drop(self, worker: int) -> None:
        """Remove a worker, if it is there."""
        if worker in self.place:
            self._wake(worker)
        else:
            self.busy.pop(worker, None)

    def settle(self, now_ns: int) -> None:
        """Move those that have become free to the list."""
        heap, busy = self.heap, self.busy
        while heap and (heap[0][0] <= now_ns or busy.get(heap[0][1]) != heap[0][0]):
            free_ns, worker = heappop(heap)
            if busy.get(worker) == free_ns:
                del busy[worker]
                self._rest(worker)

    def first(self, now_ns: int, spread: int, skip: Collection[int] = ()) -> tuple[int, int] | None:
        """(When free, worker) of the first not to skip; among those free already, the one that `spread` falls on."""
        heap, busy = self.heap, self.busy
        if heap and (heap[0][0] <= now_ns or busy.get(heap[0][1]) != heap[0][0]):
            self.settle(now_ns)
        idle = self.idle
        if idle:
            count = len(idle)
            at = spread % count
            if not skip:
                return now_ns, idle[at]
            for step in range(min(count, len(skip) + 1)):
                worker = idle[(at + step) % count]
                if worker not in skip:
                    return now_ns, worker
        if not heap:
            return None
        if heap[0][1] not in skip:
            return heap[0]
        return self._first_behind(skip)

    def someone(self, spread: int, skip: Collection[int]) -> int | None:
        """One of all who are here, by `spread` and free or not, but none of `skip`; may miss the last few left."""
        idle, heap, busy = self.idle, self.heap, self.busy
        count = len(idle) + len(heap)
        for step in range(min(count, len(skip) + _TRIES)):
            at = (spread + step) % count
            if at < len(idle):
                worker = idle[at]
            else:
                free_ns, worker = heap[at - len(idle)]
                if busy.get(worker) != free_ns:
                    continue
            if worker not in skip:
                return worker
        return None

    def _first_behind(self, skip: Collection[int]) -> tuple[int, int] | None:
        """The first that is not to be skipped, if the very first is: at most `skip` valid entries are passed over."""
        heap, busy = self.heap, self.busy
        aside: dict[tuple[int, int], None] = {}
        found = None
        while heap:
            entry = heap[0]
            if busy.get(entry[1]) == entry[0]:
                if entry[1] not in skip:
                    found = entry
                    break
                aside[entry] = None
            heappop(heap)
        for entry in aside:
            heappush(heap, entry)
        return found

    def _rest(self, worker: int) -> None:
        if worker not in self.place:
            self.place[worker] = len(self.idle)
            self.idle.append(worker)

    def _wake(self, worker: int) -> None:
        at = self.place.pop(worker)
        last = self.idle.pop()
        if last != worker:
            self.idle[at] = last
            self.place[last] = at


class Known(msgspec.Struct, gc=False):
    """What is known of one worker."""

    free_ns: int
    resident: frozenset[str]
    free_bytes: int
    bucket: int = -1


class WorkerIndex:
    """Workers of one kind: equal in everything but load and memory."""

    def __init__(self) -> None:
        self.workers: dict[int, Known] = {}
        #: Model -> who holds it or is fetching it.
        self.holders: dict[str, Group] = {}
        #: Sizes of models, ascending; a worker in bucket k has room for each of the first k.
        self.sizes: list[int] = []
        #: Everybody, all said to be idle: one of them can be had without a look at all.
        self.everybody = Group()
        self.buckets: list[Group] = [Group()]

    def __len__(self) -> int:
        return len(self.workers)

    def know(self, sizes: Iterable[int]) -> None:
        """Models of these sizes will be asked for. Costs a pass over all workers if one is new, which is rare."""
        merged = sorted({*self.sizes, *(s for s in sizes if s > 0)})
        if merged == self.sizes:
            return
        self.sizes = merged
        self.buckets = [Group() for _ in range(len(merged) + 1)]
        for worker, known in self.workers.items():
            known.bucket = bisect_right(merged, known.free_bytes)
            self.buckets[known.bucket].put(worker, known.free_ns)

    def put(self, worker: int, free_ns: int, resident: Collection[str], free_bytes: int) -> None:
        """Say what is known of a worker now; `free_ns` of 0 is free already."""
        known = self.workers.get(worker)
        if known is None:
            known = self.workers[worker] = Known(free_ns, frozenset(), free_bytes)
            self.everybody.put(worker, 0)
        moved = known.free_ns != free_ns
        known.free_ns = free_ns
        bucket = known.bucket
        if free_bytes != known.free_bytes or bucket < 0:
            known.free_bytes = free_bytes
            known.bucket = bisect_right(self.sizes, free_bytes)
        if known.bucket != bucket:
            if bucket >= 0:
                self.buckets[bucket].drop(worker)
            self.buckets[known.bucket].put(worker, free_ns)
        elif moved:
            self.buckets[bucket].put(worker, free_ns)
        held = known.resident
        if resident != held:
            known.resident = now = frozenset(resident)
            for weights in held - now:
                self.holders[weights].drop(worker)
            for weights in now - held:
                self._group(weights).put(worker, free_ns)
            held = held & now
        if moved:
            for weights in held:
                self.holders[weights].put(worker, free_ns)

    def drop(self, worker: int) -> None:
        """A worker is gone."""
        known = self.workers.pop(worker, None)
        if known is None:
            return
        self.everybody.drop(worker)
        self.buckets[known.bucket].drop(worker)
        for weights in known.resident:
            self.holders[weights].drop(worker)

    def firsts(self, need: Need, spread: int = 0, skip: Collection[int] = ()) -> list[Candidate]:
        """The candidates of all groups, without those near and those to skip; who holds the model comes first."""
        now_ns, arrive_ns = need.now_ns, need.arrive_ns
        from_ns = need.fetch_from_ns
        found: list[Candidate] = []
        size = need.weights_bytes
        if size:
            group = self.holders.get(need.weights)
            first = group.first(now_ns, spread, skip) if group is not None else None
            if first is not None:
                start_ns = first[0] if first[0] > arrive_ns else arrive_ns
                found.append(Candidate(start_ns, 0, first[1], start_ns))
                if first[0] <= arrive_ns:
                    return found  # nobody starts before the inputs are there, and nobody has less to fetch
            room = self._room(size)
        else:
            room = 0
        fetch_ns, toll_ns = need.fits_ns if room else 0, 0
        for number in range(len(self.buckets) - 1, -1, -1):
            if number < room:
                fetch_ns, toll_ns = need.evicts_ns, need.toll_ns
            first = self.buckets[number].first(now_ns, spread, skip)
            if first is None:
                continue
            start_ns = first[0] if first[0] > arrive_ns else arrive_ns
            if from_ns < 0:
                start_ns += fetch_ns
            elif fetch_ns and from_ns + fetch_ns > start_ns:
                start_ns = from_ns + fetch_ns
            found.append(Candidate(start_ns + toll_ns, fetch_ns, first[1], start_ns))
        return found

    def best(
        self, need: Need, near: Mapping[int, int] | None = None, spread: int = 0, skip: Collection[int] = ()
    ) -> Candidate | None:
        """The worker that can start first; `near` are those with an input already, and when the rest is there."""
        found = self.firsts(need, spread, skip)
        for worker, arrive_ns in (near or {}).items():
            if worker in self.workers and worker not in skip:
                found.append(start_at(self.workers[worker], worker, need, arrive_ns))
        return min(found, default=None)

    def someone(self, weights: str, spread: int, skip: Collection[int]) -> int | None:
        """One of those that hold the model, or of all if there is none to hold, by `spread`."""
        group = self.holders.get(weights) if weights else self.everybody
        return None if group is None else group.someone(spread, skip)

    def idle_holders(self, weights: str, now_ns: int) -> int:
        """How many of those that hold the model are free."""
        group = self.holders.get(weights)
        if group is None:
            return 0
        group.settle(now_ns)
        return len(group.idle)

    def idle_with_room(self, size: int, now_ns: int, spread: int = 0, without: str = "") -> int | None:
        """Somebody who is free, has room for `size` bytes and does not hold the model `without`; the tightest fit."""
        for number in range(self._room(size), len(self.buckets)):
            group = self.buckets[number]
            group.settle(now_ns)
            idle = group.idle
            for step in range(min(len(idle), 4)):
                worker = idle[(spread + step) % len(idle)]
                if without not in self.workers[worker].resident:
                    return worker
        return None

    def _room(self, size: int) -> int:
        """The first bucket whose workers have room for `size` bytes; in all below, nobody has."""
        at = bisect_left(self.sizes, size)
        if at == len(self.sizes) or self.sizes[at] != size:
            self.know([size])
        return at + 1

    def _group(self, weights: str) -> Group:
        group = self.holders.get(weights)
        if group is None:
            group = self.holders[weights] = Group()
        return group


def start_at(known: Known, worker: int, need: Need, arrive_ns: int) -> Candidate:
    """The rule of this file for one worker."""
    start_ns = max(known.free_ns, need.now_ns, arrive_ns)
    if not need.weights_bytes or need.weights in known.resident:
        return Candidate(start_ns, 0, worker, start_ns)
    fits = need.weights_bytes <= known.free_bytes
    fetch_ns, toll_ns = (need.fits_ns, 0) if fits else (need.evicts_ns, need.toll_ns)
    start_ns = start_ns + fetch_ns if need.fetch_from_ns < 0 else max(start_ns, need.fetch_from_ns + fetch_ns)
    return Candidate(start_ns + toll_ns, fetch_ns, worker, start_ns)
