"""Tenants: rates, open requests, and fair parts of a server that is too small. Time is made up."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.live_support import LiveServer

from dovetail.errors import QuotaExceeded
from dovetail.serve.tenants import ANYBODY, Tenant, Tenants
from dovetail.units import MS, SECOND


def ask(tenants: Tenants, name: str, at_ns: int) -> bool:
    try:
        tenants.enter(name, "w", 1, at_ns)
    except QuotaExceeded:
        return False
    return True


@given(
    rate=st.floats(0.5, 200),
    burst=st.integers(1, 50),
    gaps=st.lists(st.integers(0, 2 * SECOND), min_size=1, max_size=80),
)
@settings(deadline=None)
def test_nobody_gets_more_than_its_rate_and_one_burst(rate, burst, gaps):
    tenants = Tenants({"a": Tenant(rate=rate, burst=burst)})
    now, let_in = 0, 0
    for gap in gaps:
        now += gap
        let_in += ask(tenants, "a", now)
        assert let_in <= burst + rate * now / SECOND + 1e-6


def test_the_wait_that_is_told_is_enough():
    tenants = Tenants({"a": Tenant(rate=4.0, burst=1)})
    assert ask(tenants, "a", 0)
    with pytest.raises(QuotaExceeded, match="4 times a second") as refused:
        tenants.enter("a", "w", 1, 1 * MS)
    assert refused.value.retry_after_ms == 249
    assert ask(tenants, "a", 1 * MS + refused.value.retry_after_ms * MS)


def test_open_requests_are_counted_until_they_end():
    tenants = Tenants({"a": Tenant(max_open=2)})
    assert [ask(tenants, "a", 0) for _ in range(3)] == [True, True, False]
    tenants.leave("a", "w", 1.0, 1, False, 0)
    assert [ask(tenants, "a", 0) for _ in range(2)] == [True, False]
    assert all(ask(tenants, "b", 0) for _ in range(5)), "others have no such limit"


def test_tenants_that_nobody_declared_share_one_account():
    tenants = Tenants({ANYBODY: Tenant(max_open=2), "a": Tenant()})
    names = [tenants.name_of(name) for name in ("x", "y", "z", "a")]
    assert names == [ANYBODY, ANYBODY, ANYBODY, "a"]
    assert [ask(tenants, name, 0) for name in names] == [True, True, False, True]
    assert set(tenants.rows()) == {ANYBODY, "a"}


def served(tenants: Tenants, demand: dict[str, tuple[int, int]], capacity: int, seconds: int = 60) -> Counter[str]:
    """A server with so many places a second, first come, first served; who asks how often, and of which class.

    What each got in the second half.
    """
    got: Counter[str] = Counter()
    order = sorted((i / n, name) for name, (n, _) in demand.items() for i in range(n))
    for second in range(seconds):
        room = capacity
        for part, name in order:
            now, priority = int((second + part) * SECOND), demand[name][1]
            try:
                tenants.enter(name, "w", priority, now)
            except QuotaExceeded:
                continue
            # Places come evenly: as many as should be gone by now.
            open_now = room > capacity * (1 - part) - 1
            room -= open_now
            tenants.leave(name, "w", 1.0, priority, not open_now, now)
            if open_now and second >= seconds // 2:
                got[name] += 1
    return got


def test_a_greedy_tenant_leaves_the_others_their_part():
    total = 60 * 20 / 2
    got = served(Tenants({"greedy": Tenant(), "modest": Tenant()}), {"greedy": (200, 1), "modest": (40, 1)}, 20)
    assert 0.42 < got["modest"] / total < 0.58, got
    got = served(Tenants({"two": Tenant(weight=2), "one": Tenant()}), {"two": (100, 1), "one": (200, 1)}, 20)
    assert 0.58 < got["two"] / sum(got.values()) < 0.75, got


def test_nothing_is_held_free_for_who_asks_for_little():
    got = served(Tenants({"greedy": Tenant(), "modest": Tenant()}), {"greedy": (200, 1), "modest": (2, 1)}, 20)
    assert got["modest"] >= 2 * 30 * 0.7, "a tenth of the others get in"
    assert sum(got.values()) > 20 * 30 * 0.9, "the rest goes to whoever asks"


def test_a_higher_class_does_not_wait_for_the_part_of_a_lower_one():
    tenants = Tenants({"a": Tenant(), "b": Tenant()})
    for _ in range(50):
        assert ask(tenants, "a", 0)
        tenants.enter("b", "w", 3, 0)
        tenants.leave("b", "w", 1.0, 3, True, 0)
    for _ in range(20):
        tenants.enter("a", "w", 2, 0)
    with pytest.raises(QuotaExceeded, match="has had its part"):
        tenants.enter("a", "w", 3, 0)
    for at_ns in range(0, 40 * SECOND, SECOND // 10):
        tenants.enter("b", "w", 3, at_ns)  # b asks for nothing that it does not get
        tenants.leave("b", "w", 1.0, 3, False, at_ns)
    for _ in range(20):
        tenants.enter("a", "w", 3, 40 * SECOND)


def test_limits_change_while_requests_are_open():
    tenants = Tenants({"a": Tenant(max_open=1)})
    assert ask(tenants, "a", 0) and not ask(tenants, "a", 0)
    tenants.declare({"a": Tenant(max_open=2), "b": Tenant(rate=1.0)})
    assert ask(tenants, "a", 0) and not ask(tenants, "a", 0)
    assert ask(tenants, "b", 0) and not ask(tenants, "b", 0)
    tenants.declare({})
    tenants.leave("a", "w", 1.0, 1, False, 0)
    assert tenants.rows()[ANYBODY]["open"] == 0


def test_what_is_declared_is_checked():
    for wrong in ({"rate": 0}, {"weight": -1}, {"burst": 0}, {"max-open": 1.5}, {"unknown": 1}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, Tenant)


@pytest.mark.cpu
def test_a_tenant_beyond_its_rate_gets_429_and_is_booked():
    limits = {"slow": Tenant(rate=0.001, burst=2)}
    server = LiveServer("tests.live.apps:hosted", device="cpu:1", tenants=limits)
    try:
        replies = [server.ask("gated", 0, parameters={"tenant": "slow"}) for _ in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        assert "a second" in replies[2].error and replies[2].headers["retry-after"] == "60"
        assert replies[2].json["dovetail_request"] == 3
        assert server.ask("gated", 0).status == 200
        assert server.outcomes()["shed"] == 1
    finally:
        server.stop()
