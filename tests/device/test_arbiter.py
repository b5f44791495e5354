"""The first-come arbiter: shares stay within the device, order is kept, and nothing that could start waits."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.device.arbiter import KernelFinished, KernelReady, StartKernel, TaskGone
from dovetail.lab.kernels.first_come import FirstComeArbiter


def test_kernels_start_in_order_as_long_as_they_fit():
    arbiter = FirstComeArbiter()
    assert arbiter.step(KernelReady(0, task=1, kernel=0, share_pct=60)) == [StartKernel(1, 0)]
    assert arbiter.step(KernelReady(1, task=2, kernel=0, share_pct=60)) == []
    assert arbiter.step(KernelReady(2, task=3, kernel=0, share_pct=10)) == [], "does not overtake task 2"
    assert arbiter.step(KernelFinished(3, task=1, kernel=0)) == [StartKernel(2, 0), StartKernel(3, 0)]


def test_a_task_that_is_gone_frees_what_it_held_and_waits_no_more():
    arbiter = FirstComeArbiter()
    arbiter.step(KernelReady(0, task=1, kernel=0))
    arbiter.step(KernelReady(0, task=2, kernel=0))
    arbiter.step(KernelReady(0, task=3, kernel=0))
    assert arbiter.step(TaskGone(1, task=2)) == []
    assert arbiter.step(TaskGone(2, task=1)) == [StartKernel(3, 0)]
    arbiter.validate()


def test_a_share_outside_the_device_is_refused():
    with pytest.raises(ValueError, match="120 %"):
        FirstComeArbiter().step(KernelReady(0, task=1, kernel=0, share_pct=120))


@settings(deadline=None)  # a busy machine is no reason to fail
@given(st.data())
def test_shares_never_exceed_the_device_and_every_kernel_starts_once(data):
    arbiter = FirstComeArbiter()
    waiting: dict[int, int] = {}
    running: dict[int, int] = {}
    for at in range(data.draw(st.integers(1, 60))):
        choice = data.draw(st.sampled_from(["ready", "finish", "gone"]))
        if choice == "ready" or not running:
            share = data.draw(st.integers(1, 100))
            waiting[at] = share
            started = arbiter.step(KernelReady(at, task=at, kernel=0, share_pct=share))
        elif choice == "finish":
            task = data.draw(st.sampled_from(sorted(running)))
            del running[task]
            started = arbiter.step(KernelFinished(at, task=task, kernel=0))
        else:
            task = data.draw(st.sampled_from(sorted(waiting.keys() | running.keys())))
            waiting.pop(task, None)
            running.pop(task, None)
            started = arbiter.step(TaskGone(at, task=task))
        for kernel in started:
            assert kernel.task == min(waiting), "first come, first served"
            running[kernel.task] = waiting.pop(kernel.task)
        assert sum(running.values()) <= 100
        arbiter.validate()
