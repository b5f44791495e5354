"""The device simulated kernel by kernel: what must come out by arithmetic, whoever shares it."""

from __future__ import annotations

import itertools
from itertools import pairwise

import msgspec
import pytest

from dovetail.device import ArbiterSettings, GapArbiter, GapSettings, KernelArbiter, PriorityArbiter
from dovetail.lab.kernels.device import ClientSpec, KernelDevice, Sharing, rests
from dovetail.lab.kernels.hosts import AHEAD, SYNC, Host, LaunchedSequence
from dovetail.lab.kernels.sharing import Arbitrated, FifoQueue, OrionRule, Streams, TimeSlices
from dovetail.record.kernels import KernelRecord
from dovetail.sim.contention import BESIDE
from dovetail.sim.sequences import Kernel
from dovetail.units import MS, US

EXACT_SYNC = msgspec.structs.replace(SYNC, scatter=0.0)
EXACT_AHEAD = msgspec.structs.replace(AHEAD, scatter=0.0)


def sequence(
    name: str, times_us: list[tuple[int, int]], host: Host, *, share_pct: int = 100, kind: str = "compute"
) -> LaunchedSequence:
    """Kernels of (host time, duration), without scatter."""
    kernels = tuple(
        Kernel(f"k{i}", kind, share_pct, d * US)  # type: ignore[arg-type]
        for i, (_, d) in enumerate(times_us)
    )
    return LaunchedSequence(name, kernels, host, tuple(h * US for h, _ in times_us), scatter=0.0)


SHORT = sequence("short", [(20, 10)] * 10, EXACT_SYNC)
LONG = sequence("long", [(5, 100)] * 20, EXACT_AHEAD)

POLICIES = {
    "fifo": FifoQueue,
    "slices": TimeSlices,
    "streams": lambda: Streams(by_priority=False),
    "priority": lambda: Streams(by_priority=True),
    "orion": lambda: OrionRule(1 * MS),
    "tasks": lambda: Arbitrated(PriorityArbiter()),
    "ours": lambda: Arbitrated(GapArbiter()),
}


def play(sharing: Sharing, *clients: ClientSpec, seed: int = 1) -> tuple[KernelDevice, list[KernelRecord]]:
    records: list[KernelRecord] = []
    device = KernelDevice(clients, sharing, seed, record=records.append)
    device.run()
    return device, records


class TestAlone:
    def test_a_host_that_waits_adds_its_time_to_the_kernels(self) -> None:
        device, _ = play(FifoQueue(), ClientSpec(SHORT, 1, 3))
        assert [r.took_ns for r in device.results] == [300 * US] * 3

    def test_a_host_that_is_ahead_adds_its_first_launch(self) -> None:
        device, _ = play(FifoQueue(), ClientSpec(LONG, 1, 2))
        assert [r.took_ns for r in device.results] == [2005 * US] * 2
        assert device.busy_ns == 4000 * US

    def test_a_slow_host_that_does_not_wait_is_what_takes_time(self) -> None:
        slow = sequence("slow", [(50, 10)] * 10, EXACT_AHEAD)
        device, _ = play(FifoQueue(), ClientSpec(slow, 1, 1))
        assert device.results[0].took_ns == 510 * US

    def test_the_depth_bounds_how_far_ahead_launches_are(self) -> None:
        host = msgspec.structs.replace(EXACT_AHEAD, depth=2)
        _, records = play(FifoQueue(), ClientSpec(sequence("bounded", [(5, 100)] * 6, host), 1, 1))
        ends = [r.end_ns for r in records]
        assert [r.ready_ns for r in records[3:]] == [end + 5 * US for end in ends[:3]]

    @pytest.mark.parametrize("name", POLICIES)
    def test_nobody_is_slowed_down_who_is_alone_but_for_the_gate(self, name: str) -> None:
        device, _ = play(POLICIES[name](), ClientSpec(SHORT, 1, 2))
        gate_ns = 10 * 200 if name in ("tasks", "ours") else 0
        assert [r.took_ns for r in device.results] == [300 * US + gate_ns] * 2


