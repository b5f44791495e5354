"""Whether to wait for a larger batch: what a hold may cost, and what it must not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.plan.chance import Way
from dovetail.plan.frontier import Choice
from dovetail.plan.options import Option
from dovetail.schedule.holding import WORTH_WAITING, WORTH_WAITING_LEARNED, Holding
from dovetail.schedule.protocol import Hold
from dovetail.schedule.waiting import HOLD_MARGIN_NS
from dovetail.state import Config, Item, Queue, Request, compile_graphs
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec, chain

GRAPHS, _ = compile_graphs(
    [chain("flow", SECOND, [StageSpec("read", "model", (1, 2, 4), model="read")])], lambda g, n: n.stage
)
#: Items come so often that the next is expected after this time.
FILL_NS = 10 * MS
ONE, TWO = Config(1, 1, 100), Config(2, 1, 100)


def waiting() -> tuple[Holding, Queue, int]:
    """A queue in which one item waits, what is known of arrivals there, and when it is now."""
    holding, queue = Holding(), Queue("read", GRAPHS[0].nodes[0].stage)
    now_ns = 0
    for ident in range(9):
        now_ns = ident * FILL_NS
        item = Item(Request(ident, GRAPHS[0], 1, now_ns, 100 * SECOND, 0), 0, 0, now_ns)
        holding.note("read", item, 1 * MS, now_ns)
    queue.push(0, item)
    return holding, queue, now_ns


class Values:
    """Expected costs by batch; a request whose time left is below a limit when it begins is late, which costs 100."""

    def __init__(self, in_time_ns: int = 0, two_usd: float = 1.0) -> None:
        self.in_time_ns, self.two_usd = in_time_ns, two_usd

    def weigh(self, node: int, left_ns: int, batch: int) -> Way | None:
        if batch > 2:
            return None
        usd = 100.0 if left_ns < self.in_time_ns else self.two_usd if batch == 2 else 2.0
        return Way(TWO if batch == 2 else ONE, usd)


def by_chance(values: Values, left_ns: int, *, profiled: bool = True) -> Hold | None:
    holding, queue, now_ns = waiting()
    plan: Any = SimpleNamespace(profiled=profiled)
    given: Any = values
    hold = holding.by_chance(plan, given, queue, 0, left_ns, Way(ONE, 2.0), now_ns)
    assert hold is None or hold.until_ns == now_ns + 2 * FILL_NS, "arrivals are irregular"
    return hold


def test_no_hold_goes_beyond_the_objective_however_much_it_would_save() -> None:
    longest_ns = 2 * FILL_NS + HOLD_MARGIN_NS
    assert by_chance(Values(), longest_ns) is None
    assert by_chance(Values(), longest_ns + 1) is not None


def test_a_hold_in_vain_leaves_less_time_than_one_that_was_worth_it() -> None:
    left_ns, run_ns = 100 * MS, 30 * MS
    assert by_chance(Values(run_ns), left_ns) is not None
    # In time after the wait that is expected, and late after the longest: one time in seven that costs 100.
    in_vain_ns = left_ns - 2 * FILL_NS - HOLD_MARGIN_NS
    assert by_chance(Values(in_vain_ns), left_ns) is not None
    assert by_chance(Values(in_vain_ns + 1), left_ns) is None


@pytest.mark.parametrize(("profiled", "part"), [(True, WORTH_WAITING), (False, WORTH_WAITING_LEARNED)])
def test_a_hold_has_to_save_a_part_of_the_cost_and_more_of_it_where_times_are_learned(
    profiled: bool, part: float
) -> None:
    # What it saves is expected seven times in eight (COMES); else nothing is saved.
    saved_usd = 2.0 * part / 0.865
    assert by_chance(Values(0, 2.0 - saved_usd * 1.01), SECOND, profiled=profiled) is not None
    assert by_chance(Values(0, 2.0 - saved_usd * 0.99), SECOND, profiled=profiled) is None


def choice(config: Config, need_ns: int, slack_ns: int, usd: float) -> Choice:
    return Choice(0, Option(config, need_ns, 0.0, usd), 0, need_ns, slack_ns, usd, 0, 0)


def by_cost(slack_ns: int, two_ns: int) -> Hold | None:
    """One takes 20 ms; two take this long and cost half as much."""
    holding, queue, now_ns = waiting()

    def choose(node: int, left_ns: int, batch: int) -> Choice | None:
        return choice(TWO, two_ns, left_ns - two_ns, 1.0) if batch == 2 and left_ns >= two_ns else None

    plan: Any = SimpleNamespace(profiled=True, fill_ns={(0, 1): 0}, choose=choose)
    return holding.by_cost(plan, queue, choice(ONE, 20 * MS, slack_ns, 2.0), now_ns)


def test_by_cost_a_larger_batch_has_to_be_in_time_after_the_wait_and_its_margin() -> None:
    slack_ns = 50 * MS
    left_ns = 20 * MS + slack_ns - FILL_NS - HOLD_MARGIN_NS
    assert by_cost(slack_ns, left_ns) is not None
    assert by_cost(slack_ns, left_ns + 1) is None


def test_by_cost_nobody_waits_longer_than_what_is_left() -> None:
    _, _, now_ns = waiting()
    held = by_cost(15 * MS, 20 * MS)
    assert held is not None and held.until_ns == now_ns + 15 * MS - HOLD_MARGIN_NS, "less than twice the wait"
    roomy = by_cost(90 * MS, 20 * MS)
    assert roomy is not None and roomy.until_ns == now_ns + 2 * FILL_NS
    assert by_cost(FILL_NS + HOLD_MARGIN_NS, 20 * MS) is not None
    assert by_cost(FILL_NS + HOLD_MARGIN_NS - 1, 20 * MS) is None, "it comes too late"
