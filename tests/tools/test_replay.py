"""A replay of a run gives its actions byte for byte, in any process; another policy does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.record.recorded import ENTRIES, document, header, plain, run
from tests.record.test_follow import SPECS

from dovetail.control import Action, Event, RequestArrived, RunBatch, TimerFired, WorkerJoined
from dovetail.errors import DeclarationError, LogError
from dovetail.predict import EstimatorState
from dovetail.predict.state import LearnedRun
from dovetail.profile.table import ProfileTable
from dovetail.record.ledger import Ledger
from dovetail.record.log import LogReader, LogWriter, Step, make_header
from dovetail.sim import SimDevice, Simulation
from dovetail.state import WorkerSpec
from dovetail.tools.replay import policy_spec, replay
from dovetail.units import MS
from dovetail.wiring import PolicySpec, make_controller
from dovetail.workflow.graph import StageSpec, chain


def rewrite(path: Path, steps: list[Step], spec: PolicySpec) -> Path:
    """The same steps under the header of another policy."""
    with LogWriter(path, header(spec)) as log:
        for step in steps:
            log.step(step.event, step.actions, step.note)
    return path


@given(seed=st.integers(0, 10**6), spec=SPECS)
@settings(deadline=None, max_examples=25)
def test_a_random_run_replays_to_the_same_actions(
    tmp_path_factory: pytest.TempPathFactory, seed: int, spec: PolicySpec
) -> None:
    path = tmp_path_factory.getbasetemp() / "replay.log"
    steps = run(path, seed=seed, spec=spec)
    seen: list[Step] = []
    result = replay(path, observers=[lambda event, actions: seen.append(Step(event, actions))])
    assert result.same and result.first_difference is None
    assert result.steps == result.same_steps == len(steps)
    assert (result.world, result.policy, result.cut_short) == ("sim", spec, False)
    assert sum(summary.requests for summary in result.outcomes) == 40
    assert [(s.event, s.actions) for s in seen] == [(s.event, s.actions) for s in steps]


def test_it_replays_in_a_process_that_hashes_otherwise(tmp_path: Path) -> None:
    # Sets of strings are ordered by the hash seed: a decision that depends on such an order shows here.
    run(tmp_path / "run.log", seed=7, count=120, spec=PolicySpec("by-class", share_pct=50))
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "dovetail", "replay", str(tmp_path / "run.log")],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "same" in done.stdout


def test_a_replay_begins_with_what_the_run_knew_of_times(tmp_path: Path) -> None:
    """Without profiles, so that every expectation is learned; and in the first batch already known."""
    graph = chain("flow", 50 * MS, [StageSpec("read", "model", (1, 4), model="read")])
    runs = tuple(LearnedRun("read", "gpu", items, 1, 100, 50, items * 7 * MS, 0.0) for items in (1, 4))
    spec = PolicySpec("dovetail")
    log = make_header("sim", [graph], msgspec.msgpack.encode(spec), (), 1, learned=EstimatorState(runs=runs))

    def play(name: str, known: EstimatorState | None) -> list[Step]:
        controller = make_controller(log.graphs, spec, log.entries, log.cores, learned=known)
        steps: list[Step] = []
        with LogWriter(tmp_path / name, log) as writer:

            def watch(event: Event, actions: list[Action]) -> None:
                steps.append(Step(event, actions))
                writer.step(event, actions)

            arrivals = iter([RequestArrived(n * MS, 0, n, 0) for n in range(1, 30)])
            simulation = Simulation(controller, Ledger([("flow", 50 * MS)]), arrivals, [watch])
            device = WorkerSpec("gpu", "gpu", ("model",), usd_per_hour=1.0)
            simulation.join(SimDevice(1, device, controller.stages, ProfileTable(), simulation.schedule))
            simulation.run()
        return steps

    steps = play("known.log", log.learned)
    first = next(a for step in steps for a in step.actions if isinstance(a, RunBatch))
    assert first.expected_ns == round(7 * MS * (0.1 + 0.9 * 100 / first.share_pct))
    assert replay(tmp_path / "known.log").same
    play("unknown.log", None)
    assert not replay(tmp_path / "unknown.log").same, "the header says that it knew, and it did not"


def test_a_truncated_log_replays_as_far_as_it_goes(tmp_path: Path) -> None:
    steps = run(tmp_path / "run.log", seed=1)
    data = (tmp_path / "run.log").read_bytes()
    (tmp_path / "run.log").write_bytes(data[:-3])
    result = replay(tmp_path / "run.log")
    assert result.same and result.cut_short and result.steps == len(steps) - 1


def test_another_policy_is_found_out(tmp_path: Path) -> None:
    steps = run(tmp_path / "run.log", seed=1, spec=PolicySpec("first-come"))
    result = replay(rewrite(tmp_path / "other.log", steps, PolicySpec("first-come", share_pct=50)))
    found = result.first_difference
    assert not result.same and found is not None
    assert found.step == result.same_steps + 1 <= result.steps == len(steps)
    assert found.event == steps[found.step - 1].event
    assert found.recorded == steps[found.step - 1].actions != found.replayed
    assert [a.share_pct for a in found.recorded if isinstance(a, RunBatch)] == [100]
    assert {a.share_pct for a in found.replayed if isinstance(a, RunBatch)} == {50}
    assert result.outcomes == replay(tmp_path / "run.log").outcomes, "the table is of the recorded run"


@pytest.mark.parametrize("change", ["drop", "double", "cost", "order"])
def test_any_change_of_an_action_is_found_out(tmp_path: Path, change: str) -> None:
    steps = run(tmp_path / "run.log", seed=1)
    at, step = next((i, s) for i, s in enumerate(steps) if len(s.actions) > 1)
    if change == "cost":
        at, step = next((i, s) for i, s in enumerate(steps) for a in s.actions if getattr(a, "cost_usd", 0))
    actions = {
        "drop": step.actions[1:],
        "double": [*step.actions, step.actions[0]],
        "cost": [
            msgspec.structs.replace(a, cost_usd=a.cost_usd * (1 + 2**-52)) if hasattr(a, "cost_usd") else a
            for a in step.actions
        ],
        "order": step.actions[::-1],
    }[change]
    steps[at] = Step(step.event, actions, step.note)
    result = replay(rewrite(tmp_path / "changed.log", steps, PolicySpec()))
    assert result.first_difference is not None
    assert result.first_difference.step == at + 1
    assert result.first_difference.replayed == step.actions


def test_a_controller_that_raises_is_a_difference(tmp_path: Path) -> None:
    steps = [Step(TimerFired(5, 0, 1), []), Step(TimerFired(4, 0, 1), []), Step(TimerFired(6, 0, 1), [])]
    result = replay(rewrite(tmp_path / "run.log", steps, PolicySpec()))
    assert result.first_difference is not None
    assert (result.first_difference.step, result.steps) == (2, 3)
    assert result.first_difference.raised.startswith("ValueError: time went back from 5 to 4 ns")


def test_a_policy_that_is_not_known_is_named(tmp_path: Path) -> None:
    rewrite(tmp_path / "run.log", [], PolicySpec("last-come"))
    with pytest.raises(DeclarationError, match="there is no policy 'last-come'"):
        replay(tmp_path / "run.log")
    strange = make_header("sim", [plain()], msgspec.msgpack.encode({"name": "x", "warp": 9}), ENTRIES, 1)
    LogWriter(tmp_path / "strange.log", strange).close()
    with pytest.raises(LogError, match=r"not known to this Dovetail: .*warp"):
        replay(tmp_path / "strange.log")


def test_the_header_gives_back_the_policy(tmp_path: Path) -> None:
    spec = PolicySpec("by-class", share_pct=25, batch={"read": 4}, max_open=9)
    rewrite(tmp_path / "run.log", [], spec)
    with LogReader(tmp_path / "run.log") as log:
        assert policy_spec(log.header) == spec
        assert log.header.graphs[1] == document()
    assert replay(tmp_path / "run.log").steps == 0


def test_progress_is_told(tmp_path: Path) -> None:
    arrivals = [Step(RequestArrived(i, 0, i, 0), []) for i in range(1, 5001)]
    rewrite(tmp_path / "run.log", arrivals, PolicySpec())
    told: list[tuple[int, int]] = []
    assert replay(tmp_path / "run.log", progress=lambda done, total: told.append((done, total))).same
    size = (tmp_path / "run.log").stat().st_size
    assert told == sorted(told) and len(told) == 2
    assert all(0 < done < total == size for done, total in told)


def test_damage_in_the_middle_is_an_error_not_a_difference(tmp_path: Path) -> None:
    steps = run(tmp_path / "run.log", seed=1)
    assert isinstance(steps[0].event, WorkerJoined)
    data = bytearray((tmp_path / "run.log").read_bytes())
    data[len(data) // 2] ^= 0x10
    (tmp_path / "run.log").write_bytes(data)
    with pytest.raises(LogError, match="is damaged"):
        replay(tmp_path / "run.log")
