"""Pairs on a gated device: what is read from the records, and that a pair runs through all modes."""

from __future__ import annotations

import pytest
from tests.lab.gate import kernels as k

from dovetail.lab.experiments.fikit_live import PAIRS, Overhead, live_figures, models
from dovetail.lab.gate.run import MODES, SEEN_NS, Parts, Side, judged, measure_pair
from dovetail.record.kernels import KernelRecord
from dovetail.units import MS


def high(begin_ns: int, ready_ns: int) -> KernelRecord:
    return KernelRecord(1, "high", 0, 1, begin_ns, begin_ns + MS, ready_ns)


def low(begin_ns: int, kernel: int, length_ns: int = MS) -> KernelRecord:
    return KernelRecord(2, "low", kernel, 2, begin_ns, begin_ns + length_ns, 0)


def test_a_window_tells_waits_and_what_the_low_task_had_room_for() -> None:
    records = [low(0, 0), low(MS, 1, 3 * MS), high(4 * MS, 2 * MS), low(5 * MS, 0), low(6 * MS, 1)]
    window = judged("ours", records, (7 * MS,), 0, 8 * MS, 0.01, 0)
    assert window.worst_wait_ns == 2 * MS
    assert window.longest_low_ns == 3 * MS
    assert window.overtaken == 0, "the kernel that it waited for ran already"
    assert window.low_ns == 4 * MS, "two inferences of two kernels in 8 ms"


def test_a_low_kernel_that_begins_well_after_a_high_launch_has_overtaken_it() -> None:
    launched_ns = MS
    in_time = low(launched_ns + SEEN_NS // 2, 0)
    too_late = low(launched_ns + 2 * SEEN_NS, 1)
    window = judged("ours", [in_time, too_late, high(5 * MS, launched_ns)], (1,), 0, 6 * MS, 0, 0)
    assert window.overtaken == 1


def test_a_window_tells_where_the_time_of_a_high_task_goes_and_what_is_left_of_the_device() -> None:
    first = KernelRecord(1, "high", 0, 1, 3 * MS, 4 * MS, 2 * MS, sent_ns=MS)
    second = KernelRecord(1, "high", 1, 1, 9 * MS, 11 * MS, 6 * MS, sent_ns=6 * MS)
    window = judged("ours", [first, low(7 * MS, 0, 2 * MS), second], (1,), 0, 20 * MS, 0, 0)
    assert window.parts == Parts(first_wait_ns=MS, waits_ns=3 * MS, kernels_ns=3 * MS, host_ns=2 * MS)
    assert (window.high_busy, window.low_busy) == (0.15, 0.1)
    assert window.longest_on_its_way_ns == MS
    assert window.low_ns == 20 * MS and window.low_bound_ns == pytest.approx(2 * MS / 0.85)


@pytest.mark.cpu
def test_a_pair_goes_through_all_modes_and_gives_every_figure() -> None:
    sides = [Side(name, k.SCRIPTED, k.SHAPES) for name in ("high", "low")]
    done: list[float] = []
    run = measure_pair(*sides, MS, rounds=2, seconds=0.01, watch=done.append)
    assert done == sorted(done) and done[-1] == 1
    assert (run.high_kernels, run.low_kernels) == (k.KERNELS, k.KERNELS)
    for windows in run.rounds:
        assert set(windows) == set(MODES)
        assert all(window.high_ns for window in windows.values())
    assert {r.name for r in run.records} == {"high", "low"}
    cost = Overhead("model", 1, 4, 1e6, (1.02, 1.04), (1.1, 1.2))
    figures = {figure.id: figure for figure in live_figures([run], [cost])}
    assert len(figures) == 12
    overhead = figures["live.overhead"].measured
    assert not isinstance(overhead, float) and overhead.mean == pytest.approx(3)


def test_the_pairs_are_of_models_that_there_are() -> None:
    names = {*models(), "small_resnet", "small_transformer"}
    assert all({pair.high, pair.low} <= names for pair in PAIRS)
    assert sum({pair.high, pair.low} <= set(models()) for pair in PAIRS) >= 4
