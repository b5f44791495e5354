"""The contract of experiments: statistics, judging, what is left out; a report depends on its seeds alone."""

from __future__ import annotations

import math
import random
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import DovetailError
from dovetail.lab.experiment import Estimate, Goal, Lab, bootstrap, over_seeds, run_experiment
from dovetail.lab.experiments import EXPERIMENTS, find

PNG = b"\x89PNG"


class TestEstimates:
    def test_interval_is_students(self) -> None:
        found = over_seeds([1.0, 2.0, 3.0])
        half = 4.303 / math.sqrt(3)  # quantile for two degrees of freedom, standard deviation 1
        assert found == Estimate(2.0, pytest.approx(2 - half), pytest.approx(2 + half))

    def test_a_single_run_has_no_interval_but_itself(self) -> None:
        assert over_seeds([5.0]) == Estimate(5.0, 5.0, 5.0)

    @pytest.mark.parametrize("runs", [3, 10, 40])
    def test_interval_covers_the_truth_as_often_as_it_says(self, runs: int) -> None:
        rng = random.Random(runs)
        covered = 0
        for _ in range(1000):
            found = over_seeds([rng.gauss(7, 2) for _ in range(runs)])
            covered += found.low <= 7 <= found.high
        assert 930 <= covered <= 970

    @settings(deadline=None)
    @given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
    def test_bootstrap_lies_within_the_values_and_is_the_same_again(self, values: list[float]) -> None:
        found = bootstrap(values, rounds=200)
        assert found == bootstrap(values, rounds=200)
        slack = 1e-9 * max(map(abs, values), default=0.0)
        assert min(values) - slack <= found.low <= found.high <= max(values) + slack


class TestGoals:
    @pytest.mark.parametrize(
        ("goal", "text", "reached", "missed"),
        [
            (Goal("at most", 5.5, "%"), "≤ 5.5 %", 5.5, 5.6),
            (Goal("at least", 0.95), "≥ 0.95", 0.95, 0.94),
            (Goal("exactly", 0, "requests"), "= 0 requests", 0, 1),
            (Goal("within", 3, "%"), "± 3 %", -3, -3.1),
        ],
    )
    def test_relation(self, goal: Goal, text: str, reached: float, missed: float) -> None:
        assert str(goal) == text
        assert goal.holds(reached)
        assert not goal.holds(missed)


class TestLab:
    def test_a_claim_is_judged_by_its_mean_and_keeps_its_spread(self) -> None:
        lab = Lab([1, 2])
        lab.claim("a", "text", source="here", goal=Goal("at most", 2), measured=Estimate(1.9, 1.0, 2.8))
        lab.claim("b", "text", source="here", goal=Goal("at most", 2), measured=2.1, published=1.5)
        first, second = lab.claims
        assert (first.measured, first.spread, first.holds) == (1.9, (1.0, 2.8), True)
        assert (second.published, second.spread, second.holds) == (1.5, None, False)

    def test_two_claims_of_one_name_are_refused(self) -> None:
        lab = Lab([1])
        lab.claim("a", "text", source="here", goal=Goal("exactly", 0), measured=0)
        with pytest.raises(ValueError, match="'a'"):
            lab.claim("a", "text", source="here", goal=Goal("exactly", 0), measured=0)

    def test_data_that_is_not_here_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "rapp").mkdir()
        lab = Lab([1], data=tmp_path)
        assert lab.data("rapp") == tmp_path / "rapp"
        assert lab.data("rapp", "missing.csv") is None
        assert Lab([1]).data("rapp") is None

    def test_results_come_in_the_order_of_their_jobs(self) -> None:
        assert Lab([1]).map(abs, [-3, -1, -2], "three") == [3, 1, 2]

    @pytest.mark.cpu
    def test_several_processes_give_the_same_as_one(self) -> None:
        jobs = list(range(-20, 0))
        assert Lab([1], processes=2).map(abs, jobs, "twenty") == Lab([1]).map(abs, jobs, "twenty")

    def test_a_figure_is_a_picture_file_and_the_same_again(self, tmp_path: Path) -> None:
        files = []
        for place in (tmp_path / "one", tmp_path / "two"):
            lab = Lab([1], out=place)
            with lab.figure("line") as figure:
                figure.subplots().plot([1, 2], [3, 4])
            assert lab.figures == [str(place / "line.png")]
            files.append((place / "line.png").read_bytes())
        assert files[0].startswith(PNG)
        assert files[0] == files[1]

    def test_without_a_place_nothing_is_written(self) -> None:
        lab = Lab([1])
        with lab.figure("line") as figure:
            figure.subplots().plot([1, 2], [3, 4])
        assert lab.figures == []


class TestRun:
    @staticmethod
    def noisy(lab: Lab) -> None:
        draws = [random.Random(seed).random() for seed in lab.seeds]
        lab.claim("mean", "mean of draws", source="here", goal=Goal("at least", 0), measured=over_seeds(draws))
        lab.leave_out("other", "needs what is not here")

    def experiment(self) -> SimpleNamespace:
        return SimpleNamespace(SEEDS=(1, 2, 3, 4), QUICK_SEEDS=(1, 2), run=self.noisy)

    def test_report_says_how_it_was_made(self) -> None:
        report = run_experiment("noisy", self.experiment(), quick=True, processes=1)
        assert report.command == "dovetail reproduce noisy --quick"
        assert report.seeds == (1, 2)
        assert report.holds
        assert [left.id for left in report.left_out] == ["other"]

    def test_same_seeds_give_the_same_report_but_for_the_time_it_took(self) -> None:
        first, second = (run_experiment("noisy", self.experiment(), processes=1) for _ in range(2))
        assert msgspec.structs.replace(first, seconds=0.0) == msgspec.structs.replace(second, seconds=0.0)


class TestRegistry:
    @pytest.mark.parametrize("name", EXPERIMENTS)
    def test_every_entry_is_an_experiment(self, name: str) -> None:
        experiment = find(name)
        assert set(experiment.QUICK_SEEDS) <= set(experiment.SEEDS)
        assert len(experiment.SEEDS) == len(set(experiment.SEEDS)) > 1
        assert callable(experiment.run)

    def test_an_unknown_name_is_answered_with_the_nearest(self) -> None:
        with pytest.raises(DovetailError, match="did you mean 'foundation'"):
            find("fundation")
