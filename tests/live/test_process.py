"""One worker process: started, spoken to in order, and noticed when it ends, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from tests.live import apps

from dovetail.live.front.process import WorkerProcess
from dovetail.live.links.wire import Argument, Failed, Free, Hello, Load, Loaded, Ready, Refused, Run, State
from dovetail.live.tensors.arena import Arena
from dovetail.live.tensors.codec import encode
from dovetail.state import RunBatch, WorkerSpec
from dovetail.state.run_batch import NEVER_NS

pytestmark = pytest.mark.cpu
PATIENCE_SECONDS = 30.0
#: More than any doorbell holds.
MOST_PACKETS = 10_000


class Watched:
    """A worker with the stages of `apps`, and what was heard of it."""

    def __init__(self, front: Arena, target: str = "tests.live.apps:app") -> None:
        self.front = front
        self.heard: list[object] = []
        self.lost: list[str] = []
        self._news = asyncio.Event()
        spec = WorkerSpec("host-0", "host", ("python",))
        stages = list(apps.app.specs)
        hello = Hello(1, spec, target, ["."], stages, [], (1,), time.monotonic_ns(), 1 << 20)
        self.process = WorkerProcess(hello, front, self._message, self._gone)

    def _message(self, _: WorkerProcess, message: object) -> None:
        self.heard.append(message)
        self._news.set()

    def _gone(self, _: WorkerProcess, why: str) -> None:
        self.lost.append(why)
        self._news.set()

    async def until(self, condition) -> None:
        while not condition():
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), PATIENCE_SECONDS)

    async def load(self, stage: str) -> None:
        self.process.send(Load(stage, 0, keep=True))
        await self.until(lambda: any(isinstance(m, Loaded) and m.stage == stage for m in self.heard))

    def run(self, batch: int, stage: str, value: float) -> None:
        ref = encode([value, value, value], self.front)
        self.process.send(Run(decided(batch, stage), [[Argument((ref,))]], [()], []))

    async def freeze(self) -> None:
        """Stop the process; returns when none of its threads runs, each of which stops in its own time."""
        os.kill(self.process.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not all(") T " in (thread / "stat").read_text() for thread in threads.iterdir()):
                await asyncio.sleep(0.001)

    def close(self) -> None:
        if self.process.arena is not None:
            self.process.arena.close()


def decided(batch: int, stage: str) -> RunBatch:
    return RunBatch(0, batch, 1, stage, ((1, 0, 0),), 1, 100, 0, NEVER_NS, 0)


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def play():
    """Runs a scene with a fresh worker; afterwards the process is gone and no descriptor is left."""

    def go(scene, **options):
        before = open_fds()

        async def run() -> None:
            with Arena.create(0, 1 << 20) as front:
                watched = Watched(front, **options)
                try:
                    await scene(watched)
                finally:
                    if watched.process.process.poll() is None:
                        await watched.process.stop()
                    watched.close()

        asyncio.run(run())
        assert open_fds() == before

    return go


def test_it_introduces_itself_and_ends_when_told(play):
    async def scene(worker):
        await worker.until(lambda: len(worker.heard) == 2)
        assert worker.heard[0] == Ready(worker.process.pid)
        assert isinstance(worker.heard[1], State) and worker.heard[1].row.resident == ()
        assert worker.process.arena is not None
        await worker.process.stop()
        assert worker.process.process.returncode == 0
        assert worker.lost == [], "it was told to"
        worker.process.send(Free([1]))  # nothing is sent to the dead

    play(scene)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_that_ends_it_is_told(play, number):
    async def scene(worker):
        await worker.until(lambda: worker.heard)
        os.kill(worker.process.pid, number)
        await worker.until(lambda: worker.lost)
        assert worker.lost == [f"killed by signal {number}"]

    play(scene)


def test_a_status_is_told(play):
    async def scene(worker):
        await worker.until(lambda: worker.heard)
        await worker.load("fragile")
        worker.run(1, "fragile", apps.POISON)
        await worker.until(lambda: worker.lost)
        assert worker.lost == ["exited with status 3"]

    play(scene)


def test_it_may_die_before_it_has_said_a_word(play):
    async def scene(worker):
        os.kill(worker.process.pid, signal.SIGKILL)
        await worker.until(lambda: worker.lost)
        assert worker.lost == ["killed by signal 9"]
        assert worker.heard == []

    play(scene)


def test_a_module_that_cannot_be_loaded_is_told_with_its_error(play):
    async def scene(worker):
        await worker.until(lambda: worker.lost)
        assert isinstance(worker.heard[0], Refused)
        assert "RuntimeError: this module works only in the front" in worker.heard[0].detail
        assert worker.lost == [worker.heard[0].detail]

    play(scene, target="tests.live.broken:app")


def test_a_child_that_holds_the_doorbell_does_not_hide_its_death(play):
    async def scene(worker):
        await worker.until(lambda: worker.heard)
        await worker.load("leaves_a_child")
        worker.run(1, "leaves_a_child", 1)
        await worker.until(lambda: worker.lost)
        assert worker.lost == ["exited with status 4"]

    play(scene)
    apps.open_gate(99)


def test_more_messages_than_the_doorbell_holds_are_kept_in_order(play):
    async def scene(worker):
        await worker.until(lambda: worker.heard)
        await worker.freeze()
        long_name = "not loaded" * 8000
        asked = 0
        while len(worker.process._backlog) < 50 and asked < MOST_PACKETS:
            asked += 1
            worker.process.send(Run(decided(asked, long_name), [], [], []))
        assert worker.process._backlog
        os.kill(worker.process.pid, signal.SIGCONT)
        await worker.until(lambda: sum(isinstance(m, Failed) for m in worker.heard) == asked)
        assert [m.batch for m in worker.heard if isinstance(m, Failed)] == list(range(1, asked + 1))

    play(scene)


def test_what_waits_for_a_worker_that_dies_is_dropped(play):
    async def scene(worker):
        await worker.until(lambda: worker.heard)
        await worker.freeze()
        for _ in range(MOST_PACKETS):
            if worker.process._backlog:
                break
            worker.process.send(Free([0] * 50_000))
        assert worker.process._backlog
        with open(os.devnull) as file:
            worker.process.send(Free([]), [file.fileno()])
        os.kill(worker.process.pid, signal.SIGKILL)
        await worker.until(lambda: worker.lost)
        assert not worker.process._backlog

    play(scene)


def test_who_does_not_stop_is_killed(play, monkeypatch):
    monkeypatch.setattr("dovetail.live.front.process.STOP_SECONDS", 0.2)

    async def scene(worker):
        await worker.until(lambda: worker.heard)
        await worker.freeze()
        await worker.process.stop()
        assert worker.process.process.returncode == -signal.SIGKILL

    play(scene)
