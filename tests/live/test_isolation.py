"""A Python stage that hangs or kills its worker does not keep other workflows from theirs."""

from __future__ import annotations

import os
import signal
from contextlib import closing

import pytest
from tests.live import apps
from tests.live.support import Live

from dovetail import App, stage, workflow
from dovetail.live.front import system as live_system
from dovetail.live.front import watchdog
from dovetail.live.front.isolation import MOST_APART, Isolation
from dovetail.live.front.watchdog import STUCK_FACTOR, STUCK_NS, Watchdog
from dovetail.state import WorkerSpec
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
    quick.until(lambda: hosts(quick) == ["host-wait_at_gate", "host-0+1"], "its retirement")
    assert quick.ask("big", 1).outcome in ("ok", "late")
    quick.check_clean()


def test_who_was_in_the_way_has_a_process_of_its_own_and_hangs_there_alone(quick):
    stuck = quick.submit("gated", GATE + 2)
    assert quick.ask("big", 1).outcome in ("ok", "late")
    quick.until(lambda: quick.system.ready() and len(hosts(quick)) == 3, "both processes")
    assert any("stage 'wait_at_gate' runs in a process of its own from now on" in line for line in quick.said)
    again = [quick.submit("gated", GATE + 3) for _ in range(3)]
    for _ in range(5):
        assert quick.ask("big", 1).outcome in ("ok", "late")
    assert not any(each.done() for each in (stuck, *again))
    quick.run(_sweeps(quick))
    assert quick.system.watchdog.stuck(quick.system.batches.running.values(), quick.system.now_ns())
    assert sorted(hosts(quick)) == ["host-0", "host-0+1", "host-wait_at_gate"], "nobody waits for it: no substitute"
    apps.open_gate(GATE + 2)
    apps.open_gate(GATE + 3)
    assert {result.outcome for result in quick.wait(stuck, *again)} <= {"ok", "late"}
    quick.check_clean()


def test_what_ends_its_process_once_ends_only_its_own_from_then_on():
    with closing(Live("tests.live.apps:hosted")) as live:
        assert live.ask("breakable", apps.POISON).outcome == "failed"
        live.until(lambda: live.system.ready() and len(hosts(live)) == 2, "both processes")
        shared = {name: live.worker(name).pid for name in hosts(live)}
        assert sorted(shared) == ["host-0", "host-fragile"]
        for _ in range(3):
            poisoned = live.submit("breakable", apps.POISON)
            assert live.ask("big", 1).outcome in ("ok", "late")
            assert live.wait(poisoned)[0].outcome == "failed"
            live.until(live.system.ready, "the next process")
        after = {name: live.worker(name).pid for name in hosts(live)}
        assert after["host-0"] == shared["host-0"]
        assert after["host-fragile"] != shared["host-fragile"]
        assert live.ask("breakable", 1).outcome in ("ok", "late"), "it is served as before"


def test_who_is_killed_by_somebody_else_is_blamed_on_no_stage():
    with closing(Live("tests.live.apps:hosted", hang_ns=1000 * SECOND)) as live:
        waiting = live.submit("gated", GATE + 4)
        live.until(lambda: live.system.batches.running, "its batch")
        live.run(_killed(live))
        apps.open_gate(GATE + 4)
        assert live.wait(waiting)[0].outcome in ("ok", "late")
        live.until(live.system.ready, "the next process")
        assert hosts(live) == ["host-0"]


async def _killed(live: Live) -> None:
    for worker in live.system.fleet.workers.values():
        os.kill(worker.pid, signal.SIGKILL)


def _graphs(*stages: str):
    """A workflow for each text, which names its Python stages."""
    made = {name: stage(_named(name)) for text in stages for name in text.split()}

    def flow(text: str):
        def run(x):
            for name in text.split():
                x = made[name](x)
            return x

        run.__annotations__ = {"x": apps.ITEM}
        run.__name__ = "flow_" + text.replace(" ", "_")
        return workflow(slo="1s")(run)

    return App(*(flow(text) for text in stages)).graphs


def _named(name: str):
    def function(items):
        return items

    function.__name__ = name
    return function


HOST = WorkerSpec("host-0", "host", ("python",))


def test_only_a_stage_that_is_in_the_way_of_other_workflows_is_kept_apart():
    isolation = Isolation(_graphs("a b", "c"))
    assert isolation.shared(HOST) == HOST
    assert isolation.part("a")
    assert not isolation.part("a"), "it is apart already"
    shared = isolation.shared(HOST)
    assert shared.stages == ("b", "c")
    own = isolation.own(shared, "a")
    assert (own.name, own.stages) == ("host-a", ("a",))
    assert isolation.shared(own) == own and isolation.alone(own) and not isolation.alone(shared)
    assert isolation.shared(HOST).takes("python", "b") and not isolation.shared(HOST).takes("python", "a")
    assert not Isolation(_graphs("a b")).part("a"), "nobody else is there"
    assert not Isolation(_graphs("a b", "a")).part("a"), "everybody needs it"
    assert Isolation(_graphs("a b", "a")).part("b"), "the second does without it"


def test_no_more_than_so_many_are_kept_apart():
    names = [f"s{number}" for number in range(MOST_APART + 2)]
    isolation = Isolation(_graphs(*names))
    assert [isolation.part(name) for name in names] == [True] * MOST_APART + [False, False]
    assert isolation.shared(HOST).stages == tuple(names[MOST_APART:])


def test_a_lone_rest_is_kept_with_what_is_left():
    isolation = Isolation(_graphs("a", "b"))
    assert isolation.part("a")
    assert isolation.shared(HOST).stages == ("b",)
    assert not isolation.part("b"), "there is nobody left that it could harm"


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
        assert len(waits) == 5, "and after the first, one for the stage by itself"
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
