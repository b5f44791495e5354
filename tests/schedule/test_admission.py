"""Who is let in: by the path and the wait, and by what was learned from those who had to wait."""

import pytest

from dovetail.schedule.admission import FORGET, LEAST, MATTERS, MOST, MOVE, RAISE, Admission
from dovetail.units import MS, SECOND

FLOW, HIGH = "flow", 1


def teach(admission: Admission, request: int, *, in_time: bool, at_ns: int = 0, end_ns: int = 1) -> None:
    """A request that had to wait for most of its time."""
    admission.let_in(request, FLOW, HIGH, 20 * MS, 80 * MS, 100 * MS, at_ns)
    admission.ended(request, in_time, end_ns)


def test_who_needs_no_more_than_is_left_is_let_in_and_who_needs_more_is_told_when_to_come_again():
    admission = Admission()
    assert admission.judge(FLOW, HIGH, 30 * MS, 70 * MS, 100 * MS, 0) is None
    refusal = admission.judge(FLOW, HIGH, 30 * MS, 75 * MS, 100 * MS, 0)
    assert refusal is not None and refusal.retry_after_ns == 35 * MS, "5 ms too late, and a path of 30 ms"
    assert "wait for about 75 ms" in refusal.reason and "late by 5 ms" in refusal.reason


def test_on_an_idle_cluster_nobody_is_refused_however_large_the_margin():
    admission = Admission()
    for request in range(100):
        teach(admission, request, in_time=False, at_ns=request, end_ns=request)
    assert admission.margin(FLOW, HIGH) > 1
    assert admission.judge(FLOW, HIGH, 99 * MS, 0, 100 * MS, 100) is None


def test_a_late_answer_raises_the_margin_once_for_all_that_were_let_in_before():
    admission = Admission()
    for request in range(3):
        admission.let_in(request, FLOW, HIGH, 20 * MS, 80 * MS, 100 * MS, 10)
    for request in range(3):
        admission.ended(request, False, 20 + request)
    assert admission.margin(FLOW, HIGH) == pytest.approx(RAISE)
    teach(admission, 9, in_time=False, at_ns=21, end_ns=30)
    assert admission.margin(FLOW, HIGH) == pytest.approx(RAISE**2), "this one was let in by the new margin"


@pytest.mark.parametrize("part", [0.95, 1.0, 1.05])
def test_who_is_in_time_moves_it_towards_the_wait_that_it_had(part):
    """Half of the time would be enough: that all are in time says nothing, and how long they waited says it all."""
    admission = Admission()
    for request in range(100):
        admission.let_in(request, FLOW, HIGH, 20 * MS, 80 * MS, 200 * MS, 0)
        admission.ended(request, True, round((20 + 80 * part) * MS))
    assert admission.margin(FLOW, HIGH) == pytest.approx(part, abs=1.5 * MOVE)


def test_answers_in_time_lower_it_slowly_and_it_has_bounds():
    admission = Admission()
    teach(admission, 1, in_time=True)
    assert admission.margin(FLOW, HIGH) == pytest.approx(1 - MOVE)
    for request in range(2, 1000):
        teach(admission, request, in_time=True)
    assert admission.margin(FLOW, HIGH) == LEAST
    for request in range(1000, 2000):
        teach(admission, request, in_time=False, at_ns=request, end_ns=request)
    assert admission.margin(FLOW, HIGH) == MOST


def test_who_did_not_have_to_wait_teaches_nothing_and_neither_does_who_gave_up():
    admission = Admission()
    admission.let_in(1, FLOW, HIGH, 20 * MS, 100 * MS // MATTERS, 100 * MS, 0)
    admission.ended(1, False, 1)
    admission.let_in(2, FLOW, HIGH, 20 * MS, 80 * MS, 100 * MS, 0)
    admission.forget(2)
    admission.ended(2, False, 1)
    assert admission.margin(FLOW, HIGH) == 1


def test_workflows_and_classes_learn_apart():
    admission = Admission()
    teach(admission, 1, in_time=False)
    assert admission.margin(FLOW, 2) == admission.margin("other", HIGH) == 1


def test_a_margin_that_nobody_tries_falls_with_time():
    admission = Admission()
    teach(admission, 1, in_time=False, end_ns=1)
    raised = admission.margin(FLOW, HIGH)
    admission.judge(FLOW, HIGH, 30 * MS, 70 * MS, 100 * MS, 1 + 2 * SECOND)
    assert admission.margin(FLOW, HIGH) == pytest.approx(1 + (raised - 1) * (1 - FORGET) ** 2)
