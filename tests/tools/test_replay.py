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

from dovetail.control import RequestArrived, RunBatch, TimerFired, WorkerJoined
from dovetail.errors import DeclarationError, LogError
from dovetail.record.log import LogReader, LogWriter, Step, make_header
from dovetail.tools.replay import policy_spec, replay
from dovetail.wiring import PolicySpec


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


def test_a_truncated_log_replays_as_far_as_it_goes(tmp_path: Path) -> None:
    steps = run(tmp_path / "run.log", seed=1)
    data = (tmp_path / "run.log").read_bytes()
    (tmp_path / "run.log").write_bytes(data[:-3])
    result = replay(tmp_path / "run.log")
    assert result.same and result.cut_short and result.steps == len(steps) - 1


def test_another_policy_is_found_out(tmp_path: Path) -> None:
    steps = run(tmp_path / "run.log", seed=1, spec=PolicySpec(share_pct=100))
    result = replay(rewrite(tmp_path / "other.log", steps, PolicySpec(share_pct=50)))
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
