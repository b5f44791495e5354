"""The account of delay and the hints, rule by rule: each test fails if the rule it is named after is changed."""

from __future__ import annotations

import pytest

from dovetail.device import GapArbiter, GapSettings
from dovetail.device.arbiter import KernelFinished, KernelReady, StartKernel, TaskBegan, TaskExpected, TaskGone
from dovetail.units import US

from .known import HIGH, LOW, known, starts

BURST_NS = 500 * US


def behind(budget: float = 0.0, credit_ns: float = 0.0) -> GapArbiter:
    """A task of five kernels, 300 µs apart, whose second one waited 100 µs for a filler.

    It does not wait for results. It is 350 µs, and the second kernel has just ended.
    """
    stats = {"high": known("high", [(50, 300)] * 5), "low0": known("low0", [(250, 0)] * 4)}
    stats["high"].early = 1.0
    arbiter = GapArbiter(stats, GapSettings(budget=budget, burst_ns=BURST_NS, overhead_ns=0), learn=False)
    arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
    arbiter.credit_ns[1] = credit_ns
    arbiter.step(KernelReady(0, HIGH, 0))
    arbiter.step(TaskBegan(1, LOW, 2, sequence="low0"))
    arbiter.step(KernelReady(1, LOW, 0))
    assert starts(arbiter.step(KernelFinished(50 * US, HIGH, 0))) == [StartKernel(LOW, 0, "fill")]
    arbiter.step(KernelReady(200 * US, HIGH, 1))
    arbiter.step(KernelFinished(300 * US, LOW, 0))
    assert arbiter.delayed_ns[1] == 100 * US
    arbiter.step(KernelFinished(350 * US, HIGH, 1))
    return arbiter


def run_next(arbiter: GapArbiter, kernel: int, ready_us: int) -> None:
    """The task's next kernel is ready at that time and runs for 50 µs."""
    arbiter.step(KernelReady(ready_us * US, HIGH, kernel))
    arbiter.step(KernelFinished((ready_us + 50) * US, HIGH, kernel))


def test_what_was_caught_up_with_is_given_back_once() -> None:
    arbiter = behind()
    assert arbiter.credit_ns[1] == -100 * US
    run_next(arbiter, 2, 350 + 240)
    # A gap of 240 instead of some 300 µs; means are kept to a bucket.
    back_ns = arbiter.credit_ns[1] + 100 * US
    assert back_ns == pytest.approx(60 * US, rel=0.1)
    assert arbiter.delayed_ns[1] == 100 * US - back_ns
    run_next(arbiter, 3, 640 + 100)
    assert (arbiter.credit_ns[1], arbiter.delayed_ns[1]) == (0, 0), "all of it, though 200 µs were caught up with"
    run_next(arbiter, 4, 790 + 10)
    assert (arbiter.credit_ns[1], arbiter.delayed_ns[1]) == (0, 0), "there was nothing left to give back"


def test_what_was_given_back_is_not_given_back_again_for_the_next_gap() -> None:
    arbiter = behind()
    run_next(arbiter, 2, 350 + 240)
    credit_ns = arbiter.credit_ns[1]
    run_next(arbiter, 3, 640 + 310)
    assert arbiter.credit_ns[1] == credit_ns < 0, "this gap was none of the shorter ones"


def test_gaps_that_were_not_shorter_give_nothing_back() -> None:
    arbiter = behind()
    run_next(arbiter, 2, 350 + 400)
    assert (arbiter.credit_ns[1], arbiter.delayed_ns[1]) == (-100 * US, 100 * US)
    run_next(arbiter, 3, 800 + 210)
    assert arbiter.credit_ns[1] == -100 * US, "100 µs longer and 90 shorter is not caught up"


def test_no_more_credit_is_kept_than_the_burst_whether_it_was_earned_or_given_back() -> None:
    arbiter = behind(budget=1.0, credit_ns=BURST_NS)
    arbiter.step(KernelReady(500 * US, LOW, 1))
    assert arbiter.credit_ns[1] == BURST_NS, "earned again in the meantime"
    arbiter.step(KernelFinished(750 * US, LOW, 1))
    run_next(arbiter, 2, 760)
    assert arbiter.credit_ns[1] == BURST_NS


def test_what_is_given_back_to_a_full_credit_is_lost() -> None:
    arbiter = behind()
    arbiter.credit_ns[1] = BURST_NS
    arbiter.step(KernelReady((350 + 100) * US, HIGH, 2))
    assert arbiter.delayed_ns[1] == 0, "it was given back"
    assert arbiter.credit_ns[1] == BURST_NS


def test_credit_is_earned_only_while_the_class_is_there_and_by_its_part_of_the_time() -> None:
    arbiter = GapArbiter({}, GapSettings(budget=0.1, burst_ns=BURST_NS))
    arbiter.step(TaskBegan(0, HIGH, 1))
    arbiter.step(TaskGone(1000 * US, HIGH))
    assert arbiter.credit_ns == {1: 100 * US}
    arbiter.step(TaskBegan(2000 * US, LOW, 2))
    arbiter.step(TaskGone(2500 * US, LOW))
    assert arbiter.credit_ns == {1: 100 * US, 2: 50 * US}
    assert arbiter.there_ns == {1: 1000 * US, 2: 500 * US}


@pytest.mark.parametrize(("expected_class", "held"), [(1, True), (2, False), (3, False)])
def test_only_a_higher_class_that_is_expected_holds_a_kernel_back(expected_class: int, held: bool) -> None:
    arbiter = GapArbiter({"low0": known("low0", [(400, 0)] * 4)}, GapSettings())
    arbiter.step(TaskExpected(0, HIGH, expected_class, 100 * US))
    arbiter.step(TaskBegan(0, LOW, 2, sequence="low0"))
    assert (starts(arbiter.step(KernelReady(0, LOW, 0))) == []) is held


@pytest.mark.parametrize("after", ["began", "gone"])
def test_a_hint_is_void_once_its_task_has_begun_or_is_gone(after: str) -> None:
    arbiter = GapArbiter({"low0": known("low0", [(400, 0)] * 4)}, GapSettings())
    arbiter.step(TaskExpected(0, HIGH, 1, 5000 * US))
    if after == "began":
        arbiter.step(TaskBegan(0, HIGH, 1))
    arbiter.step(TaskGone(1, HIGH))
    arbiter.step(TaskBegan(2, LOW, 2, sequence="low0"))
    assert starts(arbiter.step(KernelReady(2, LOW, 0))) == [StartKernel(LOW, 0, "turn")]
