"""The gate with real processes: order of kernels, and what happens when tasks, clients or the device go wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_right as bisect
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tests import onnx_models
from tests.lab.gate import kernels as k

from dovetail.errors import DovetailError
from dovetail.lab.gate.client import DeviceLost, Gate, GateClient, GatePolicy, GateProgram, TaskEnded
from dovetail.lab.gate.source import Source
from dovetail.profile.machine import this_machine
from dovetail.profile.store import ProfileStore
from dovetail.record.kernels import decode_records, encode_record

pytestmark = pytest.mark.cpu
#: A gate that hangs should fail a test, not hang it.
PATIENCE_SECONDS = 30.0
#: A packet is stamped just before it can be seen.
SEEN_NS = 20_000


@pytest.fixture(scope="module")
def shared_gate() -> Iterator[Gate]:
    with Gate(GatePolicy("tasks")) as gate:
        yield gate


@pytest.fixture
def gate(shared_gate: Gate) -> Iterator[Gate]:
    """The module's device; whatever the test did, no task may be left on it, and it may not have been lost."""
    shared_gate.set_policy(GatePolicy("tasks"))
    shared_gate.report()
    yield shared_gate
    until(lambda: shared_gate.tasks() == 0, "the end of all tasks")
    assert shared_gate.losses == []


@pytest.fixture
def client(gate: Gate) -> Iterator[GateClient]:
    with GateClient(gate.connect()) as client:
        yield client


def until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, f"{what} never came"
        time.sleep(0.005)


def scripted(
    client: GateClient, name: str, what: float = k.PLAIN, where: float = -1, seconds: float = 0
) -> GateProgram:
    program = client.open(name, k.SCRIPTED, k.SHAPES)
    program.inputs["x"][...] = (what, where, seconds)
    return program


class Low:
    """A client with a task of the second class, all launched at once, in a thread of its own."""

    def __init__(self, gate: Gate, seconds: float = 0.0) -> None:
        self._client = GateClient(gate.connect())
        self.program = scripted(self._client, "low", k.SLEEP, -1, seconds)
        self.done = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._client.run(self.program, priority=2)
        self.done = True

    def finish(self) -> None:
        self._thread.join(PATIENCE_SECONDS)
        assert self.done, "the low task was never let in"
        assert self.program.outputs["y"][0] == k.KERNELS
        self._client.close()


def test_a_model_gives_the_same_through_the_gate_as_alone(gate: Gate, client: GateClient, tmp_path: Path) -> None:
    path = onnx_models.slow(tmp_path / "slow.onnx")
    x = np.float32([[1, 2, 3], [4, 5, 6]])
    (want,) = onnxruntime.InferenceSession(path).run(None, {"x": x})
    program = client.open("slow", Source("onnx", str(path), segments=4, shortest_ns=1), {"x": (2, 3)})
    assert len(program.kernels) > 1
    for _ in range(2):
        program.inputs["x"][...] = x
        program.outputs["y"][...] = 0
        client.run(program, priority=1)
        np.testing.assert_array_equal(program.outputs["y"], want)


def test_kernels_can_be_launched_one_by_one_with_host_work_between(client: GateClient) -> None:
    program = scripted(client, "host work")
    task = client.begin(program, priority=1)
    for position in range(k.KERNELS):
        task.launch()
        assert task.wait().kernel == position
        assert program.outputs["y"][0] == position + 1


def test_a_higher_class_waits_only_for_the_kernel_that_runs(gate: Gate, client: GateClient) -> None:
    program = scripted(client, "high", k.SLEEP, -1, 0.01)
    low = Low(gate, 0.05)
    until(lambda: gate.tasks() == 1, "the low task")
    client.run(program, priority=1)
    low.finish()
    records = gate.report()
    high = [r for r in records if r.name == "high"]
    assert [r.kernel for r in high] == list(range(k.KERNELS))
    first_ready = high[0].ready_ns
    assert sum(first_ready <= r.begin_ns < high[-1].end_ns for r in records if r.name == "low") == 0
    assert [r.kernel for r in records if r.name == "low"][-1] == k.KERNELS - 1, "and then the low one goes on"


