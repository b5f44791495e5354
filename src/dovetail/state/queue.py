"""Work that waits: one queue per stage (or finer, if the scheduler says so)."""

from __future__ import annotations

from heapq import heappop, heappush

from ..workflow.graph import StageSpec
from .request import Item, Request

__all__ = ["Queue", "Waiting"]


class Waiting:
    """What waits in all queues together, so that nobody has to look at each of them."""

    __slots__ = ("items", "ready")

    def __init__(self) -> None:
        #: Items of open requests.
        self.items = 0
        #: Queues with work that are not held.
        self.ready = 0


class Queue:
    """Items in the scheduler's order. Items of closed requests stay inside until they come up, but do not count."""

    __slots__ = (
        "_classes", "_heap", "_sequence", "_waiting", "arrived", "held_until_ns", "key", "size", "stage",
    )  # fmt: skip

    def __init__(self, key: str, stage: StageSpec) -> None:
        self.key = key
        self.stage = stage
        #: Items of open requests.
        self.size = 0
        #: Items that were ever asked for: those of refused requests count, those that come back do not.
        self.arrived = 0
        #: A declared hold: nothing starts before this time unless the queue changes. 0 is none. Set by `hold`.
        self.held_until_ns = 0
        self._waiting = Waiting()
        #: Class -> items of open requests.
        self._classes: dict[int, int] = {}
        self._heap: list[tuple[int, int, Item]] = []
        self._sequence = 0

    def count_in(self, waiting: Waiting) -> None:
        """From now on it is one of several queues that are counted together; it is empty."""
        self._waiting = waiting

    def hold(self, until_ns: int) -> None:
        """Nothing starts before this time, unless the queue changes; 0 ends a hold."""
        if self.size and (until_ns == 0) != (self.held_until_ns == 0):
            self._waiting.ready += 1 if until_ns == 0 else -1
        self.held_until_ns = until_ns

    def push(self, order: int, item: Item) -> None:
        """Add an item; smaller `order` comes first, then first come."""
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (order, sequence, item))
        waiting, size = self._waiting, self.size
        waiting.items += 1
        if not size and not self.held_until_ns:
            waiting.ready += 1
        self.size = size + 1
        item.waits = True
        request = item.request
        priority, classes, queues = request.priority, self._classes, request.waiting
        classes[priority] = classes.get(priority, 0) + 1
        queues[self] = queues.get(self, 0) + 1

    def of_class(self, priority: int) -> int:
        """How many items of open requests of a class wait."""
        return self._classes.get(priority, 0)

    def up_to_class(self, priority: int) -> int:
        """How many items of open requests of a class and of higher ones wait."""
        return sum(count for of, count in self._classes.items() if of <= priority)

    def head(self) -> Item | None:
        """The first item of an open request."""
        heap = self._heap
        while heap:
            item = heap[0][2]
            if not item.request.outcome:
                return item
            heappop(heap)
        return None

    def head_order(self) -> int:
        """Order of the head; only meaningful while `size` is above nought."""
        heap = self._heap
        while heap[0][2].request.outcome:
            heappop(heap)
        return heap[0][0]

    def pop(self, count: int) -> list[Item]:
        """Take the first `count` items of open requests; fewer if there are fewer, or one must run alone."""
        heap, classes, size = self._heap, self._classes, self.size
        taken: list[Item] = []
        while heap:
            entry = heappop(heap)
            item = entry[2]
            request = item.request
            if request.outcome:
                continue
            if item.alone:
                if taken:
                    heappush(heap, entry)
                    break
                count = 1
            request.waiting[self] -= 1
            classes[request.priority] -= 1
            item.waits = False
            size -= 1
            taken.append(item)
            if not size or len(taken) >= count:
                break
        if taken:
            self._shrink(size)
        return taken

    def forget(self, request: Request) -> None:
        """A request was closed: what it has waiting here does not count any more."""
        gone = request.waiting.pop(self, 0)
        if gone:
            self._classes[request.priority] -= gone
            self._shrink(self.size - gone)

    def _shrink(self, size: int) -> None:
        """So many items still wait, which are fewer than before."""
        waiting = self._waiting
        waiting.items += size - self.size
        self.size = size
        if not size and not self.held_until_ns:
            waiting.ready -= 1

    def open_items(self) -> list[Item]:
        """Items of open requests in no particular order, for validation and look-ahead."""
        return [entry[2] for entry in self._heap if not entry[2].request.outcome]
