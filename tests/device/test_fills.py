"""Who may fill a gap: FIKIT's rule and ours, step by step."""

from __future__ import annotations

import pytest

from dovetail.device import ArbiterSettings, GapArbiter, GapSettings, PriorityArbiter
from dovetail.device.arbiter import (
    AlarmRang,
    KernelFinished,
    KernelReady,
    KernelRevoked,
    KernelRunning,
    SetAlarm,
    StartKernel,
    TaskBegan,
    TaskExpected,
    TaskGone,
)
from dovetail.lab.kernels.fikit import FikitArbiter, FikitSettings
from dovetail.profile.kernels import KernelStats
from dovetail.units import US

from .known import HIGH, LOW, OTHER, known, starts, stats_for


def in_gap(arbiter: PriorityArbiter, lows: int = 1, *, low_class: int = 2) -> list[object]:
    """A high task runs its first kernel, low ones wait; what is done when that kernel ends at 50 µs."""
    arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
    arbiter.step(KernelReady(0, HIGH, 0))
    for number in range(lows):
        arbiter.step(TaskBegan(1, LOW + number, low_class, sequence=f"low{number}"))
        assert arbiter.step(KernelReady(1, LOW + number, 0)) == []
    return list(arbiter.step(KernelFinished(50 * US, HIGH, 0)))


class TestFikit:
    @pytest.mark.parametrize("lows", [(100, 250, 400), (250, 100, 400), (400, 250, 100)])
    def test_the_longest_that_fits_is_chosen(self, lows: tuple[int, ...]) -> None:
        arbiter = FikitArbiter(stats_for(300, *lows))
        assert starts(in_gap(arbiter, 3)) == [StartKernel(LOW + lows.index(250), 0, "fill")]

    def test_a_better_class_goes_before_a_longer_kernel(self) -> None:
        arbiter = FikitArbiter(stats_for(300, 100, 250))
        arbiter.step(TaskBegan(0, 9, 3, sequence="low1"))
        arbiter.step(KernelReady(0, 9, 0))
        arbiter.step(KernelFinished(1, 9, 0))  # it had its turn while nobody else was there
        arbiter.step(KernelReady(2, 9, 1))
        arbiter.step(KernelFinished(3, 9, 1))
        arbiter.step(TaskBegan(4, HIGH, 1, sequence="high"))
        arbiter.step(KernelReady(4, HIGH, 0))
        arbiter.step(KernelReady(4, 9, 2))
        arbiter.step(TaskBegan(4, LOW, 2, sequence="low0"))
        arbiter.step(KernelReady(4, LOW, 0))
        assert starts(arbiter.step(KernelFinished(50 * US, HIGH, 0))) == [StartKernel(LOW, 0, "fill")]

    def test_what_does_not_fit_waits_and_the_hold_is_declared(self) -> None:
        arbiter = FikitArbiter(stats_for(300, 400))
        assert starts(in_gap(arbiter)) == []
        assert "gap" in arbiter.hold
        arbiter.validate()

    def test_what_has_passed_of_the_gap_is_gone(self) -> None:
        arbiter = FikitArbiter(stats_for(300, 200))
        assert starts(in_gap(arbiter)) == [StartKernel(LOW, 0, "fill")]
        arbiter.step(KernelReady(100 * US, LOW, 1))
        assert starts(arbiter.step(KernelFinished(250 * US, LOW, 0))) == [], "100 µs are left, 200 are needed"

    def test_small_gaps_are_left_alone(self) -> None:
        stats = stats_for(100, 10)
        assert starts(in_gap(FikitArbiter(stats))) == []
        assert starts(in_gap(FikitArbiter(stats, FikitSettings(small_gap_ns=50 * US)))) != []

    def test_kernels_of_one_name_are_one_to_it(self) -> None:
        stats = stats_for(300, 100)
        stats["high"] = known("high", [(50, 10), (50, 800)], names=["conv", "conv"])
        assert starts(in_gap(FikitArbiter(stats))) == [StartKernel(LOW, 0, "fill")], "mean of 10 and 800"
        assert starts(in_gap(GapArbiter(stats))) == [], "ours knows that this one is 10"

    def test_early_stop_no_filler_starts_once_the_next_kernel_is_ready(self) -> None:
        arbiter = FikitArbiter(stats_for(900, 100))
        assert starts(in_gap(arbiter)) == [StartKernel(LOW, 0, "fill")]
        arbiter.step(KernelReady(60 * US, LOW, 1))
        assert arbiter.step(KernelReady(70 * US, HIGH, 1)) == []
        assert arbiter.step(KernelFinished(150 * US, LOW, 0)) == [StartKernel(HIGH, 1, "turn")]