def test_no_lower_kernel_begins_once_a_higher_launch_is_in_the_socket(gate: Gate, client: GateClient) -> None:
    """Two hosts, and many short tasks that come at any time: by the kernel's stamps none was overtaken."""
    program = scripted(client, "high")
    stop = threading.Event()

    def chatter() -> None:
        with GateClient(gate.connect()) as other:
            busy = scripted(other, "low")
            while not stop.is_set():
                other.run(busy, priority=2)

    thread = threading.Thread(target=chatter, daemon=True)
    thread.start()
    for pause in range(200):
        time.sleep(0.0001 * (pause % 7))
        client.run(program, priority=1)
    stop.set()
    thread.join(PATIENCE_SECONDS)
    records = gate.report()
    begins = sorted(r.begin_ns for r in records if r.name == "low")
    high = [r for r in records if r.name == "high"]
    assert len(high) == 200 * k.KERNELS and len(begins) > k.KERNELS
    assert all(r.sent_ns <= r.ready_ns + 1000 for r in high), "a packet is stamped after it was sent, to a clock tick"
    found = [(r, b) for r in high for b in begins[bisect(begins, r.ready_ns + SEEN_NS) : bisect(begins, r.begin_ns)]]
    assert found == []


def test_first_come_lets_a_higher_class_wait_for_all_that_was_launched_before(gate: Gate, client: GateClient) -> None:
    gate.set_policy(GatePolicy("fifo"))
    program = scripted(client, "high")
    low = Low(gate, 0.05)
    until(lambda: gate.tasks() == 1, "the low task")
    client.run(program, priority=1)
    low.finish()
    records = gate.report()
    assert [r.name for r in records if r.kernel == k.KERNELS - 1] == ["low", "high"]
    assert [r.name for r in records][-k.KERNELS :] == ["high"] * k.KERNELS


def test_records_tell_what_ran_and_are_read_by_the_trace(gate: Gate, client: GateClient) -> None:
    client.run(scripted(client, "told"), priority=3)
    records = gate.report()
    assert [(r.name, r.kernel, r.priority, r.why) for r in records] == [
        ("told", i, 3, "turn") for i in range(k.KERNELS)
    ]
    for record in records:
        assert record.ready_ns <= record.begin_ns <= record.end_ns
    assert list(decode_records(map(encode_record, records))) == records


def test_durations_and_gaps_are_learned_while_running(gate: Gate, client: GateClient) -> None:
    gate.set_policy(GatePolicy("ours", learn=True))
    program = scripted(client, "learned", k.SLEEP, -1, 0.002)
    for _ in range(6):
        task = client.begin(program, priority=1)
        for _ in program.kernels:
            task.launch()
            task.wait()
            time.sleep(0.003)
    gate.report()
    stats = gate.stats["learned"]
    assert all(stats.known(i) for i in range(k.KERNELS))
    assert all((stats.duration_ns(i) or 0) >= 1_800_000 for i in range(k.KERNELS)), "a sleep is never shorter"
    gap = stats.gap(0)
    assert gap is not None and gap.quantile_ns(0.1) >= 2_500_000
    gate.set_policy(GatePolicy("tasks"))


