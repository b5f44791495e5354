"""The frontier planner against trying everything, on chains and on forks; and what it promises elsewhere."""

from itertools import pairwise

import numpy as np
import pytest
from tests.plan.support import (
    Everything,
    Successors,
    chain,
    option,
    predecessors_of,
    random_options,
    random_series_parallel,
)

from dovetail.errors import DeclarationError
from dovetail.lab.rivals.astar import search
from dovetail.plan.frontier import Frontiers, build
from dovetail.plan.options import Option, Prices, item_cost_usd, pareto
from dovetail.plan.series_parallel import decompose
from dovetail.profile import catalogue
from dovetail.state import Config

INSTANCES = 1000
LONG_NS = 10**6


def budgets(rng: np.random.Generator, every: Everything, count: int) -> list[int]:
    """From too tight to more than enough."""
    low, high = every.time.min(), every.time.max()
    return [int(low + (high - low) * share) for share in rng.uniform(-0.1, 1.1, count)] + [int(low)]


def test_no_plan_is_cheaper_on_chains_and_forks():
    rng = np.random.default_rng(11)
    forks = 0
    for _ in range(INSTANCES):
        successors = random_series_parallel(rng, 6)
        forks += successors != chain(len(successors))
        options = [random_options(rng, int(rng.integers(1, 5))) for _ in successors]
        every = Everything(successors, options)
        frontiers = build(decompose(successors), options, LONG_NS, resolution_ns=1)
        assert frontiers.loss_ns == 0
        entries = [n for n, before in enumerate(predecessors_of(successors)) if not before]
        for budget_ns in budgets(rng, every, 3):
            best = every.cheapest(budget_ns)
            plan = frontiers.plan(budget_ns)
            if plan is None:
                assert best == np.inf
                continue
            assert sum(o.cost_usd for o in plan) == pytest.approx(best)
            row = Everything(successors, [[o] for o in plan])
            assert row.time[0] <= budget_ns
            for node in entries:  # each of several entries is at its fork
                choice = frontiers.choose(node, budget_ns)
                assert choice.cost_usd == pytest.approx(best)
                assert choice.slack_ns >= 0
                assert choice.option is options[node][choice.index]
                chosen = every.picks[:, node] == choice.index
                assert every.cost[chosen & (every.time <= budget_ns)].min() == pytest.approx(best)
    assert forks > INSTANCES // 2


def test_a_bounded_batch_now_and_any_later():
    rng = np.random.default_rng(12)
    for _ in range(300):
        successors = chain(int(rng.integers(1, 5)))
        options = [random_options(rng, int(rng.integers(1, 7))) for _ in successors]
        every = Everything(successors, options)
        frontiers = build(decompose(successors), options, LONG_NS)
        for budget_ns in budgets(rng, every, 2):
            for batch_max in (1, 2, 5, 8):
                # Below the smallest batch there is, that one runs with fewer items.
                bound = max(batch_max, min(o.config.batch for o in options[0]))
                choice = frontiers.choose(0, budget_ns, batch_max)
                assert choice.option.config.batch <= bound
                in_time = every.legal(0, bound) & (every.time <= budget_ns)
                if in_time.any():
                    assert choice.cost_usd == pytest.approx(every.cost[in_time].min())
                else:
                    assert choice.slack_ns < 0


def test_a_bounded_batch_at_a_fork_is_legal_and_in_time():
    """Its siblings stay as planned without the bound, so it may cost more than the best, but never less."""
    rng = np.random.default_rng(13)
    for _ in range(300):
        successors = random_series_parallel(rng, 5)
        options = [random_options(rng, int(rng.integers(1, 6))) for _ in successors]
        every = Everything(successors, options)
        frontiers = build(decompose(successors), options, LONG_NS)
        for budget_ns in budgets(rng, every, 2):
            bound = max(2, min(o.config.batch for o in options[0]))
            choice = frontiers.choose(0, budget_ns, 2)
            in_time = every.legal(0, bound) & (every.time <= budget_ns)
            if in_time.any():
                assert choice.cost_usd >= every.cost[in_time].min() * (1 - 1e-12)
                assert choice.slack_ns >= 0
                assert (in_time & (every.picks[:, 0] == choice.index)).any()


