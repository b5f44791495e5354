"""Is a larger batch worth waiting for? How often items come, and what a hold would save.

Rules of this file: a hold is asked for only if it saves a certain part of the cost, and never beyond the time of
anybody who waits (`waiting.Urgent`). It lasts twice the wait that is expected, because arrivals are irregular.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..plan.chance import Chances, Way
from ..plan.frontier import Choice
from ..plan.tables import WorkflowPlan
from ..predict.running import Rate
from ..state import Item, Queue
from ..units import format_ns
from .protocol import Hold
from .waiting import HOLD_MARGIN_NS, Urgent

__all__ = ["Holding"]

#: A larger batch is waited for only if it saves at least this part of what is left to pay; and this part where times
#: are learned, which are never the same twice. [our choice]
WORTH_WAITING, WORTH_WAITING_LEARNED = 0.0005, 0.05
#: Chance that an arrival comes within twice the time it is expected in, if arrivals are by chance: 1 − 1/e².
COMES = 0.865


class Holding:
    """Arrivals queue by queue, and the holds that follow from them."""

    def __init__(self) -> None:
        self._rates: dict[str, Rate] = {}
        self.urgent = Urgent()
        #: Queue -> until when it was held on purpose.
        self._until_ns: dict[str, int] = {}

    def note(self, key: str, item: Item, rest_ns: int, now_ns: int) -> None:
        """An item has joined a queue; the rest of its request takes so long at best."""
        rate = self._rates.get(key)
        if rate is None:
            rate = self._rates[key] = Rate()
        rate.arrived(now_ns)
        self.urgent.note(key, item, rest_ns)

    def intervals_ns(self, keys: Iterable[str]) -> dict[str, int]:
        """Of these queues, the interval between arrivals in the long run, where enough is known."""
        found = {}
        for key in keys:
            rate = self._rates.get(key)
            interval_ns = None if rate is None else rate.steady_interval_ns()
            if interval_ns is not None:
                found[key] = interval_ns
        return found

    def held(self, queue: Queue, hold: Hold) -> Hold:
        """The queue is held on purpose."""
        self._until_ns[queue.key] = hold.until_ns
        return hold

    def go(self, queue: Queue, now_ns: int) -> None:
        """If it was held, it is not any more: from now on its items wait against the planner's will."""
        if self._until_ns.get(queue.key, 0) > now_ns:
            self._until_ns[queue.key] = now_ns

    def since_ns(self, queue: Queue, item: Item) -> int:
        """Since when an item waits against the planner's will."""
        return max(item.queued_ns, self._until_ns.get(queue.key, 0))

    def least_left_ns(self, queue: Queue, size: int, head: Item, quick_ns: int, now_ns: int) -> int:
        """What is left to the head, or to one of a lower class that goes with it, has less and can be in time."""
        left_ns = head.request.objective_ns - now_ns
        first = self.urgent.first(queue.key)
        if first is None or first.request.graph is not head.request.graph or first.node != head.node:
            return left_ns
        if size < queue.size or size > queue.stage.batch[-1]:
            return left_ns  # it may not go with it
        urgent_ns = first.request.objective_ns - now_ns
        return urgent_ns if quick_ns <= urgent_ns < left_ns else left_ns

    def by_chance(
        self, plan: WorkflowPlan, chances: Chances, queue: Queue, node: int, left_ns: int, now: Way, now_ns: int
    ) -> Hold | None:
        """A hold, if a larger batch is worth it even though it may not come."""
        rate = self._rates.get(queue.key)
        best_usd = now.value_usd * (1 - _worth_waiting(plan))
        wanted, wait_ns = 0, 0
        for batch in queue.stage.batch:
            if batch <= queue.size:
                continue
            fill_ns = None if rate is None else rate.expected_ns(batch - queue.size)
            if fill_ns is None or left_ns <= 2 * fill_ns + HOLD_MARGIN_NS:
                break  # no hold beyond the objective, however little is left to lose
            comes = chances.weigh(node, left_ns - fill_ns - HOLD_MARGIN_NS, batch)
            in_vain = chances.weigh(node, left_ns - 2 * fill_ns - HOLD_MARGIN_NS, now.config.batch)
            if comes is None or in_vain is None:
                continue
            value_usd = COMES * comes.value_usd + (1 - COMES) * in_vain.value_usd
            if value_usd < best_usd:
                best_usd, wanted, wait_ns = value_usd, batch, fill_ns
        return self._hold(queue, wanted, wait_ns, 2 * wait_ns, now_ns)

    def by_cost(self, plan: WorkflowPlan, queue: Queue, now: Choice, now_ns: int) -> Hold | None:
        """A hold, if a larger batch is expected soon enough and saves enough."""
        rate = self._rates.get(queue.key)
        room_ns = now.slack_ns - HOLD_MARGIN_NS
        if rate is None or room_ns <= 0:
            return None
        node = now.node
        left_ns = now.need_ns + now.slack_ns - plan.fill_ns[node, now.option.config.batch]
        best_usd = now.cost_usd * (1 - _worth_waiting(plan))
        wanted, wait_ns = 0, 0
        for batch in queue.stage.batch:
            if batch <= queue.size:
                continue
            fill_ns = rate.expected_ns(batch - queue.size)
            if fill_ns is None or fill_ns > room_ns:
                break
            later = plan.choose(node, left_ns - fill_ns - HOLD_MARGIN_NS, batch)
            if later is not None and later.cost_usd < best_usd:
                best_usd, wanted, wait_ns = later.cost_usd, batch, fill_ns
        return self._hold(queue, wanted, wait_ns, min(2 * wait_ns, room_ns), now_ns)

    def _hold(self, queue: Queue, wanted: int, wait_ns: int, longest_ns: int, now_ns: int) -> Hold | None:
        if not wanted:
            return None
        reason = f"a batch of {wanted} is expected in {format_ns(wait_ns)} and is cheaper"
        return self.urgent.hold(queue, longest_ns, reason, now_ns)


def _worth_waiting(plan: WorkflowPlan) -> float:
    """What part of its cost a larger batch has to save."""
    return WORTH_WAITING if plan.profiled else WORTH_WAITING_LEARNED
