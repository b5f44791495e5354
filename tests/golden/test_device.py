"""What a device does, step by step: one small story each, and the whole list of its actions."""

from __future__ import annotations

from dovetail.control import RunBatch
from dovetail.device import Device, DeviceTimes, GapArbiter, GapSettings, ModelCache, WindowQuota
from dovetail.device.events import (
    NOBODY,
    TO_THE_END,
    AlarmRang,
    DeviceAction,
    Evict,
    Grant,
    GrantEnded,
    Load,
    LoadDone,
    ModelOrdered,
    Revoke,
    SetAlarm,
    TaskPlanned,
)
from dovetail.predict import Estimator
from dovetail.profile.table import ProfileTable
from dovetail.state import NEVER_NS
from dovetail.state.run_batch import task_of
from dovetail.units import MS

SIZES = {"plain": 0, "a": 6, "b": 6}


def device(*, quota: dict[str, int] | None = None, ageing_ns: int = 0) -> Device:
    times = DeviceTimes(Estimator(ProfileTable(), load_ns=lambda nbytes: 10 * MS), "gpu", SIZES)
    account = None if quota is None else WindowQuota(quota, 10 * MS)
    settings = GapSettings(order="slack", ageing_ns=ageing_ns)
    arbiter = GapArbiter(times.kernels, settings, account=account, learn=False)
    models = {name: (name, size) for name, size in SIZES.items()}
    return Device(1, models, ModelCache(10, host_bytes=0), times, arbiter=arbiter, account=account)


def batch(number: int, stage: str = "plain", **given: object) -> RunBatch:
    usual = {"cpus": 1, "share_pct": 100, "earliest_ns": 0, "latest_ns": NEVER_NS, "expected_ns": 4 * MS}
    return RunBatch(0, number, 1, stage, ((number, 0, 0),), **{**usual, **given})  # type: ignore[arg-type]


def planned(task: int, kernels: int, name: str = "low") -> TaskPlanned:
    return TaskPlanned(task, f"{name} of {kernels}", tuple(f"{name}{i}" for i in range(kernels)), kernels)


def told(made: Device, *steps: tuple[object, int]) -> list[list[DeviceAction]]:
    found = []
    for event, at_ms in steps:
        found.append(made.step(event, at_ms * MS))  # type: ignore[arg-type]
        made.validate()
    return found


def test_batches_of_one_class_run_whole_one_after_the_other_or_beside_each_other() -> None:
    assert told(
        device(),
        (batch(1, share_pct=50), 0),
        (batch(2, share_pct=50), 0),
        (batch(3), 1),
        (batch(4, share_pct=50), 1),
        (GrantEnded(1, 1), 2),
        (GrantEnded(2, 1), 3),
        (GrantEnded(3, 1), 4),
    ) == [
        [Grant(1)],
        [Grant(2)],
        [],
        [],
        [],  # 3 wants the whole device, and 4 does not pass it
        [Grant(3)],
        [Grant(4)],
    ]


def test_a_higher_class_takes_the_device_at_the_next_kernel_and_the_lower_goes_on_where_it_was() -> None:
    assert told(
        device(),
        (batch(1, priority=2), 0),
        (planned(1, 4), 0),
        (batch(2, priority=1), 1),
        (GrantEnded(1, 2, False, ((0, MS), (MS, 2 * MS))), 2),
        (GrantEnded(2, 1), 3),
        (GrantEnded(1, 4), 5),
    ) == [
        [Grant(1)],
        [],
        [Revoke(1)],
        [Grant(2)],
        [Grant(1, 2, TO_THE_END)],
        [],
    ]


def test_a_batch_that_is_one_kernel_is_waited_for() -> None:
    assert told(device(), (batch(1, priority=2), 0), (batch(2, priority=1), 1), (GrantEnded(1, 1), 4)) == [
        [Grant(1)],
        [],
        [Grant(2)],
    ]