def test_a_kernel_took_as_long_as_it_was_really_on_the_device() -> None:
    for told, took_us in (({}, 100), ({"begin_ns": 30 * US, "end_ns": 80 * US}, 50)):
        stats = {"high": KernelStats.empty("high", ("a", "b"))}
        arbiter = GapArbiter(stats)
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
        arbiter.step(KernelReady(0, HIGH, 0))
        arbiter.step(KernelFinished(100 * US, HIGH, 0, **told))
        assert stats["high"].durations[0].mean_ns == took_us * US


def test_a_kernel_that_ran_before_anybody_asked_is_learned_in_full() -> None:
    stats = {"high": KernelStats.empty("high", ("a", "b"))}
    arbiter = GapArbiter(stats)
    arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
    arbiter.step(KernelRunning(40 * US, HIGH, 0, 100, 10 * US))
    arbiter.step(KernelFinished(100 * US, HIGH, 0))
    assert (stats["high"].durations[0].count, stats["high"].durations[0].mean_ns) == (1, 90 * US)


@pytest.mark.parametrize("make", [FikitArbiter, GapArbiter])
class TestBoth:
    def test_an_unknown_kernel_is_never_filler(self, make: type[PriorityArbiter]) -> None:
        stats = stats_for(900, 100)
        stats["low0"] = KernelStats.empty("low0", stats["low0"].kernels)
        for _ in range(4):  # one observation short
            stats["low0"].observe(0, 100 * US)
        assert starts(in_gap(make(stats))) == []

    def test_a_new_task_of_a_higher_class_takes_over_at_the_next_kernel(self, make: type[PriorityArbiter]) -> None:
        arbiter = make(stats_for(300, 100))
        arbiter.step(TaskBegan(0, LOW, 2, sequence="low0"))
        assert starts(arbiter.step(KernelReady(0, LOW, 0))) == [StartKernel(LOW, 0, "turn")]
        arbiter.step(KernelReady(1, LOW, 1))
        arbiter.step(TaskBegan(2, HIGH, 1, sequence="high"))
        assert starts(arbiter.step(KernelReady(3, HIGH, 0))) == [], "what runs, runs"
        assert starts(arbiter.step(KernelFinished(100 * US, LOW, 0))) == [StartKernel(HIGH, 0, "turn")]

    def test_after_its_last_kernel_a_task_holds_nobody_back(self, make: type[PriorityArbiter]) -> None:
        stats = stats_for(0, 400)
        stats["high"] = known("high", [(50, 0)])
        assert starts(in_gap(make(stats))) == [StartKernel(LOW, 0, "turn")]

    def test_a_holder_that_is_killed_holds_nobody_back(self, make: type[PriorityArbiter]) -> None:
        arbiter = make(stats_for(300, 400))
        in_gap(arbiter)
        assert starts(arbiter.step(TaskGone(60 * US, HIGH))) == [StartKernel(LOW, 0, "turn")]

    def test_beside_a_holder_that_leaves_room_no_gap_is_needed(self, make: type[PriorityArbiter]) -> None:
        arbiter = make(stats_for(0, 400))
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high", share_pct=60))
        arbiter.step(KernelReady(0, HIGH, 0, 60))
        arbiter.step(TaskBegan(1, LOW, 2, sequence="low0", share_pct=40))
        assert starts(arbiter.step(KernelReady(1, LOW, 0, 40))) == [StartKernel(LOW, 0, "beside")]
        arbiter.step(TaskBegan(2, OTHER, 2, sequence="low0", share_pct=10))
        assert starts(arbiter.step(KernelReady(2, OTHER, 0, 10))) == [], "there is no share left"

    def test_with_ageing_the_bound_holds_beside_a_task_that_leaves_no_gap(self, make: type[PriorityArbiter]) -> None:
        settings = FikitSettings if make is FikitArbiter else GapSettings
        arbiter = make(stats_for(0, 400), settings(ageing_ns=1000 * US))
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
        arbiter.step(TaskBegan(0, LOW, 2, sequence="low0"))
        for kernel in range(3):
            arbiter.step(KernelReady(0, HIGH, kernel))
        assert SetAlarm(1000 * US) in arbiter.step(KernelReady(0, LOW, 0))
        assert starts(arbiter.step(KernelFinished(600 * US, HIGH, 0))) == [StartKernel(HIGH, 1, "turn")]
        assert starts(arbiter.step(AlarmRang(1000 * US))) == []
        assert starts(arbiter.step(KernelFinished(1200 * US, HIGH, 1))) == [StartKernel(LOW, 0, "aged")]
        arbiter.step(KernelReady(1210 * US, LOW, 1))
        assert starts(arbiter.step(KernelFinished(1600 * US, LOW, 0))) == [StartKernel(HIGH, 2, "turn")]