def roll_out(frontiers: Frontiers, successors: Successors, objective_ns: int) -> tuple[float, int]:
    """Cost and end if every node is decided when it is ready and then takes its mean time."""
    done: list[int] = []
    cost = 0.0
    for node, before in enumerate(predecessors_of(successors)):
        now_ns = max((done[b] for b in before), default=0)
        chosen = frontiers.choose(node, objective_ns - now_ns).option
        cost += chosen.cost_usd
        done.append(now_ns + chosen.mean_ns)
    return cost, max(done)


def test_decided_node_by_node_a_workflow_is_in_time_and_a_chain_costs_what_was_planned():
    rng = np.random.default_rng(14)
    excess: list[float] = []
    for _ in range(400):
        successors = random_series_parallel(rng, 8)
        options = [random_options(rng, int(rng.integers(2, 7))) for _ in successors]
        frontiers = build(decompose(successors), options, LONG_NS)
        fastest_ns = frontiers.choose(0, 0).need_ns
        for budget_ns in {fastest_ns, int(fastest_ns * rng.uniform(1, 3))}:
            plan = frontiers.plan(budget_ns)
            if plan is None:
                continue  # another entry is slower than the first
            planned = sum(o.cost_usd for o in plan)
            cost, end_ns = roll_out(frontiers, successors, budget_ns)
            assert end_ns <= budget_ns
            assert cost >= planned * (1 - 1e-12), "nothing beats the best plan"
            if successors == chain(len(successors)):
                assert cost == pytest.approx(planned)
            excess.append(cost / planned - 1)
    # Inside branches siblings are taken to be on plan; what that costs is small (docs/plan-algorithms.md).
    assert np.mean(excess) < 0.001
    assert np.mean(np.array(excess) < 1e-9) > 0.98


def test_forks_of_single_nodes_cost_what_was_planned_wherever_they_are():
    rng = np.random.default_rng(21)
    for _ in range(100):
        layers, count = [], 0
        for _ in range(int(rng.integers(2, 4))):
            width = int(rng.integers(1, 4))
            layers.append(list(range(count, count + width)))
            count += width
        successors = [after for layer, after in pairwise(layers) for _ in layer]
        successors += [[] for _ in layers[-1]]
        options = [random_options(rng, 4) for _ in successors]
        frontiers = build(decompose(successors), options, LONG_NS)
        fastest_ns = Everything(successors, [[min(row, key=lambda o: o.mean_ns)] for row in options]).time[0]
        budget_ns = int(fastest_ns * rng.uniform(1, 3))
        plan = frontiers.plan(budget_ns)
        assert plan is not None
        assert roll_out(frontiers, successors, budget_ns)[0] == pytest.approx(sum(o.cost_usd for o in plan))


def test_a_late_node_inside_a_branch_still_meets_what_can_be_met():
    # 0 -> (1 -> 2 | 3) -> 4; the branch of 1 has slack in every plan, as 3 takes long.
    successors = [[1, 3], [2], [4], [4], []]
    two = [option(10, 1.0), option(5, 3.0)]
    options = [two, two, two, [option(40, 1.0), option(30, 2.0)], two]
    frontiers = build(decompose(successors), options, 1000)
    assert frontiers.choose(2, 20).option.cost_usd == 1.0
    assert frontiers.choose(2, 15).option.cost_usd == 1.0, "node 4 has to hurry"
    assert frontiers.choose(2, 10).option.cost_usd == 3.0
    assert frontiers.choose(2, 9).slack_ns < 0


def random_graph(rng: np.random.Generator, count: int) -> Successors:
    return [[j for j in range(i + 1, count) if rng.random() < 0.4] for i in range(count)]


