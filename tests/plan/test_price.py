"""What certainty may cost in a graph, rule by rule."""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.plan import price
from dovetail.plan.chance import StageOptions
from dovetail.plan.options import Option
from dovetail.plan.price import LITTLE, _affordable, funded, is_chain
from dovetail.plan.stepwise import Steps, finish
from dovetail.state import Config
from dovetail.units import MS

AFTER = [[1, 2], [3], [3], []]
LATE = 20.0


def stage(*rows: tuple[int, float], spread: float) -> StageOptions:
    options = [Option(Config(1, 1, 1 + i), ms * MS, spread, usd) for i, (ms, usd) in enumerate(rows)]
    return StageOptions(options, {1: 0})


def stages(faster_usd: float, spread: float = 0.1) -> list[StageOptions]:
    """Only the last can be faster: 60 ms in place of 100, for so much."""
    return [
        stage((20, 1.0), spread=spread),
        stage((80, 1.0), spread=spread),
        stage((50, 1.0), spread=spread),
        stage((100, 1.0), (60, faster_usd), spread=spread),
    ]


def late_and_usd(
    faster_usd: float, slo_ms: int, *, premium: float = 0.0, most_late: float = 0.05
) -> tuple[float, float]:
    steps = funded(stages(faster_usd), AFTER, slo_ms * MS, late=LATE, premium=premium, most_late=most_late)
    found = finish(steps).rungs[0]
    return found.late, found.work_usd


def test_certainty_that_the_budget_pays_for_is_bought() -> None:
    late, usd = late_and_usd(1.05, 215)
    assert late < 0.001 and usd == pytest.approx(4.05, abs=0.03)


def test_what_is_too_dear_is_bought_only_where_it_is_needed_most() -> None:
    """Of 4 dollars a request costs, 2 % are 0.08; the faster one is a dollar more."""
    late, usd = late_and_usd(2.0, 235)
    assert usd <= 4.0 * (1 + price.GRAPH_PREMIUM) + 1e-9
    dear, more_usd = late_and_usd(2.0, 235, premium=1.0)
    assert more_usd > usd and dear < late <= price.GRAPH_LATE * 0.05


def test_no_more_may_be_late_than_that_whatever_it_costs() -> None:
    late, usd = late_and_usd(2.0, 215, most_late=0.01)
    assert usd > 4.0 * (1 + price.GRAPH_PREMIUM) and late <= price.GRAPH_LATE * 0.01


def test_where_no_price_keeps_to_the_budget_certainty_that_costs_little_is_bought_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(price, "_on_average_usd", lambda *_: 1.0)
    monkeypatch.setattr(price, "LITTLE", 0.0)
    late, usd = late_and_usd(1.05, 235)
    monkeypatch.setattr(price, "LITTLE", 0.0125)
    bought_late, bought_usd = late_and_usd(1.05, 235)
    assert bought_late < late and usd < bought_usd <= usd * 1.0125


def test_where_certainty_costs_nothing_more_the_price_is_raised_until_it_is_sure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everybody has time to spare on average, so the plan in time on average is the cheapest: 4 dollars."""
    rows = [*stages(1.0)[:3], stage((100, 1.0), (60, 1.002), spread=0.3)]

    def found() -> float:
        return finish(funded(rows, AFTER, 300 * MS, late=0.04, premium=0.0, most_late=0.05)).rungs[0].late

    monkeypatch.setattr(price, "_on_average_usd", lambda *_: 4.1)
    raised = found()
    monkeypatch.setattr(price, "RAISES", 0)
    assert raised < found()
    monkeypatch.setattr(price, "RAISES", 2)
    monkeypatch.setattr(price, "SURE", 1.0)
    assert raised < found()


@pytest.mark.parametrize(
    ("after", "chain"),
    [([[1], [2], []], True), ([[]], True), (AFTER, False), ([[1, 2], [2], []], False), ([[], []], False)],
)
def test_what_a_chain_is(after: list[list[int]], chain: bool) -> None:
    assert is_chain(after) is chain


def test_a_ladder_goes_down_to_what_a_plan_by_groups_costs_and_is_never_surer_below() -> None:
    ladder = finish(funded(stages(1.5), AFTER, 215 * MS, late=LATE, premium=1.0, most_late=0.05))
    assert len(ladder.rungs) > 1
    works, lates = [r.work_usd for r in ladder.rungs], [r.late for r in ladder.rungs]
    assert works == sorted(works, reverse=True) and lates == sorted(lates)
    assert all(work > ladder.budget_usd for work in works[:-1]), "nobody goes lower than has to be"
    prices = [r.late_usd for r in ladder.rungs]
    assert all(low == high / price.RUNG for high, low in pairwise(prices))


def test_a_ladder_ends_where_more_would_be_late_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_late(*_: object) -> Steps[tuple[float, float]]:
        yield
        return 0.0, 0.0

    monkeypatch.setattr(price, "by_groups", never_late)
    for most_late in (0.0, 0.02):
        ladder = finish(funded(stages(1.5), AFTER, 215 * MS, late=LATE, premium=1.0, most_late=most_late))
        assert all(rung.late <= price.GRAPH_LATE * most_late for rung in ladder.rungs[1:])
        assert len(ladder.rungs) < price.RUNGS


def test_where_the_budget_cannot_be_kept_certainty_that_costs_little_is_bought_back() -> None:
    """Work costs this much at the price of 64 dollars for a late answer, at half of it, and so on."""
    works_usd = [100.0, 60.0 * (1 + LITTLE * 1.5), 60.0 * (1 + LITTLE * 0.75), 60.0]

    class Told:
        def at(self, price_usd: float) -> Any:
            yield
            number = round(math.log2(64.0 / price_usd))
            late = 0.0 if number < len(works_usd) else 1.0
            return SimpleNamespace(late_usd=price_usd, late=late, work_usd=works_usd[min(number, 3)])

    tables: Any = Told()
    found = finish(_affordable(tables, 64.0, 50.0, 0.0, 0.1))
    assert found.late_usd == 16.0, "the surest that costs hardly more than the cheapest of all"