def test_an_aged_start_that_was_taken_back_was_none() -> None:
    arbiter = PriorityArbiter({}, ArbiterSettings(ageing_ns=1000 * US))
    arbiter.step(TaskBegan(0, HIGH, 1))
    arbiter.step(TaskBegan(0, LOW, 2))
    for kernel in range(3):
        arbiter.step(KernelReady(0, HIGH, kernel))
    arbiter.step(KernelReady(0, LOW, 0))
    assert starts(arbiter.step(KernelFinished(1200 * US, HIGH, 0))) == [StartKernel(LOW, 0, "aged")]
    found = starts(arbiter.step(KernelRevoked(1210 * US, LOW, 0)))
    assert found == [StartKernel(LOW, 0, "aged")], "it has waited as long as before, and no other has aged since"


class TestOurs:
    def settings(self, **knobs: object) -> GapSettings:
        return GapSettings(overhead_ns=0, **knobs)  # type: ignore[arg-type]

    def test_what_surely_fits_is_free(self) -> None:
        arbiter = GapArbiter(stats_for(300, 250), self.settings(budget=0.0))
        assert starts(in_gap(arbiter)) == [StartKernel(LOW, 0, "fill")]

    def test_what_does_not_fit_comes_through_when_the_credit_is_there(self) -> None:
        arbiter = GapArbiter(stats_for(300, 400), self.settings(budget=0.0, burst_ns=10 * US))
        assert starts(in_gap(arbiter)) == []
        arbiter.credit_ns[1] = 10 * US
        assert starts(arbiter.step(AlarmRang(51 * US))) == [StartKernel(LOW, 0, "fill")]

    def test_the_delay_that_was_caused_is_charged_and_an_overdrawn_credit_fills_nothing(self) -> None:
        arbiter = GapArbiter(stats_for(300, 250), self.settings(budget=0.0))
        in_gap(arbiter)
        arbiter.step(KernelReady(100 * US, HIGH, 1))  # 200 µs before its time
        assert starts(arbiter.step(KernelFinished(300 * US, LOW, 0))) == [StartKernel(HIGH, 1, "turn")]
        assert arbiter.credit_ns[1] == -200 * US
        assert arbiter.delayed_ns[1] == 200 * US
        arbiter.step(KernelReady(310 * US, LOW, 1))
        assert starts(arbiter.step(KernelFinished(350 * US, HIGH, 1))) == [], "though it would fit"

    def test_delay_that_a_launcher_catches_up_with_is_given_back(self) -> None:
        stats = stats_for(300, 250)
        stats["high"].early = 0.5  # it does not wait for results
        arbiter = GapArbiter(stats, self.settings(budget=0.0))
        in_gap(arbiter)
        arbiter.step(KernelReady(200 * US, HIGH, 1))  # 150 instead of 300 µs after the kernel before
        arbiter.step(KernelFinished(300 * US, LOW, 0))
        assert arbiter.delayed_ns[1] == 100 * US
        arbiter.step(KernelFinished(350 * US, HIGH, 1))
        arbiter.step(KernelReady(550 * US, HIGH, 2))  # 200 instead of 300 µs: caught up
        assert arbiter.delayed_ns[1] == 0
        assert arbiter.credit_ns[1] == 0

    def test_a_gap_that_lasts_longer_than_ever_is_filled_again_when_the_credit_is_there(self) -> None:
        arbiter = GapArbiter(stats_for(100, 400), self.settings(budget=0.5, burst_ns=100 * US))
        actions = in_gap(arbiter)
        assert starts(actions) == []
        while not starts(actions):
            (alarm,) = [a for a in actions if isinstance(a, SetAlarm)]
            actions = list(arbiter.step(AlarmRang(alarm.at_ns)))
        assert alarm.at_ns < 400 * US

    def test_nothing_long_starts_before_a_task_that_is_expected(self) -> None:
        arbiter = GapArbiter(stats_for(300, 400), self.settings(grace_ns=50 * US))
        arbiter.step(TaskExpected(0, HIGH, 1, 100 * US))
        arbiter.step(TaskBegan(0, LOW, 2, sequence="low0"))
        held = arbiter.step(KernelReady(0, LOW, 0))
        assert starts(held) == []
        assert "expected" in arbiter.hold
        assert [a for a in held if isinstance(a, SetAlarm)] == [SetAlarm(150 * US + 1)]
        assert starts(arbiter.step(AlarmRang(150 * US + 1))) == [StartKernel(LOW, 0, "turn")], "it did not come"

    def test_what_is_done_before_the_expected_task_comes_may_start(self) -> None:
        arbiter = GapArbiter(stats_for(300, 90), self.settings())
        arbiter.step(TaskExpected(0, HIGH, 1, 100 * US))
        arbiter.step(TaskBegan(0, LOW, 2, sequence="low0"))
        assert starts(arbiter.step(KernelReady(0, LOW, 0))) == [StartKernel(LOW, 0, "turn")]

    def test_of_one_class_the_earliest_deadline_leads_and_the_others_fill(self) -> None:
        stats = {**stats_for(300, 250, 400)}
        arbiter = GapArbiter(stats, self.settings(order="slack", budget=0.0))
        arbiter.step(TaskBegan(0, LOW, 1, sequence="low0", deadline_ns=9000 * US))
        arbiter.step(TaskBegan(0, OTHER, 1, sequence="low1", deadline_ns=8000 * US))
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high", deadline_ns=1000 * US))
        assert starts(arbiter.step(KernelReady(0, HIGH, 0))) == [StartKernel(HIGH, 0, "turn")]
        arbiter.step(KernelReady(1, LOW, 0))
        arbiter.step(KernelReady(1, OTHER, 0))
        assert starts(arbiter.step(KernelFinished(50 * US, HIGH, 0))) == [StartKernel(LOW, 0, "fill")]


