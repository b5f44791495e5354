"""With the goal of time: what a configuration's score is, and which kind of device is looked at first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.plan.tables import Run
from dovetail.schedule.fastest import as_fast
from dovetail.state import Config


def run(batch: int, mean_ns: int, kind: str = "", share_pct: int = 100) -> Run:
    return Run(Config(batch, 1, share_pct, kind=kind), mean_ns, mean_ns * share_pct // batch)


def scores(
    *runs: Run, size: int, left_ns: int = 1_000, after_ns: int = 0, lean: bool = False
) -> list[tuple[int, float]]:
    """(batch, score) in the order in which they are tried."""
    kinds = len({r.config.kind for r in runs})
    rest_ns = after_ns + min(r.mean_ns for r in runs)
    plan: Any = SimpleNamespace(runs=[runs], kinds=kinds, quick_rest_ns=[rest_ns])
    return [(r.config.batch, r.score) for r in as_fast(plan, size, 0, left_ns, 0, lean=lean)]


@pytest.mark.parametrize("lean", [False, True])
def test_a_score_is_the_time_of_an_item_on_one_kind_of_device_and_on_several(lean: bool) -> None:
    alone = scores(run(4, 200), size=4, lean=lean)
    assert alone == [(4, 50.0)], "with nothing to compare it to"
    assert dict(scores(run(1, 56), run(4, 200), size=4, lean=lean)) == {1: 56.0, 4: 50.0}
    kinds = scores(run(1, 80, "slow"), run(4, 280, "slow"), run(1, 60, "fast"), run(4, 200, "fast"), size=4)
    assert sorted(kinds) == [(1, 60.0), (1, 80.0), (4, 50.0), (4, 70.0)]


def test_the_kind_that_is_fastest_per_item_comes_first() -> None:
    found = scores(run(1, 80, "slow"), run(1, 60, "fast"), run(4, 200, "fast"), run(4, 280, "slow"), size=4)
    assert {score for _, score in found[:2]} == {60.0, 50.0} and {score for _, score in found[2:]} == {80.0, 70.0}


def test_what_comes_after_has_its_time_to_the_nanosecond() -> None:
    both = run(1, 60), run(4, 200)
    assert len(scores(*both, size=4, left_ns=230, after_ns=30)) == 2
    assert scores(*both, size=4, left_ns=229, after_ns=30) == [(1, 60.0)], "a batch of four would be late"
    assert len(scores(*both, size=4, left_ns=50, after_ns=30)) == 2, "all of them are late"
