"""Chances in graphs: against all plans where nothing scatters, against chains, against drawn times, and by hand."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.plan.branches import GraphChances, _times, steps_for
from dovetail.plan.chance import ChainChances, StageOptions, laws_of
from dovetail.plan.options import Option
from dovetail.plan.stepwise import finish
from dovetail.state import Config
from dovetail.units import MS

#: (milliseconds, dollars)
Rows = Sequence[tuple[int, float]]
After = Sequence[Sequence[int]]

DIAMOND: After = [[1, 2], [3], [3], []]
#: Neither series nor parallel: 0 -> 2, 0 -> 3, 1 -> 3.
TANGLE: After = [[2, 3], [3], [], []]


def stage(*rows: tuple[int, float], spread: float = 0.0) -> StageOptions:
    """Options of batch 1; the share tells them apart."""
    options = [Option(Config(1, 1, 1 + i), ms * MS, spread, usd) for i, (ms, usd) in enumerate(rows)]
    return StageOptions(options, {1: 0})


def tables(
    after: After, stages: Sequence[StageOptions], objective_ms: int, late_usd: float, *, rounds: int = 2
) -> GraphChances:
    steps = steps_for(len(stages))
    step_ns = objective_ms * MS // steps + 1
    laws = finish(laws_of(stages, step_ns, steps))
    return finish(GraphChances(after, *laws, step_ns, late_usd, rounds=rounds).make())


def length(after: After, times: Sequence[float]) -> float:
    """The longest way."""
    rest = [0.0] * len(times)
    for node in range(len(times) - 1, -1, -1):
        rest[node] = times[node] + max((rest[j] for j in after[node]), default=0.0)
    return max(rest)


times_and_costs = st.lists(
    st.tuples(st.integers(5, 60), st.floats(0.1, 2.0)), min_size=1, max_size=3, unique_by=lambda row: row[0]
)


@settings(max_examples=40, deadline=None)
@given(st.lists(times_and_costs, min_size=4, max_size=4), st.sampled_from([DIAMOND, TANGLE]), st.floats(1.0, 20.0))
def test_without_scatter_nothing_is_cheaper_than_the_best_of_all_plans(
    rows: list[Rows], after: After, late_usd: float
) -> None:
    chances = tables(after, [stage(*row) for row in rows], 150, late_usd)

    def best(left_ms: float) -> float:
        return min(
            sum(usd for _, usd in plan) + (late_usd if length(after, [ms for ms, _ in plan]) > left_ms else 0.0)
            for plan in itertools.product(*rows)
        )

    # Of a request with all its time, counted in steps: less than one for each stage is lost, or won by rounding.
    lost_ms = 6 * 150 / steps_for(4)
    assert chances.work_usd + chances.late * late_usd >= best(150 + lost_ms) - 1e-9


@given(st.lists(times_and_costs, min_size=1, max_size=3), st.floats(0.0, 0.3), st.integers(1, 120))
@settings(max_examples=40, deadline=None)
def test_a_chain_is_worth_what_the_tables_of_chains_say(rows: list[Rows], spread: float, left_ms: int) -> None:
    stages = [stage(*row, spread=spread) for row in rows]
    after = [[i] for i in range(1, len(rows))] + [[]]
    steps = steps_for(len(rows))
    step_ns = 120 * MS // steps + 1
    graph = tables(after, stages, 120, 5.0)
    chain = finish(ChainChances(*finish(laws_of(stages, step_ns)), step_ns, 5.0).make())
    found, expected = graph.weigh(0, left_ms * MS, 1), chain.weigh(0, left_ms * MS, 1)
    assert found is not None and expected is not None
    assert found.value_usd == pytest.approx(expected.value_usd, abs=1e-6)


def test_a_branch_that_others_wait_for_pays_for_speed_and_one_that_waits_does_not() -> None:
    """Both branches can be 20 ms faster for half a dollar; one of them ends 40 ms before the other anyway."""
    stages = [stage((10, 1.0)), stage((80, 1.0), (60, 1.5)), stage((40, 1.0), (20, 1.5)), stage((10, 1.0))]
    stages = [StageOptions([*_scattered(s, 0.05)], s.fill_ns) for s in stages]
    chances = tables(DIAMOND, stages, 100, 20.0)
    long, short = chances.weigh(1, 88 * MS, 1), chances.weigh(2, 88 * MS, 1)
    assert long is not None and long.config.share_pct == 2
    assert short is not None and short.config.share_pct == 1


def _scattered(row: StageOptions, spread: float) -> list[Option]:
    return [Option(o.config, o.mean_ns, spread, o.cost_usd) for o in row.options]


def test_speed_that_the_others_use_up_is_not_bought() -> None:
    """The last is cheaper with 50 ms left. The long branch leaves 34, whatever the short one pays to leave 74."""
    last = ((50, 1.0), (10, 3.0))
    stages = [stage((10, 1.0)), stage((60, 1.0)), stage((50, 1.0), (20, 1.5)), stage(*last)]
    first, settled = (tables(DIAMOND, stages, 104, 20.0, rounds=r) for r in (0, 2))
    at_first, in_the_end = first.weigh(2, 94 * MS, 1), settled.weigh(2, 94 * MS, 1)
    assert at_first is not None and at_first.config.share_pct == 2, "before others are looked at, each is the longest"
    assert in_the_end is not None and in_the_end.config.share_pct == 1


def test_others_who_are_late_do_not_make_everybody_give_up() -> None:
    """At a low price both branches give up; at a higher one, begun with that, both are in time again."""
    stages = [stage((10, 0.1)), stage((90, 1.0), (30, 3.0)), stage((90, 1.0), (30, 3.0))]
    after: After = [[1, 2], [], []]
    step_ns = 60 * MS // steps_for(3) + 1
    laws = finish(laws_of(stages, step_ns, steps_for(3)))
    low = finish(GraphChances(after, *laws, step_ns, 0.5).make())
    assert low.late == pytest.approx(1.0)
    assert finish(GraphChances(after, *laws, step_ns, 50.0, like=low).make()).late == pytest.approx(0.0)


@pytest.mark.parametrize("after", [DIAMOND, TANGLE])
def test_the_chance_of_being_late_is_what_drawn_times_show(after: After) -> None:
    means, spread = (30, 40, 45, 30), 0.2
    chances = tables(after, [stage((ms, 1.0), spread=spread) for ms in means], 120, 5.0)
    rng = random.Random(11)
    sigma = np.sqrt(np.log1p(spread * spread))
    late = 0
    for _ in range(20_000):
        times = [ms * rng.lognormvariate(-sigma * sigma / 2, sigma) for ms in means]
        late += length(after, times) > 120
    # Ways that share a node count as independent of each other, which is never in favour of being in time.
    assert late / 20_000 - 0.02 <= chances.late <= late / 20_000 + 0.06
    assert chances.work_usd == pytest.approx(4.0)


def test_products_are_what_they_should_be() -> None:
    rng = np.random.default_rng(3)
    for places in (3, 129, 257):
        a, b = np.tril(rng.random((places, places))), np.tril(rng.random((places, places)))
        assert np.allclose(finish(_times(a, b)), a @ b)


def test_large_graphs_are_counted_in_fewer_steps() -> None:
    assert (steps_for(12), steps_for(13)) == (256, 128)
