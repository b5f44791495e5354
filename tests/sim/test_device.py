"""The simulated device, called by hand: windows, shares, loading, noise."""

from __future__ import annotations

import math
import random

import pytest

from dovetail.control import BatchFailed, BatchFinished, EvictModel, LoadModel, ModelEvicted, ModelLoaded, RunBatch
from dovetail.control.actions import NEVER_NS
from dovetail.profile.curve import Curve
from dovetail.profile.table import Entry, ProfileTable
from dovetail.sim import SimDevice
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

STAGES = {"a": StageSpec("a", "model", (4,), weights_bytes=7), "b": StageSpec("b", "model", (1,))}
CURVE = Curve((1, 4), (10 * MS, 16 * MS), (10 * MS, 16 * MS))


class Alarm:
    """Remembers when the device wants to be woken."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, object]] = []

    def __call__(self, at_ns: int, device: SimDevice, payload: object) -> None:
        self.calls.append((at_ns, payload))

    def times_ms(self) -> list[float]:
        return [at / MS for at, _ in self.calls]


def device(alarm: Alarm, *, spread: float = 0.0, rng: random.Random | None = None) -> SimDevice:
    table = ProfileTable([Entry("a", "gpu", curve=CURVE, load_ns=3 * MS, spread=spread)])
    spec = WorkerSpec("gpu-0", "gpu", ("model",))
    return SimDevice(5, spec, STAGES, table, alarm, rng=rng)


def loaded(alarm: Alarm, stage: str = "a", **options: object) -> SimDevice:
    made = device(alarm, **options)  # type: ignore[arg-type]
    made.take(LoadModel(1, 5, stage, keep=True), 0)
    made.wake(alarm.calls.pop()[1], 0)
    return made


def batch(
    ident: int,
    items: int = 1,
    *,
    stage: str = "a",
    share_pct: int = 100,
    earliest_ns: int = 0,
    latest_ns: int = NEVER_NS,
) -> RunBatch:
    triples = tuple((n, 0, 0) for n in range(items))
    return RunBatch(9, ident, 5, stage, triples, 1, share_pct, earliest_ns, latest_ns, 0)


def test_a_model_that_is_ordered_takes_its_time_to_load_and_none_when_it_is_there() -> None:
    alarm = Alarm()
    gpu = device(alarm)
    assert gpu.take(LoadModel(1, 5, "a", keep=True), 2 * MS) == []
    assert alarm.times_ms() == [5]
    assert gpu.wake(alarm.calls[0][1], 5 * MS) == [ModelLoaded(5 * MS, 1, 5, "a", 7)]
    assert gpu.take(LoadModel(2, 5, "a", keep=True), 6 * MS) == [ModelLoaded(6 * MS, 2, 5, "a", 7)]
    assert alarm.times_ms() == [5]


def test_a_batch_whose_model_is_not_here_brings_it_and_is_not_refused() -> None:
    alarm = Alarm()
    gpu = loaded(alarm)
    assert gpu.take(EvictModel(1, 5, "a", "room"), 5) == [ModelEvicted(5, 1, 5, "a", 7, "room")]
    assert gpu.take(batch(1), 6) == []
    (load,) = alarm.calls
    assert load[0] == 6 + 3 * MS
    assert gpu.wake(load[1], load[0]) == [ModelLoaded(load[0], 9, 5, "a", 7)]
    assert alarm.calls[1][0] == load[0] + 10 * MS


def test_a_stage_that_the_worker_does_not_know_is_refused() -> None:
    (refused,) = device(Alarm()).take(batch(1, stage="c"), 4)
    assert refused == BatchFailed(4, 9, 1, 4, 4, "not_loaded", "this worker knows no stage 'c'")


def test_a_model_that_is_told_to_go_while_in_use_goes_when_its_last_batch_has_ended() -> None:
    alarm = Alarm()
    gpu = loaded(alarm)
    gpu.take(batch(1), 0)
    assert gpu.take(EvictModel(8, 5, "a", "room"), 5 * MS) == []
    finished, evicted = gpu.wake(alarm.calls[0][1], 10 * MS)
    assert isinstance(finished, BatchFinished)
    assert evicted == ModelEvicted(10 * MS, 8, 5, "a", 7, "room")


def test_a_model_that_is_told_to_go_and_is_not_here_stays_when_it_comes_later() -> None:
    alarm = Alarm()
    gpu = device(alarm)
    assert gpu.take(EvictModel(8, 5, "a", "room"), 0) == []
    gpu.take(batch(1), 1)
    gpu.wake(alarm.calls.pop()[1], 1 + 3 * MS)
    assert len(gpu.wake(alarm.calls.pop()[1], 1 + 13 * MS)) == 1
    assert gpu.row(20 * MS).resident == ("a",)


def test_a_batch_takes_what_the_profile_says_and_is_counted_as_busy() -> None:
    alarm = Alarm()
    gpu = loaded(alarm)
    assert gpu.take(batch(1, items=4, share_pct=50), 0) == []
    assert alarm.times_ms() == [32]
    assert gpu.wake(alarm.calls[0][1], 32 * MS) == [BatchFinished(32 * MS, 9, 1, 0, 32 * MS)]
    assert gpu.busy_pct_ns == 50 * 32 * MS


def test_a_stage_that_nobody_measured_takes_a_millisecond_per_item() -> None:
    alarm = Alarm()
    gpu = loaded(alarm, stage="b")
    gpu.take(batch(1, items=3, stage="b"), 0)
    assert alarm.times_ms() == [3]


def test_what_does_not_fit_waits_for_room_in_order() -> None:
    """A controller that keeps its promises never asks for it; the device keeps its own all the same."""
    alarm = Alarm()
    gpu = loaded(alarm)
    assert gpu.take(batch(1, share_pct=60), 0) == []
    assert gpu.take(batch(2, share_pct=60), 0) == []
    assert gpu.take(batch(3, share_pct=30), 0) == [], "3 would fit, but 2 was first"
    (first,) = alarm.calls
    end = first[0]
    assert gpu.wake(first[1], end) == [BatchFinished(end, 9, 1, 0, end)]
    assert sorted(payload.action.batch for _, payload in alarm.calls[1:]) == [2, 3]  # type: ignore[attr-defined]


def test_a_batch_starts_inside_its_window_or_not_at_all() -> None:
    alarm = Alarm()
    gpu = loaded(alarm)
    assert gpu.take(batch(1, earliest_ns=4 * MS, latest_ns=5 * MS), 0) == []
    assert alarm.times_ms() == [4]
    assert gpu.wake(alarm.calls.pop()[1], 4 * MS) == []
    assert alarm.times_ms() == [14]
    assert gpu.take(batch(2, latest_ns=13 * MS), 5 * MS) == []
    assert gpu.take(batch(3), 5 * MS) == []
    ends = gpu.wake(alarm.calls.pop()[1], 14 * MS)
    assert ends == [
        BatchFinished(14 * MS, 9, 1, 4 * MS, 14 * MS),
        BatchFailed(14 * MS, 9, 2, 14 * MS, 14 * MS, "too_late", "it could not start in time; it is 1 ms late"),
    ]
    assert alarm.times_ms() == [24], "the third goes on at once"


def test_noise_has_the_mean_and_the_spread_of_the_profile() -> None:
    alarm = Alarm()
    gpu = loaded(alarm, spread=0.3, rng=random.Random(1))
    times = [gpu.service(batch(1)) / (10 * MS) for _ in range(20_000)]
    mean = sum(times) / len(times)
    deviation = math.sqrt(sum((t - mean) ** 2 for t in times) / len(times))
    assert mean == pytest.approx(1.0, rel=0.01)
    assert deviation == pytest.approx(0.3, rel=0.03)


def test_counts_are_asked_for_while_the_requests_are_open() -> None:
    alarm = Alarm()
    asked: list[object] = []

    class Counts:
        def counts(self, items: object) -> tuple[int, ...]:
            asked.append(items)
            return (3, 1)

    gpu = SimDevice(5, WorkerSpec("g", "gpu", ("model",)), STAGES, ProfileTable(), alarm, branching=Counts())
    gpu.take(LoadModel(1, 5, "a"), 0)
    gpu.wake(alarm.calls.pop()[1], 0)
    gpu.take(batch(1, items=2), 0)
    assert asked == [((0, 0, 0), (1, 0, 0))]
    assert gpu.wake(alarm.calls[0][1], 2 * MS) == [BatchFinished(2 * MS, 9, 1, 0, 2 * MS, (3, 1))]
    assert len(asked) == 1
