"""Arrivals have the rate, the scatter and the shape that they say. Seeds are fixed: no bound fails by chance."""

from __future__ import annotations

import tracemalloc
from itertools import islice, pairwise

import numpy as np
import pytest

from dovetail.sim.arrivals import Diurnal, Gamma, Poisson, Process, Steps, Stream, merge, requests, stream_rng
from dovetail.units import MS, SECOND


def take(process: Process, count: int, seed: int = 1) -> np.ndarray:
    return np.array(list(islice(process.times_ns(stream_rng(seed, 0)), count)))


@pytest.mark.parametrize(
    ("process", "rate_per_s", "cv"),
    [
        (Poisson(50.0), 50.0, 1.0),
        (Poisson(1e5), 1e5, 1.0),
        (Gamma(50.0, 1.0), 50.0, 1.0),
        (Gamma(20.0, 4.0), 20.0, 4.0),
        (Gamma(20.0, 0.25), 20.0, 0.25),
    ],
)
def test_gaps_have_the_mean_and_the_variation_asked_for(process: Process, rate_per_s: float, cv: float) -> None:
    gaps_s = np.diff(take(process, 200_000)) / SECOND
    assert gaps_s.min() >= 0
    assert gaps_s.mean() == pytest.approx(1 / rate_per_s, rel=0.03)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(cv, rel=0.03)


def test_each_step_has_its_rate_and_a_pause_has_none() -> None:
    steps = Steps(((10 * SECOND, 100.0), (5 * SECOND, 0.0), (10 * SECOND, 400.0)))
    times_s = np.array(list(steps.times_ns(stream_rng(1, 0)))) / SECOND
    counts, _ = np.histogram(times_s, [0, 10, 15, 25])
    assert counts[0] == pytest.approx(1000, rel=0.1)
    assert counts[1] == 0
    assert counts[2] == pytest.approx(4000, rel=0.05)
    assert times_s.max() < 25
    # Within a step the process is Poisson: exponential gaps.
    gaps = np.diff(times_s[times_s > 15])
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, rel=0.05)


def test_steps_of_nothing_but_pauses_give_nothing() -> None:
    assert list(Steps(((SECOND, 0.0),)).times_ns(stream_rng(1, 0))) == []


def test_day_and_night() -> None:
    process = Diurnal(mean_per_s=100.0, amplitude=0.8, period_ns=100 * SECOND)
    times_s = take(process, 100_000) / SECOND
    whole = times_s < 900  # nine periods
    assert whole.sum() == pytest.approx(90_000, rel=0.02)
    phase = times_s[whole] % 100
    day = ((phase > 20) & (phase < 30)).sum() / 90  # a tenth of each period around the peak
    night = ((phase > 70) & (phase < 80)).sum() / 90
    assert day == pytest.approx(100 * (1 + 0.8 * 0.984), rel=0.03)
    assert night == pytest.approx(100 * (1 - 0.8 * 0.984), rel=0.08)


@pytest.mark.parametrize("process", [Poisson(1000.0), Gamma(1000.0, 3.0), Diurnal(1000.0, 0.5, SECOND)])
def test_time_never_goes_back_and_the_seed_decides(process: Process) -> None:
    times = take(process, 10_000)
    assert (np.diff(times) >= 0).all()
    assert (times == take(process, 10_000)).all()
    assert (times != take(process, 10_000, seed=2)).any()


def test_streams_are_independent_of_each_other() -> None:
    """A second stream leaves the first as it was."""
    one, two = Stream(Poisson(100.0), 0), Stream(Poisson(100.0), 1)
    alone = [r.at_ns for r in requests([one], 1, limit=1000)]
    both = list(requests([one, two], 1, limit=5000))
    assert [r.at_ns for r in both if r.graph == 0][:1000] == alone
    firsts, seconds = ([r.at_ns for r in both if r.graph == g][:2000] for g in (0, 1))
    assert abs(np.corrcoef(np.diff(firsts), np.diff(seconds))[0, 1]) < 0.06


def test_merged_streams_are_in_order_and_ties_are_in_theirs() -> None:
    merged = list(merge([iter([5, 5, 9]), iter([1, 5, 9]), iter([])]))
    assert merged == [(1, 1), (5, 0), (5, 0), (5, 1), (9, 0), (9, 1)]


def test_requests_are_numbered_and_carry_class_deadline_and_counts() -> None:
    streams = [Stream(Poisson(100.0), 0), Stream(Poisson(100.0), 1, priority=2, timeout_ns=30 * MS)]
    found = list(requests(streams, 3, until_ns=SECOND, counts=lambda request, graph: (request, graph)))
    assert [r.request for r in found] == list(range(1, len(found) + 1))
    assert all(a.at_ns <= b.at_ns for a, b in pairwise(found))
    assert found[-1].at_ns < SECOND
    for r in found:
        assert (r.priority, r.deadline_ns) == ((0, 0) if r.graph == 0 else (2, r.at_ns + 30 * MS))
        assert r.counts == (r.request, r.graph)


def test_a_limit_and_an_end() -> None:
    stream = [Stream(Poisson(1000.0), 0)]
    assert len(list(requests(stream, 1, limit=10))) == 10
    assert all(r.at_ns < MS * 20 for r in requests(stream, 1, until_ns=20 * MS))


def test_a_million_requests_take_no_more_memory_than_a_thousand() -> None:
    streams = [Stream(Poisson(1000.0), 0), Stream(Gamma(1000.0, 2.0), 0), Stream(Diurnal(1000.0, 0.5, SECOND), 0)]

    def peak_bytes(limit: int) -> int:
        tracemalloc.start()
        for _ in requests(streams, 1, limit=limit):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak_bytes(150_000) < 1.2 * peak_bytes(10_000)