def test_what_a_gate_has_learned_is_kept_and_lets_the_next_fill_at_once(tmp_path: Path) -> None:
    store, here = ProfileStore(tmp_path / "p.sqlite"), this_machine()
    with Gate(GatePolicy("tasks", learn=True)) as teacher, GateClient(teacher.connect()) as client:
        high, low = scripted(client, "high"), scripted(client, "low")
        for _ in range(6):
            task = client.begin(high, priority=1, launch=1)
            for _ in range(1, k.KERNELS):
                task.wait()
                time.sleep(0.1)
                task.launch()
            task.wait()
            client.run(low, priority=2)
        teacher.report()
        store.put_kernels(teacher.stats.values(), here, instead=True)
    kept = store.kernels(here)
    assert kept == teacher.stats
    for stats, whys in ((kept, {"fill"}), ({"high": kept["high"]}, {"turn"})):
        with Gate(GatePolicy("ours"), stats=stats) as gate, GateClient(gate.connect()) as client:
            high, low = scripted(client, "high"), scripted(client, "low")
            holder = client.begin(high, priority=1, launch=1)
            holder.wait()
            filler = client.begin(low, priority=2, launch=k.KERNELS)
            if "fill" in whys:
                filler.wait()  # while the other is in its gap
                holder.launch(k.KERNELS - 1)
                holder.wait()
            else:
                time.sleep(0.05)  # time enough to fill, if it were allowed
                holder.launch(k.KERNELS - 1)
                holder.wait()
                filler.wait()
            records = gate.report()
        assert {r.why for r in records if r.name == "low"} == whys
        ends = [r.end_ns for r in records if r.name == "high"]
        assert all((r.begin_ns < ends[-1]) is ("fill" in whys) for r in records if r.name == "low")


def test_a_gap_is_not_longer_because_the_device_was_busy_when_it_ended(gate: Gate, client: GateClient) -> None:
    """A launch counts from when it was sent: else fillers would make gaps look longer, and more would be filled."""
    gate.set_policy(GatePolicy("tasks", learn=True))
    program = scripted(client, "gaps")
    other = GateClient(gate.connect())
    busy = scripted(other, "busy", k.SLEEP, -1, 0.2)
    for _ in range(2):
        background = other.begin(busy, priority=1, launch=k.KERNELS)
        for _ in range(4):
            task = client.begin(program, priority=1, launch=1)
            task.wait()
            time.sleep(0.02)  # by now the device is busy with the kernel of the other
            task.launch()
            task.wait()
            task.cancel()
        background.wait()
    other.close()
    records = gate.report()
    assert any(
        b.begin_ns <= r.ready_ns < b.end_ns <= r.begin_ns
        for r in records
        for b in records
        if (r.name, r.kernel, b.name) == ("gaps", 1, "busy")
    ), "no launch was counted from a time at which a busy kernel ran"
    learned = gate.stats["gaps"].gap(0)
    assert learned is not None
    seen = {(r.task, r.kernel): r for r in records if r.name == "gaps"}
    gaps = [seen[task, 1].ready_ns - seen[task, 0].end_ns for task, kernel in seen if kernel == 0]
    assert learned.count == len(gaps) == 8
    # Times told to the arbiter never go back, so what came a moment before the last event counts from that.
    assert learned.mean_ns == pytest.approx(sum(gaps) / 8, rel=0.1)


def test_a_task_that_was_alone_and_is_between_kernels_holds_back_a_lower_one(gate: Gate, client: GateClient) -> None:
    """The arbiter is told of a lone task only when a second comes, and must then know that it is there."""
    program = scripted(client, "was alone")
    task = client.begin(program, priority=1, launch=2)
    task.wait()
    low = Low(gate)
    until(lambda: gate.tasks() == 2, "the low task")
    for _ in range(2):
        task.launch()
        task.wait()
        assert not low.done
    low.finish()
    assert program.outputs["y"][0] == k.KERNELS


def test_a_task_that_comes_while_a_lone_one_runs_takes_turns_by_class(gate: Gate, client: GateClient) -> None:
    program = scripted(client, "high")
    low = Low(gate, 0.1)
    until(lambda: gate.tasks() == 1, "the low task")
    client.run(program, priority=1)
    low.finish()
    assert [r.name for r in gate.report() if r.kernel == k.KERNELS - 1] == ["high", "low"]


def test_a_task_that_raises_ends_alone(gate: Gate, client: GateClient) -> None:
    program = scripted(client, "raises", k.RAISE, 2)
    low = Low(gate)
    with pytest.raises(TaskEnded, match="error: kernel 2: RuntimeError: as it was told"):
        client.run(program, priority=1)
    low.finish()
    program.inputs["x"][0] = k.PLAIN
    client.run(program, priority=1)
    assert program.outputs["y"][0] == k.KERNELS, "the program can be run again"


