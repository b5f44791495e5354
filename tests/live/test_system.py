"""The live system: the same answers as `workflow.local`, and exactly one for each request, whatever happens."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.live import apps
from tests.live.support import Live, item

from dovetail.control import BatchFinished, RequestArrived, RequestCancelled
from dovetail.errors import DovetailError, LogError, Overloaded
from dovetail.live.front import readiness, watchdog
from dovetail.live.front import system as live_system
from dovetail.live.links.wire import Done
from dovetail.record.log import LogReader, LogWriter, make_header
from dovetail.tools.replay import replay
from dovetail.units import MS
from dovetail.wiring import PolicySpec

pytestmark = pytest.mark.cpu


def kill(live, name):
    """SIGKILL to a worker; the one that comes in its place."""
    worker = live.worker(name)
    os.kill(worker.pid, signal.SIGKILL)
    live.until(lambda: worker.ident not in live.system.fleet.workers, "the loss")
    return live.worker(name)


# -- answers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workflow", "inputs"),
    [
        ("plain", [3]),
        ("heavy", [1]),
        ("joined", [1, 2]),
        ("fan", [5]),
        ("fan", [40]),
        ("fan", [0]),
        ("elements", [3]),
        ("elements", [0]),
        ("maybe", [1]),
        ("maybe", [-1]),
        ("maybe_part", [1]),
        ("maybe_part", [-1]),
        ("maybe_list", [3]),
        ("maybe_list", [-1]),
        ("big", [3]),
    ],
)
def test_answers_are_those_of_the_plain_meaning_of_the_graph(live, workflow, inputs):
    result = live.ask(workflow, *inputs)
    assert result.outcome in ("ok", "late")
    expected = apps.app.workflows[workflow].local(*[item(i) for i in inputs])
    assert result.outputs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(result.outputs[name], value, rtol=1e-6)


def test_inputs_may_be_any_value_that_travels(live):
    result = live.ask("plain", np.float32([1, 2, 3]))
    np.testing.assert_array_equal(result.outputs["output"], [2, 4, 6])
    with pytest.raises(DovetailError, match="object"):
        live.submit("plain", object())


def test_whoever_is_answered_may_ask_again_at_once(live):
    """The next request is a step of its own, after the one that ended the last: the log is in order."""
    ended = []

    def again(ident, result):
        ended.append(result.outcome)
        result.release()
        if len(ended) < 3:
            live.system.submit("plain", [item(1)], again)
            raise RuntimeError("what goes wrong in one answer is told and touches no other")

    live.run(_call(lambda: live.system.submit("plain", [item(1)], again)))
    live.until(lambda: len(ended) == 3, "the third answer")
    assert set(ended) <= {"ok", "late"}
    times = [event.at_ns for event, _ in live.steps]
    assert times == sorted(times)
    kinds = [type(event) for event, _ in live.steps if isinstance(event, RequestArrived | BatchFinished)]
    assert kinds == [RequestArrived, BatchFinished] * 3
    assert len([text for text in live.said if "could not be given" in text]) == 2


async def _call(function):
    return function()


def test_requests_of_different_workflows_share_batches(live):
    waiting = [live.submit("heavy", 1)]  # takes the device
    waiting += [live.submit("plain", 1), live.submit("joined", 1, 2), live.submit("plain", 3)]
    live.wait(*waiting)
    assert 3 in live.batch_sizes("double")
    shared = next(a for a in live.runs() if a.stage == "double" and len(a.items) == 3)
    assert len({request for request, _, _ in shared.items}) == 3


def test_batches_form_across_requests_and_statistics_tell(live):
    def batches_of_eight():
        entries = live.system.statistics.model_stats("plain")["batch_stats"]
        return sum(e["compute_infer"]["count"] for e in entries if e["batch_size"] == 8)

    before = batches_of_eight()
    live.wait(live.submit("heavy", 1), *[live.submit("plain", i) for i in range(8)])
    assert live.batch_sizes("double") == [8]
    assert batches_of_eight() == before + 1


def test_a_higher_class_goes_first(live):
    with live.busy_host():
        low = live.submit("breakable", 1, priority=7)
        high = live.submit("big", 1, priority=1)
    live.wait(low, high)
    order = [a.stage for a in live.runs()]
    assert order.index("blow_up") < order.index("fragile")


def test_an_objective_of_its_own_makes_a_request_late_but_answered(live):
    assert live.ask("heavy", 1, objective_ns=1).outcome == "late"


# -- the end of requests ------------------------------------------------------------------------------------------


def outcomes(live, workflow):
    """From the ledger, over all classes."""
    counted: Counter[str] = Counter()
    for line in live.system.ledger.summary():
        if line.workflow == workflow:
            counted.update(line.outcomes)
    return counted


def test_a_cancelled_request_is_entered_as_such_and_its_memory_comes_back(live):
    before = outcomes(live, "gated")["cancelled"]
    with live.busy_host() as ident:
        live.system.cancel(ident)
        assert outcomes(live, "gated")["cancelled"] == before + 1
        assert live.system.memory.front.used_bytes, "the batch still reads its input"
        live.system.cancel(ident)  # once more does no harm


def test_a_request_expires_at_its_deadline_while_its_batch_goes_on(live):
    result = live.ask("gated", 0.5, timeout_ns=20 * MS)
    assert result.outcome == "expired"
    assert "deadline" in result.reason
    apps.open_gate(0.5)


def test_timers_of_requests_that_have_ended_do_not_pile_up(live):
    live.wait(*[live.submit("plain", i, timeout_ns=3_600_000 * MS) for i in range(50)])
    assert not live.system._timers
    assert not live.controller.timers


def test_an_error_names_the_stage_and_fails_only_the_request_that_caused_it(live):
    with live.busy_host():
        futures = [live.submit("breakable", i) for i in (1, 2, apps.SEVEN, 3)]
    results = live.wait(*futures)
    assert [r.outcome in ("ok", "late") for r in results] == [True, True, False, True]
    assert "stage 'fragile' raised ValueError: seven is not allowed" in results[2].reason
    assert 4 in live.batch_sizes("fragile"), "they were in one batch"


@pytest.mark.parametrize(
    ("workflow", "value", "said"),
    [
        ("breakable", apps.QUITS, ["'fragile'", "SystemExit", "enough"]),
        ("breakable", apps.HALF_A_LETTER, ["'fragile'", "ValueError", r"\ud800"]),
        ("breakable", apps.SPEECHLESS, ["'fragile'", "no words"]),
        ("too_short", 1, ["'short'", "list of 0", "same length"]),
        ("too_strange", 1, ["'strange'", "object", "Allowed"]),
    ],
)
def test_what_a_stage_does_wrong_is_told(live, workflow, value, said):
    result = live.ask(workflow, value)
    assert result.outcome == "failed"
    for words in said:
        assert words in result.reason
    assert live.ask("breakable", 1).outcome in ("ok", "late"), "its worker goes on"


# -- workers that die ---------------------------------------------------------------------------------------------


def test_what_a_dead_worker_left_behind_is_still_read(live):
    with live.busy_host():
        heavy = live.submit("heavy", 1)
        live.until(lambda: any(live.system.memory.blocks.values()), "the device's result")
        old = live.worker("cpu-0").ident
        new = kill(live, "cpu-0")
        assert new.ident != old
        assert old in live.system.memory.arenas, "its value is an input of an open request"
    np.testing.assert_array_equal(live.wait(heavy)[0].outputs["output"], item(2))
    live.until(lambda: old not in live.system.memory.arenas, "the old arena's end")
    maps = Path(f"/proc/{live.worker('host-0').pid}/maps")
    live.until(lambda: f"memfd:dovetail-{old} " not in maps.read_text(), "the end of its last mapping")


@pytest.mark.parametrize("name", ["cpu-0", "host-0"])
def test_no_request_is_lost_when_a_worker_is_killed_at_work(live, name):
    futures = []
    for i in range(10):
        futures += [live.submit("heavy", 1 + i), live.submit("fan", i), live.submit("joined", i, i)]
    victim = live.worker(name).ident
    live.until(lambda: any(r.action.worker == victim for r in live.system.batches.running.values()), "a batch on it")
    kill(live, name)
    futures += [live.submit("maybe", i) for i in range(5)]
    results = live.wait(*futures)
    assert {r.outcome for r in results} <= {"ok", "late"}
    for i in range(10):
        np.testing.assert_allclose(results[3 * i].outputs["output"], item(2 + i))
        np.testing.assert_allclose(results[3 * i + 2].outputs["output"], item(3 * i + 1))
    ended = [a.request for _, actions in live.steps for a in actions if hasattr(a, "outcome")]
    assert sorted(ended) == sorted(set(ended)), "one outcome each"
    assert len(ended) == len(futures)
    assert any("killed by signal 9" in line for line in live.said)
    live.until(live.system.ready)


def test_all_workers_may_die_at_once(live):
    futures = [live.submit(w, 2) for w in ("heavy", "fan", "plain", "elements") for _ in range(5)]
    for worker in list(live.system.fleet.workers.values()):
        os.kill(worker.pid, signal.SIGKILL)
    assert {r.outcome for r in live.wait(*futures)} <= {"ok", "late"}


def test_a_request_that_kills_its_worker_fails_alone(live):
    with live.busy_host():
        futures = [live.submit("breakable", value) for value in (1, apps.POISON, 2, 3)]
    results = live.wait(*futures)
    assert [r.outcome in ("ok", "late") for r in results] == [True, False, True, True]
    assert results[1].outcome == "failed"
    assert "worker host-" in results[1].reason
    assert "status 3" in results[1].reason
    assert live.ask("breakable", 1).outcome in ("ok", "late")


def test_a_worker_that_answers_what_it_was_not_asked_is_replaced(live):
    worker = live.worker("cpu-0")
    live.system._on_message(worker, Done(1 << 40, 0, 0, 0, [], ()))
    live.until(lambda: worker.ident not in live.system.fleet.workers, "its end")
    assert any("does not fit what it was asked" in line for line in live.said)
    assert live.ask("plain", 1).outcome in ("ok", "late")


# -- systems of their own -----------------------------------------------------------------------------------------


@pytest.fixture
def make_live():
    """Systems with other settings; closed and looked over at the end."""
    made = []

    def make(*args, **kwargs):
        made.append(Live(*args, **kwargs))
        return made[-1]

    yield make
    for live in made:
        live.close()


def test_a_worker_that_hangs_is_killed_and_the_request_fails_in_the_end(make_live, monkeypatch):
    monkeypatch.setattr(live_system, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(watchdog, "HANG_FACTOR", 1)
    live = make_live("tests.live.apps:hosted", hang_ns=300 * MS)
    futures = [live.submit("breakable", apps.HANGS), live.submit("big", 1)]
    stuck, other = live.wait(*futures)
    assert stuck.outcome == "failed"
    assert "did not answer within" in stuck.reason
    assert other.outcome in ("ok", "late")
    live.check_clean()


def test_more_passes_through_an_arena_than_fits_into_it(make_live):
    live = make_live("tests.live.apps:hosted", arena_bytes=8 << 20)

    async def burst(futures):
        for _ in range(24):
            futures.append(live.begin("big", [item(2)]))

    live.run(burst(futures := []))  # all at once: nothing is known yet of what they will take
    assert {r.outcome for r in live.wait(*futures)} <= {"ok", "late"}
    live.check_clean()
    with pytest.raises(Overloaded, match="expected to take"):
        live.run(burst(futures := []))
    assert 0 < len(futures) < 24
    assert {r.outcome for r in live.wait(*futures)} <= {"ok", "late"}
    # What can never fit is told at once, with the remedy's name in it.
    result = live.ask("big", 9)
    assert result.outcome == "failed"
    assert "larger --arena" in result.reason
    with pytest.raises(Overloaded, match="no room"):
        live.submit("big", np.zeros(9 << 20, np.uint8))
    live.check_clean()


def test_nothing_is_admitted_while_results_fill_the_memory(make_live):
    live = make_live("tests.live.apps:hosted", arena_bytes=8 << 20)
    held = live.submit("big", 7)

    async def unread():
        return await held

    live.until(lambda: live.system.memory.full(), "the big result")
    with pytest.raises(Overloaded, match="full of results still in use"):
        live.submit("big", 1)
    live.run(unread()).release()
    assert live.ask("big", 1).outcome in ("ok", "late")
    live.check_clean()


def test_a_log_can_be_read_while_it_is_written_and_replays_to_the_same_actions(make_live, tmp_path):
    path = tmp_path / "run.log"

    def log(made_from):
        graphs, policy, entries, cores = made_from
        import msgspec

        return LogWriter(path, make_header("live", graphs, msgspec.msgpack.encode(policy), entries, cores))

    live = make_live(log=log, policy=PolicySpec("by-class", max_open=5))
    futures = [live.submit("breakable", apps.SEVEN)]
    futures += [live.submit(w, 2, note=f"my-{w}") for w in ("heavy", "fan", "maybe", "breakable") for _ in range(10)]
    live.wait(*futures)
    kill(live, "cpu-0")
    live.ask("heavy", 1, timeout_ns=60_000 * MS)
    live.ask("plain", 1, timeout_ns=1 << 80, objective_ns=1 << 80)  # more than a log can hold
    steps = len(live.steps)

    def written():
        with LogReader(path) as reader:
            return sum(1 for _ in reader)

    live.until(lambda: written() >= steps, "the flush")
    live.close()
    try:
        found = replay(path)
        assert found.same, found.first_difference
        assert not found.cut_short
        assert {o for line in found.outcomes for o, n in line.outcomes.items() if n} >= {"shed", "failed"}
    finally:
        live.close = lambda: None


def test_a_disk_that_is_full_ends_the_log_and_not_the_service(make_live, tmp_path):
    class FullDisk:
        def step(self, *_):
            raise LogError("no space left on device")

        def flush(self): ...

        def close(self): ...

    live = make_live("tests.live.apps:hosted", log=lambda _: FullDisk())
    assert live.ask("big", 1).outcome in ("ok", "late")
    assert sum("no space left on device" in line for line in live.said) == 1


def test_if_the_controller_breaks_everybody_gets_an_answer(make_live, monkeypatch):
    live = make_live("tests.live.apps:hosted")
    futures = [live.submit("gated", 7.5), live.submit("breakable", 1)]
    monkeypatch.setattr(type(live.controller), "step", lambda _self, _event: 1 // 0)
    live.system._post(RequestCancelled(live.system.now_ns(), 0, 1))
    assert {(r.outcome, r.reason) for r in live.wait(*futures)} == {("failed", "internal error in the scheduler")}
    assert isinstance(live.system.fault.exception(), ZeroDivisionError)
    with pytest.raises(Overloaded, match="stopped"):
        live.submit("breakable", 1)
    assert live.run(live.system.drain()) is False
    apps.open_gate(7.5)


def test_closing_answers_what_is_open(make_live):
    live = make_live("tests.live.apps:hosted")
    futures = [live.submit("gated", 8.5) for _ in range(3)]
    live.run(live.system.close())
    results = live.wait(*futures)
    assert {r.outcome for r in results} == {"cancelled"}
    assert {r.reason for r in results} == {"the server stopped before it was done"}
    apps.open_gate(8.5)


def test_a_stage_without_a_worker_is_refused_and_then_given_up(make_live, monkeypatch):
    monkeypatch.setattr(live_system, "SWEEP_SECONDS", 0.05)
    live = make_live("tests.live.apps:hosted")
    open_request = live.submit("gated", 9.5)
    monkeypatch.setattr(live.system.fleet, "_start_later", lambda *_: None)  # it does not come back
    worker = live.worker("host-0")
    os.kill(worker.pid, signal.SIGKILL)
    live.until(lambda: not live.system.ready())
    monkeypatch.setattr(readiness, "REFUSE_AFTER_NS", 0)
    with pytest.raises(Overloaded, match="no worker runs"):
        live.submit("breakable", 1)
    monkeypatch.setattr(readiness, "GIVE_UP_AFTER_NS", 0)
    result = live.wait(open_request)[0]
    assert result.outcome == "cancelled"
    assert "no worker has run" in result.reason
    live.check_clean()


def test_a_module_that_raises_in_the_worker_ends_the_start():
    with pytest.raises(DovetailError, match="only in the front") as caught:
        Live("tests.live.broken:app")
    assert "tests.live.broken:app cannot be loaded in worker host-0" in str(caught.value)


def test_a_model_that_cannot_be_loaded_ends_the_start(monkeypatch, tmp_path):
    path = tmp_path / "gone.onnx"
    path.write_bytes(apps._model("double").read_bytes())
    from dovetail import App, onnx, workflow

    gone = onnx(path, name="gone")

    @workflow(slo="1s")
    def lost(x):
        return gone(x)

    path.write_bytes(b"not a model")
    monkeypatch.setattr(apps, "lost", App(lost), raising=False)
    with pytest.raises(DovetailError, match="onnxruntime cannot load") as caught:
        Live("tests.live.apps:lost")
    assert "'gone'" in str(caught.value)


def test_two_hosts_share_the_python_stages(make_live):
    live = make_live("tests.live.apps:hosted", hosts=2)
    futures = [live.submit("gated", 10.5), live.submit("breakable", 1)]
    assert live.wait(futures[1])[0].outcome in ("ok", "late"), "the other host is free"
    apps.open_gate(10.5)
    live.wait(futures[0])
    live.check_clean()


def test_an_emulated_device_answers_with_what_it_held(make_live):
    live = make_live("tests.live.apps:small", "emulated:v100x2")
    results = live.wait(*[live.submit("plain", i) for i in range(8)])
    assert {r.outcome for r in results} <= {"ok", "late"}
    assert all(r.outputs["output"].shape == (3,) for r in results)
    assert live.ask("heavy", 1).outcome in ("ok", "late")
    live.check_clean()
