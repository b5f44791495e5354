"""Two fronts that share workers: both are served, by class, and the end of one is not that of the other."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_serve import Serving
from tests.live import apps
from tests.serve.live_support import LiveServer, at_once, item_request
from tests.serve.support import Wire

from dovetail.control import BatchFinished, PeerStateReceived, RunBatch
from dovetail.errors import DeclarationError
from dovetail.live.links.wire import State, arena_of
from dovetail.record.log import LogReader
from dovetail.tools.replay import replay
from dovetail.wiring import PolicySpec

pytestmark = pytest.mark.cpu
TARGET = "tests.live.two_apps:app"
PATIENCE_SECONDS = 60.0
#: Gates of this file are from here on; each is used once.
gates = count(3000)


def until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"{what} never came"
        time.sleep(0.005)


class Fronts:
    """A first front and those that join it, each in a thread of its own; the last to come goes first."""

    def __init__(self, scratch: Path) -> None:
        self.share = scratch / "share"
        self._scratch = scratch
        self._servers: list[LiveServer] = []

    def log(self, name: str) -> Path:
        return self._scratch / f"{name}.log"

    def first(self, name: str = "first", **options: Any) -> LiveServer:
        given = {"device": "cpu:1", "share_workers": self.share, "log": self.log(name), **options}
        return self._start(**given)

    def join(self, name: str = "second", **options: Any) -> LiveServer:
        return self._start(**{"join": self.share, "log": self.log(name), **options})

    def _start(self, **options: Any) -> LiveServer:
        self._servers.append(LiveServer(TARGET, arena_bytes=64 << 20, **options))
        return self._servers[-1]

    def stop(self) -> None:
        while self._servers:
            assert self._servers.pop().stop()


@pytest.fixture
def fronts(tmp_path: Path) -> Iterator[Fronts]:
    made = Fronts(tmp_path)
    yield made
    made.stop()


def answer(server: LiveServer, workflow: str, first: float) -> list[float]:
    """What a workflow of one tensor gives, over HTTP."""
    reply = server.ask(workflow, first)
    assert reply.status == 200, reply.json
    return list(reply.json["outputs"][0]["data"])


def submit(server: LiveServer, workflow: str, first: float, **options: Any) -> Future[str]:
    """A request that is under way when this returns; in the end it says how it ended."""
    outcome: Future[str] = Future()

    def done(_: int, result: Any) -> None:
        result.release()
        outcome.set_result(result.outcome)

    value = np.full(3, first, np.float32)
    server.call(lambda: server.system.submit(workflow, [value], done, **options))
    return outcome


def good(*outcomes: Future[str]) -> bool:
    return all(o.result(PATIENCE_SECONDS) in ("ok", "late") for o in outcomes)


def worker_of(server: LiveServer, name: str) -> Any:
    """The link of a worker, once it has joined."""
    found: list[Any] = []

    def here() -> bool:
        controller = server.system.controller
        links = [w for w in server.system.fleet.workers.values() if w.ident in controller.workers]
        found[:] = [w for w in links if w.spec.name == name]
        return bool(found)

    until(lambda: server.call(here), f"worker {name}")
    return found[0]


def state_of(server: LiveServer, name: str = "cpu-0") -> State:
    """What a worker has last said of itself."""
    return server.call(lambda: server.system.statistics._states[name])


def clean(*servers: LiveServer) -> None:
    for server in servers:
        until(server.clean, "the last free block")


def same_again(*logs: Path) -> None:
    for log in logs:
        result = replay(log)
        assert result.same and result.steps, result.first_difference


def events(log: Path, kind: type) -> list[Any]:
    with LogReader(log) as reader:
        return [step.event for step in reader if isinstance(step.event, kind)]


def batches(log: Path) -> list[RunBatch]:
    with LogReader(log) as reader:
        return [a for step in reader for a in step.actions if isinstance(a, RunBatch)]


def test_both_are_served_at_the_same_time_and_each_log_replays_by_itself(fronts):
    first, second = fronts.first(), fronts.join()
    numbers = range(1, 13)
    asked = [
        partial(answer, server, workflow, n)
        for n in numbers
        for server in (first, second)
        for workflow in ("plain", "heavy", "fan")
    ]
    expected = [
        [value] * 3 for n in numbers for _ in (first, second) for value in (2.0 * n, n + 1.0, n * (n + 1.0) + 2 * n)
    ]
    assert at_once(asked) == expected
    clean(first, second)
    assert state_of(first).ingresses == state_of(second).ingresses == 2
    fronts.stop()
    same_again(fronts.log("first"), fronts.log("second"))
    for ingress, name in enumerate(("first", "second")):
        ran = batches(fronts.log(name))
        assert {b.ingress for b in ran} == {ingress}
        device = {b.worker for b in ran if b.stage == "double"}
        assert device == {1}, "both have sent batches to the one worker that there is"
        hosts = {b.worker for b in ran if b.stage == "increase"}
        assert all(arena_of(ingress) < worker < arena_of(ingress + 1) for worker in hosts - device)
        assert not events(fronts.log(name), PeerStateReceived), "work waits at the front: nobody would read them"
    assert list(fronts.share.iterdir()) == []


def test_a_higher_class_of_one_goes_before_a_lower_one_of_the_other(fronts):
    place = PolicySpec("place")
    first, second = fronts.first(policy=place), fronts.join(policy=place)
    assert answer(first, "pace", 1) == answer(second, "pace", 1) == [1.0] * 3
    pid = worker_of(first, "cpu-0").pid
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    until(lambda: all(") T " in (thread / "stat").read_text() for thread in threads.iterdir()), "its stop")
    low = [submit(first, "pace", 1, priority=5) for _ in range(12)]
    high = submit(second, "pace", 1, priority=1)
    os.kill(pid, signal.SIGCONT)
    assert good(high, *low)
    clean(first, second)
    fronts.stop()
    same_again(fronts.log("first"), fronts.log("second"))
    begun_ns = sorted(e.begin_ns for e in events(fronts.log("first"), BatchFinished))[-12:]
    high_ns = events(fronts.log("second"), BatchFinished)[-1].begin_ns
    # Those that the worker took before it knew of the higher one: one that ran, and one that stood ready.
    assert sum(ns < high_ns for ns in begun_ns) <= 3, (begun_ns, high_ns)
    for name in ("first", "second"):
        assert events(fronts.log(name), PeerStateReceived), f"the {name} has heard nothing of the other's load"


def test_a_front_that_nobody_has_joined_hears_of_nobody(fronts):
    first = fronts.first(policy=PolicySpec("place"))
    assert answer(first, "pace", 1) == [1.0] * 3
    fronts.stop()
    assert not events(fronts.log("first"), PeerStateReceived)
    same_again(fronts.log("first"))


def test_when_a_front_is_killed_the_other_goes_on_and_nothing_of_it_is_left(fronts):
    first = fronts.first()
    log = fronts.log("killed")
    serving = Serving(TARGET, "--join", fronts.share, "--log", log)
    try:
        assert answer(first, "plain", 3) == [6.0] * 3
        clean(first)
        # It speaks when a batch has ended, and then has the results of that and of nothing else.
        used_bytes = state_of(first).arena_bytes
        assert used_bytes > 0
        gate = next(gates)
        with ExitStack() as stack:
            wires = [stack.enter_context(Wire(serving.port)) for _ in range(9)]
            for wire in wires[:3]:
                wire.send(item_request("held", gate))  # its gate is never opened
            until(lambda: state_of(first).arena_bytes > 2 * used_bytes, "results of its first stage")
            until(lambda: events(log, BatchFinished), "a log that can be read")
            mine = [submit(first, "pace", 1) for _ in range(5)]
            for wire in wires[3:]:
                wire.send(item_request("pace", 1))
            serving.signal(signal.SIGKILL)
            assert good(*mine)
    finally:
        serving.close()
    until(lambda: state_of(first).ingresses == 1, "word that it is alone")
    assert answer(first, "heavy", 3) == [4.0] * 3
    clean(first)
    assert answer(first, "plain", 3) == [6.0] * 3
    until(lambda: state_of(first).arena_bytes <= used_bytes, "the end of what the other has left in its memory")
    same_again(log)
    # Its number is free, and another has it at once.
    second = fronts.join()
    assert second.system.controller.ingress == 1
    assert answer(second, "heavy", 3) == [4.0] * 3
    assert not [line for line in first.said if "is lost" in line]


@pytest.mark.parametrize("how", ["it is killed", "the front that has joined gives it up"])
def test_when_a_worker_dies_both_recover(fronts, how):
    first, second = fronts.first(), fronts.join()
    gate = next(gates)
    asked = [submit(server, "heavy", 1) for server in (first, second) for _ in range(4)]
    asked.append(submit(second, "held", gate))
    until(lambda: second.call(lambda: any(second.system.memory.blocks.values())), "its first result")
    dying = worker_of(second, "cpu-0")
    if how == "it is killed":
        os.kill(dying.pid, signal.SIGKILL)
    else:
        second.call(lambda: dying.kill("a test says so"))
    for server in (first, second):
        until(lambda: any("is lost" in line for line in server.said), "word of the loss")  # noqa: B023 - called at once
    apps.open_gate(2 * gate)
    assert good(*asked), "nothing is lost"
    assert worker_of(first, "cpu-0").ident == worker_of(second, "cpu-0").ident > dying.ident
    assert [answer(server, "heavy", 5) for server in (first, second)] == [[6.0] * 3] * 2
    clean(first, second)
    assert len(list(fronts.share.glob("*.sock"))) == 1, "that of the dead worker is gone"
    fronts.stop()
    same_again(fronts.log("first"), fronts.log("second"))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two cores")
def test_what_a_dead_worker_has_left_to_one_is_not_taken_away_by_the_other(fronts):
    first, second = fronts.first(device="cpu:2", workers=2), fronts.join()
    gate = next(gates)
    held = submit(second, "later", gate)
    until(lambda: second.call(lambda: any(second.system.memory.blocks.values())), "its first result")
    dead = second.call(lambda: next(w for w, n in second.system.memory.blocks.items() if n and w < arena_of(1)))
    name = second.call(lambda: second.system.fleet.workers[dead].spec.name)
    os.kill(worker_of(first, name).pid, signal.SIGKILL)
    until(lambda: first.call(lambda: dead not in first.system.memory.arenas), "the first front's letting go")
    # What the first front has said to its workers is heard before what it says later.
    numbers = (1, 2, 3, 4)
    assert at_once([partial(answer, first, "plain", n) for n in numbers]) == [[2.0 * n] * 3 for n in numbers]
    assert second.call(lambda: dead in second.system.memory.arenas)
    apps.open_gate(gate)
    assert good(held)
    until(lambda: second.call(lambda: dead not in second.system.memory.arenas), "the second front's letting go")
    clean(first, second)


def test_who_has_joined_waits_for_the_first_front_to_come_back(fronts):
    first, second = fronts.first(), fronts.join()
    assert answer(second, "plain", 2) == [4.0] * 3
    assert first.stop()
    until(lambda: not second.call(second.system.ready), "the end of all workers")
    waiting = submit(second, "heavy", 1)
    again = fronts.first("again")
    assert good(waiting)
    assert answer(second, "plain", 3) == answer(again, "plain", 3) == [6.0] * 3
    assert worker_of(second, "cpu-0").ident > 1, "no number is given twice"
    clean(again, second)
    fronts._servers.remove(first)
    fronts._servers.remove(again)
    fronts._servers.insert(0, again)
    fronts.stop()
    same_again(*map(fronts.log, ("first", "second", "again")))


def test_an_emulated_device_is_shared_like_any_other(fronts):
    device = "emulated:v100"
    place = PolicySpec("place")
    first, second = fronts.first(device=device, policy=place), fronts.join(policy=place)
    asked = [submit(server, "pace", 1) for _ in range(10) for server in (first, second)]
    assert good(*asked)
    reply = second.ask("pace", 1)
    assert reply.json["parameters"]["dovetail_device"] == device
    clean(first, second)
    fronts.stop()
    same_again(fronts.log("first"), fronts.log("second"))


def test_what_others_have_in_a_workers_memory_counts_before_a_request_is_let_in(fronts):
    first, second = fronts.first(), fronts.join()
    assert answer(second, "plain", 1) == [2.0] * 3
    size = second.call(lambda: second.system.memory.arenas[1].size)
    second.call(lambda: second.system.memory.heard(1, size * 9 // 10))
    reply = second.ask("plain", 1)
    assert reply.status == 503 and "worker 1 is full" in reply.json["error"]
    second.call(lambda: second.system.memory.heard(1, 0))
    assert answer(second, "plain", 1) == [2.0] * 3
    assert answer(first, "plain", 1) == [2.0] * 3


def test_another_application_is_refused_and_takes_no_place(fronts):
    fronts.first()
    with pytest.raises(DeclarationError, match=r"it has .*slow.*, which this one has not"):
        LiveServer("tests.live.two_apps:other", join=fronts.share)
    assert sorted(p.name for p in fronts.share.glob("ingress-*")) == ["ingress-0"]
