"""What the experiment on real models makes of windows made by hand: medians of rounds, then of pairs."""

from __future__ import annotations

import pytest
from tests.lab.hand import HandLab

from dovetail.lab.experiment import Estimate
from dovetail.lab.experiments.fikit_live import LiveFigure, Overhead, live_figures
from dovetail.lab.gate.run import PairRun, Window


def window(mode: str, high: int, low: float, *, wait: int = 100, overtaken: int = 0, longest: int = 100) -> Window:
    return Window(mode, (high,), low, wait, overtaken, longest, 0.0, 1)


def pair_run(*ours_ns: int, wait: int = 100, overtaken: int = 0) -> PairRun:
    """Rounds in which the high task takes so long under ours; all else stays the same."""
    rounds = [
        {
            "ours": window("ours", ours, 100.0, wait=wait, overtaken=overtaken),
            "fifo": window("fifo", 400, 90.0),
            "slice": window("slice", 120, 80.0),
            "alone": window("alone", 95, 0.0),
            "alone, paced": window("alone, paced", 80, 0.0),
            "fikit": window("fikit", 85, 120.0),
            "fikit, ageing": window("fikit, ageing", 99, 150.0),
        }
        for ours in ours_ns
    ]
    return PairRun("high", "low", 1, 3, 3, rounds, [])


def judged(runs: list[PairRun], costs: list[Overhead] | None = None) -> HandLab:
    lab = HandLab((1,), lambda job: job)
    for figure in live_figures(runs, costs or []):
        lab.claim(figure.id, figure.text, source=figure.source, goal=figure.goal, measured=figure.measured)
    return lab


def figure(runs: list[PairRun], ident: str) -> LiveFigure:
    return next(found for found in live_figures(runs, []) if found.id == ident)


def test_times_under_others_are_over_ours_and_ours_over_alone() -> None:
    lab = judged([pair_run(100)])
    lab.expect("live.high.fifo", 4.0, holds=True)
    lab.expect("live.high.slice", 1.2, holds=False)
    lab.expect("live.low.fifo", 0.9, holds=True)
    lab.expect("live.low.slice", 0.8, holds=False)
    lab.expect("live.high.alone", 100 / 95, holds=True)
    lab.expect("live.high.paced", 1.25, holds=False)
    lab.expect("live.high.fikit", 0.85, holds=False)
    lab.expect("live.low.fikit", 1.2, holds=True)
    lab.expect("live.low.ageing", 0.8, holds=False)


def test_a_pair_is_its_median_round_and_all_are_the_median_pair_with_the_smallest_and_the_largest() -> None:
    runs = [pair_run(100, 200, 400), pair_run(100), pair_run(400, 400, 100)]
    assert figure(runs, "live.high.fifo").measured == Estimate(2.0, 1.0, 4.0)


def test_whoever_overtakes_is_counted_in_every_round_of_every_pair() -> None:
    judged([pair_run(100), pair_run(100)]).expect("live.overtaken", 0, holds=True)
    judged([pair_run(100), pair_run(100, 100, overtaken=2)]).expect("live.overtaken", 4, holds=False)


@pytest.mark.parametrize(("wait", "holds"), [(125, True), (126, False)])
def test_the_longest_wait_is_in_longest_kernels_of_its_window(wait: int, holds: bool) -> None:
    judged([pair_run(100, wait=wait)]).expect("live.wait", wait / 100, holds=holds)


def test_what_gating_costs_is_the_median_over_models_of_the_median_round() -> None:
    costs = [Overhead("m", 1, 3, 1.0, device, (9.0,)) for device in ((1.02, 1.03, 9.0), (1.06,), (1.01, 1.2, 1.3))]
    lab = judged([], costs)
    lab.expect("live.overhead", 6.0, holds=False)
    assert lab.claims[0].spread == (pytest.approx(3.0), pytest.approx(20.0))
    assert len(lab.claims) == 1, "without pairs there is nothing to say of them"
