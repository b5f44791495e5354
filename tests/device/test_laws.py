"""What every arbiter with classes keeps to, whatever happens."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.device import ArbiterSettings, GapArbiter, GapSettings, PriorityArbiter
from dovetail.lab.kernels.fikit import FikitArbiter, FikitSettings

from .play import Play, Script, scripts, stats_of

#: Times in the scripts are tens of nanoseconds: knobs to match.
MAKE = {
    "priority": lambda stats, **k: PriorityArbiter(stats, ArbiterSettings(**k)),
    "fikit": lambda stats, **k: FikitArbiter(stats, FikitSettings(small_gap_ns=2, **k)),
    "gap": lambda stats, **k: GapArbiter(stats, GapSettings(burst_ns=40, overhead_ns=1, again_ns=5, part_ns=1, **k)),
}
#: A busy machine is no reason to fail.
LAW = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
every = pytest.mark.parametrize("name", MAKE)
wrong = st.sampled_from([0.1, 0.5, 1.0, 2.0, 10.0])


def top_class(play: Play, at_ns: int, but: int) -> int | None:
    """The best class that has a task with kernels to come, as the arbiter knows it, other than one task."""
    there = [
        s.priority
        for task, s in enumerate(play.scripts)
        if task != but and s.begin_ns <= at_ns < play.gone.get(task, 1 << 62)
    ]
    return min(there, default=None)


@every
@LAW
@given(scripts(shares=True, parts=True), wrong)
def test_a_higher_class_waits_for_no_kernel_of_a_lower_one_that_starts_later(name, tasks, factor):
    play = Play(tasks, MAKE[name](stats_of(tasks, factor=factor))).go()
    happened = play.kernels()
    for high in happened:
        top = top_class(play, high.ready_ns, high.task)
        if top is not None and top < high.priority:
            continue  # it is not of the highest class there
        for low in happened:
            if low.priority <= high.priority or low.why == "beside":
                continue
            until = high.start_ns if high.start_ns >= 0 else play.gone.get(high.task, 1 << 62)
            joined = [s for s in play.scripts if s.priority < high.priority and high.ready_ns < s.begin_ns <= until]
            if not joined:
                assert not high.ready_ns < low.start_ns < until, f"{low} started while {high} waited"


@every
@LAW
@given(scripts(shares=True, ahead=True, parts=True), wrong)
def test_shares_stay_within_the_device_and_every_kernel_of_a_living_task_is_run(name, tasks, factor):
    play = Play(tasks, MAKE[name](stats_of(tasks, factor=factor))).go()
    for start, _ in play.started.values():
        assert play.used_pct(start) <= 100
    for task, script in enumerate(tasks):
        if script.killed_ns < 0:
            assert all((task, k) in play.ended for k in range(len(script.kernels))), f"task {task} was never done"


@LAW
@given(scripts(mixed=True, ahead=True, parts=True), wrong, st.sampled_from([0.0, 0.5]))
def test_nobody_is_let_in_beside_a_class_that_waits_for_lower_kernels(tasks, factor, catch_up):
    play = Play(tasks, MAKE["gap"](stats_of(tasks, factor=factor), catch_up=catch_up)).go()
    happened = play.kernels()
    for start, _ in play.started.values():
        assert play.used_pct(start) <= 100
    for low in (k for k in happened if k.why == "beside"):
        top = min(s.priority for t, s in enumerate(tasks) if s.begin_ns <= low.start_ns < play.gone.get(t, 1 << 62))
        for high in happened:
            until = high.start_ns if high.start_ns >= 0 else play.gone.get(high.task, 1 << 62)
            if high.priority > top or high.priority >= low.priority or not high.ready_ns < low.start_ns < until:
                continue
            own = [k for k in happened if k.task == high.task and 0 <= k.start_ns <= low.start_ns]
            assert any(k.end_ns < 0 or k.end_ns >= low.start_ns for k in own), f"{low} was let in while {high} waited"


@every
@LAW
@given(scripts(ahead=True, parts=True), wrong, st.integers(0, 3))
def test_same_events_give_the_same_actions(name, tasks, factor, ageing):
    play = Play(tasks, MAKE[name](stats_of(tasks, factor=factor), ageing_ns=ageing * 40)).go()
    again = MAKE[name](stats_of(tasks, factor=factor), ageing_ns=ageing * 40)
    assert [list(again.step(event)) for event in play.events] == play.actions


@every
@LAW
@given(scripts(classes=1, killed=False, ahead=True))
def test_of_one_class_nothing_waits_while_the_device_is_free(name, tasks):
    play = Play(tasks, MAKE[name](stats_of(tasks))).go()
    busy = sorted((start, play.ended[key]) for key, (start, _) in play.started.items())
    for kernel in play.kernels():
        free_since = max((end for _, end in busy if end <= kernel.start_ns), default=0)
        assert kernel.start_ns == max(kernel.ready_ns, free_since), f"{kernel} could have started before"


@every
@LAW
@given(st.integers(2, 5), st.integers(3, 8))
def test_equals_take_turns(name, count, length):
    tasks = [Script(0, 1, ((0, 10),) * length, ahead=length) for _ in range(count)]
    play = Play(tasks, MAKE[name](stats_of(tasks))).go()
    starts: dict[int, int] = defaultdict(int)
    for task, _ in sorted(play.started, key=play.started.__getitem__):
        starts[task] += 1
        assert max(starts.values()) - min(starts.get(t, 0) for t in range(count)) <= 1


@every
@LAW
@given(scripts(shares=True, ahead=True, parts=True))
def test_tasks_that_are_gone_hold_nothing(name, tasks):
    arbiter = MAKE[name](stats_of(tasks))
    Play(tasks, arbiter).go()
    assert arbiter.used_pct == 0
    assert not arbiter._tasks


@every
@LAW
@given(scripts(classes=2, killed=False), wrong, st.integers(20, 200))
def test_aged_starts_are_as_far_apart_as_declared_and_nobody_waits_much_longer(name, tasks, factor, ageing):
    play = Play(tasks, MAKE[name](stats_of(tasks, factor=factor), ageing_ns=ageing)).go()
    aged = sorted(start for start, why in play.started.values() if why == "aged")
    assert all(b - a >= ageing for a, b in pairwise(aged))
    longest = max(d for s in tasks for _, d in s.kernels)
    for kernel in play.kernels():
        # One aged start at a time: each other task may be served before, and each finds a kernel running.
        assert kernel.start_ns - kernel.ready_ns <= (ageing + 2 * longest) * (len(tasks) + 1) + longest * len(tasks)


shares = st.lists(st.sampled_from([20, 50, 60, 100]), max_size=5).map(tuple)
busy_pair = st.tuples(
    st.builds(
        lambda kernels, shares: Script(0, 1, tuple(kernels), shares=shares),
        st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=20, max_size=40),
        shares,
    ),
    st.builds(
        lambda kernels, shares, parts: Script(0, 2, tuple(kernels), ahead=80, shares=shares, parts=parts),
        st.lists(st.tuples(st.integers(0, 3), st.integers(10, 60)), min_size=60, max_size=80),
        shares,
        st.sampled_from([1, 6]),
    ),
).map(list)


@LAW
@given(busy_pair, st.sampled_from([0.1, 1.0]), st.sampled_from([0.2, 1.0, 20.0]), st.sampled_from([0.0, 0.03, 0.3]))
def test_delay_by_fillers_stays_within_the_budget_however_wrong_the_statistics_are(tasks, factor, gap_factor, budget):
    settings = GapSettings(budget=budget, burst_ns=40, overhead_ns=1, again_ns=5, part_ns=1)
    stats = stats_of(tasks, factor=factor, gap_factor=gap_factor)
    arbiter = GapArbiter(stats, settings, learn=False)
    play = Play(tasks, arbiter).go()
    waited = sum(k.start_ns - k.ready_ns for k in play.kernels() if k.priority == 1)
    there = play.gone[0] - tasks[0].begin_ns
    longest = max(d for _, d in tasks[1].kernels)
    assert waited <= budget * there + 40 + 2 * longest, "fillers, and the kernel that was there before"
    assert arbiter.delayed_ns.get(1, 0) <= budget * there + 40 + longest


@LAW
@given(busy_pair, st.sampled_from([0.2, 1.0, 20.0]), st.integers(1, 40))
def test_of_a_task_that_is_trusted_to_catch_up_no_more_than_the_burst_is_asked_in_advance(tasks, gap_factor, ahead):
    tasks[0] = tasks[0]._replace(ahead=ahead)
    stats = stats_of(tasks, gap_factor=gap_factor)
    stats["0"].early = 1.0
    settings = GapSettings(burst_ns=40, overhead_ns=1, again_ns=5, catch_up=0.5, part_ns=1)
    arbiter = GapArbiter(stats, settings, learn=False)
    play = Play(tasks, arbiter).go()
    there = play.gone[0] - tasks[0].begin_ns
    assert arbiter.delayed_ns.get(1, 0) <= 0.03 * there + 2 * 40 + max(d for _, d in tasks[1].kernels)


@LAW
@given(scripts(killed=False))
def test_strict_classes_run_a_lower_one_only_when_no_higher_task_is_there(tasks):
    play = Play(tasks, MAKE["priority"](stats_of(tasks))).go()
    for (task, _), (start, _) in play.started.items():
        for other, script in enumerate(tasks):
            if script.priority < tasks[task].priority and script.begin_ns < start:
                last = play.ended[other, len(script.kernels) - 1]
                ready = play.ready[other, len(script.kernels) - 1]
                assert last <= start or ready <= start <= last
