"""The front's rules without a process: which answers fit a batch, and when a worker that died is started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail.control.actions import NEVER_NS, RunBatch
from dovetail.live.front import fleet as fleet_module
from dovetail.live.front.batches import Batches, Running
from dovetail.live.front.checks import Asked
from dovetail.live.front.fleet import HEALTHY_NS, RESTART_SECONDS, Fleet
from dovetail.live.front.memory import Memory
from dovetail.live.front.settings import Settings
from dovetail.live.links.wire import Done, Failed, Hello
from dovetail.live.tensors.ref import Ref
from dovetail.live.tensors.values import LiveRequest
from dovetail.state import WorkerSpec

# -- answers --------------------------------------------------------------------------------------------------------


def action(items: int) -> RunBatch:
    return RunBatch(1, 7, 1, "read", tuple((i + 1, 0, 0) for i in range(items)), 1, 100, 5, NEVER_NS, 0, 0)


def running(items: int, counts: int) -> Running:
    """A batch of so many items that has to report so many counts."""
    made = Running(action(items), 0)
    graph: Any = SimpleNamespace(index=0, graph=SimpleNamespace(lists=set, results=(), outputs=()), nodes=[])
    for i in range(items):
        made.items.append(Asked(LiveRequest([], lambda _ref: None, lambda: None), graph, i))
        graph.nodes.append(SimpleNamespace(counted=(0,) * counts if i == 0 else (), stage=None, node=None))
    made.counts = counts
    return made


def ref(offset: int = 0) -> Ref:
    return Ref(1, offset, 8)


def done(results: int, counts: int, batch: int = 7) -> Done:
    return Done(batch, 1, 0, 1, [ref(8 * i) for i in range(results)], (3,) * counts)


@pytest.mark.parametrize(
    ("results", "counts", "fits"),
    [(2, 1, True), (1, 1, False), (3, 1, False), (2, 0, False), (2, 2, False), (0, 0, False)],
)
def test_an_answer_has_a_result_for_each_item_and_each_count_that_was_asked_for(
    results: int, counts: int, fits: bool
) -> None:
    assert running(2, 1).fits(done(results, counts)) is fits


def test_a_failure_fits_any_batch() -> None:
    assert running(2, 1).fits(Failed(7, 1, 0, 1, "error", "raised"))


@pytest.mark.interpreted
def test_an_answer_that_does_not_fit_is_none_and_leaves_the_batch_as_it_was() -> None:
    async def scene() -> None:
        memory = Memory(1 << 16, {})
        memory.blocks[1] = memory.used_bytes[1] = 0
        batches = Batches(memory, max_fan_out=5)
        one = batches.running[7] = running(2, 1)
        assert batches.end(1, done(1, 1)) is None, "a result is missing"
        assert batches.end(2, done(2, 1)) is None, "it was another worker that was asked"
        assert batches.end(1, done(2, 1, batch=8)) is None, "there is no such batch"
        assert batches.running == {7: one}
        assert memory.blocks[1] == 0, "none of its results was taken"
        assert batches.end(1, done(2, 1)) == (one, done(2, 1))
        assert memory.blocks[1] == 2
        assert [item.request.values for item in one.items] == [{(0, 0): ref(0)}, {(0, 0): ref(8)}]
        assert batches.end(1, done(2, 1)) is None, "it was answered"
        memory.close()

    asyncio.run(scene())


def test_a_batch_counts_from_when_it_may_begin() -> None:
    assert (Running(action(1), 3).since_ns, Running(action(1), 9).since_ns) == (5, 9)


# -- workers that die -----------------------------------------------------------------------------------------------


class Dying:
    """Stands for a worker process; the test says when it dies."""

    def __init__(
        self, hello: Hello, _arena: object, _said: object, lost: Callable[[Dying, str], None], _say: object
    ) -> None:
        self.ident, self.spec, self.pid = hello.worker, hello.spec, 1000 + hello.worker
        self.answered = False
        self.arena = None
        self.lost = lost

    async def stop(self) -> None:
        """It has nothing to stop."""


class Scene:
    """A fleet of one worker on a clock of the test's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fleet_module, "WorkerProcess", Dying)
        monkeypatch.setattr(fleet_module.time, "monotonic_ns", lambda: self.now_ns)
        self.now_ns = 0
        self.waits_s: list[float] = []
        self.said: list[str] = []
        settings = Settings("", (), (), arena_bytes=1 << 16)
        self.fleet = Fleet(settings, 0, lambda _w, _m: None, lambda _w, _why: None, self.said.append)
        monkeypatch.setattr(self.fleet, "_start_later", self._start_later)
        self.fleet.start([WorkerSpec("cpu-0", "cpu", ("onnx",))])

    def _start_later(self, spec: WorkerSpec, wait_s: float) -> None:
        self.waits_s.append(wait_s)
        self.fleet._start(spec)

    def die(self, *, answered: bool = False, lived_ns: int = 1) -> None:
        """The worker of the moment dies."""
        (worker,) = self.fleet.workers.values()
        assert isinstance(worker, Dying)
        worker.answered = answered
        self.now_ns += lived_ns
        worker.lost(worker, "killed")


def play(monkeypatch: pytest.MonkeyPatch, scene: Callable[[Scene], None]) -> None:
    async def go() -> None:
        stage = Scene(monkeypatch)
        scene(stage)
        await stage.fleet.stop()

    asyncio.run(go())


@pytest.mark.interpreted
def test_whoever_dies_at_every_start_waits_longer_and_longer_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def scene(stage: Scene) -> None:
        for _ in range(len(RESTART_SECONDS) + 2):
            stage.die()
        assert stage.waits_s == [*RESTART_SECONDS, RESTART_SECONDS[-1], RESTART_SECONDS[-1]]
        assert stage.fleet.deaths["cpu-0"] == (len(RESTART_SECONDS) + 2, "killed")
        assert stage.said[0].endswith("is lost: killed; starting it again")
        assert stage.said[1].endswith("; starting it again in 0.2 s")

    play(monkeypatch, scene)


@pytest.mark.interpreted
@pytest.mark.parametrize("healthy", [{"answered": True}, {"lived_ns": HEALTHY_NS + 1}])
def test_after_a_healthy_life_the_waits_start_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch, healthy: dict[str, int]
) -> None:
    def scene(stage: Scene) -> None:
        for _ in range(3):
            stage.die()
        stage.die(**healthy)  # type: ignore[arg-type]
        stage.die()
        assert stage.waits_s == [*RESTART_SECONDS[:3], RESTART_SECONDS[0], RESTART_SECONDS[1]]
        assert stage.fleet.deaths["cpu-0"][0] == 2

    play(monkeypatch, scene)


@pytest.mark.interpreted
def test_a_life_just_long_enough_is_not_healthy_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    def scene(stage: Scene) -> None:
        stage.die()
        stage.die(lived_ns=HEALTHY_NS)
        assert stage.waits_s == list(RESTART_SECONDS[:2])

    play(monkeypatch, scene)
