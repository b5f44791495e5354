"""The arbiters of a gated device: that every policy can be made, and the laws of time slices."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.arbiters import ARBITERS, make_arbiter
from dovetail.device.arbiter import KernelFinished, KernelReady, StartKernel, TaskBegan, TaskGone
from dovetail.lab.kernels.slices import SLICE_NS, SliceArbiter
from dovetail.profile.kernels import KernelStats

NAMES = [name for name, entry in ARBITERS.items() if entry.arbiter is not None]


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_runs_a_task_that_is_alone_in_order(name: str) -> None:
    stats = {"s": KernelStats.empty("s", ["a", "b", "c"])}
    arbiter = make_arbiter(name, stats, learn=True, ageing_ns=1000)
    actions = list(arbiter.step(TaskBegan(0, 1, sequence="s")))
    for kernel in range(3):
        actions += arbiter.step(KernelReady(1, 1, kernel))
    ran = []
    for at_ns in range(2, 5):
        (start,) = [a for a in actions if isinstance(a, StartKernel)]
        ran.append(start.kernel)
        actions = list(arbiter.step(KernelFinished(at_ns, 1, start.kernel)))
    assert ran == [0, 1, 2]
    assert not [a for a in arbiter.step(TaskGone(9, 1)) if isinstance(a, StartKernel)]


def test_a_task_keeps_its_slice_and_then_lets_the_other_in() -> None:
    arbiter = SliceArbiter()
    length_ns = SLICE_NS // 2
    (start,) = arbiter.step(KernelReady(0, 1, 0))
    for kernel in range(1, 6):
        assert arbiter.step(KernelReady(0, 1, kernel)) == ()
        arbiter.step(KernelReady(0, 2, kernel - 1))
    order, now_ns = [1], 0
    for _ in range(8):
        now_ns += length_ns
        assert isinstance(start, StartKernel)
        (start,) = arbiter.step(KernelFinished(now_ns, start.task, start.kernel))
        assert isinstance(start, StartKernel)
        order.append(start.task)
    assert order == [1, 1, 2, 2, 1, 1, 2, 2, 1]


def test_a_task_that_is_gone_while_it_runs_frees_the_device() -> None:
    arbiter = SliceArbiter()
    arbiter.step(KernelReady(0, 1, 0))
    assert arbiter.step(KernelReady(0, 2, 0)) == ()
    assert arbiter.step(TaskGone(5, 1)) == (StartKernel(2, 0),)


@given(
    st.lists(st.lists(st.integers(1, 3 * SLICE_NS), min_size=1, max_size=6), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_slices_run_everything_once_in_order_one_at_a_time_and_never_idle(
    lengths: list[list[int]], chance: object
) -> None:
    arbiter, now_ns = SliceArbiter(), 0
    running: StartKernel | None = None
    waiting = [deque(range(len(kernels))) for kernels in lengths]
    ran: list[list[int]] = [[] for _ in lengths]
    while running or any(waiting):
        ready = [task for task, kernels in enumerate(waiting) if kernels]
        if ready and (running is None or chance.random() < 0.6):
            task = chance.choice(ready)
            actions = arbiter.step(KernelReady(now_ns, task, waiting[task].popleft()))
        else:
            assert running is not None
            now_ns += lengths[running.task][running.kernel]
            ran[running.task].append(running.kernel)
            actions = arbiter.step(KernelFinished(now_ns, running.task, running.kernel))
            running = None
        assert len(actions) <= 1
        if actions:
            assert running is None and isinstance(actions[0], StartKernel)
            running = actions[0]
        arbiter.validate()
    assert ran == [list(range(len(kernels))) for kernels in lengths]
