"""What is started before a kernel ends: of the same task ahead, and of others beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dovetail.device import ArbiterSettings, GapArbiter, GapSettings, PriorityArbiter
from dovetail.device.arbiter import KernelFinished, KernelReady, KernelRevoked, StartKernel, TaskBegan, TaskGone
from dovetail.predict.interference import Beside, Load
from dovetail.predict.kernel_pairs import KernelPairs
from dovetail.profile.kernels import KernelStats
from dovetail.units import MS, US

from .known import HIGH, LOW, OTHER, known, starts, stats_for


class Told(KernelPairs):
    """Notes what it is told; every pair costs a quarter."""

    def __init__(self) -> None:
        super().__init__("gpu")
        self.told: list[tuple[Load, int, int, list[Beside]]] = []

    def extra(self, victim: Load, others: Sequence[Load]) -> float:
        return 0.25

    def observe(self, victim: Load, alone_ns: int, took_ns: int, beside: Sequence[Beside]) -> None:
        self.told.append((victim, alone_ns, took_ns, list(beside)))


class TestLaunchingAhead:
    def task(self, arbiter: PriorityArbiter, priority: int) -> list[object]:
        arbiter.step(TaskBegan(0, LOW, priority, sequence="low0"))
        return starts([a for kernel in range(4) for a in arbiter.step(KernelReady(0, LOW, kernel))])

    def test_the_first_class_launches_ahead_whatever_its_kernels_take(self) -> None:
        arbiter = PriorityArbiter(stats_for(0, 400), ArbiterSettings(ahead=2))
        assert self.task(arbiter, 1) == [StartKernel(LOW, 0), StartKernel(LOW, 1)]
        assert starts(arbiter.step(KernelFinished(400 * US, LOW, 0))) == [StartKernel(LOW, 2)]

    def test_lower_classes_launch_only_short_kernels_ahead_for_others_would_find_them_in_the_queue(self) -> None:
        settings = ArbiterSettings(ahead=3, ahead_ns=50 * US)
        assert self.task(PriorityArbiter(stats_for(0, 400), settings), 2) == [StartKernel(LOW, 0)]
        assert self.task(PriorityArbiter(stats_for(0, 20), settings), 2) == [StartKernel(LOW, 0), StartKernel(LOW, 1)]
        assert self.task(PriorityArbiter({}, settings), 2) == [StartKernel(LOW, 0)], "unknown ones are not short"

    def test_on_a_device_that_goes_by_class_they_may_do_so_with_any_kernel(self) -> None:
        settings = ArbiterSettings(ahead=2, by_class=True)
        assert self.task(PriorityArbiter(stats_for(0, 400), settings), 2) == [
            StartKernel(LOW, 0),
            StartKernel(LOW, 1),
        ]

    def test_there_fillers_that_surely_fit_together_are_started_together(self) -> None:
        for gap_us, expected in ((900, [0, 1]), (150, [0])):
            arbiter = GapArbiter(stats_for(gap_us, 100), GapSettings(ahead=2, by_class=True))
            arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
            arbiter.step(KernelReady(0, HIGH, 0))
            arbiter.step(TaskBegan(1, LOW, 2, sequence="low0"))
            before = [a for kernel in range(3) for a in arbiter.step(KernelReady(1, LOW, kernel))]
            assert starts(before) == [StartKernel(LOW, 0, "fill")], "it will begin with the gap"
            found = starts(arbiter.step(KernelFinished(50 * US, HIGH, 0)))
            assert found == [StartKernel(LOW, kernel, "fill") for kernel in expected[1:]]

    @pytest.mark.parametrize(("gap_us", "low_us", "early"), [(200, 100, True), (80, 100, False)])
    def test_there_what_fits_into_the_next_gap_is_launched_before_it_begins(
        self, gap_us: int, low_us: int, early: bool
    ) -> None:
        def launched(settings: GapSettings, *, ahead: float = 0.0) -> list[object]:
            stats = stats_for(gap_us, low_us)
            stats["high"].early = ahead
            arbiter = GapArbiter(stats, settings)
            arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
            arbiter.step(KernelReady(0, HIGH, 0))
            arbiter.step(TaskBegan(1, LOW, 2, sequence="low0"))
            return starts(arbiter.step(KernelReady(1, LOW, 0)))

        expected = [StartKernel(LOW, 0, "fill")] if early else []
        assert launched(GapSettings(by_class=True)) == expected
        assert launched(GapSettings()) == [], "the device would not know whom to take first"
        assert launched(GapSettings(by_class=True), ahead=1.0) == [], "there need not be a gap"


class TestBeside:
    """A high kernel of 50 µs and 60 % runs, another follows 100 µs later; a low kernel asks for 40 %."""

    def beside(self, next_pct: int, low_us: int, *, cost: float = 0.0) -> list[object]:
        stats = stats_for(100, low_us)
        stats["high"].shares[1] = next_pct
        arbiter = GapArbiter(stats, GapSettings(budget=0.0, beside=cost))
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
        arbiter.step(KernelReady(0, HIGH, 0, 60))
        arbiter.step(TaskBegan(0, LOW, 2, sequence="low0"))
        return starts(arbiter.step(KernelReady(10 * US, LOW, 0, 40)))

    def test_what_ends_before_the_next_that_does_not_fit_may_run(self) -> None:
        assert self.beside(100, 120) == [StartKernel(LOW, 0, "beside")]
        assert self.beside(100, 160) == []
        assert self.beside(60, 160) == [StartKernel(LOW, 0, "beside")], "the next fits beside it, too"

    def test_being_slowed_down_is_delay_too_and_needs_credit(self) -> None:
        assert self.beside(60, 160, cost=0.09) == []

    @pytest.mark.parametrize(("slow", "expected"), [(1.0, [StartKernel(LOW, 0, "beside")]), (1.5, [])])
    def test_what_was_learned_of_the_pair_decides_and_not_a_constant(
        self, slow: float, expected: list[object]
    ) -> None:
        """A constant of 9 % would fill neither without credit; one of nothing would fill both."""
        pairs = KernelPairs("gpu")
        for _ in range(200):
            pairs.observe(Load("high", 1, 100), MS, round(slow * MS), [Beside(Load("low0", 1, 100))])
        stats = stats_for(100, 160)
        stats["high"].shares[1] = 60
        arbiter = GapArbiter(stats, GapSettings(budget=0.0), pairs=pairs)
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
        arbiter.credit_ns[1] = 20.0 * US
        arbiter.step(KernelReady(0, HIGH, 0, 60))
        arbiter.step(TaskBegan(0, LOW, 2, sequence="low0"))
        assert starts(arbiter.step(KernelReady(10 * US, LOW, 0, 40))) == expected

    def test_a_kernel_beside_another_teaches_what_that_costs(self) -> None:
        """The high kernel takes 50 µs alone. Beside the low one, from 10 µs on, it takes 70."""
        pairs = Told()
        arbiter = GapArbiter(stats_for(100, 300), GapSettings(budget=1.0), pairs=pairs)
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high", share_pct=60))
        arbiter.step(KernelReady(0, HIGH, 0, 60))
        arbiter.step(TaskBegan(0, LOW, 2, sequence="low0", share_pct=40))
        arbiter.credit_ns[1] = 500.0 * US
        assert starts(arbiter.step(KernelReady(10 * US, LOW, 0, 40))) == [StartKernel(LOW, 0, "beside")]
        arbiter.step(KernelFinished(70 * US, HIGH, 0))
        high, low = Load("high", 1, 60), Load("low0", 1, 40)
        assert pairs.told == [(high, 50 * US, 70 * US, [Beside(low, 10 * US)])]
        charged_ns = round(70 * US * 0.25 / 1.25)
        assert arbiter.delayed_ns[1] == charged_ns, "as much as is said of the pair"
        arbiter.step(KernelFinished(330 * US, LOW, 0))
        assert pairs.told[1:] == [(low, 300 * US, 320 * US, [Beside(high, -10 * US, 60 * US)])]

    def test_a_kernel_that_was_taken_back_was_beside_nobody(self) -> None:
        pairs = Told()
        arbiter = GapArbiter(stats_for(100, 300), GapSettings(budget=0.0), pairs=pairs)
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high", share_pct=60))
        arbiter.step(KernelReady(0, HIGH, 0, 60))
        arbiter.step(TaskBegan(0, LOW, 2, sequence="low0", share_pct=40))
        arbiter.credit_ns[1] = 500.0 * US
        arbiter.step(KernelReady(10 * US, LOW, 0, 40))
        assert starts(arbiter.step(KernelRevoked(12 * US, LOW, 0))), "there is room for it"
        arbiter.step(TaskGone(12 * US, LOW))
        arbiter.step(KernelFinished(50 * US, HIGH, 0))
        assert pairs.told == [(Load("high", 1, 60), 50 * US, 50 * US, [])]

    def test_who_was_beside_whom_is_forgotten_with_the_last_who_was_there(self) -> None:
        """Kernels overlap in a chain without an end; what is kept does not grow with it."""
        stats = {"high": known("high", [(50, 0)] * 400), "low0": known("low0", [(50, 0)] * 400)}
        arbiter = GapArbiter(stats, GapSettings(budget=1.0), pairs=KernelPairs("gpu"))
        for task, name, at_us in ((HIGH, "high", 0), (OTHER, "low0", 25)):
            arbiter.step(TaskBegan(at_us * US, task, 1, sequence=name, share_pct=50))
            arbiter.step(KernelReady(at_us * US, task, 0, 50))
        for kernel in range(300):
            for task, at_us in ((HIGH, 0), (OTHER, 25)):
                arbiter.step(KernelFinished((50 * kernel + 50 + at_us) * US, task, kernel, next_ready=True))
        assert len(arbiter._crowded) == 2
        chain: list[object] = list(arbiter._crowded.values())
        met = 0
        while chain:
            met += 1
            chain += [other for other in chain.pop().others if other.end_ns >= 0]  # type: ignore[attr-defined]
        assert met < 10
        assert arbiter.pairs is not None and arbiter.pairs.seen > 500

    def test_whoever_waits_for_a_neighbour_is_charged_for(self) -> None:
        arbiter = GapArbiter(stats_for(100, 300), GapSettings(budget=1.0))
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
        arbiter.step(KernelReady(0, HIGH, 0, 60))
        arbiter.step(TaskBegan(0, LOW, 2, sequence="low0"))
        arbiter.credit_ns[1] = 500.0 * US
        assert starts(arbiter.step(KernelReady(10 * US, LOW, 0, 40))) == [StartKernel(LOW, 0, "beside")]
        arbiter.step(KernelReady(20 * US, HIGH, 1, 100))
        assert starts(arbiter.step(KernelFinished(55 * US, HIGH, 0))) == [], "there is no room"
        assert starts(arbiter.step(KernelFinished(310 * US, LOW, 0))) == [StartKernel(HIGH, 1, "turn")]
        slower_ns = round(55 * US * 0.09 / 1.09)
        assert arbiter.delayed_ns[1] == (310 - 55) * US + slower_ns, "for waiting, and for the neighbour before"

    def test_before_a_kernel_of_which_no_gap_is_known_a_neighbour_is_paid_for_in_full(self) -> None:
        for gaps, expected in ((20, 1), (0, 0)):
            stats = {"high": KernelStats.empty("high", ("a", "b", "c")), "low0": known("low0", [(300, 0)] * 4)}
            for _ in range(20):
                for position in range(3):
                    stats["high"].observe(position, 50 * US)
            for _ in range(gaps):
                for position in range(3):
                    stats["high"].observe_gap(position, 400 * US)
            stats["high"].shares.update({1: 10, 2: 10})
            arbiter = GapArbiter(stats, GapSettings(budget=0.0), learn=False)
            arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
            arbiter.credit_ns[1] = 50.0 * US  # a tenth of the most: enough for little delay
            arbiter.step(KernelReady(0, HIGH, 0, 60))
            arbiter.step(TaskBegan(0, LOW, 2, sequence="low0"))
            assert arbiter.step(KernelReady(10 * US, LOW, 0, 50)) == [], "there is no room"
            found = starts(arbiter.step(KernelFinished(50 * US, HIGH, 0)))
            assert len(found) == expected


def test_a_gap_is_one_only_if_all_of_the_highest_class_leave_it() -> None:
    arbiter = GapArbiter(stats_for(900, 100), GapSettings(budget=0.0, overhead_ns=0), learn=False)
    for task in (HIGH, OTHER):
        arbiter.step(TaskBegan(0, task, 1, sequence="high"))
    arbiter.step(KernelReady(0, HIGH, 0, 60))
    arbiter.step(KernelReady(0, OTHER, 0, 40))
    arbiter.step(KernelFinished(10 * US, OTHER, 0))
    arbiter.step(TaskBegan(11 * US, LOW, 2, sequence="low0"))
    arbiter.credit_ns[1] = 500.0 * US
    assert starts(arbiter.step(KernelReady(11 * US, LOW, 0, 40))) == [StartKernel(LOW, 0, "beside")]