def test_kernels_of_a_lower_class_are_held_back_for_the_next_stage_of_a_higher_one() -> None:
    made = device()
    told(made, (batch(9, priority=2), 0), (GrantEnded(9, 1), 1))  # a lower class has been here
    for number in range(6):  # and its kernels are known: 1 ms each
        task = 10 + number
        spans = tuple((i * MS, (i + 1) * MS) for i in range(2))
        told(made, (batch(task, priority=2), 2), (planned(task, 2), 2), (GrantEnded(task, 2, True, spans), 4))
    steps = told(
        made,
        (batch(1, priority=1, follows=True), 5),
        (batch(2, priority=2), 6),
        (planned(2, 2), 6),
        (GrantEnded(1, 1), 7),
        (batch(3, priority=1), 7),
        (GrantEnded(3, 1), 8),
    )
    assert steps[:3] == [[Grant(1)], [], []]
    assert [type(a) for a in steps[3]] == [SetAlarm], "held: the next stage is expected within 0.4 ms"
    assert steps[4] == [Grant(3)]
    assert steps[5] == [Grant(2, 0, TO_THE_END)]


def test_a_lower_class_that_has_waited_for_as_long_as_is_declared_gets_one_kernel() -> None:
    made = device(ageing_ns=5 * MS)
    assert told(
        made,
        (batch(1, priority=1), 0),
        (planned(1, 20, "high"), 0),
        (batch(2, priority=2), 1),
        (planned(2, 3), 1),
        (AlarmRang(), 6),
        (GrantEnded(1, 7, False), 7),
        (GrantEnded(2, 1, False), 8),
    ) == [
        [Grant(1)],
        [],
        [SetAlarm(6 * MS)],
        [],
        [Revoke(1)],
        [Grant(2, 0, 0, why="aged"), SetAlarm(12 * MS)],
        [Grant(1, 7, TO_THE_END), SetAlarm(13 * MS)],
    ]


def test_a_client_begins_no_kernel_beyond_its_quota_until_the_next_window() -> None:
    made = device(quota={"x": 30})
    assert told(
        made,
        (batch(1, client="x"), 0),
        (GrantEnded(1, 1), 4),
        (batch(2, client="x"), 5),
        (AlarmRang(), 10),
    ) == [
        [Grant(1, until_ns=3 * MS)],
        [],
        [SetAlarm(10 * MS)],
        [Grant(2, until_ns=12 * MS)],  # one of the three ms of this window was used in the last
    ]


def test_models_are_brought_and_let_go_while_kernels_are_stopped_and_go_on() -> None:
    made = device()
    found = told(
        made,
        (batch(1, "a", priority=2), 0),
        (LoadDone("a"), 10),
        (planned(1, 2), 10),
        (batch(2, "b", priority=1), 11),
        (GrantEnded(1, 2), 12),
        (LoadDone("b"), 23),
    )
    assert found[:4] == [[Load("a", "absent", 1)], [Grant(1, hit=False)], [], []], "a is in use: b waits for room"
    evict, load = found[4]
    assert isinstance(evict, Evict) and (evict.weights, evict.newcomer, evict.task) == ("a", "b", 2)
    assert load == Load("b", "absent", 2)
    assert found[5] == [Grant(2, hit=False)]


def test_what_the_ingress_ordered_stays() -> None:
    made = device()
    assert told(made, (ModelOrdered("a", 6), 0), (LoadDone("a"), 10), (batch(1, "b"), 11)) == [
        [Load("a", "absent", NOBODY)],
        [],
        [],  # there is no room for b beside it, and it does not go for that
    ]


def test_batches_of_two_ingresses_are_told_apart() -> None:
    other = task_of(1, 1)
    assert told(
        device(),
        (batch(1), 0),
        (batch(1, ingress=1), 0),
        (GrantEnded(1, 1), 1),
        (GrantEnded(other, 1), 2),
    ) == [[Grant(1)], [], [Grant(other)], []]
