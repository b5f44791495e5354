"""What `bench/gaps.py` makes of the kernels of a device: gaps, which fillers fit, and what was done."""

from __future__ import annotations

from bench.gaps import Gaps, Watcher

from dovetail.record.kernels import KernelRecord
from dovetail.units import US


def high(kernel: int, ready: int, begin: int, end: int) -> KernelRecord:
    return KernelRecord(1, "high", kernel, 1, begin * US, end * US, ready * US)


def low(kernel: int, begin: int, end: int) -> KernelRecord:
    return KernelRecord(2, "low", kernel, 2, begin * US, end * US, 0, why="fill")


def judged(*windows: list[KernelRecord]) -> Gaps:
    watcher = Watcher()
    watcher.note("alone", [low(0, 0, 400), low(1, 400, 1000)])  # what is known: 400 and 600 µs
    for records in windows:
        watcher.note("ours", records)
    return watcher.rules["ours"]


def test_a_filler_that_fits_and_was_begun_is_right() -> None:
    found = judged([high(0, 0, 0, 100), low(0, 150, 550), high(1, 700, 700, 800)])
    assert (found.gaps, found.right, found.missed, found.wrong) == (1, 1, 0, 0)
    assert (found.gap_ns, found.used_ns, found.waited_ns) == (600 * US, 400 * US, 0)
    assert found.first_ns == [50 * US] and found.errors == [0.0]


def test_a_gap_that_stays_empty_although_the_next_kernel_would_fit_is_missed() -> None:
    found = judged([high(0, 0, 0, 100), high(1, 700, 700, 800), low(0, 900, 1300)])
    assert (found.right, found.missed, found.wrong, found.fillers) == (0, 1, 0, 0)


def test_a_filler_that_does_not_fit_is_wrong_and_what_is_waited_for_it_counts() -> None:
    found = judged([high(0, 0, 0, 100), low(1, 110, 710), high(1, 400, 710, 800)])
    assert (found.right, found.missed, found.wrong) == (0, 0, 1)
    assert (found.used_ns, found.waited_ns) == (290 * US, 310 * US)


def test_kernels_of_different_tasks_have_no_gap_between_them() -> None:
    other = KernelRecord(3, "high", 0, 1, 700 * US, 800 * US, 700 * US)
    assert judged([high(0, 0, 0, 100), low(0, 150, 550), other]).gaps == 0


def test_lengths_are_known_from_windows_before_and_not_from_their_own() -> None:
    first = [high(0, 0, 0, 100), low(0, 150, 950), high(1, 1000, 1000, 1100)]
    found = judged(first)
    assert found.errors == [0.5], "400 µs were known, and it took 800"
    assert found.gap_errors == [] and judged(first, first).gap_errors == [0.0]
