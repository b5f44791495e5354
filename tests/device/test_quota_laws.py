"""Laws about quotas, with whatever work comes: nobody is above its limit, nothing is lost, nobody is starved."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.device import Device, DeviceTimes, GapArbiter, GapSettings, ModelCache, TokenAccount, TokenSettings
from dovetail.device.events import TO_THE_END, Grant, GrantEnded, PlannedBatch, QuotaChanged
from dovetail.predict import Estimator
from dovetail.profile.table import ProfileTable
from dovetail.state.run_batch import NEVER_NS, RunBatch
from dovetail.units import MS

from .floor import Floor, Work
from .known import known

WINDOW_NS = 50 * MS
STRICT = TokenSettings(window_ns=WINDOW_NS, token_ns=10 * MS, least_ns=MS, mode="strict")
SHARED = TokenSettings(window_ns=WINDOW_NS, token_ns=5 * MS, least_ns=MS)
QUOTA = {"a": 20, "b": 35, "c": 100}

works = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(0, 300),  # arrives at, ms
        st.integers(1, 8),  # kernels
        st.integers(1, 12),  # half a millisecond each
        st.sampled_from([10, 30, 50, 100]),  # share
        st.integers(1, 2),  # class
    ),
    min_size=1,
    max_size=25,
)
Given = list[tuple[str, int, int, int, int, int]]


def fill(floor: Floor, given: Given) -> None:
    for client, at_ms, kernels, half_ms, share_pct, priority in given:
        floor.arrive(
            at_ms * MS, client, kernels=kernels, kernel_ns=half_ms * MS // 2, share_pct=share_pct, priority=priority,
            quota_pct=QUOTA[client],
        )  # fmt: skip


def longest_ns(floor: Floor, client: str) -> int:
    return max((w.kernel_ns for w in floor.works.values() if w.client == client), default=0)


def all_ended(floor: Floor) -> bool:
    return all(w.ended_ns >= 0 and w.ran == w.kernels for w in floor.works.values())


@settings(max_examples=120, deadline=None)
@given(works)
def test_no_client_is_above_its_limit_in_any_window_and_overuse_is_repaid(given: Given) -> None:
    floor = Floor(STRICT)
    fill(floor, given)
    floor.run()
    assert all_ended(floor), "nothing is lost and nobody is starved"
    for client in "ab":
        limit_ns, kernel_ns = WINDOW_NS * QUOTA[client] // 100, longest_ns(floor, client)
        first_ns = min((begin for begin, _ in floor.held.get(client, [])), default=0)
        for _, end_ns in floor.held.get(client, []):
            # Use of a window is at its most at the end of a grant.
            assert floor.used_ns(client, end_ns - WINDOW_NS, end_ns) <= limit_ns + kernel_ns, "above its quota"
            long_ns = (end_ns - first_ns) * QUOTA[client] // 100
            assert floor.used_ns(client, 0, end_ns) <= long_ns + limit_ns + kernel_ns, "overuse was not repaid"


@settings(max_examples=80, deadline=None)
@given(works, st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300), st.integers(5, 99)), max_size=8))
def test_a_share_that_is_resized_loses_nothing(given: Given, changes: list[tuple[str, int, int]]) -> None:
    floor = Floor(STRICT)
    fill(floor, [(*work[:5], 1) for work in given])
    for client, at_ms, pct in changes:
        floor.change(at_ms * MS, QuotaChanged(client, pct, pct))
    floor.run()
    assert all_ended(floor)
    most = {c: max([QUOTA[c], *(p for who, _, p in changes if who == c)]) for c in "abc"}
    for client in "ab":
        for _, end_ns in floor.held.get(client, []):
            limit_ns = WINDOW_NS * most[client] // 100 + longest_ns(floor, client)
            assert floor.used_ns(client, end_ns - WINDOW_NS, end_ns) <= limit_ns, "resizing forgives nothing"


@settings(max_examples=80, deadline=None)
@given(works)
def test_work_conserving_quotas_leave_nothing_idle_that_could_run(given: Given) -> None:
    floor = Floor(SHARED)
    fill(floor, [(*work[:4], 100, 1) for work in given])
    floor.run()
    assert all_ended(floor)
    spans = sorted(span for spans in floor.held.values() for span in spans)
    waits = [(w.arrived_ns, w.ended_ns) for w in floor.works.values()]
    for (_, end_ns), (begin_ns, _) in pairwise(spans):
        if begin_ns > end_ns:
            assert not any(came < begin_ns and gone > end_ns for came, gone in waits), "idle beside work"


def test_a_device_that_keeps_no_quotas_pays_nothing_for_them() -> None:
    floor = Floor()
    floor.arrive(0, "a", kernels=4, kernel_ns=MS)
    floor.run()
    assert [(grant.last, grant.until_ns >= 1 << 60) for _, _, grant in floor.grants] == [(-1, True)]


@pytest.mark.parametrize("requests", [{"a": 75, "b": 25}, {"a": 50, "b": 25, "c": 15, "d": 10}, {"a": 30, "b": 10}])
def test_under_load_each_gets_what_it_asked_for_within_a_hundredth(requests: dict[str, int]) -> None:
    """Also where less than everything was asked for: what is left is divided in the same way."""
    floor = Floor()
    for n, (client, pct) in enumerate(requests.items()):
        for _ in range(2):
            floor.arrive(0, client, kernels=10, kernel_ns=(n + 1) * MS + 1, quota_pct=pct, again=100_000)
    floor.run(10_000 * MS)
    total_pct = sum(requests.values())
    for client, pct in requests.items():
        assert floor.used_ns(client, 0, 10_000 * MS) / (10_000 * MS) == pytest.approx(pct / total_pct, rel=0.01)
        for since_ms in range(2000, 10_000, 2000):
            got = floor.used_ns(client, since_ms * MS, (since_ms + 2000) * MS) / (2000 * MS)
            assert got == pytest.approx(pct / total_pct, abs=0.01)


def test_a_large_share_is_not_starved_by_small_ones() -> None:
    """Ten clients keep small kernels coming, so that the device is never empty by itself."""
    floor = Floor()
    for n in range(10):
        for i in range(3):
            floor.arrive(i * MS, f"small {n}", kernel_ns=(5 + n + i) * MS, share_pct=30, quota_pct=8, again=100)
    large = floor.arrive(20 * MS, "large", kernel_ns=MS, share_pct=100, quota_pct=20)
    floor.run(2_000 * MS)
    assert 0 <= large.begun_ns - large.arrived_ns <= 100 * MS
    assert any(grant.why == "back-fill" for _, _, grant in floor.grants), "and what is free is used meanwhile"


def test_back_fill_ends_after_so_many() -> None:
    """One holds its share for long, and small ones come and go past a large one: eight times, then never again."""
    floor = Floor()
    floor.arrive(0, "long", kernel_ns=1000 * MS, share_pct=50, quota_pct=10)
    large = floor.arrive(MS, "large", kernel_ns=MS, share_pct=100, quota_pct=40)
    floor.arrive(2 * MS, "small", kernel_ns=MS, share_pct=50, quota_pct=40, again=100)
    floor.run(500 * MS)
    assert sum(grant.why == "back-fill" for _, _, grant in floor.grants) == 8
    floor.run(1002 * MS)
    assert large.begun_ns == 1000 * MS


def test_an_expired_token_frees_no_share_whose_kernels_still_run() -> None:
    floor = Floor(STRICT)
    floor.arrive(0, "a", kernel_ns=100 * MS, share_pct=60, quota_pct=20)
    other = floor.arrive(MS, "b", kernel_ns=MS, share_pct=60, quota_pct=50)
    floor.run(99 * MS)
    assert floor.grants[0][2].until_ns == 10 * MS and other.begun_ns < 0, "its token ended long ago"
    floor.run(110 * MS)
    assert other.begun_ns == 100 * MS


def test_tokens_are_granted_together_while_shares_fit() -> None:
    floor = Floor()
    works = [floor.arrive(0, c, kernel_ns=5 * MS, share_pct=pct, quota_pct=20) for c, pct in
             zip("abcd", (40, 30, 30, 30), strict=True)]  # fmt: skip
    floor.run(MS)
    assert [w.begun_ns for w in works] == [0, 0, 0, -1]


def test_a_higher_class_within_its_request_waits_for_one_kernel_and_beyond_it_for_those_below() -> None:
    floor = Floor(TokenSettings(window_ns=100 * MS, token_ns=20 * MS))
    low = floor.arrive(0, "low", kernels=100, kernel_ns=2 * MS, priority=2, quota_pct=50)
    high = [floor.arrive(5 * MS, "high", kernel_ns=20 * MS, quota_pct=40) for _ in range(4)]
    floor.run(120 * MS)
    assert high[0].begun_ns == 6 * MS, "one kernel that ran"
    assert high[1].begun_ns == 26 * MS
    assert high[2].begun_ns == 90 * MS, "it has had its 40 ms of this window, and the one below now its 50"
    assert low.ran == 28, "and so on"
    (grant,) = [grant for at_ns, _, grant in floor.grants if at_ns == 46 * MS]
    assert grant.last == TO_THE_END, "nobody is in its way: the class above has had what it asked for"


def test_filler_runs_inside_its_own_quota() -> None:
    """A lower class beside a higher one that leaves the device half empty: its own limit holds."""
    floor = Floor(STRICT)
    for i in range(100):
        floor.arrive(i * 5 * MS, "high", kernel_ns=MS, quota_pct=60)
    floor.arrive(0, "low", kernels=400, kernel_ns=MS, priority=2, quota_pct=10)
    floor.run(500 * MS)
    assert floor.used_ns("low", 0, 500 * MS) <= 50 * MS + 5 * MS + MS
    assert floor.used_ns("low", 0, 500 * MS) >= 45 * MS


def test_a_lower_class_does_not_back_fill_past_a_higher_one() -> None:
    floor = Floor()
    floor.arrive(0, "long", kernel_ns=50 * MS, share_pct=50, quota_pct=10)
    high = floor.arrive(MS, "large", kernel_ns=MS, share_pct=100, quota_pct=40)
    low = floor.arrive(2 * MS, "small", kernel_ns=70 * MS, share_pct=50, priority=2, quota_pct=40)
    floor.run(200 * MS)
    assert (high.begun_ns, low.begun_ns) == (50 * MS, 51 * MS)


def test_a_filler_has_one_kernel_not_a_token() -> None:
    """The host of the first task has not launched its next kernel; the second one of its class fills the gap."""
    times = DeviceTimes(Estimator(ProfileTable()), "gpu", {})
    account = TokenAccount()
    stats = {"high": known("high", [(1000, 900)] * 3), "low": known("low", [(100, 0)] * 4)}
    arbiter = GapArbiter(stats, GapSettings(order="slack"), account=account, learn=False)
    device = Device(1, {"s": ("s", 0)}, ModelCache(1), times, arbiter=arbiter)
    device.step(QuotaChanged("a", 50), 0)
    first, second = (RunBatch(0, n, 1, "s", ((n, 0, 0),), 1, 100, 0, NEVER_NS, MS, client=c) for n, c in
                     ((1, "a"), (2, "b")))  # fmt: skip
    assert device.step(PlannedBatch(first, "high", ("k0", "k1", "k2"), 1), 0) == [Grant(1, 0, 0, 10 * MS)]
    device.step(PlannedBatch(second, "low", ("k0", "k1", "k2", "k3"), 4), 0)
    (grant,) = [a for a in device.step(GrantEnded(1, 1, over=False), MS // 100) if isinstance(a, Grant)]
    assert (grant.task, grant.why, grant.first, grant.last) == (2, "fill", 0, 0)


def moved(here: Floor, there: Floor, client: str, now_ns: int) -> list[Work]:
    """Move a client: its quota, what it owes, and the work that has not begun."""
    there.change(now_ns, here.account.standing(client, now_ns))
    return [w for w in here.works.values() if w.client == client and w.begun_ns < 0]


MOVES = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 60)), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(MOVES, st.sampled_from([10, 20, 50]))
def test_a_client_that_moves_again_and_again_never_has_more_than_its_limit_in_the_long_run(
    story: list[tuple[int, int]], pct: int
) -> None:
    """It runs one kernel on one device, moves, and starts on the other as soon as that one lets it."""
    accounts = {1: TokenAccount(STRICT), 2: TokenAccount(STRICT)}
    here, now_ns, used_ns, longest = 1, 0, 0, 0
    for pause_ms, kernel_ms in story:
        now_ns += pause_ms * MS
        account = accounts[here]
        account.told("a", pct, now_ns)
        account.entered("a", now_ns)
        while not account.may_start("a", 100, now_ns):
            next_ns = account.next_ns("a", now_ns)
            assert next_ns is not None and next_ns > now_ns
            now_ns = next_ns
        account.started("a", 100, now_ns)
        account.leaves("a", 3 - here)
        assert account.gone(now_ns) == [], "it still runs here"
        begin_ns, now_ns = now_ns, now_ns + kernel_ms * MS
        account.finished("a", 100, begin_ns, now_ns)
        account.left("a", now_ns)
        ((to, told),) = account.gone(now_ns)
        assert to == 3 - here and told.by_batch and account.gone(now_ns) == [] and not account.active
        accounts[to].change(told, now_ns)
        for each in accounts.values():
            each.validate()
        here, used_ns, longest = to, used_ns + kernel_ms * MS, max(longest, kernel_ms * MS)
        assert used_ns <= (now_ns * pct // 100) + WINDOW_NS * pct // 100 + longest, "moving forgives nothing"


def test_what_it_used_where_it_came_before_its_debt_is_not_forgotten_either() -> None:
    """Batches are at the new device before the last one at the old has ended: both debts are repaid there."""
    here, there = TokenAccount(STRICT), TokenAccount(STRICT)
    for account, took in ((here, 40 * MS), (there, 30 * MS)):
        account.told("a", 20, 0)
        account.entered("a", 0)
        account.started("a", 100, 0)
        account.finished("a", 100, 0, took)
        account.left("a", took)
    there.told("a", 30, 40 * MS)  # resized meanwhile: what its batches say stays
    before_ns = there.standing("a", 40 * MS).saved_ns
    here.leaves("a", 2)
    ((_, told),) = here.gone(40 * MS)
    there.change(told, 40 * MS)
    after = there.standing("a", 40 * MS)
    assert after.request_pct == 30 and after.saved_ns == before_ns - (10 * MS - told.saved_ns)


def test_a_client_that_comes_back_before_it_has_left_stays() -> None:
    account = TokenAccount(STRICT)
    account.told("a", 20, 0)
    account.entered("a", 0)
    account.leaves("a", 2)
    account.told("a", 20, MS)
    account.left("a", 2 * MS)
    assert account.gone(2 * MS) == [] and account.active
    account.leaves("nobody", 2)
    assert account.gone(2 * MS) == []
    account.validate()


def test_a_client_that_moves_owes_there_what_it_used_too_much_here() -> None:
    here, there = Floor(STRICT), Floor(STRICT)
    here.arrive(0, "a", kernel_ns=40 * MS, quota_pct=20)
    here.run(40 * MS)
    moved(here, there, "a", 40 * MS)
    work = there.arrive(41 * MS, "a", kernel_ns=MS, quota_pct=20)
    there.run()
    assert work.begun_ns == pytest.approx(40 * MS + 22 * MS * 5 + 5 * MS, abs=MS)