def test_a_task_cancelled_half_way_lets_go_of_the_device(gate: Gate, client: GateClient) -> None:
    program = scripted(client, "cancelled")
    task = client.begin(program, priority=1, launch=2)
    task.wait()
    low = Low(gate)
    until(lambda: gate.tasks() == 2, "the low task")
    assert not low.done, "it is held back while the high task is between kernels"
    task.cancel()
    low.finish()
    client.run(program, priority=1)
    assert program.outputs["y"][0] == k.KERNELS


def test_a_client_killed_while_it_holds_the_device_frees_it(gate: Gate) -> None:
    sock = gate.connect()
    holder = subprocess.Popen(
        [sys.executable, "-m", "tests.lab.gate.kernels", str(sock.fileno())],
        pass_fds=[sock.fileno()],
        stdout=subprocess.PIPE,
        text=True,
    )
    sock.close()
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == "holding\n"
        low = Low(gate)
        until(lambda: gate.tasks() == 2, "the low task")
        assert not low.done
        holder.send_signal(signal.SIGKILL)
        low.finish()
        holder.wait()


def test_a_client_that_holds_the_device_and_launches_nothing_is_dropped() -> None:
    with Gate(GatePolicy("tasks"), patience_s=0.3) as gate, GateClient(gate.connect()) as client:
        task = client.begin(scripted(client, "hangs"), priority=1, launch=1)
        task.wait()
        low = Low(gate)
        low.finish()
        with pytest.raises(DeviceLost, match="launched nothing for 300 ms"):
            task.wait()
        assert gate.losses == [], "the device itself goes on"


def test_a_kernel_beyond_its_bound_ends_the_process_and_another_takes_its_place() -> None:
    with Gate(GatePolicy("tasks"), kernel_bound_s=0.5) as gate:
        with GateClient(gate.connect()) as stuck, GateClient(gate.connect()) as beside:
            program = scripted(stuck, "stuck", k.SLEEP, 1, 60)
            other = scripted(beside, "beside")
            task = stuck.begin(program, priority=1, launch=k.KERNELS)
            with pytest.raises(DeviceLost):
                task.wait()
            with pytest.raises(DeviceLost):
                beside.run(other, priority=1)
        until(lambda: gate.losses, "the loss")
        assert gate.losses == ["a kernel ran for more than 0.5 s"]
        with GateClient(gate.connect()) as again:
            program = scripted(again, "again")
            again.run(program, priority=1)
            assert program.outputs["y"][0] == k.KERNELS


def test_an_idle_device_with_a_bound_lives_on() -> None:
    with Gate(GatePolicy("tasks"), kernel_bound_s=0.1) as gate, GateClient(gate.connect()) as client:
        task = client.begin(scripted(client, "slow host"), priority=1, launch=1)
        task.wait()
        time.sleep(0.4)
        task.launch(k.KERNELS - 1)
        task.wait()
        time.sleep(0.4)
        assert gate.losses == []


def test_a_model_that_cannot_be_loaded_is_refused_by_name(client: GateClient) -> None:
    with pytest.raises(DovetailError, match=r"kernels:Broken cannot be made ready: OSError: there is no such"):
        client.open("broken", Source("kernels", "tests.lab.gate.kernels:Broken"), k.SHAPES)
    client.run(scripted(client, "after"), priority=1)


@pytest.mark.parametrize("launch", [k.KERNELS + 1, -1])
def test_a_client_that_launches_what_there_is_not_is_dropped(gate: Gate, client: GateClient, launch: int) -> None:
    task = client.begin(scripted(client, "too many"), priority=1, launch=launch)
    with pytest.raises(DeviceLost, match="were launched of a task that has 4"):
        task.wait()
    until(lambda: gate.tasks() == 0, "its end")


