"""What each tenant may have: requests per second, open requests, and a fair part of a server that is too small.

Rules of this file
- A tenant is known by its key, or by what its client says where clients are trusted. Those that nobody has declared
  share one entry, so that nothing grows with what clients say.
- Limits are the tenant's own: whoever is beyond them is refused, however idle the server is.
- A fair part counts only while it matters: a tenant that has had more than its part is refused while another one of
  the same class or a higher one has had less than its own and was refused for want of room.
- Parts are max-min fair by weight: whoever asks for less than its part gets what it asks for, and the others have the
  rest. So nothing is held free for tenants that ask for little.
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

__all__ = ["ANYBODY", "Tenant", "Tenants"]

#: Entry of those that are not declared.
ANYBODY = "default"
#: After this time half of what a tenant has had is forgotten [our choice: some bursts long, and soon forgiven].
HALF_LIFE_NS = 5 * SECOND
#: So long a refusal counts as a wish for more [our choice: a client that was told to come back does so within 1 s].
WANTS_NS = 2 * SECOND
#: A tenant may exceed its part by this much before it is refused for it: parts are never hit exactly. [our choice]
TOLERANCE = 0.05
#: How much a request of a workflow weighs of which none has ended, and how fast that is learned.
FIRST_COST, LEARNING = 1.0, 0.05
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

    __slots__ = ("asked", "declared", "filled_ns", "open", "refused", "tokens", "used", "wants")

    def __init__(self, declared: Tenant, now_ns: int) -> None:
        self.declared = declared
        self.tokens = self.burst
        self.filled_ns = now_ns
        self.open = 0
        #: What its requests have cost, and would have, had all been let in; half is forgotten every half-life.
        self.used = self.asked = 0.0
        #: Class -> until when it counts as wishing for more.
        self.wants: dict[int, int] = {}
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
        self._decayed_ns = 0
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
        """One more request; raises `QuotaExceeded` if it is beyond a limit, or others should have their part first."""
        self.look(name, now_ns)
        account, cost = self._account(name), self._costs.get(workflow, FIRST_COST)
        if len(self._accounts) > 1:
            self._decay(now_ns)
            account.asked += cost
            if self._others_want(account, priority, now_ns) and self._too_much(account):
                self._refuse(
                    account, "share", f"tenant {name!r} has had its part, and others have not had theirs", 1000
                )
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
        elif cost > 0:
            self._costs[workflow] = cost if workflow not in self._costs else expected + LEARNING * (cost - expected)

    def no_room(self, name: str, priority: int, now_ns: int) -> None:
        """A request was refused for want of room: its tenant wishes for more, if it has not had its part."""
        account = self._account(name)
        self._decay(now_ns)
        if not self._too_much(account):
            account.wants[priority] = now_ns + WANTS_NS

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
                return account.used > part * (1 + TOLERANCE)
            left -= min(part, each.asked)
            weights -= each.declared.weight
        return False

    def _others_want(self, account: _Account, priority: int, now_ns: int) -> bool:
        for other in self._accounts.values():
            for wanted in [c for c, until_ns in other.wants.items() if until_ns <= now_ns]:
                del other.wants[wanted]
        return any(
            wanted <= priority and not self._too_much(other)
            for other in self._accounts.values()
            if other is not account
            for wanted in other.wants
        )