def test_any_graph_is_in_time_and_never_cheaper_than_possible():
    rng = np.random.default_rng(15)
    tangled: list[float] = []
    for _ in range(200):
        successors = random_graph(rng, int(rng.integers(4, 7)))
        options = [random_options(rng, int(rng.integers(1, 5))) for _ in successors]
        every = Everything(successors, options)
        frontiers = build(decompose(successors), options, LONG_NS)
        for budget_ns in budgets(rng, every, 3):
            plan = frontiers.plan(budget_ns)
            if plan is None:
                continue  # with the waiting that is added nothing fits
            assert Everything(successors, [[o] for o in plan]).time[0] <= budget_ns
            best = every.cheapest(budget_ns)
            cost = sum(o.cost_usd for o in plan)
            assert cost >= best * (1 - 1e-12)
            assert roll_out(frontiers, successors, budget_ns)[1] <= budget_ns
            tangled.append(cost / best - 1)
    assert np.mean(tangled) < 0.02


def test_thinned_fronts_keep_their_bound():
    rng = np.random.default_rng(16)
    lost = 0
    for _ in range(200):
        successors = random_series_parallel(rng, 6)
        options = [random_options(rng, 5) for _ in successors]
        every = Everything(successors, options)
        frontiers = build(decompose(successors), options, LONG_NS, resolution_ns=int(rng.integers(2, 120)))
        for budget_ns in budgets(rng, every, 3):
            plan = frontiers.plan(budget_ns + frontiers.loss_ns)
            best = every.cheapest(budget_ns)
            assert plan is not None or best == np.inf
            if plan is not None:
                assert sum(o.cost_usd for o in plan) <= best * (1 + 1e-12)
                lost += sum(o.cost_usd for o in frontiers.plan(budget_ns) or plan) > best * (1 + 1e-12)
        fastest = int(every.time.min())
        assert frontiers.plan(fastest) is not None, "what can be met is never called impossible"
    assert lost, "such steps do lose something"