def test_a_new_policy_ends_the_tasks_of_the_old_one(gate: Gate, client: GateClient) -> None:
    task = client.begin(scripted(client, "old"), priority=1, launch=1)
    task.wait()
    gate.set_policy(GatePolicy("slices"))
    with pytest.raises(TaskEnded, match="cancelled: the device has a new policy"):
        task.wait()


def test_two_programs_of_one_client_take_turns_and_are_waited_for_in_any_order(client: GateClient) -> None:
    first, second = scripted(client, "first"), scripted(client, "second")
    tasks = [client.begin(p, priority=1, launch=k.KERNELS) for p in (first, second)]
    for task in reversed(tasks):
        task.wait()
    assert first.outputs["y"][0] == second.outputs["y"][0] == k.KERNELS
    client.close_program(first)
    client.run(second, priority=1)


def test_a_task_that_was_sent_ahead_begins_at_the_end_of_the_one_before(gate: Gate, client: GateClient) -> None:
    gate.report()
    program = scripted(client, "ahead", k.SLEEP, -1, 0.01)
    first = client.begin(program, priority=2, launch=k.KERNELS)
    second = client.begin(program, priority=2, launch=1, after=first)
    third = client.begin(program, priority=2, launch=k.KERNELS, after=second)
    second.launch(k.KERNELS - 1)
    for task in (third, first, second):
        assert task.wait().kernel == k.KERNELS - 1
    records = gate.report()
    assert [r.kernel for r in records] == 3 * list(range(k.KERNELS))
    assert [r.task for r in records] == sorted(r.task for r in records)
    after_all = client.begin(program, priority=2, launch=k.KERNELS, after=first)
    assert after_all.wait().kernel == k.KERNELS - 1, "what it was to follow is over already"


def test_a_task_that_waits_can_be_cancelled_and_those_behind_it_go_on(gate: Gate, client: GateClient) -> None:
    program = scripted(client, "waits", k.SLEEP, -1, 0.02)
    first = client.begin(program, priority=1, launch=k.KERNELS)
    second = client.begin(program, priority=1, launch=k.KERNELS, after=first)
    third = client.begin(program, priority=1, launch=k.KERNELS, after=second)
    second.cancel()
    third.wait()
    first.wait()
    assert gate.tasks() == 0


def test_what_follows_a_task_that_fails_or_is_cancelled_runs(gate: Gate, client: GateClient) -> None:
    bad, slow = scripted(client, "bad", k.RAISE, 1), scripted(client, "slow", k.SLEEP, -1, 0.02)
    good = scripted(client, "good")
    task = client.begin(bad, priority=1, launch=k.KERNELS)
    then = client.begin(good, priority=1, launch=k.KERNELS, after=task)
    then.wait()
    with pytest.raises(TaskEnded, match="as it was told"):
        task.wait()
    task = client.begin(slow, priority=1, launch=1)
    then = client.begin(good, priority=1, launch=k.KERNELS, after=task)
    task.cancel()
    then.wait()
    assert gate.tasks() == 0


def test_a_new_policy_ends_what_waits(gate: Gate, client: GateClient) -> None:
    program = scripted(client, "waits")
    first = client.begin(program, priority=1)
    second = client.begin(program, priority=1, launch=1, after=first)
    until(lambda: gate.tasks() == 1, "the task")
    gate.set_policy(GatePolicy("tasks"))
    for task in (first, second):
        with pytest.raises(TaskEnded, match="new policy"):
            task.wait()
    assert gate.tasks() == 0
    client.run(program, priority=1)


def test_a_client_that_sends_two_tasks_after_one_is_dropped_with_all_of_them(gate: Gate) -> None:
    with GateClient(gate.connect()) as other:
        program = scripted(other, "twice")
        first = other.begin(program, priority=1)
        other.begin(program, priority=1, launch=1, after=first)
        other.begin(program, priority=1, launch=1, after=first)
        with pytest.raises(DeviceLost, match="two tasks"):
            first.wait()
    assert gate.tasks() == 0
