"""Admission by memory: no more requests than their results have room."""

from __future__ import annotations

import pytest

from dovetail.errors import Overloaded
from dovetail.live.front.memory_admission import UNKNOWN_OPEN, MemoryAdmission
from dovetail.state import WorkerSpec

CPU = WorkerSpec("cpu-0", "cpu", ("onnx",))
HOST = WorkerSpec("host-0", "host", ("python",))


def entered(admission: MemoryAdmission, workflow: int, priority: int = 1) -> int:
    """How many requests are let in before one is refused."""
    count = 0
    with pytest.raises(Overloaded):
        while count < 10_000:
            admission.enter(workflow, priority)
            count += 1
    return count


def test_what_is_not_known_is_let_in_up_to_a_bound():
    assert entered(MemoryAdmission(1, [CPU], 1000), 0) == UNKNOWN_OPEN


def test_requests_are_let_in_as_long_as_their_results_have_room():
    admission = MemoryAdmission(1, [CPU, HOST], 1000)
    admission.enter(0, 1)
    admission.leave(0, {"cpu": 10, "host": 100})
    assert entered(admission, 0) == 7  # 750 bytes of the host's arena are to be filled
    admission.leave(0, {})
    admission.enter(0, 1)


def test_lower_classes_leave_a_part_to_the_highest():
    admission = MemoryAdmission(1, [HOST], 1000)
    admission.enter(0, 1)
    admission.leave(0, {"host": 100})
    assert entered(admission, 0, priority=2) == 6
    assert entered(admission, 0, priority=1) == 1


def test_two_workers_of_a_kind_have_room_for_twice_as_many():
    admission = MemoryAdmission(1, [HOST, HOST], 1000)
    admission.enter(0, 1)
    admission.leave(0, {"host": 100})
    assert entered(admission, 0) == 15


def test_workflows_share_the_room():
    admission = MemoryAdmission(2, [HOST], 1000)
    for workflow in range(2):
        admission.enter(workflow, 1)
        admission.leave(workflow, {"host": 300})
    admission.enter(0, 1)
    admission.enter(1, 1)
    assert entered(admission, 0) == 0
    assert entered(admission, 1) == 0


def test_a_lone_request_may_always_try():
    admission = MemoryAdmission(1, [HOST], 1000)
    admission.enter(0, 1)
    admission.leave(0, {"host": 5000})
    admission.enter(0, 1)


def test_the_largest_counts_and_fades():
    admission = MemoryAdmission(1, [HOST], 1 << 20)
    admission.enter(0, 1)
    admission.leave(0, {"host": 1 << 19})
    assert entered(admission, 0) == 1
    admission.leave(0, {})
    for _ in range(5000):
        admission.enter(0, 1)
        admission.leave(0, {"host": 1000})
    assert entered(admission, 0) > 100