def test_long_fronts_are_thinned_by_default_and_say_so():
    rng = np.random.default_rng(17)
    # Cost falls with the square of time and times are odd: hardly any sum is beaten.
    stages = []
    for _ in range(5):
        times = np.unique(rng.integers(10_000, 1_000_000, 60))
        stages.append([option(int(t), 1e6 / float(t) ** 2 + float(rng.uniform(0, 1e-9))) for t in times])
    frontiers = build(decompose(chain(5)), stages, 5_000_000)
    assert 0 < frontiers.loss_ns <= 5 * (5_000_000 // 4096)
    assert len(frontiers.points(0)[0]) <= 4097
    assert build(decompose(chain(2)), stages[:2], 2_000_000).loss_ns == 0


def realistic(rng: np.random.Generator, count: int) -> list[Option]:
    """Options whose times are whole milliseconds, so that an independent table of budgets is exact as well."""
    rows: list[Option] = []
    work = rng.uniform(40, 160)
    for i in range(count):
        batch, share = int(2 ** (i % 6)), int(rng.integers(1, 11)) * 10
        time_ms = 1 + int(work * batch**0.85 / (share / 10) ** rng.uniform(0.5, 1))
        rows.append(option(time_ms * 1_000_000, time_ms * share / batch, batch))
    return rows


def test_eight_stages_of_256_options_match_a_table_of_all_budgets():
    rng = np.random.default_rng(18)
    stages = [realistic(rng, 256) for _ in range(8)]
    objective_ms = 1500
    frontiers = build(decompose(chain(8)), stages, objective_ms * 1_000_000)
    assert frontiers.loss_ns == 0
    best = np.zeros(objective_ms + 1)
    for node in range(7, -1, -1):
        longer = np.full(objective_ms + 1, np.inf)
        for o in stages[node]:
            time_ms = o.mean_ns // 1_000_000
            if time_ms <= objective_ms:
                longer[time_ms:] = np.minimum(longer[time_ms:], o.cost_usd + best[: objective_ms + 1 - time_ms])
        best = longer
        for budget_ms in range(0, objective_ms + 1, 50):
            choice = frontiers.choose(node, budget_ms * 1_000_000)
            if choice.slack_ns >= 0:
                assert choice.cost_usd == pytest.approx(best[budget_ms])
            else:
                assert best[budget_ms] == np.inf


def test_chains_of_measured_models_are_never_thinned():
    rng = np.random.default_rng(0)
    prices = Prices(3.06, 0.034)
    names = catalogue.models()
    longest = 0
    for _ in range(40):
        stages = []
        for name in rng.choice(names, 8):
            curve = catalogue.model(str(name)).curve("v100")
            configs = [Config(b, 1, share) for b in (1, 2, 4, 8, 16, 32) for share in range(5, 101, 5)]
            times = [(c, curve.latency_ns(c.batch, c.share_pct)) for c in configs]
            stages.append([Option(c, ns, 0.0, item_cost_usd(c, ns, prices)) for c, ns in times])
        smallest_ns = sum(row[0].mean_ns for row in stages)
        for tightness in (0.8, 1.2, 4.0):
            frontiers = build(decompose(chain(8)), stages, int(tightness * smallest_ns))
            assert frontiers.loss_ns == 0
            longest = max(longest, len(frontiers.points(0)[0]))
    assert longest < 4096


def test_the_search_agrees():
    rng = np.random.default_rng(19)
    stages = [realistic(rng, 64) for _ in range(3)]
    frontiers = build(decompose(chain(3)), stages, 10**9)
    for budget_ns in (10**8, 2 * 10**8, 5 * 10**8):
        for batch_max in (1, 4, None):
            tails = [stages[0], *(pareto(row) for row in stages[1:])]
            found = search(tails, budget_ns, 1, batch_max).paths
            choice = frontiers.choose(0, budget_ns, batch_max)
            assert bool(found) == (choice.slack_ns >= 0)
            if found:
                assert choice.cost_usd == pytest.approx(found[0].cost_usd)


def test_neighbours_have_another_option():
    rng = np.random.default_rng(20)
    stages = [realistic(rng, 64) for _ in range(3)]
    frontiers = build(decompose(chain(3)), stages, 10**9)
    need_ns, cost, chosen = frontiers.points(0)
    assert len(need_ns) == len(cost) == len(chosen)
    assert (np.diff(need_ns) > 0).all()
    assert (np.diff(cost) < 0).all()
    choice = frontiers.choose(0, int(need_ns[0]))
    seen = [choice.index]
    while (cheaper := frontiers.cheaper(choice)) is not None:
        back = frontiers.faster(cheaper)
        assert back is not None
        assert back.index == choice.index
        assert cheaper.cost_usd < choice.cost_usd
        assert cheaper.need_ns > choice.need_ns
        assert cheaper.need_ns + cheaper.slack_ns == need_ns[0], "the time left is the same"
        choice = cheaper
        seen.append(choice.index)
    runs = [int(chosen[0])] + [int(b) for a, b in pairwise(chosen) if a != b]
    assert seen == runs
    assert frontiers.faster(frontiers.choose(0, 0)) is None


def test_too_little_time_is_the_fastest_with_negative_slack():
    options = [[option(5, 1.0), option(3, 2.0)], [option(4, 1.0), option(2, 9.0)]]
    frontiers = build(decompose(chain(2)), options, 100)
    choice = frontiers.choose(0, 4)
    assert (choice.option.mean_ns, choice.need_ns, choice.slack_ns) == (3, 5, -1)
    assert frontiers.plan(4) is None
    beyond = build(decompose(chain(2)), options, 4)
    assert beyond.choose(0, 4).slack_ns == -1, "the fastest stays even if the objective is out of reach"


def test_nonsense_is_refused():
    with pytest.raises(DeclarationError, match="list of options"):
        build(decompose(chain(2)), [[option(1, 1.0)]], 10)
    with pytest.raises(DeclarationError, match="at least one option"):
        build(decompose(chain(1)), [[]], 10)
