"""Where a stage has raised is told to the operator, once in a while, and nobody waits for it."""

from __future__ import annotations

from dovetail.live.worker.tracebacks import AGAIN_NS, MOST_PLACES, Tracebacks
from dovetail.workflow.runners import StageFailed


def failure(number: int) -> StageFailed:
    try:
        try:
            return StageFailed(str([][number]))
        except IndexError as error:
            raise StageFailed("stage 's' raised IndexError") from error
    except StageFailed as error:
        return error


def test_the_place_is_told_once_in_a_while():
    told: list[str] = []
    now = [0]
    tracebacks = Tracebacks(lambda: now[0], told.append)
    for _ in range(1000):
        tracebacks.raised("s", failure(1))
    assert len(told) == 1
    assert "test_tracebacks.py" in told[0] and "str([][number])" in told[0]
    assert "IndexError: list index out of range" in told[0]
    assert "direct cause" not in told[0], "it is the user's error that is told"
    now[0] = AGAIN_NS
    tracebacks.raised("s", failure(1))
    assert "(999 times more before)" in told[1]
    tracebacks.raised("another", failure(1))
    assert len(told) == 3


def test_what_is_remembered_is_bounded():
    tracebacks = Tracebacks(lambda: 0, lambda _: None)
    for number in range(3 * MOST_PLACES):
        tracebacks.raised(str(number), failure(1))
    assert len(tracebacks._told) <= MOST_PLACES


def test_an_error_that_cannot_be_told_is_no_trouble():
    def tell(_: str) -> None:
        raise OSError("nobody listens")

    Tracebacks(lambda: 0, tell).raised("s", failure(1))


def test_a_live_system_tells_where(live):
    from tests.live import apps

    assert live.ask("breakable", apps.SEVEN).outcome == "failed"
    live.until(lambda: any("in fragile" in line for line in live.said), "the traceback")
    assert any('raise ValueError("seven is not allowed")' in line for line in live.said)
    assert any("stage 'fragile' raised" in line for line in live.said)
