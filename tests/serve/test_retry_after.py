"""`Retry-After` is never absurd: bounded above, and absent where coming back would not help."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dovetail.serve.oip_response import MOST_RETRY_MS, _come_back


@given(st.integers(min_value=-(1 << 62), max_value=1 << 62))
def test_it_is_a_whole_number_of_seconds_within_a_minute_or_absent(after_ms: int) -> None:
    headers = dict(_come_back(after_ms))
    if after_ms <= 0:
        assert headers == {}
        return
    seconds, exact = int(headers["Retry-After"]), int(headers["retry-after-ms"])
    assert 1 <= seconds <= 60 and 1 <= exact <= MOST_RETRY_MS == 60_000
    assert (seconds - 1) * 1000 < exact <= seconds * 1000
    assert exact == min(after_ms, MOST_RETRY_MS)
