"""The quota account of a device: who may start, who goes first, and for how long, by client.

The idea is FaST-GShare's (ICPP '23): a client has a part of the device's time (its quota), counted over a sliding
window, and starts kernels only while it holds a token. Several tokens are out at once as far as shares allow.

Rules of this file
- A client has a request, which it is given before anybody else's excess, and a limit, which it never passes. In
  strict mode the limit is the request. In work-conserving mode the limit is the whole device, or what was declared.
- Eligible is who used less than its limit in the last window and has repaid what it used too much. A kernel that runs
  is never interrupted, so a token may be overrun by one kernel. The overrun is charged like all other use, so that in
  the long run nobody gets more than its limit. A client with a limit holds one token at a time.
- First come those whose request of the last window is not met, by class. Among equals the first is the one that is
  furthest behind: the smallest use for what it asked for (start-time fair queueing, Goyal et al. 1996). Whoever was
  away makes up for some windows at most (`arrears_ns`).
- A client that nobody declared has what the others leave, divided equally, and no limit.
- What is asked may change at any time. Use, debt and arrears are kept: resizing neither forgives nor takes anything.
- Whoever moves to another device takes debt and arrears along, when the last of its tasks here has ended. Both are
  added to what it has there by then.
- The account frees no share. A share is free when its kernels have ended, whatever the token says.
- Pure: time comes in with each call. Levels are integers (per cent of nanoseconds), so that nothing is rounded away.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ..state.run_batch import FULL_QUOTA, NEVER_NS
from ..state.slice import QUOTA_WINDOW_NS
from ..units import MS
from .events import QuotaChanged
from .usage import Usage

__all__ = ["QuotaMode", "TokenAccount", "TokenSettings"]

QuotaMode = Literal["conserving", "strict"]
#: A client that nobody declared is reckoned to ask for so much at least, so that it is never starved [our choice].
LEAST_REQUEST_PCT: Final = 1
#: Behind by less than this part of a window is not told apart: order is by objective then [our choice].
_TICKS: Final = 1000


class TokenSettings(msgspec.Struct, frozen=True):
    """Knobs of the account."""

    #: The sliding window.
    window_ns: int = QUOTA_WINDOW_NS
    #: A token is for so long at most, if others are there to take turns with [our choice]: a tenth of a window.
    token_ns: int = 10 * MS
    #: Nobody with a limit starts for less than this, nor for less than half of its quota of a window [our choice].
    least_ns: int = MS
    #: Whoever was away makes up for so much at most, as a part of what it asked for [our choice]. Less than some
    #: batches take, and clients whose next batch is late by a moment lose what they were behind with.
    arrears_ns: int = 500 * MS
    mode: QuotaMode = "conserving"


class TokenAccount:
    """Quotas of the clients of one device. It is an `Account` of the Device machine."""

    def __init__(self, settings: TokenSettings | None = None) -> None:
        self.settings = settings = settings or TokenSettings()
        if settings.window_ns <= 0 or settings.token_ns <= 0:
            raise ValueError(f"a window of {settings.window_ns} ns with tokens of {settings.token_ns} ns is none")
        #: Whether quotas count at all: somebody declared one.
        self.active = False
        #: Clients that are about to go to another device.
        self.moving = 0
        self._clients: dict[str, Usage] = {}
        #: The furthest that anybody had come, for what it asked for, when it was last started.
        self._front_ns = 0

    # -- what is asked for --------------------------------------------------------------------------------------

    def told(self, client: str, quota_pct: int, now_ns: int) -> None:
        """A batch says what its client asks for. A limit that was declared by itself stays as far as it can.

        What batches declared lapses when none of the client has been here for so long that nothing is left to be made
        up for: a device on which nobody asks for a quota any more pays nothing for quotas.
        """
        for other in [o for o, usage in self._clients.items() if o != client and self._lapsed(usage, now_ns)]:
            self.forget(other, now_ns)
        known = self._clients.get(client)
        by_batch = known is None or known.by_batch or not known.request_pct
        if quota_pct == FULL_QUOTA:
            if known is not None and known.by_batch:
                self.forget(client, now_ns)
        elif known is None or known.request_pct != quota_pct:
            limit_pct = 0 if by_batch or known is None else max(known.limit_pct, quota_pct)
            self.declare(client, quota_pct, limit_pct, now_ns=now_ns)
            self._clients[client].by_batch = by_batch
        if (usage := self._clients.get(client)) is not None:
            usage.seen_ns = now_ns
            if usage.moves_to:
                usage.moves_to, self.moving = 0, self.moving - 1  # it is back

    def _lapsed(self, usage: Usage, now_ns: int) -> bool:
        if (
            not usage.by_batch
            or usage.moves_to
            or usage.tasks
            or usage.runs
            or now_ns - usage.seen_ns <= self.settings.arrears_ns
        ):
            return False
        usage.advance(now_ns)
        return usage.saved_ns >= 0

    def declare(self, client: str, request_pct: int, limit_pct: int = 0, *, now_ns: int) -> None:
        """From now on; 0 as limit: as the mode has it. To ask for 100 % with no limit is to declare nothing."""
        limit_pct = limit_pct or (request_pct if self.settings.mode == "strict" else FULL_QUOTA)
        if not 0 < request_pct <= limit_pct <= FULL_QUOTA:
            raise ValueError(f"client {client!r} cannot ask for {request_pct} % with a limit of {limit_pct} %")
        usage = self._usage(client)
        usage.by_batch = False
        usage.resize(request_pct if request_pct < FULL_QUOTA else 0, limit_pct, now_ns)
        self._divide(now_ns)

    def _divide(self, now_ns: int) -> None:
        """Clients that nobody declared have equal parts of what the others leave."""
        declared = [c for c in self._clients.values() if c.request_pct]
        self.active = bool(declared)
        rest = [c for c in self._clients.values() if not c.request_pct]
        left_pct = FULL_QUOTA - sum(c.request_pct for c in declared)
        for usage in self._clients.values():
            usage.reckon(usage.request_pct or max(LEAST_REQUEST_PCT, left_pct // len(rest)), now_ns)

    def change(self, event: QuotaChanged, now_ns: int) -> None:
        """Somebody asks for another quota, or a client has moved here with what it owes and is behind with."""
        if not event.request_pct:
            self.forget(event.client, now_ns)
            return
        known = self._clients.get(event.client) if event.moved else None
        if known is None or not known.request_pct:  # else its batches were here before it, and say what it asks for
            self.declare(event.client, event.request_pct, event.limit_pct, now_ns=now_ns)
        if event.moved:
            usage = self._usage(event.client)
            usage.advance(now_ns)
            if known is None:
                usage.by_batch, usage.seen_ns, usage.virtual_ns = event.by_batch, now_ns, self._front_ns
            usage.bring(event.saved_ns, event.limit_pct)
            least_ns = min(usage.virtual_ns, self._front_ns - self.settings.arrears_ns)
            usage.virtual_ns = max(usage.virtual_ns - event.behind_ns, least_ns)

    def standing(self, client: str, now_ns: int) -> QuotaChanged:
        """What another device is to be told, if the client moves there."""
        usage = self._usage(client)
        usage.advance(now_ns)
        behind_ns = max(0, min(self._front_ns - usage.virtual_ns, self.settings.arrears_ns))
        pcts = (usage.request_pct, usage.limit_pct)
        return QuotaChanged(client, *pcts, True, usage.saved_ns, behind_ns, usage.by_batch)

    def leaves(self, client: str, to: int) -> None:
        """The client goes to another device when the last of its tasks here has ended; `gone` says with what."""
        usage = self._clients.get(client)
        if usage is not None and usage.request_pct:
            self.moving += not usage.moves_to
            usage.moves_to = to

    def gone(self, now_ns: int) -> list[tuple[int, QuotaChanged]]:
        """Clients that have left since this was last asked: where each goes, and what that device is to be told."""
        found = [(c, u.moves_to) for c, u in self._clients.items() if u.moves_to and not (u.tasks or u.runs)]
        told = [(to, self.standing(client, now_ns)) for client, to in found]
        for client, _ in found:
            self.forget(client, now_ns)
        return told

    def forget(self, client: str, now_ns: int) -> None:
        """The client is gone for good; one with tasks stays, as one that nobody declared."""
        usage = self._clients.get(client)
        if usage is not None and (usage.tasks or usage.runs):
            usage.resize(0, FULL_QUOTA, now_ns)
            usage.by_batch = False
            self.moving -= usage.moves_to > 0
            usage.moves_to = 0
        elif usage is not None:
            self.moving -= usage.moves_to > 0
            del self._clients[client]
        self._divide(now_ns)

    # -- tasks --------------------------------------------------------------------------------------------------

    def entered(self, client: str, now_ns: int) -> None:
        """A task of this client is here; whoever was away makes up for a window at most."""
        if not self.active:
            return
        new = client not in self._clients
        usage = self._usage(client)
        if not usage.tasks:
            usage.advance(now_ns)
            usage.virtual_ns = max(usage.virtual_ns, self._front_ns - (0 if new else self.settings.arrears_ns))
        usage.tasks += 1
        if new:
            self._divide(now_ns)

    def left(self, client: str, now_ns: int) -> None:
        """A task of this client is gone."""
        usage = self._clients.get(client)
        if usage is not None and usage.tasks:
            usage.tasks -= 1
            usage.seen_ns = now_ns

    def _usage(self, client: str) -> Usage:
        usage = self._clients.get(client)
        if usage is None:
            usage = self._clients[client] = Usage(self.settings.window_ns)
        return usage

    # -- who may, and who is first ------------------------------------------------------------------------------

    def may_start(self, client: str, share_pct: int, now_ns: int) -> bool:
        """Below its limit, and with no token out if it has one."""
        usage = self._usage(client)
        if usage.limit_pct >= FULL_QUOTA:
            return True
        usage.advance(now_ns)
        return not usage.runs and usage.left_ns(now_ns) >= self._least_ns(usage)

    def _least_ns(self, usage: Usage) -> int:
        return max(1, min(self.settings.least_ns, usage.limit_ns // 2))

    def next_ns(self, client: str, now_ns: int) -> int | None:
        """When it is below its limit by as much as is worth a token; None: its token has to end first."""
        usage = self._usage(client)
        if usage.limit_pct >= FULL_QUOTA or usage.runs:
            return None
        usage.advance(now_ns)
        return usage.free_ns(self._least_ns(usage), now_ns)

    def rank(self, client: str, now_ns: int) -> tuple[bool, int]:
        """Smaller goes first: those whose request is not met, then how far it has come for what it asked for."""
        usage = self._usage(client)
        usage.advance(now_ns)
        return usage.used_ns(now_ns) >= usage.request_ns, usage.virtual_ns * _TICKS // self.settings.window_ns

    def until_ns(self, client: str, share_pct: int, now_ns: int) -> int:
        """Until its token ends: with its quota, or before, so that others are asked when its request is met."""
        if not self.active:
            return NEVER_NS
        usage = self._usage(client)
        usage.advance(now_ns)
        token_ns, unmet_ns = self.settings.token_ns, usage.request_ns - usage.used_ns(now_ns)
        if unmet_ns > 0:
            token_ns = min(token_ns, max(unmet_ns, self.settings.least_ns))
        if usage.limit_pct < FULL_QUOTA:
            token_ns = min(token_ns, max(0, usage.left_ns(now_ns)))
        return now_ns + token_ns

    # -- what ran -----------------------------------------------------------------------------------------------

    def started(self, client: str, share_pct: int, now_ns: int) -> None:
        """A kernel of this client was started: it is charged while it runs."""
        if not self.active:
            return
        usage = self._usage(client)
        usage.advance(now_ns)
        self._front_ns = max(self._front_ns, usage.virtual_ns)
        usage.begin(now_ns)

    def finished(self, client: str, share_pct: int, begin_ns: int, now_ns: int) -> None:
        """It has ended, or its task is gone: what it really took is charged."""
        if (usage := self._clients.get(client)) is not None:
            usage.end(begin_ns, now_ns)

    def used_ns(self, client: str, now_ns: int) -> int:
        """Use of the last window."""
        usage = self._usage(client)
        usage.advance(now_ns)
        return usage.used_ns(now_ns)

    def validate(self) -> None:
        """Check every invariant; for tests."""
        for client, usage in self._clients.items():
            usage.validate()
            assert usage.tasks >= 0, f"tasks of {client}"
        assert self.moving == sum(c.moves_to > 0 for c in self._clients.values()), "who moves is counted"
        assert self.active == any(c.request_pct for c in self._clients.values()), "quotas count if one is declared"
