"""What a kernel log says of shares: windows, what was asked and got, and why one was missed."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.record.kernels import KernelRecord
from dovetail.record.shares import ShareReport, share_report
from dovetail.units import MS

CLIENTS = {"a": "a", "b": "b", "b2": "b"}


def kernel(
    name: str, begin_ms: float, end_ms: float, worker: str = "cpu-0", task: int = 1, number: int = 0
) -> KernelRecord:
    return KernelRecord(task, name, number, 1, round(begin_ms * MS), round(end_ms * MS), client=worker)


def report(records: list[KernelRecord], asked: dict[str, int], **more: object) -> ShareReport:
    return share_report(records, CLIENTS, asked, 100 * MS, **{"skip": 0, **more})  # type: ignore[arg-type]


def test_each_window_says_what_was_asked_and_got() -> None:
    records = [kernel("a", 0, 75), kernel("b", 75, 100), kernel("a", 100, 150), kernel("b2", 150, 200)]
    found = report(records, {"a": 75, "b": 25})
    assert [(w.window, w.client, w.asked_pct, w.got_pct, w.held) for w in found.windows] == [
        (0, "a", 75, 75.0, True),
        (0, "b", 25, 25.0, True),
        (1, "a", 75, 50.0, False),
        (1, "b", 25, 50.0, False),
    ]
    assert found.windows[3].why == (
        "it had 25.0 points more than it asked for, which others had less; its kernels take up to 50 ms"
    )
    assert found.windows[2].why == "b had 25.0 points more than it asked for, with kernels of up to 50 ms"
    assert found.got_pct == {"a": 62.5, "b": 37.5} and not found.held


def test_a_kernel_counts_in_the_windows_that_it_ran_in() -> None:
    found = report([kernel("a", 0, 150), kernel("b", 150, 200)], {"a": 50})
    assert [w.got_pct for w in found.windows if w.client == "a"] == [100.0, 50.0]


def test_what_is_lost_between_kernels_is_nobodys() -> None:
    records = [kernel("a", 0, 37.5), kernel("b", 50, 62.5), kernel("b", 99.999, 100)]
    found = report(records, {"a": 75, "b": 25})
    assert found.held and found.windows[0].of_busy_pct == pytest.approx(75, abs=0.1)
    assert found.windows[0].busy_pct == pytest.approx(50, abs=0.1)


def test_in_strict_mode_more_than_the_limit_is_a_miss_beyond_one_kernel() -> None:
    records = [kernel("a", n * 10, n * 10 + 4) for n in range(10)] + [kernel("b", 99, 100)]
    assert report(records, {"a": 37}, strict=True).held, "one kernel of 4 ms"
    missed = report(records, {"a": 35}, strict=True).windows[0]
    assert missed.why == "it had 5.0 points more than its limit"
    assert report(records, {"a": 35}).held, "conserving: whoever is there may have it"


def test_tolerance_is_in_points_of_the_device() -> None:
    records = [kernel("a", 0, 48), kernel("b", 48, 100)]
    assert not report(records, {"a": 50}, tolerance_pct=1.0).held and report(records, {"a": 50}).held


def test_reasons() -> None:
    both = [kernel("a", 0, 50), kernel("b", 50, 100)]
    assert report(both, {"a": 90, "b": 60}).windows[0].why == "quotas add up to 150 % of the device"
    nothing = report([kernel("b", 0, 100)], {"a": 20}).windows[0]
    assert nothing.why == "it ran nothing: b had 100.0 points more than it asked for, with kernels of up to 100 ms"
    still = report([kernel("a", 0, 1), kernel("b", 200, 201)], {"a": 50, "b": 50}).windows
    assert [w.why for w in still if w.window == 1 and w.client == "a"] == [
        "it ran nothing: the device stood still for 100.0 % of the window"
    ]


def test_who_had_no_batch_at_the_device_is_told_so() -> None:
    def came(record: KernelRecord, ready_ms: float) -> KernelRecord:
        return msgspec.structs.replace(record, ready_ns=round(ready_ms * MS))

    records = [came(kernel("a", 0, 30), 0), came(kernel("b", 30, 90), 0), came(kernel("a", 95, 100), 90)]
    window = report(records, {"a": 60, "b": 40}).windows[0]
    assert not window.held and window.why == "it had no batch at the device for 60 ms"
    waited = [came(r, 0) for r in records]
    window = report(waited, {"a": 60, "b": 40}).windows[0]
    assert window.why == "b had 23.2 points more than it asked for, with kernels of up to 60 ms"


def test_more_than_was_asked_for_is_a_miss_only_if_others_asked_for_all_the_rest() -> None:
    records = [kernel("a", 0, 40), kernel("b", 40, 100)]
    assert report(records, {"a": 30, "b": 60}).held
    assert not report(records, {"a": 37, "b": 63}, tolerance_pct=2).held


def test_the_first_windows_and_what_ran_after_the_load_are_left_out() -> None:
    records = [kernel("a", 0, 400), kernel("b", 399, 400)]
    assert {w.window for w in report(records, {"a": 50}, skip=1).windows} == {1, 2, 3}
    assert {w.window for w in report(records, {"a": 50}, last_ns=250 * MS).windows} == {0, 1}
    assert not report([], {"a": 50}).held, "nothing was judged"


def test_several_devices_are_one_whole() -> None:
    records = [kernel("a", 0, 100, "cpu-0"), kernel("b", 0, 100, "cpu-1")]
    found = report(records, {"a": 50, "b": 50}, devices=2)
    assert [(w.got_pct, w.busy_pct) for w in found.windows] == [(50.0, 100.0)] * 2


def test_kernels_beside_each_other_on_one_device_are_busy_once() -> None:
    found = report([kernel("a", 0, 100), kernel("b", 50, 100)], {"a": 100})
    assert found.windows[0].busy_pct == 100.0 and found.windows[1].got_pct == 50.0


def test_between_two_kernels_of_a_task_it_has_the_device_unless_another_begins_one() -> None:
    first, last = kernel("a", 0, 20), kernel("a", 40, 60, number=1)
    end = kernel("b", 99, 100, task=3)
    assert report([first, last, end], {"a": 50}).windows[0].got_pct == 60
    between = kernel("b", 25, 35, task=2)
    assert report([first, between, last, end], {"a": 50}).windows[0].got_pct == 40
    another = kernel("a", 40, 60, task=9)
    assert report([first, another, end], {"a": 50}).windows[0].got_pct == 40, "of another task"
    elsewhere = kernel("b", 25, 35, "cpu-1", task=2)
    assert report([first, elsewhere, last, end], {"a": 50}).windows[0].got_pct == 60
