"""A slice at the ingress knows when its device will let the next batch start."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.device import TokenAccount, TokenSettings
from dovetail.state import Slice
from dovetail.units import MS

runs = st.lists(st.tuples(st.integers(0, 80), st.integers(1, 60)), min_size=1, max_size=12)


@settings(deadline=None)
@given(st.integers(3, 99), runs)
def test_it_is_ready_when_the_account_of_its_device_says_so(quota_pct: int, ran: list[tuple[int, int]]) -> None:
    account = TokenAccount(TokenSettings(mode="strict"))
    piece = Slice(1, "look", 1, 50, quota_pct, 1)
    now_ns = 0
    for pause_ms, busy_ms in ran:
        now_ns = max(now_ns + pause_ms * MS, piece.ready_ns())
        account.told(piece.client, quota_pct, now_ns)
        account.entered(piece.client, now_ns)
        assert account.may_start(piece.client, 50, now_ns), "what is ready here may start there"
        account.started(piece.client, 50, now_ns)
        end_ns = now_ns + busy_ms * MS
        account.finished(piece.client, 50, now_ns, end_ns)
        account.left(piece.client, end_ns)
        piece.charge(now_ns, end_ns)
        before_ns = piece.ready_ns() - 2 * MS
        if before_ns > end_ns:
            assert not account.may_start(piece.client, 50, before_ns), "and not much sooner"
        now_ns = end_ns


def test_a_whole_quota_is_always_ready_and_closing_takes_nothing() -> None:
    piece = Slice(7, "look", 1, 25, 100, 4)
    piece.charge(0, 500 * MS)
    assert piece.ready_ns() == 0 and piece.has_room() and piece.client == "look#7" and piece.area == 2500
    piece.closing = True
    assert not piece.has_room()
    piece.closing, piece.running = False, [3]
    assert not piece.has_room()
