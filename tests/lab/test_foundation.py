"""The experiment that everything rests on, in small: formulas, queues, promises, what is left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.lab import queueing as q
from dovetail.lab.experiment import Lab
from dovetail.lab.experiments import foundation

LOADS = st.floats(0.01, 0.95)


class TestFormulas:
    @given(LOADS)
    def test_one_server_waits_with_the_probability_that_it_is_busy(self, load: float) -> None:
        assert q.erlang_c(1, load) == pytest.approx(load)

    @given(LOADS)
    def test_one_markovian_server_is_a_general_one_with_cv_1(self, load: float) -> None:
        assert q.mmc_wait_s(1, load, 0.01) == pytest.approx(q.mg1_wait_s(load, 0.01, 1))

    @given(LOADS, st.floats(0, 3))
    def test_a_single_class_is_no_class(self, load: float, cv: float) -> None:
        assert q.cobham_wait_s([load], 0.01, cv) == pytest.approx([q.mg1_wait_s(load, 0.01, cv)])

    @given(st.lists(st.floats(0.01, 0.2), min_size=2, max_size=4), st.floats(0, 3))
    def test_what_one_class_gains_the_others_lose(self, loads: list[float], cv: float) -> None:
        # Kleinrock's conservation law: the waits weighed by load are those without classes.
        waits = q.cobham_wait_s(loads, 0.01, cv)
        alike = sum(loads) * q.mg1_wait_s(sum(loads), 0.01, cv)
        assert sum(load * wait for load, wait in zip(loads, waits, strict=True)) == pytest.approx(alike)
        assert waits == sorted(waits)


class TestQueues:
    @pytest.mark.parametrize("seed", [1, 2])
    def test_every_request_is_where_lindley_says(self, seed: int) -> None:
        assert q.lindley_differences(q.Queueing((0.8,), seed, 2_000, exponential=True)) == 0

    @pytest.mark.parametrize("name", foundation.systems(0.5, 1))
    def test_means_are_near_theory_already_in_a_short_run(self, name: str) -> None:
        system = foundation.systems(0.5, 8_000)[name]
        waits = q.mean_waits_s(system.queue)
        assert waits == pytest.approx(system.wait_s, rel=0.25)  # chance alone; the experiment itself asks for 3 %

    def test_a_seed_gives_the_same_again_and_another_gives_another(self) -> None:
        one, again, other = (q.mean_waits_s(q.Queueing((0.5,), seed, 500, cv=0.5)) for seed in (1, 1, 2))
        assert one == again != other


class TestStages:
    @pytest.mark.parametrize(("batch", "share_pct"), [(1, 100), (8, 30), (4, 7)])
    def test_throughput_at_saturation_is_the_curves(self, batch: int, share_pct: int) -> None:
        cell = foundation.Saturated("resnet50", batch, share_pct, seed=1)
        assert foundation.saturated_per_s(cell) == pytest.approx(cell.expected_per_s, rel=0.005)


class TestPromises:
    def test_no_request_is_lost_in_a_storm_and_each_kind_of_end_is_seen(self) -> None:
        seen: set[str] = set()
        for seed in (1, 2):
            wrong, outcomes = foundation.storm(foundation.Storm(seed, check=True))
            assert wrong == 0
            assert sum(outcomes.values()) == foundation.STORM_REQUESTS
            seen |= outcomes.keys()
        assert seen >= {"ok", "late", "shed", "expired", "cancelled"}

    def test_a_storm_is_the_same_twice_and_replays(self) -> None:
        assert foundation.twice(3) == (0, 0)


class TestProfiles:
    def test_without_the_measurements_the_figure_is_left_out_with_the_reason(self) -> None:
        lab = Lab([1])
        foundation.profiles(lab)
        assert lab.claims == []
        (left,) = lab.left_out
        assert left.id == "profile.rapp"
        assert "DOVETAIL_DATA" in left.reason
