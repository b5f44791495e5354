"""Accounts: what was saved and overspent is bounded, and says how much certainty can be afforded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.schedule import account
from dovetail.schedule.account import Accounts
from dovetail.state import Config, Worker, WorkerSpec

WORKER = Worker(1, WorkerSpec("gpu", "v100", ("model",), usd_per_hour=3600e9))  # a dollar for a nanosecond


def request(ident: int, outcome: str = "") -> Any:
    return SimpleNamespace(id=ident, outcome=outcome, graph=SimpleNamespace(name="flow"))


def batch(*requests: Any) -> Any:
    items = [SimpleNamespace(request=r) for r in requests]
    return SimpleNamespace(worker=WORKER, config=Config(4, 0, 100), items=items)


def pay(accounts: Accounts, ident: int, usd: int, *, budget_usd: float = 100.0, outcome: str = "ok") -> None:
    one = request(ident)
    accounts.ran(batch(one), usd)
    one.outcome = outcome
    accounts.closed(one, budget_usd)


def test_who_keeps_to_the_budget_stays_at_the_top() -> None:
    accounts = Accounts()
    for ident in range(50):
        pay(accounts, ident, 100)
    assert accounts.rung("flow") == 0


def test_rungs_go_down_step_by_step_beyond_the_credit_and_up_again() -> None:
    accounts = Accounts()
    seen = []
    for ident in range(9):
        pay(accounts, ident, 120)
        seen.append(accounts.rung("flow"))
    assert seen == [0, 0, 0, 0, 0, 1, 2, 3, 4], "a fifth too much each; a whole budget is credit"
    for ident in range(20):
        pay(accounts, 100 + ident, 80)
    assert accounts.rung("flow") == 0
    assert accounts.rung("other") == 0


def test_a_batch_is_paid_by_its_items_in_equal_parts() -> None:
    accounts = Accounts()
    one, two = request(1), request(2)
    accounts.ran(batch(one, two), 300)
    assert accounts._spent == {1: pytest.approx(150.0), 2: pytest.approx(150.0)}


def test_who_was_given_up_or_has_no_budget_changes_nothing_and_nothing_is_kept() -> None:
    accounts = Accounts()
    pay(accounts, 1, 10_000, outcome="shed")
    pay(accounts, 2, 10_000, budget_usd=0.0)
    assert accounts.rung("flow") == 0
    accounts.ran(batch(request(3, "cancelled")), 100)
    assert accounts._spent == {}


@given(st.lists(st.integers(0, 1000), max_size=60))
def test_what_is_saved_and_owed_is_bounded(costs: list[int]) -> None:
    accounts = Accounts()
    for ident, usd in enumerate(costs):
        pay(accounts, ident, usd)
        assert -account.OWED <= accounts._balances["flow"] <= account.SAVED
