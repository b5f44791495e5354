"""Percentiles: sound, never dearer than adding them up, close to the best, and true for log-normal times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plan.support import Everything, chain, finish, random_options, random_series_parallel

from dovetail.errors import DeclarationError
from dovetail.plan.frontier import build
from dovetail.plan.options import Option
from dovetail.plan.quantile import LADDER, rulers, z_value
from dovetail.plan.series_parallel import decompose, path_count

#: What the rulers count a deviation too high by at most, for deviations on the ladder: (√2 + 1/√2) / 2.
STRETCH = 1.0607


def test_z_of_known_percentiles():
    assert z_value(0.99) == pytest.approx(2.3263, abs=1e-4)
    assert z_value(0.5) == 0.0
    assert z_value(0.3) == 0.0, "nothing is planned below the mean"
    # A log-normal time of mean 1 and spread 0.1 has its 99th percentile at 1.2549.
    assert 1 + 0.1 * z_value(0.99, spread=0.1) == pytest.approx(1.2549, abs=1e-4)
    assert z_value(0.99, paths=2) == pytest.approx(z_value(0.99**0.5))
    with pytest.raises(DeclarationError, match="percentile"):
        z_value(1.0)


@given(
    st.lists(st.tuples(st.integers(10**3, 10**8), st.floats(0.001, 0.3)), min_size=1, max_size=8),
    st.floats(0.1, 4),
    st.floats(1, 20),
)
def test_no_ruler_is_below_the_percentile_and_one_is_close(stages, z, room):
    mean_ns = np.array([m for m, _ in stages], float)
    sd_ns = mean_ns * [s for _, s in stages]
    deviation = float(np.sqrt((sd_ns**2).sum()))
    percentile = mean_ns.sum() + z * deviation
    spread = max(s for _, s in stages)
    objective_ns = int(percentile * room) + 1
    measured = [int(r.time_ns(mean_ns, sd_ns).sum()) + r.offset_ns for r in rulers(z, spread, objective_ns)]
    assert min(measured) >= percentile * (1 - 1e-12)
    assert min(measured) <= (mean_ns + z * sd_ns).sum() + len(stages) + 1
    top = objective_ns / (z + 1 / spread)
    assert deviation <= top * (1 + 1e-9), "no plan in time has more"
    if deviation >= top / 2**LADDER:
        assert min(measured) <= mean_ns.sum() + STRETCH * z * deviation + len(stages) + 1


def test_plans_are_sound_close_to_the_best_and_never_dearer_than_percentiles_added_up():
    rng = np.random.default_rng(31)
    gain: list[float] = []
    for turn in range(300):
        successors = chain(int(rng.integers(1, 6))) if turn % 2 else random_series_parallel(rng, 5)
        options = [random_options(rng, int(rng.integers(2, 6)), time_max=10**6, spread=0.3) for _ in successors]
        z = float(rng.uniform(0.3, 3))
        every = Everything(successors, options)
        percentile = every.percentile(successors, z)
        added_up = finish(successors, np.ceil(every.times + z * every.deviations))
        objective_ns = int(percentile.min() * rng.uniform(1, 2.5)) + 1
        frontiers = build(decompose(successors), options, objective_ns, z=z, resolution_ns=1)
        plan = frontiers.plan(objective_ns)
        naive = every.cheapest(objective_ns, added_up)
        if plan is None:
            assert naive == np.inf
            continue
        cost = sum(o.cost_usd for o in plan)
        row = Everything(successors, [[o] for o in plan])
        assert row.percentile(successors, z)[0] <= objective_ns, "sound"
        assert cost <= naive * (1 + 1e-12)
        best = every.cheapest(objective_ns, percentile)
        assert cost >= best * (1 - 1e-12)
        if turn % 2:
            stretched = every.percentile(successors, z * STRETCH)
            deviation = (every.percentile(successors, 1.0) - every.time)[every.cost == best]
            top = objective_ns / (z + 1 / max(o.spread for stage in options for o in stage))
            if (deviation >= top / 2**LADDER).all():
                assert cost <= every.cheapest(objective_ns - 10, stretched) * (1 + 1e-12)
        choice = frontiers.choose(0, objective_ns)
        assert choice.cost_usd == pytest.approx(cost)
        assert choice.slack_ns >= 0
        if naive < np.inf:
            gain.append(1 - cost / naive)
    assert np.mean(gain) > 0.01, "and cheaper on the whole"


def test_z_nought_is_the_mean():
    rng = np.random.default_rng(32)
    for _ in range(30):
        successors = random_series_parallel(rng, 6)
        options = [random_options(rng, 5, spread=0.3) for _ in successors]
        steady = [[Option(o.config, o.mean_ns, 0.0, o.cost_usd) for o in row] for row in options]
        mean = build(decompose(successors), options, 10**6)
        without_spread = build(decompose(successors), steady, 10**6, z=2.5)
        for node in range(len(successors)):
            for a, b in zip(mean.points(node), without_spread.points(node), strict=True):
                assert (a == b).all()


def log_normal(rng: np.random.Generator, options: list[Option], runs: int) -> np.ndarray:
    columns = []
    for o in options:
        log_variance = np.log1p(o.spread**2)
        columns.append(rng.lognormal(np.log(o.mean_ns) - log_variance / 2, np.sqrt(log_variance), runs))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("percentile", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(
    ("successors", "uneven"),
    [(chain(1), False), (chain(4), False), (chain(4), True), ([[1, 2, 3], [4], [4], [4], []], False)],
)
def test_log_normal_times_meet_the_percentile(successors, uneven, percentile):
    rng = np.random.default_rng(33)
    runs = 60_000
    for _ in range(2):
        # Uneven: one stage scatters and the others hardly do, so that the sum leans as far as that one does.
        spreads = [0.3 if not uneven or node == 0 else 0.03 for node in range(len(successors))]
        options = [random_options(rng, 12, time_max=10**7, spread=s) for s in spreads]
        widest = max(o.spread for row in options for o in row)
        shape = decompose(successors)
        z = z_value(percentile, spread=widest, paths=path_count(shape))
        tightest = build(shape, options, 10**9, z=z).choose(0, 0).need_ns
        frontiers = build(shape, options, 2 * tightest, z=z)
        need_ns, _, _ = frontiers.points(0)
        for point in np.linspace(0, len(need_ns) - 1, 4).astype(int):
            budget_ns = int(need_ns[point])  # nothing to spare
            plan = frontiers.plan(budget_ns)
            assert plan is not None
            in_time = (finish(successors, log_normal(rng, plan, runs)) <= budget_ns).mean()
            assert in_time >= percentile - 4 * np.sqrt(percentile * (1 - percentile) / runs)


def test_decided_again_before_every_stage_the_percentile_is_still_met():
    rng = np.random.default_rng(34)
    percentile, spread, runs = 0.95, 0.15, 3000
    shape, z = decompose(chain(4)), z_value(percentile, spread=spread)
    log_variance = np.log1p(spread**2)
    for _ in range(5):
        drawn = [random_options(rng, 40, time_max=10**7) for _ in range(4)]
        options = [[Option(o.config, o.mean_ns, spread, o.cost_usd / o.mean_ns) for o in row] for row in drawn]
        objective_ns = int(1.6 * build(shape, options, 10**9, z=z).choose(0, 0).need_ns)
        frontiers = build(shape, options, objective_ns, z=z)
        in_time = 0
        for row in rng.lognormal(-log_variance / 2, np.sqrt(log_variance), (runs, 4)):
            now_ns = 0
            for node in range(4):
                now_ns += int(frontiers.choose(node, objective_ns - now_ns).option.mean_ns * row[node])
            in_time += now_ns <= objective_ns
        assert in_time / runs >= percentile