@pytest.mark.parametrize("name", POLICIES)
class TestShared:
    def test_every_kernel_runs_once_in_order_and_no_more_than_two_at_a_time(self, name: str) -> None:
        device, records = play(POLICIES[name](), ClientSpec(SHORT, 1, 3, 100 * US), ClientSpec(LONG, 2, 2))
        for task in {r.task for r in records}:
            own = [r for r in records if r.task == task]
            assert [r.kernel for r in own] == list(range(len(own)))
            assert all(a.end_ns <= b.begin_ns for a, b in pairwise(own))
        assert sum(device.work_ns) == sum(r.work_ns for r in (SHORT, SHORT, SHORT, LONG, LONG))
        at_once = 2 if name in ("streams", "priority", "orion") else 1
        for record in records:
            together = [r for r in records if r.begin_ns <= record.begin_ns < r.end_ns]
            assert name == "slices" or len(together) <= at_once

    def test_same_seed_same_run(self, name: str) -> None:
        scattered = msgspec.structs.replace(SHORT, scatter=0.2)
        runs = [
            play(POLICIES[name](), ClientSpec(scattered, 1, 3), ClientSpec(LONG, 2), seed=s)[1] for s in (5, 5, 6)
        ]
        assert runs[0] == runs[1] != runs[2]


class TestDefaultSharing:
    def test_in_one_queue_a_kernel_waits_for_all_that_was_launched_before(self) -> None:
        device, _ = play(FifoQueue(), ClientSpec(SHORT, 1, 1, begin_ns=200 * US), ClientSpec(LONG, 2, 1))
        assert device.worst_wait_ns[0] > 1500 * US, "twenty kernels of 100 µs were launched in the first 100 µs"

    def test_slices_give_two_that_never_rest_half_each(self) -> None:
        device, _ = play(TimeSlices(), ClientSpec(LONG, 1, 10), ClientSpec(LONG, 2))
        assert device.work_ns[1] == pytest.approx(device.work_ns[0], rel=0.15)
        assert device.completion_ns(0) == pytest.approx(2 * LONG.work_ns, rel=0.15)

    def test_a_kernel_waits_for_a_slice_at_most(self) -> None:
        endless = sequence("endless", [(5, 50_000)] * 2, EXACT_AHEAD)
        device, records = play(TimeSlices(2 * MS), ClientSpec(SHORT, 1, 2), ClientSpec(endless, 2))
        assert 1 * MS < device.worst_wait_ns[0] <= 2 * MS
        assert records, "long kernels are interrupted, and end"

    def test_streams_let_kernels_run_beside_each_other_where_they_fit(self) -> None:
        half = sequence("half", [(5, 100)] * 20, EXACT_AHEAD, share_pct=50)
        device, _ = play(Streams(by_priority=False), ClientSpec(half, 1, 1), ClientSpec(half, 2, 1))
        assert device.now_ns == pytest.approx(2000 * US * BESIDE, rel=0.02)


class TestOrion:
    def test_only_the_other_kind_runs_beside_a_high_kernel(self) -> None:
        high = sequence("high", [(5, 100)] * 20, EXACT_AHEAD, share_pct=40)
        for kind, expected in (("compute", set()), ("memory", {"beside"})):
            low = sequence("low", [(5, 20)] * 20, EXACT_AHEAD, share_pct=40, kind=kind)
            _, records = play(OrionRule(10 * MS), ClientSpec(high, 1, 1), ClientSpec(low, 2))
            assert {r.why for r in records if r.name == "low" and r.begin_ns > 10 * US} - {"fill"} == expected


