"""What a server knows of times from its last run: read, written back, and never a reason to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dovetail.live.front.stores import TimesStore
from dovetail.live.front.system import Result
from dovetail.predict import Estimator
from dovetail.predict.interference import Beside, Interference
from dovetail.profile.machine import Identity
from dovetail.profile.store import ProfileStore
from dovetail.profile.table import ProfileTable
from dovetail.serve.launch import Options, launch
from dovetail.state import Config
from dovetail.tools.replay import replay
from dovetail.units import MS
from dovetail.workflow.app import load_target
from dovetail.workflow.graph import StageSpec

HERE = Identity("Xeon", 2, {"onnxruntime": "1.30.0", "numpy": "2.4.6", "python": "3.12"})
CROP = StageSpec("crop", "python", (1, 8), model="def")
WHOLE = Config(8, 1, 100)


def served(
    store: ProfileStore, use: Callable[[Estimator], None], identity: Identity = HERE, every_s: float = 60.0
) -> list[str]:
    """A server's life; what it said."""
    said: list[str] = []

    async def main() -> None:
        times = TimesStore(store, identity, [CROP], said.append, every_s=every_s)
        predictor = Estimator(ProfileTable(), times.known, interference=Interference())
        times.keep(predictor)
        use(predictor)
        await times.close()
        await asyncio.sleep(0)  # for what is still to be said

    asyncio.run(main())
    return said


def learn(predictor: Estimator) -> None:
    predictor.observe_run(CROP, "host", 4, WHOLE, 3 * MS)
    predictor.observe_load("def", "host", 50 * MS)


def test_what_one_server_learns_the_next_knows(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles.sqlite")
    assert served(store, learn) == []
    found: list[int] = []

    def look(predictor: Estimator) -> None:
        found.append(predictor.run(CROP, "host", 4, WHOLE).mean_ns)
        found.append(predictor.load("def", 1, "host").mean_ns)

    assert served(store, look) == []
    assert found == [3 * MS, 50 * MS]


def test_what_one_server_learns_of_neighbours_the_next_knows(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles.sqlite")
    half = Config(1, 1, 50)
    states: list[object] = []

    def beside(predictor: Estimator) -> None:
        for _ in range(40):
            predictor.observe_run(CROP, "cpu", 1, half, 3 * MS)
            predictor.observe_run(CROP, "cpu", 1, half, 5 * MS, [Beside(predictor.load_of(CROP, "cpu", 1, half))])
        assert predictor.felt("cpu")
        states.append(predictor.state().interference)

    assert served(store, beside) == []
    assert served(store, lambda p: states.append((p.felt("cpu"), p.state().interference))) == []
    assert states[1] == (True, states[0])
    said = served(store, lambda p: states.append(p.felt("cpu")), Identity("Xeon", 4, HERE.libraries))
    assert states[2] is False
    assert any("of interference is not used: machine" in line for line in said)


def test_where_nothing_is_learned_no_file_is_made(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles.sqlite")
    assert served(store, lambda _: None) == []
    assert not store.path.exists()


def test_what_was_learned_on_another_machine_is_not_used_and_that_is_said(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles.sqlite")
    served(store, learn)
    sources: list[str] = []
    said = served(
        store, lambda p: sources.append(p.run(CROP, "host", 4, WHOLE).source), Identity("Xeon", 4, HERE.libraries)
    )
    assert sources == ["guess"]
    assert "of 2 stage(s) or model(s) is not used, stale: machine" in said[0]


def test_a_store_that_cannot_be_used_is_said_and_nothing_more(tmp_path: Path) -> None:
    path = tmp_path / "profiles.sqlite"
    path.write_text("this is not a database, and long enough to be looked at as one would be" * 20)
    said = served(ProfileStore(path), learn)
    assert len(said) == 2 and "begins with the profiles" in said[0] and "may be forgotten" in said[1]


def test_it_is_written_while_the_server_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ProfileStore(tmp_path / "profiles.sqlite")
    written: list[int] = []
    monkeypatch.setattr(ProfileStore, "put_learned", lambda _self, rows: written.append(len(list(rows))))

    async def main() -> None:
        times = TimesStore(store, HERE, [CROP], every_s=0.001)
        predictor = Estimator(ProfileTable())
        times.keep(predictor)
        learn(predictor)
        async with asyncio.timeout(30):
            while not written:
                await asyncio.sleep(0.001)
        await times.close()

    asyncio.run(main())
    assert written == [2], "and once more only if there is more"


@pytest.mark.cpu
def test_a_server_begins_with_what_the_one_before_has_learned_and_its_log_replays(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "profiles.sqlite")
    target = "tests.live.apps:small"

    async def life(log: Path) -> str:
        """Serve one request; where the time of its first stage was taken from."""
        served = await launch(load_target(target), target, Options(port=0, log=log), store=store)
        controller = served.system.controller
        done: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        served.system.submit("plain", [np.ones(3, np.float32)], lambda _, result: done.set_result(result))
        stage = controller.graphs[0].nodes[0].stage
        worker = next(iter(controller.holders[stage.name].values()))
        config = next(iter(controller.batches.values())).config
        source = controller.policy.predictor.run(stage, worker.spec.kind, 1, config).source
        async with asyncio.timeout(60):
            (await done).release()
            await served.stop()
        return source

    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    assert [asyncio.run(life(log)) for log in logs] == ["guess", "learned"]
    for log in logs:
        assert replay(log).same
