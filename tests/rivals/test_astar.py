"""A* against trying all paths."""

import numpy as np
import pytest
from tests.plan.support import Everything, chain, option, random_options

from dovetail.lab.rivals.astar import fastest_first, minimum, search
from dovetail.plan.options import Option
from dovetail.state import Config

INSTANCES = 1000


def best_costs(every: Everything, budget_ns: float, k: int, legal) -> list[float]:
    return np.sort(every.cost[(every.time <= budget_ns) & legal])[:k].tolist()


def check(stages: list[list[Option]], budget_ns: int, k: int, batch_max: int | None) -> bool:
    every = Everything(chain(len(stages)), stages)
    legal = every.legal(0, batch_max) if batch_max else np.ones(len(every.cost), bool)
    found = search(stages, budget_ns, k, batch_max)
    assert [p.cost_usd for p in found.paths] == pytest.approx(best_costs(every, budget_ns, k, legal), rel=1e-12)
    assert all(p.time_ns == sum(o.mean_ns for o in p.options) <= budget_ns for p in found.paths)
    assert len({tuple(map(id, p.options)) for p in found.paths}) == len(found.paths), "no path twice"
    assert found.expanded <= found.generated
    assert found.finished
    return bool(found.paths)


def test_the_k_best_costs_are_those_of_trying_all_paths():
    rng = np.random.default_rng(5)
    feasible = 0
    for _ in range(INSTANCES):
        sizes = rng.integers(1, 7, size=rng.integers(1, 5))
        stages = [random_options(rng, int(size)) for size in sizes]
        fastest, slowest = (sum(f(o.mean_ns for o in row) for row in stages) for f in (min, max))
        budget_ns = int(fastest + (slowest - fastest) * rng.uniform(-0.1, 1.1))
        batch_max = int(rng.integers(1, 9)) if rng.random() < 0.3 else None
        feasible += check(stages, budget_ns, int(rng.choice([1, 5, 20])), batch_max)
    assert INSTANCES * 0.7 < feasible < INSTANCES


def test_ties_in_time_and_cost():
    """Whole costs and few times: many paths are equal, and equal completions must be counted once."""
    rng = np.random.default_rng(6)
    for _ in range(300):
        stages = [random_options(rng, int(rng.integers(1, 6)), time_max=4, whole_costs=True) for _ in range(3)]
        budget_ns = int(rng.integers(2, 10))
        check(stages, budget_ns, int(rng.choice([1, 5, 20])), None)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_a_completion_is_not_counted_twice(k):
    """All in their fastest options is the cheapest path; counted once per prefix it would hide the second best."""
    stages = [[option(1, 1.0), option(2, 5.0)] for _ in range(3)]
    assert [p.cost_usd for p in search(stages, 6, k).paths] == [3.0, 7.0, 7.0, 7.0, 11.0][:k]


def test_all_options_the_same():
    assert [p.cost_usd for p in search([[option(1, 1.0)] * 3] * 2, 2, 20).paths] == [2.0] * 9


def test_nothing_in_time_and_nothing_legal():
    stages = [[option(5, 1.0, batch=4)], [option(5, 1.0)]]
    assert search(stages, 9, 5).paths == ()
    assert search(stages, 10, 5, first_batch_max=3).paths == ()
    assert len(search(stages, 10, 5, first_batch_max=4).paths) == 1


def test_a_capped_search_says_that_it_is_not_finished():
    rng = np.random.default_rng(7)
    stages = [random_options(rng, 30) for _ in range(4)]
    capped = search(stages, 2000, 5, max_generated=50)
    assert not capped.finished
    assert capped.generated < 50 + 30


def test_the_fallbacks():
    options = [
        Option(Config(4, 1, 50), 7, 0.0, 1.0),
        Option(Config(1, 2, 20), 9, 0.0, 2.0),
        Option(Config(1, 1, 100), 5, 0.0, 3.0),
        Option(Config(1, 1, 20), 12, 0.0, 0.5),
    ]
    assert [o.mean_ns for o in fastest_first(options, 2)] == [5, 7]
    assert [o.mean_ns for o in fastest_first(options, 5, batch_max=2)] == [5, 9, 12]
    assert minimum(options) == options[3]


def test_what_was_looked_at_and_put_there_is_counted():
    found = search([[option(1, 1.0)]], 1, 1)
    assert (found.expanded, found.generated) == (2, 2), "the beginning, and the one path"
    found = search([[option(1, 1.0), option(2, 5.0)]], 2, 2)
    assert (found.expanded, found.generated) == (3, 3)
