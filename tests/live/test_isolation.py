"""A Python stage that hangs or kills its worker does not keep other workflows from theirs."""

from __future__ import annotations

from contextlib import closing

import pytest
from tests.live import apps
from tests.live.support import Live

from dovetail.live.front import system as live_system
from dovetail.live.front import watchdog
from dovetail.live.front.watchdog import STUCK_FACTOR, STUCK_NS, Watchdog
from dovetail.units import MS, SECOND

GATE = 7000


@pytest.fixture
def quick(monkeypatch):
    """Who is stuck is noticed soon; who hangs, never."""
    monkeypatch.setattr(live_system, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "STUCK_NS", 100 * MS)
    monkeypatch.setattr(watchdog, "STUCK_FACTOR", 1)
    with closing(Live("tests.live.apps:hosted", hang_ns=1000 * SECOND)) as live:
        yield live


def hosts(live: Live) -> list[str]:
    """Workers for Python stages."""
    return [w.spec.name for w in live.system.fleet.workers.values() if w.spec.on_host]


def test_others_have_a_worker_while_one_is_stuck(quick):
    stuck = quick.submit("gated", GATE)
    others = [quick.submit("big", 1) for _ in range(3)]
    assert {result.outcome for result in quick.wait(*others)} <= {"ok", "late"}
    assert not stuck.done()
    assert any("worker host-0 is stuck in stage 'wait_at_gate'; host-0+1 takes its place" in s for s in quick.said)
    apps.open_gate(GATE)
    (result,) = quick.wait(stuck)
    assert result.outcome in ("ok", "late"), "it ended after all"
    quick.until(lambda: hosts(quick) == ["host-0+1"], "its retirement")
    assert quick.ask("big", 1).outcome in ("ok", "late")
    quick.check_clean()


def test_nobody_is_substituted_while_no_other_stage_waits(quick):
    futures = [quick.submit("gated", GATE + 1) for _ in range(3)]
    quick.until(lambda: quick.system.watchdog.stuck(quick.system.batches.running.values(), quick.system.now_ns()))
    quick.run(_sweeps(quick))
    assert hosts(quick) == ["host-0"]
    apps.open_gate(GATE + 1)
    quick.wait(*futures)


async def _sweeps(live: Live) -> None:
    for _ in range(3):
        live.system._sweep()


def test_what_kills_its_worker_does_not_make_others_wait_for_the_next(monkeypatch):
    with closing(Live("tests.live.apps:hosted")) as live:
        waits: list[float] = []
        start_later = live.system.fleet._start_later

        def noted(spec, wait_s):
            waits.append(wait_s)
            start_later(spec, wait_s)

        monkeypatch.setattr(live.system.fleet, "_start_later", noted)
        for _ in range(4):  # each ends one worker, and no second one
            assert live.ask("breakable", apps.POISON).outcome == "failed"
            live.until(live.system.ready, "the next worker")
        assert len(waits) == 4
        assert set(waits) == {0.0}, "bad input does not count as a bad start"
        assert live.ask("breakable", 1).outcome in ("ok", "late")


def test_who_is_stuck_is_told_by_what_was_expected():
    from tests.live.test_watchdog import batch

    dog = Watchdog(1000 * SECOND)
    quick, slow = batch(1, expected_ns=MS), batch(2, expected_ns=SECOND)
    assert dog.stuck([quick, slow], STUCK_NS) == {}
    assert dog.stuck([quick, slow], STUCK_NS + 1) == {1: "read"}
    assert dog.stuck([quick, slow], STUCK_FACTOR * SECOND + 1) == {1: "read", 2: "read"}
    dog.answered(1, STUCK_NS)
    assert dog.stuck([quick], STUCK_NS + 1) == {}
    dog.load_began(1, "read", 0)
    assert dog.stuck([quick], 100 * SECOND) == {}, "a load has its own limit"