class TestArbitrated:
    def test_a_filler_runs_in_the_gaps_and_delays_no_more_than_it_may(self) -> None:
        gaps = sequence("gaps", [(200, 50)] * 20, EXACT_SYNC)
        filler = sequence("filler", [(5, 90)] * 20, EXACT_AHEAD)
        alone, _ = play(FifoQueue(), ClientSpec(gaps, 1, 8))

        def shared(arbiter: KernelArbiter) -> KernelDevice:
            return play(Arbitrated(arbiter), ClientSpec(gaps, 1, 8, begin_ns=20 * MS), ClientSpec(filler, 2))[0]

        stats = learned(gaps, filler)
        ours, strict = shared(GapArbiter(stats)), shared(PriorityArbiter(stats))
        assert ours.completion_ns(0) < 1.05 * alone.completion_ns(0)
        assert ours.busy_ns / ours.now_ns > 0.2 + strict.busy_ns / strict.now_ns

    def test_launching_ahead_hides_the_gate(self) -> None:
        dense = sequence("dense", [(1, 5)] * 200, EXACT_AHEAD)
        took = {}
        for ahead in (1, 2):
            arbiter = GapArbiter(settings=GapSettings(ahead=ahead))
            took[ahead] = play(Arbitrated(arbiter), ClientSpec(dense, 1, 2))[0].completion_ns(0)
        assert took[1] > 1.3 * dense.work_ns
        assert took[2] < 1.01 * dense.work_ns

    def test_what_was_launched_ahead_waits_for_a_higher_class(self) -> None:
        late = sequence("late", [(50, 10)], EXACT_SYNC)
        arbiter = PriorityArbiter({}, ArbiterSettings(ahead=4, by_class=True))
        device, _ = play(Arbitrated(arbiter), ClientSpec(late, 1, 1, begin_ns=500 * US), ClientSpec(LONG, 2))
        assert 0 < device.worst_wait_ns[0] <= 100 * US, "one kernel, not the four that were launched"

    def test_there_a_filler_begins_with_the_gap_and_not_when_that_is_noticed(self) -> None:
        gaps = sequence("gaps", [(100, 30)] * 20, EXACT_SYNC)
        filler = sequence("filler", [(5, 60)] * 40, EXACT_AHEAD)
        stats = learned(gaps, filler)
        begun = {}
        for by_class in (False, True):
            arbiter = GapArbiter(stats, GapSettings(by_class=by_class))
            _, records = play(Arbitrated(arbiter), ClientSpec(gaps, 1, 3, begin_ns=MS), ClientSpec(filler, 2))
            ends = {r.end_ns for r in records if r.name == "gaps"}
            begun[by_class] = sum(r.begin_ns in ends for r in records if r.why == "fill")
        assert begun[False] == 0
        assert begun[True] > 20

    def test_kernels_in_parts_are_done_once_and_cost_what_parts_cost(self) -> None:
        gaps = sequence("gaps", [(100, 30)] * 20, EXACT_SYNC)
        long = sequence("long", [(5, 1000)] * 3, EXACT_AHEAD)
        arbiter = GapArbiter(learned(gaps, long), GapSettings(by_class=True))
        sharing = Arbitrated(arbiter, grain_ns=20 * US, part_extra=0.1, part_ns=4 * US)
        device, records = play(sharing, ClientSpec(gaps, 1, 4), ClientSpec(long, 2, 2))
        assert [r.client for r in device.results].count(1) == 2
        assert device.work_ns[1] == 6000 * US
        by_kernel: dict[tuple[int, int], list[int]] = {}
        for r in records:
            if r.name == "long":
                by_kernel.setdefault((r.task, r.kernel), []).append(r.end_ns - r.begin_ns)
        assert len(by_kernel) == 6
        assert max(map(len, by_kernel.values())) > 5, "in the gaps of 100 µs"
        for took in by_kernel.values():
            parts = len(took)
            assert sum(took) == pytest.approx(1000 * US if parts == 1 else 1100 * US + parts * 4 * US, abs=parts)

    def test_rests_add_up_to_what_was_asked_for_whatever_the_seed(self) -> None:
        spec = ClientSpec(SHORT, 1, 5, 700 * US)
        rested = {tuple(itertools.islice(rests(spec, seed, 0), 4)) for seed in range(20)}
        assert len(rested) > 5
        assert {sum(r) for r in rested} == {4 * 700 * US}
        assert all(350 * US < one < 1050 * US for r in rested for one in r)

    def test_only_with_shares_two_run_beside_each_other(self) -> None:
        high = sequence("high", [(20, 100)] * 20, EXACT_SYNC, share_pct=60)
        low = sequence("low", [(5, 30)] * 20, EXACT_AHEAD, share_pct=40)
        stats = learned(high, low)
        for shares in (False, True):
            _, records = play(
                Arbitrated(GapArbiter(stats), shares=shares), ClientSpec(high, 1, 4), ClientSpec(low, 2)
            )
            records.sort(key=lambda r: r.begin_ns)
            assert any(a.end_ns > b.begin_ns for a, b in pairwise(records)) == shares

    def test_durations_that_others_ran_beside_are_not_learned(self) -> None:
        high = sequence("high", [(20, 100)] * 20, EXACT_SYNC, share_pct=60)
        low = sequence("low", [(5, 30)] * 20, EXACT_AHEAD, share_pct=40)
        stats = learned(high, low)
        arbiter = GapArbiter(stats, GapSettings(budget=0.3))
        _, records = play(Arbitrated(arbiter, shares=True), ClientSpec(high, 1, 40), ClientSpec(low, 2))
        assert max(r.end_ns - r.begin_ns for r in records if r.name == "high") > 102 * US
        assert all(spread.mean_ns == pytest.approx(100 * US, rel=0.001) for spread in stats["high"].durations)


def learned(*sequences: LaunchedSequence):  # type: ignore[no-untyped-def]
    from dovetail.profile.kernels import KernelStats

    found = {}
    for s in sequences:
        stats = found[s.name] = KernelStats.empty(s.name, [k.ident for k in s.kernels])
        play(Arbitrated(GapArbiter(found)), ClientSpec(s, 1, 10))
        assert stats.known(0)
    return found
