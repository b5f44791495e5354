"""One workflow's raw material: what options take and cost, fan-outs, fills, lean options, and when it is old."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pytest

from dovetail.plan.space import Space
from dovetail.plan.stepwise import finish
from dovetail.plan.tables import WorkflowPlan, _likely_fill_ns
from dovetail.predict import Estimate
from dovetail.state import Config, Worker, WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import Graph, Node, Source, StageSpec, chain

SPACE = Space(shares_pct=(50, 100))
GPU = WorkerSpec("gpu", "v100", ("model",), usd_per_hour=36.0, usd_per_core_hour=0.0)
Times = Callable[[StageSpec, Config], Estimate]


class Told:
    """A predictor that says what the test says."""

    def __init__(self, times: Times) -> None:
        self.times = times

    def usual(self, stage: StageSpec, kind: str, items: int, config: Config) -> Estimate:
        assert items == config.batch
        return self.times(stage, config)


def usual(_stage: StageSpec, config: Config) -> Estimate:
    """10 ms on the whole device and 16 on half of it, half as long again for four."""
    return Estimate(
        (10 if config.share_pct == 100 else 16) * MS * (3 if config.batch == 4 else 2) // 2, 0.0, "profile"
    )


def stage(name: str, kind: str = "model", batch: tuple[int, ...] = (1, 4)) -> StageSpec:
    return StageSpec(name, kind, batch, model=name)


def fan_out() -> Graph:
    """`cut` gives a list, `read` is mapped over it, `join` takes the whole."""
    cut, read, join = stage("cut"), stage("read"), stage("join")
    nodes = (
        Node("cut", "cut", ()),
        Node("read", "read", (Source(0),), mapped=True),
        Node("join", "join", (Source(1),)),
    )
    return Graph("flow", 200 * MS, 1, (cut, read, join), nodes)


def plan_of(
    graph: Graph,
    times: Times = usual,
    *,
    spec: WorkerSpec = GPU,
    intervals_ns: dict[str, int] | None = None,
    premium: float | None = 0.0025,
    percentile: float = 0.99,
) -> WorkflowPlan:
    plan = WorkflowPlan(graph, Told(times), SPACE, percentile, premium)  # type: ignore[arg-type]
    plan.build({s.name: {spec.kind: {1: Worker(1, spec)}} for s in graph.stages}, intervals_ns or {})
    return plan


def two(batch: tuple[int, ...] = (1, 4)) -> Graph:
    return chain("flow", 200 * MS, [stage("first", batch=batch), stage("second", batch=batch)])


def option(plan: WorkflowPlan, node: int, batch: int, share_pct: int) -> tuple[int, float]:
    """(mean, cost) of one configuration."""
    found = next(o for o in plan.options[node] if (o.config.batch, o.config.share_pct) == (batch, share_pct))
    return found.mean_ns, found.cost_usd


# -- options --------------------------------------------------------------------------------------------------------


def test_an_option_costs_its_share_of_the_device_by_item() -> None:
    plan = plan_of(two())
    # A hundredth of a dollar a second: 10 ms of all of it, 16 ms of half of it, 15 ms of all of it for four.
    assert option(plan, 0, 1, 100) == (10 * MS, pytest.approx(1e-4))
    assert option(plan, 0, 1, 50) == (16 * MS, pytest.approx(0.8e-4))
    assert option(plan, 0, 4, 100)[1] == pytest.approx(1.5e-4 / 4)


def test_a_batch_contains_the_likely_wait_for_its_items_and_gives_it_back_when_they_are_at_hand() -> None:
    graph = chain("flow", 200 * MS, [stage("first"), stage("second", batch=(1,))])
    plan = plan_of(graph, intervals_ns={"first": 2 * MS, "second": 2 * MS})
    # Three more items: 3 intervals, and 1.5 times the root of 9 × 3 in whole numbers, 5 / 2 intervals.
    fill_ns = 2 * MS * 3 + 2 * MS * 5 // 2
    assert _likely_fill_ns(2 * MS, 4) == fill_ns == 11 * MS
    assert _likely_fill_ns(2 * MS, 1) == 0
    assert plan.fill_ns[0, 4] == fill_ns
    assert option(plan, 0, 4, 100)[0] == 15 * MS + fill_ns
    rest_ns = 10 * MS
    assert plan.choose(0, 15 * MS + rest_ns - 1, 4) is None
    found = plan.choose(0, 15 * MS + rest_ns, 4)
    assert found is not None and found.option.config == Config(4, 1, 100)
    assert plan.choose(0, 10**12, 3) is None, "there is no such batch"


def test_a_wait_does_not_scatter_with_the_time() -> None:
    plan = plan_of(two(), lambda s, c: Estimate(usual(s, c).mean_ns, 0.2, "profile"), intervals_ns={"first": 2 * MS})
    spread = {o.config: o.spread for o in plan.options[0]}
    assert spread[Config(1, 1, 100)] == pytest.approx(0.2)
    assert spread[Config(4, 1, 100)] == pytest.approx(0.2 * 15 / (15 + 11))


def test_no_batch_is_planned_on_where_arrivals_are_not_known() -> None:
    plan = plan_of(two())
    assert plan.options[0][-1].mean_ns > 1 << 50
    assert plan.fastest[0].config == Config(1, 1, 100)


def test_ordinary_python_takes_no_work_of_devices_and_a_model_its_least() -> None:
    graph = chain("flow", 200 * MS, [stage("crop", "python"), stage("read")])
    plan = plan_of(graph, spec=WorkerSpec("both", "v100", ("python", "model"), usd_per_hour=36.0))
    # 15 ms of a host process for four items, and 24 ms of half of the device.
    assert plan.least_work["crop"] == (0, 15 * MS // 4)
    assert plan.least_work["read"] == (50 * 24 * MS // 4, 0)
    assert plan.least_work_total == (50 * 24 * MS // 4, 15 * MS // 4)


# -- fan-outs -------------------------------------------------------------------------------------------------------


def test_a_fan_out_runs_as_many_batches_as_its_list_needs_and_fills_them_itself() -> None:
    plan = plan_of(fan_out())
    assert option(plan, 1, 4, 100) == (15 * MS, pytest.approx(1.5e-4 / 4)), "one item until more were seen"
    for _ in range(4):
        plan.saw_size(1, 6)
    assert plan.stale
    plan.build({s.name: {GPU.kind: {1: Worker(1, GPU)}} for s in fan_out().stages}, {})
    assert not plan.stale
    assert plan.fill_ns[1, 4] == 0
    assert option(plan, 1, 1, 100) == (60 * MS, pytest.approx(6e-4))
    assert option(plan, 1, 4, 100) == (30 * MS, pytest.approx(1.5e-4 / 4 * 6)), "two batches, six items are paid for"
    least = {name: plan.least_work[name][0] for name in ("cut", "read", "join")}
    assert plan.least_work_total == (least["cut"] + 6 * least["read"] + least["join"], 0)


def test_an_empty_fan_out_still_runs_a_batch() -> None:
    plan = plan_of(fan_out())
    plan.saw_size(1, 0)
    plan.build({s.name: {GPU.kind: {1: Worker(1, GPU)}} for s in fan_out().stages}, {})
    assert option(plan, 1, 4, 100)[0] == 15 * MS
    assert option(plan, 1, 4, 100)[1] < 1e-9


@pytest.mark.parametrize(("sizes", "stale"), [([1, 1], False), ([1, 1, 1, 2], False), ([1, 1, 2], True), ([2], True)])
def test_a_plan_is_old_when_a_fan_out_has_changed_by_more_than_a_quarter(sizes: Sequence[int], stale: bool) -> None:
    plan = plan_of(fan_out())
    for size in sizes:
        plan.saw_size(1, size)
    assert plan.stale is stale


@pytest.mark.parametrize(
    ("now_ns", "stale"), [(100, False), (125, False), (126, True), (75, False), (74, True), (None, True)]
)
def test_a_plan_is_old_when_arrivals_have_changed_by_more_than_a_quarter(now_ns: int | None, stale: bool) -> None:
    plan = plan_of(two(), intervals_ns={"first": 100, "second": 100})
    plan.saw_intervals({"second": 100} if now_ns is None else {"first": now_ns, "second": 100})
    assert plan.stale is stale


# -- what was learned -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean_ms", "spread", "stale"),
    [(10, 0.2, False), (12.5, 0.2, False), (12.6, 0.2, True), (7.4, 0.2, True), (10, 0.6, True), (10, 0.3, False)],
)
def test_a_plan_is_old_when_learned_times_have_changed_or_become_unsure(
    mean_ms: float, spread: float, stale: bool
) -> None:
    told = Estimate(10 * MS, 0.2, "learned")
    plan = plan_of(two(), lambda _s, _c: told)
    assert not plan.profiled and plan.known
    told = Estimate(round(mean_ms * MS), spread, "learned")
    plan.saw_times()
    assert plan.stale is stale


def test_what_was_seen_a_few_times_only_is_planned_with_a_bound_on_its_spread_and_refuses_nobody() -> None:
    plan = plan_of(two(), lambda s, _c: Estimate(10 * MS, 2.0 if s.name == "second" else 0.1, "guess"))
    assert not plan.known
    assert plan.chances() is None, "chances are weighed with known times only"
    assert {o.spread for o in plan.options[1] if o.config.batch == 1} == {0.5}
    assert not plan.familiar
    sure = plan_of(two(), lambda _s, _c: Estimate(10 * MS, 0.5, "guess"))
    assert sure.known and not sure.familiar
    scattered = plan_of(two(), lambda _s, _c: Estimate(10 * MS, 9.0, "learned"))
    assert scattered.familiar and not scattered.known, "good enough to refuse by, not to weigh chances by"


def test_profiles_are_never_old() -> None:
    plan = plan_of(two(), lambda s, c: Estimate(usual(s, c).mean_ns, 3.0, "profile"))
    assert plan.profiled and plan.known
    assert plan.options[0][0].spread == 3.0
    plan.saw_times()
    assert not plan.stale


# -- choices --------------------------------------------------------------------------------------------------------


def test_chances_are_weighed_with_prices_and_a_percentile_in_any_graph() -> None:
    assert plan_of(two()).chances() is not None
    assert plan_of(two(), premium=None).chances() is None
    assert plan_of(two(), percentile=0.5).chances() is None
    free = plan_of(two(), spec=WorkerSpec("gpu", "v100", ("model",)))
    assert free.chances() is not None, "where nobody pays, what is taken of the device counts"
    forked = chain("flow", 200 * MS, [stage("a"), stage("b"), stage("c")], {"b": ["a"], "c": ["a"]})
    assert plan_of(forked).chances() is not None
    assert plan_of(forked, premium=None).chances() is None


def test_a_profile_whose_times_scatter_otherwise_is_planned_anew() -> None:
    spread = [0.1]
    plan = plan_of(two(), lambda s, c: Estimate(usual(s, c).mean_ns, spread[0], "profile"))
    for seen, stale in ((0.12, False), (0.08, False), (0.13, True), (0.07, True)):
        plan.stale = False
        spread[0] = seen
        plan.saw_times()
        assert plan.stale is stale, seen


def test_lean_chances_are_those_of_small_batches_where_large_ones_would_be_late() -> None:
    """Items come rarely: a batch of four would be late, and of one only the lean configurations are left."""

    def times(_stage: StageSpec, config: Config) -> Estimate:
        return Estimate((10 if config.share_pct == 100 else 16) * MS * (2 if config.batch > 1 else 1), 0.0, "profile")

    plan = plan_of(two(), times, intervals_ns={"first": 10**9, "second": 10**9})
    lean = plan.chances(lean=True)
    assert lean is not None and lean.late < 0.05
    alone = lean.weigh(0, 200 * MS, 1)
    assert alone is not None and alone.config.share_pct == 50
    tight = lean.weigh(0, 25 * MS, 1)
    assert tight is not None and tight.config.share_pct == 50, "speed is not bought in a crowd"


def test_where_all_that_is_lean_is_late_chances_are_those_without_a_crowd() -> None:
    def times(_stage: StageSpec, config: Config) -> Estimate:
        return Estimate((60 if config.share_pct == 100 else 102) * MS, 0.0, "profile")

    plan = plan_of(two((1,)), times)
    assert plan.chances(lean=True) is plan.chances(), "two of 102 ms are late, two of 60 ms are not"


def test_lean_options_cost_a_tenth_more_than_the_least_at_most() -> None:
    def plan(half_ms: float) -> WorkflowPlan:
        """All of the device takes 10 ms and costs 10; half of it takes so long and costs half of that."""

        def times(_stage: StageSpec, config: Config) -> Estimate:
            return Estimate(10 * MS if config.share_pct == 100 else round(half_ms * MS), 0.0, "profile")

        return plan_of(two((1,)), times, premium=None)

    quarter, ninth, less = plan(16), plan(18), plan(18.3)
    found = quarter.choose(0, 10**9, 1, lean=True)
    assert found is not None and found.option.config.share_pct == 50
    assert quarter.choose(0, 25 * MS, 1) is not None
    assert quarter.choose(0, 25 * MS, 1, lean=True) is None, "a quarter more is too much"
    assert (quarter.quick_ns, quarter.path_ns) == (20 * MS, 32 * MS)
    assert ninth.path_ns == 36 * MS, "a ninth is too much as well"
    assert less.path_ns == 20 * MS, "10 is less than a tenth above 9.15"


def test_the_cheapest_is_what_costs_least_of_the_batches_at_hand() -> None:
    plan = plan_of(two())
    assert plan.cheapest(0, 1).config == Config(1, 1, 50)
    assert plan.cheapest(0, 3).config == Config(1, 1, 50)
    assert plan.cheapest(0, 4).config == Config(4, 1, 50)
    assert plan.cheapest(0, 9).config == Config(4, 1, 50)
    free = plan_of(two(), spec=WorkerSpec("gpu", "v100", ("model",)))
    assert free.cheapest(0, 1).config == Config(1, 1, 50), "where nobody pays, what takes least of the device"


def test_the_smallest_batch_is_taken_even_if_less_is_at_hand() -> None:
    large = StageSpec("large", "model", (4, 8), model="large")
    plan = plan_of(chain("flow", 200 * MS, [large]))
    assert plan.cheapest(0, 1).config.batch == 4


def test_a_plan_is_made_for_workers_like_these_whatever_their_names() -> None:
    plan = plan_of(two())
    other = WorkerSpec("another", "v100", ("model",), usd_per_hour=36.0)
    dearer = WorkerSpec("gpu", "v100", ("model",), usd_per_hour=37.0)
    holders = {"first": {"v100": {1: Worker(1, other)}}, "second": {"v100": {2: Worker(2, GPU)}}}
    assert plan.made_for(holders)
    assert not plan.made_for({**holders, "second": {"v100": {3: Worker(3, dearer), 2: Worker(2, GPU)}}})
    assert plan.made_for({**holders, "second": {"v100": {2: Worker(2, GPU), 3: Worker(3, dearer)}}}), (
        "the first counts"
    )


@pytest.mark.parametrize("lean", [False, True])
def test_a_successor_made_in_short_steps_is_what_would_have_been_made_at_once(lean: bool) -> None:
    graph = two()
    holders = {s.name: {GPU.kind: {1: Worker(1, GPU)}} for s in graph.stages}
    rare, frequent = ({"first": ns, "second": ns} for ns in (10**9, 2 * MS))
    plan = plan_of(graph, intervals_ns=rare)
    assert plan.chances(lean=lean) is not None
    assert len(list(plan.again(holders, frequent))) > 5, "it is made in short steps"
    fresh, at_once = finish(plan.again(holders, frequent)), plan_of(graph, intervals_ns=frequent)
    for left_ms in range(0, 200, 10):
        for batch in (1, 4):
            same = at_once.chances(lean=lean).weigh(0, left_ms * MS, batch)
            assert fresh.chances(lean=lean).weigh(0, left_ms * MS, batch) == same
    assert (fresh.quick_ns, fresh.path_ns, fresh.least_work) == (
        at_once.quick_ns,
        at_once.path_ns,
        at_once.least_work,
    )


# -- several kinds of devices ---------------------------------------------------------------------------------------

SLOW = WorkerSpec("slow", "t4", ("model",), usd_per_hour=9.0)


class ToldByKind(Told):
    """A T4 takes three times as long."""

    def __init__(self) -> None:
        super().__init__(usual)

    def usual(self, stage: StageSpec, kind: str, items: int, config: Config) -> Estimate:
        found = super().usual(stage, kind, items, config)
        return msgspec.structs.replace(found, mean_ns=found.mean_ns * (3 if kind == "t4" else 1))


def mixed(fast: int = 1, slow: int = 1, graph: Graph | None = None) -> WorkflowPlan:
    """A plan for so many devices of two kinds."""
    graph = graph or two()
    workers = {
        "v100": {i: Worker(i, GPU) for i in range(1, 1 + fast)},
        "t4": {i: Worker(i, SLOW) for i in range(11, 11 + slow)},
    }
    plan = WorkflowPlan(graph, ToldByKind(), SPACE, 0.99, 0.0025)  # type: ignore[arg-type]
    plan.build({s.name: workers for s in graph.stages}, {})
    return plan


def test_options_are_made_for_every_kind_of_device_and_say_for_which() -> None:
    plan = mixed()
    assert plan.kinds == 2
    kinds = {o.config.kind for o in plan.options[0]}
    assert kinds == {"v100", "t4"}
    fast = next(o for o in plan.options[0] if o.config == Config(1, 1, 100, kind="v100"))
    slow = next(o for o in plan.options[0] if o.config == Config(1, 1, 100, kind="t4"))
    assert slow.mean_ns == 3 * fast.mean_ns
    assert slow.cost_usd == pytest.approx(fast.cost_usd * 3 / 4), "it is four times as cheap by the hour"
    alone = plan_of(two())
    assert alone.kinds == 1 and {o.config.kind for o in alone.options[0]} == {""}


def test_a_plan_takes_the_cheap_kind_if_there_is_time_and_the_fast_one_if_not() -> None:
    plan = mixed()
    loose, tight = plan.choose(1, 180 * MS, 1, means=True), plan.choose(1, 15 * MS, 1, means=True)
    assert loose is not None and loose.option.config.kind == "t4"
    assert tight is not None and tight.option.config.kind == "v100"


def test_chances_know_the_best_way_on_each_kind_the_best_first() -> None:
    chances = mixed().chances()
    assert chances is not None
    ways = chances.by_kind(1, 180 * MS, 1)
    assert {way.config.kind for way in ways} == {"v100", "t4"}
    assert ways[0] == chances.weigh(1, 180 * MS, 1)
    assert ways[0].value_usd <= ways[1].value_usd


def test_lean_options_are_left_of_every_kind() -> None:
    plan = mixed()
    chances = plan.chances(lean=True)
    assert chances is not None
    assert {way.config.kind for way in chances.by_kind(0, 200 * MS, 1)} == {"v100", "t4"}


def test_work_is_what_all_devices_together_need_for_an_item() -> None:
    fast, slow = mixed(1, 1).least_work["first"][0], plan_of(two()).least_work["first"][0]
    assert fast == round(2 / (1 / slow + 1 / (3 * slow))), "one of four items goes to the slow one"
    assert mixed(1, 9).least_work["first"][0] == round(10 / (1 / slow + 9 / (3 * slow)))


def test_another_number_of_devices_of_a_kind_asks_for_a_new_plan() -> None:
    plan = mixed(1, 1)
    more = {"v100": {1: Worker(1, GPU)}, "t4": {11: Worker(11, SLOW), 12: Worker(12, SLOW)}}
    assert not plan.made_for({s.name: more for s in two().stages})


def test_elsewhere_is_the_cheapest_of_the_other_kinds_that_is_in_time() -> None:
    plan = mixed()
    (option,) = plan.elsewhere(0, 200 * MS, 1, {"v100"})
    assert option.config.kind == "t4"
    cheapest = min(o.cost_usd for o in plan.options[0] if o.config.kind == "t4" and o.config.batch == 1)
    assert option.cost_usd == cheapest
    assert plan.elsewhere(0, 20 * MS, 1, {"v100"}) == [], "three times as long is late"
    assert plan_of(two()).elsewhere(0, 200 * MS, 1, {""}) == []


def test_a_path_is_the_longest_of_those_that_begin_together() -> None:
    def times(stage: StageSpec, config: Config) -> Estimate:
        return Estimate((10 if stage.name == "short" else 30) * MS, 0.0, "profile")

    short, long, join = (stage(name, batch=(1,)) for name in ("short", "long", "join"))
    nodes = (
        Node("short", "short", ()),
        Node("long", "long", ()),
        Node("join", "join", (Source(0), Source(1))),
    )
    plan = plan_of(Graph("flow", 200 * MS, 1, (short, long, join), nodes), times)
    assert (plan.path_ns, plan.quick_ns) == (60 * MS, 60 * MS)


def test_times_of_devices_that_are_gone_make_no_plan_old() -> None:
    class Kinds(Told):
        old_ns = 10 * MS

        def usual(self, stage: StageSpec, kind: str, items: int, config: Config) -> Estimate:
            return Estimate(self.old_ns if kind == "old" else 20 * MS, 0.0, "profile")

    told = Kinds(usual)
    plan = WorkflowPlan(chain("flow", 200 * MS, [stage("read")]), told, SPACE, 0.99, None)  # type: ignore[arg-type]
    for kind in ("old", "new"):
        plan.build({"read": {kind: {1: Worker(1, WorkerSpec("gpu", kind, ("model",)))}}}, {})
    told.old_ns = 90 * MS
    plan.saw_times()
    assert not plan.stale


@pytest.mark.parametrize(("before", "after", "old"), [(2.0, 0.9, False), (0.1, 0.2, False), (0.1, 0.45, True)])
def test_a_plan_is_old_when_a_learned_time_is_surer_or_less_sure_as_far_as_that_is_planned_with(
    before: float, after: float, old: bool
) -> None:
    told = Told(lambda stage, config: Estimate(10 * MS, before, "learned"))
    plan = WorkflowPlan(chain("flow", 200 * MS, [stage("read")]), told, SPACE, 0.99, None)  # type: ignore[arg-type]
    plan.build({"read": {"v100": {1: Worker(1, GPU)}}}, {})
    told.times = lambda stage, config: Estimate(10 * MS, after, "learned")
    plan.saw_times()
    assert plan.stale is old