class Quota:
    """An account that lets a client use so much time, and more after a while."""

    def __init__(self, client: str, budget_ns: int, refill_ns: int) -> None:
        self.active = True
        self.client, self.left_ns, self.refill_ns = client, budget_ns, refill_ns

    def may_start(self, client: str, share_pct: int, now_ns: int) -> bool:
        return client != self.client or self.left_ns > 0 or now_ns >= self.refill_ns

    def next_ns(self, client: str, now_ns: int) -> int | None:
        return self.refill_ns

    def started(self, client: str, share_pct: int, now_ns: int) -> None:
        pass

    def entered(self, client: str, now_ns: int) -> None:
        pass

    def left(self, client: str, now_ns: int) -> None:
        pass

    def rank(self, client: str, now_ns: int) -> tuple[bool, int]:
        return False, 0

    def finished(self, client: str, share_pct: int, begin_ns: int, now_ns: int) -> None:
        if client == self.client:
            self.left_ns -= now_ns - begin_ns


@pytest.mark.parametrize("make", [PriorityArbiter, FikitArbiter, GapArbiter])
class TestOddEvents:
    def test_a_kernel_that_ends_after_its_task_is_gone_changes_nothing(self, make: type[PriorityArbiter]) -> None:
        arbiter = make(stats_for(0, 400))
        arbiter.step(TaskBegan(0, HIGH, 1, sequence="high"))
        arbiter.step(KernelReady(0, HIGH, 0))
        arbiter.step(TaskGone(10, HIGH))
        assert starts(arbiter.step(KernelReady(20, OTHER, 0))) == [StartKernel(OTHER, 0)]
        assert arbiter.step(KernelFinished(30, HIGH, 0)) == []
        assert arbiter.used_pct == 100
        arbiter.validate()

    def test_a_number_that_begins_again_begins_anew(self, make: type[PriorityArbiter]) -> None:
        arbiter = make(stats_for(0, 400))
        for at_ns in (0, 10):
            arbiter.step(TaskBegan(at_ns, HIGH, 1, sequence="high"))
            assert starts(arbiter.step(KernelReady(at_ns, HIGH, 0))) == [StartKernel(HIGH, 0)]
        arbiter.step(TaskGone(20, HIGH))
        assert arbiter.used_pct == 0


