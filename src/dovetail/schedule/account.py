"""What the requests of a workflow may cost, and what they have cost: whether more certainty can be afforded.

Certainty has a price (`plan.price`), and nobody knows beforehand what it comes to: batches save money, bad luck costs
some. So every workflow has an account. A request that was answered brings what it may cost and takes what its batches
have cost. While the account is overdrawn by more than `CREDIT`, a late answer is taken to cost less: one rung of the
ladder for each `STEP` beyond that.

Rules of this file
- What was saved is kept up to a bound, so that a quiet hour does not pay for a spendthrift one. What was overspent
  is, too.
- The cost of a batch is divided among its items. Whoever was given up neither brings nor takes anything.
"""

from __future__ import annotations

from typing import Final

from ..state import Batch, Request

__all__ = ["Accounts"]

#: All in budgets of a request. What may be overdrawn, because costs go up and down; what a rung stands for; how much
#: can be saved, and owed. [our choice, on graphs 1000 to 1019]
CREDIT: Final = 1.0
STEP: Final = 0.25
SAVED: Final = 4.0
OWED: Final = 3.0


class Accounts:
    """The accounts of all workflows."""

    __slots__ = ("_balances", "_spent")

    def __init__(self) -> None:
        #: Workflow -> what is left, in budgets of a request.
        self._balances: dict[str, float] = {}
        #: Open request -> what its batches have cost, in dollars.
        self._spent: dict[int, float] = {}

    def ran(self, batch: Batch, run_ns: int) -> None:
        """A batch has ended."""
        usd = batch.worker.usd_per_ns(batch.config) * run_ns / len(batch.items)
        for item in batch.items:
            if item.request.outcome:
                continue  # it has ended before this batch
            self._spent[item.request.id] = self._spent.get(item.request.id, 0.0) + usd

    def closed(self, request: Request, budget_usd: float) -> None:
        """A request has ended that may have cost so much; nothing: that is not counted."""
        spent_usd = self._spent.pop(request.id, 0.0)
        if budget_usd and request.outcome in ("ok", "late"):
            balance = self._balances.get(request.graph.name, 0.0) + 1 - spent_usd / budget_usd
            self._balances[request.graph.name] = max(-OWED, min(balance, SAVED))

    def rung(self, workflow: str) -> int:
        """How far down the ladder to go."""
        owed = -self._balances.get(workflow, 0.0) - CREDIT
        return 0 if owed <= 0 else 1 + int(owed / STEP)
