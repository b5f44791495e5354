"""Kernels that may be run in parts: how much of them is started, and what becomes of the rest."""

from __future__ import annotations

import pytest

from dovetail.device import GapArbiter, GapSettings
from dovetail.device.arbiter import KernelFinished, KernelReady, StartKernel, TaskBegan, TaskGone
from dovetail.units import US

from .known import HIGH, LOW, starts, stats_for


class TestParts:
    """A high kernel of 50 µs, and a low one of 400 µs that may be run in 20 parts."""

    def gap(self, gap_us: int, *, parts: int = 20, credit_ns: float = 20 * US) -> tuple[GapArbiter, list[object]]:
        arbiter = GapArbiter(stats_for(gap_us, 400), GapSettings(part_extra=0.0, part_ns=2 * US))
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
        arbiter.step(KernelReady(0, HIGH, 0))
        arbiter.step(TaskBegan(1, LOW, 2, sequence="low0"))
        arbiter.step(KernelReady(1, LOW, 0, parts=parts))
        arbiter.step(KernelReady(1, LOW, 1, parts=parts))
        arbiter.credit_ns[1] = credit_ns
        return arbiter, starts(arbiter.step(KernelFinished(50 * US, HIGH, 0)))

    def test_as_much_as_fits_into_the_gap_is_started(self) -> None:
        (start,) = self.gap(115)[1]
        assert start == StartKernel(LOW, 0, "fill", 5), "5 x 20 + 2 + 2 µs"

    def test_whole_ones_do_not_fit_and_those_that_do_are_not_cut(self) -> None:
        assert self.gap(115, parts=1)[1] == []
        assert self.gap(900)[1] == [StartKernel(LOW, 0, "fill")]

    def test_in_debt_nothing_is_started(self) -> None:
        assert self.gap(115, credit_ns=-10.0 * US)[1] == []

    def test_the_rest_comes_before_the_next_kernel_and_after_whoever_is_higher(self) -> None:
        arbiter, _ = self.gap(115)
        arbiter.step(KernelReady(150 * US, HIGH, 1))
        assert starts(arbiter.step(KernelFinished(152 * US, LOW, 0))) == [StartKernel(HIGH, 1)]
        arbiter.validate()
        assert starts(arbiter.step(TaskGone(200 * US, HIGH))) == [StartKernel(LOW, 0)], "all that is left"
        assert starts(arbiter.step(KernelFinished(502 * US, LOW, 0))) == [StartKernel(LOW, 1)]

    def test_one_part_is_at_work_at_a_time(self) -> None:
        arbiter, _ = self.gap(115)
        assert starts(arbiter.step(TaskGone(60 * US, HIGH))) == []
        assert starts(arbiter.step(KernelFinished(152 * US, LOW, 0))) == [StartKernel(LOW, 0)]

    def test_what_parts_took_is_not_learned_as_what_the_kernel_takes(self) -> None:
        arbiter, _ = self.gap(115)
        count = arbiter.stats["low0"].durations[0].count
        arbiter.step(KernelFinished(152 * US, LOW, 0))
        arbiter.step(TaskGone(200 * US, HIGH))
        arbiter.step(KernelFinished(502 * US, LOW, 0))
        assert arbiter.stats["low0"].durations[0].count == count

    def test_no_parts_are_refused(self) -> None:
        with pytest.raises(ValueError, match="in 0 parts"):
            GapArbiter().step(KernelReady(0, LOW, 0, parts=0))