class TestCatchingUp:
    def test_a_host_that_does_not_wait_is_trusted_with_its_gaps_to_come(self) -> None:
        for early, catch_up, expected in ((1.0, 0.5, 1), (1.0, 0.0, 0), (0.0, 0.5, 0)):
            stats = stats_for(200, 220)
            stats["high"].early = early
            arbiter = GapArbiter(stats, GapSettings(budget=0.0, catch_up=catch_up))
            assert len(starts(in_gap(arbiter))) == expected

    def test_it_is_trusted_with_the_part_of_them_that_is_declared(self) -> None:
        for catch_up, expected in ((0.1, 0), (0.2, 1)):
            stats = stats_for(200, 300)  # a delay of 100 µs, and 600 µs of gaps to come
            stats["high"].early = 1.0
            arbiter = GapArbiter(stats, GapSettings(budget=0.0, catch_up=catch_up))
            assert len(starts(in_gap(arbiter))) == expected

    def test_what_is_launched_during_the_delay_is_part_of_catching_up(self) -> None:
        stats = stats_for(200, 300)
        stats["high"].early = 1.0
        arbiter = GapArbiter(stats, GapSettings(budget=0.0, catch_up=0.5), learn=False)
        assert starts(in_gap(arbiter)) == [StartKernel(LOW, 0, "fill")]
        arbiter.step(KernelReady(250 * US, HIGH, 1))
        arbiter.step(KernelReady(340 * US, HIGH, 2))
        arbiter.step(KernelFinished(350 * US, LOW, 0))
        assert arbiter.delayed_ns[1] == 100 * US
        assert arbiter._owed[HIGH].caught_up_ns == pytest.approx(200 * US, rel=0.05)


class TestQuotas:
    def test_filler_runs_inside_its_own_quota(self) -> None:
        arbiter = GapArbiter(stats_for(900, 100), account=Quota("b", 100 * US, 5000 * US))
        arbiter.step(TaskBegan(0, HIGH, 1, "a", "high"))
        arbiter.step(KernelReady(0, HIGH, 0))
        arbiter.step(TaskBegan(0, LOW, 2, "b", "low0"))
        arbiter.step(KernelReady(0, LOW, 0))
        assert starts(arbiter.step(KernelFinished(50 * US, HIGH, 0))) == [StartKernel(LOW, 0, "fill")]
        arbiter.step(KernelFinished(150 * US, LOW, 0))
        assert arbiter.step(KernelReady(160 * US, LOW, 1)) == [SetAlarm(5000 * US)], "it fits, and is over quota"

    def test_whoever_is_over_quota_holds_nobody_back(self) -> None:
        arbiter = PriorityArbiter({}, ArbiterSettings(), account=Quota("a", 0, 5000 * US))
        arbiter.step(TaskBegan(0, HIGH, 1, "a"))
        assert arbiter.step(KernelReady(0, HIGH, 0)) == [SetAlarm(5000 * US)]
        assert arbiter.hold == "whoever is ready is over quota"
        arbiter.step(TaskBegan(1, LOW, 2, "b"))
        assert starts(arbiter.step(KernelReady(1, LOW, 0))) == [StartKernel(LOW, 0, "turn")]
        arbiter.step(KernelFinished(100, LOW, 0))
        assert starts(arbiter.step(AlarmRang(5000 * US))) == [StartKernel(HIGH, 0, "turn")]


def test_a_share_outside_the_device_is_refused() -> None:
    with pytest.raises(ValueError, match="120 %"):
        GapArbiter().step(KernelReady(0, 1, 0, share_pct=120))
