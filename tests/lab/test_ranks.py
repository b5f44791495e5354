"""Intervals and quantiles of the experiments: which rank they take."""

from __future__ import annotations

import random
import statistics

import numpy as np
import pytest

from dovetail.lab.experiment import T_95, bootstrap, over_seeds
from dovetail.lab.experiments.esg_world import _Timed
from dovetail.lab.rivals.orion import Latency


def test_an_interval_over_seeds_takes_the_quantile_of_its_degrees_of_freedom() -> None:
    for count in (2, 3, 11, 31):
        values = [float(i) for i in range(count)]
        found = over_seeds(values)
        half = T_95[count - 2] * statistics.stdev(values) / count**0.5
        assert (found.low, found.high) == (pytest.approx(found.mean - half), pytest.approx(found.mean + half))
    many = [float(i) for i in range(32)]
    assert over_seeds(many).high == pytest.approx(15.5 + 1.96 * statistics.stdev(many) / 32**0.5)


def test_a_bootstrap_leaves_out_as_many_means_below_as_above() -> None:
    values = [float(v) for v in (1, 2, 2, 3, 9, 14)]
    rng = random.Random(5)
    means = sorted(statistics.fmean(rng.choices(values, k=6)) for _ in range(400))
    found = bootstrap(values, seed=5, rounds=400)
    assert (found.low, found.high) == (means[10], means[389])


def test_orions_percentile_is_the_first_point_that_the_part_reaches() -> None:
    four = Latency(10, np.array([0.25, 0.25, 0.25, 0.25]))
    assert [four.percentile(part) for part in (0.25, 0.26, 0.5, 0.75, 0.76, 1.0)] == [10, 11, 11, 12, 13, 13]


def test_a_planning_time_is_that_of_its_rank_in_microseconds() -> None:
    class Scheduler:
        def offers(self, queue: object, now_ns: int) -> str:
            return "offered"

    timed = _Timed(Scheduler())
    assert timed.quantile(0.99) == 0.0, "nothing was decided"
    assert timed.offers(None, 0) == "offered"
    assert timed.count == 1
    timed._ns = [n * 1000 for n in range(200, 0, -1)]
    assert [timed.quantile(q) for q in (0.5, 0.99, 1.0)] == [101.0, 199.0, 200.0]
