"""What each tenant may have: requests per second, open requests, and a fair part of a server that is too small.

Rules of this file
- A tenant is known by its key, or by what its client says where clients are trusted. Those that nobody has declared
  share one entry, so that nothing grows with what clients say.
- Limits are the tenant's own: whoever is beyond them is refused, however idle the server is.
- A fair part counts only while it matters. Whenever a tenant that has had less than its part is refused for want of
  room, those that have had more have fewer of their requests let in, of its class and of lower ones. Whenever it is
  let in they have more again. So the server stays full, and nothing is held free for who asks for nothing.
- Parts are max-min fair by weight: whoever asks for less than its part gets what it asks for, and the others have the
  rest.
- What a tenant has had is what its requests have cost, and it is forgotten by half every few seconds.
- Time is passed in. Nothing here waits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec

from ..errors import QuotaExceeded
from ..units import MS, SECOND

__all__ = ["ANYBODY", "REASONS", "Tenant", "Tenants"]

#: Entry of those that are not declared.
ANYBODY = "default"
#: After this time half of what a tenant has had is forgotten [our choice: some bursts long, and soon forgiven].
HALF_LIFE_NS = 5 * SECOND
#: A refusal of who has had less than its part, and a success, multiply what others may pass by these: about one in
#: twelve of its requests is refused in the end. [our choice]
LESS, MORE = 0.8, 1.02
#: Nobody is shut out altogether. [our choice]
LEAST_PASSING = 0.01
#: So long after the last refusal others pass freely again, twice as many every time. [our choice]
FREE_AFTER_NS = 2 * SECOND
#: How much a request of a workflow weighs of which none has ended, and how fast that is learned.
FIRST_COST, LEARNING = 1.0, 0.05
LOWEST_CLASS = 10
REASONS = ("rate", "open", "share")

_Number = Annotated[float, msgspec.Meta(gt=0)]


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """What is declared of one tenant. Nothing is limited that is not given."""

    #: Part of the server in comparison to other tenants', when there is not enough for all.
    weight: _Number = 1.0
    #: Requests per second, and how many at once after a pause; None: one second's worth.
    rate: _Number | None = None
    burst: Annotated[int, msgspec.Meta(ge=1)] | None = None
    #: Most requests that are open at the same time.
    max_open: Annotated[int, msgspec.Meta(ge=1)] | None = None
    #: Whether it may be refused because it would be late; else it is served late.
    sheddable: bool = True


class _Account:
    """What one tenant has had."""

    __slots__ = ("asked", "credit", "declared", "filled_ns", "open", "passing", "refused", "tokens", "used")

    def __init__(self, declared: Tenant, now_ns: int) -> None:
        self.declared = declared
        self.tokens = self.burst
        self.filled_ns = now_ns
        self.open = 0
        #: What its requests have cost, and would have, had all been let in; half is forgotten every half-life.
        self.used = self.asked = 0.0
        #: Class -> part of its requests that may pass though it has had more than its part; others pass freely.
        self.passing: dict[int, float] = {}
        #: What has added up of the next one that may pass.
        self.credit = 0.0
        self.refused: Counter[str] = Counter()

    @property
    def burst(self) -> float:
        """Most requests at once."""
        rate = self.declared.rate
        return math.inf if rate is None else float(self.declared.burst or max(1, math.ceil(rate)))

    def refill(self, now_ns: int) -> None:
        """Give what time has brought."""
        if self.declared.rate is not None:
            self.tokens = min(self.burst, self.tokens + (now_ns - self.filled_ns) * self.declared.rate / SECOND)
        self.filled_ns = now_ns


class Tenants:
    """Accounts of all tenants."""

    def __init__(self, declared: Mapping[str, Tenant] | None = None, known: Iterable[str] = ()) -> None:
        """`known` are tenants without limits that have an account of their own: those of keys."""
        self._accounts: dict[str, _Account] = {}
        #: Workflow -> what a request costs.
        self._costs: dict[str, float] = {}
        self._decayed_ns = self._wanted_ns = 0
        self.declare(declared or {}, known)

    def declare(self, declared: Mapping[str, Tenant], known: Iterable[str] = ()) -> None:
        """Put these in place of what was declared; what tenants have had is kept, and so are their open requests."""
        anybody = declared.get(ANYBODY, Tenant())
        specs = {ANYBODY: anybody, **dict.fromkeys(known, anybody), **declared}
        before = self._accounts
        self._accounts = {}
        for name, spec in specs.items():
            account = before.get(name) or _Account(spec, self._decayed_ns)
            account.declared = spec
            account.tokens = min(account.burst, account.tokens if math.isfinite(account.tokens) else account.burst)
            self._accounts[name] = account

    def name_of(self, claimed: str) -> str:
        """The account that a tenant has."""
        return claimed if claimed in self._accounts else ANYBODY

    def sheddable(self, name: str) -> bool:
        """Whether it may be refused because it would be late."""
        return self._account(name).declared.sheddable

    def look(self, name: str, now_ns: int) -> None:
        """Raises `QuotaExceeded` if a request would be beyond the tenant's limits. Nothing is taken."""
        account = self._account(name)
        declared = account.declared
        account.refill(now_ns)
        if declared.rate is not None and account.tokens < 1.0:
            wait_ms = math.ceil((1.0 - account.tokens) / declared.rate * SECOND / MS)
            self._refuse(account, "rate", f"tenant {name!r} may ask {declared.rate:g} times a second", wait_ms)
        if declared.max_open is not None and account.open >= declared.max_open:
            self._refuse(account, "open", f"tenant {name!r} may have {declared.max_open} open requests", 1000)

    def enter(self, name: str, workflow: str, priority: int, now_ns: int) -> None:
        """One more request; raises `QuotaExceeded` if it is beyond a limit, or others are to have theirs first."""
        self.look(name, now_ns)
        account, cost = self._account(name), self._costs.get(workflow, FIRST_COST)
        if len(self._accounts) > 1:
            self._decay(now_ns)
            account.asked += cost
            if priority in account.passing and self._too_much(account):
                account.credit += account.passing[priority]
                if account.credit < 1.0:
                    text = f"tenant {name!r} has had its part, and others have not had theirs"
                    self._refuse(account, "share", text, 1000)
                account.credit -= 1.0
        account.tokens -= 1.0
        account.open += 1
        account.used += cost

    def leave(self, name: str, workflow: str, cost: float, priority: int, shed: bool, now_ns: int) -> None:
        """A request that was let in has ended; `shed`: there was no room for it after all."""
        account = self._accounts.get(name)
        if account is None:
            return  # it was taken out of the declaration meanwhile
        account.open -= 1
        expected = self._costs.get(workflow, FIRST_COST)
        if shed:
            account.used = max(0.0, account.used - expected)
            self.no_room(name, priority, now_ns)
            return
        if cost > 0:
            self._costs[workflow] = cost if workflow not in self._costs else expected + LEARNING * (cost - expected)
        if any(other.passing for other in self._accounts.values()) and not self._too_much(account):
            self._let_others(account, priority, MORE)

    def no_room(self, name: str, priority: int, now_ns: int) -> None:
        """A request was refused for want of room."""
        account = self._account(name)
        self._decay(now_ns)
        if len(self._accounts) > 1 and not self._too_much(account):
            self._wanted_ns = now_ns
            for other in self._accounts.values():
                if other is not account and self._too_much(other):
                    for lower in range(priority, LOWEST_CLASS + 1):
                        other.passing.setdefault(lower, 1.0)
            self._let_others(account, priority, LESS)

    def _let_others(self, account: _Account, priority: int, factor: float) -> None:
        for other in self._accounts.values():
            if other is not account:
                for lower in [c for c in other.passing if c >= priority]:
                    other.passing[lower] = max(LEAST_PASSING, other.passing[lower] * factor)
                    if other.passing[lower] >= 1.0:
                        del other.passing[lower]

    def rows(self) -> dict[str, dict[str, float]]:
        """What is known of each, for metrics."""
        total = sum(account.used for account in self._accounts.values())
        return {
            name: {
                "open": account.open,
                "share": account.used / total if total else 0.0,
                **{f"refused_{why}": account.refused[why] for why in REASONS},
            }
            for name, account in self._accounts.items()
        }

    def _account(self, name: str) -> _Account:
        return self._accounts.get(name) or self._accounts[ANYBODY]

    def _refuse(self, account: _Account, why: str, text: str, wait_ms: int) -> None:
        account.refused[why] += 1
        raise QuotaExceeded(text, max(1, wait_ms))

    def _decay(self, now_ns: int) -> None:
        passed_ns = now_ns - self._decayed_ns
        if passed_ns < HALF_LIFE_NS // 100:
            return
        factor = 0.5 ** (passed_ns / HALF_LIFE_NS)
        for account in self._accounts.values():
            account.used *= factor
            account.asked *= factor
            if account.passing and now_ns - self._wanted_ns > FREE_AFTER_NS:
                more = 2.0 ** (passed_ns / FREE_AFTER_NS)
                account.passing = {c: p * more for c, p in account.passing.items() if p * more < 1.0}
        self._decayed_ns = now_ns

    def _too_much(self, account: _Account) -> bool:
        """Whether a tenant has had more than its part of what all have had together."""
        left = sum(each.used for each in self._accounts.values())
        # Those that ask for the least beside their weight are served first; what they leave is for the others.
        order = sorted(self._accounts.values(), key=lambda each: each.asked / each.declared.weight)
        weights = sum(each.declared.weight for each in order)
        for each in order:
            part = left * each.declared.weight / weights
            if each is account:
                return account.used > part
            left -= min(part, each.asked)
            weights -= each.declared.weight
        return False
