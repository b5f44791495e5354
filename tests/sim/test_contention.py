"""Batches that run side by side slow each other down, as the world says and nobody else knows."""

from __future__ import annotations

from heapq import heappop, heappush

import pytest

from dovetail.control import BatchFinished, Event, RunBatch
from dovetail.control.actions import NEVER_NS
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.sim.contention import BESIDE, OPPOSITE, SAME_COMPUTE, SAME_MEMORY, PairContention, slowdown
from dovetail.sim.device import SimDevice
from dovetail.sim.fluid import Contention, Flow
from dovetail.sim.sequences import Kernel, KernelSequence
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

RUN_NS = 10 * MS
STAGES = {"a": StageSpec("a", "model", (1,)), "b": StageSpec("b", "model", (1,))}
#: On whatever share: what a share costs is not the question here.
TABLE = ProfileTable([Entry(n, "gpu", points=(Point(1, 1, RUN_NS, 0.0, 1),)) for n in STAGES])


class World:
    """A clock and one device."""

    def __init__(self, contention: Contention | None, sequences: dict[str, KernelSequence] | None = None) -> None:
        self.now_ns = 0
        self._heap: list[tuple[int, int, object]] = []
        self._sequence = 0
        spec = WorkerSpec("gpu-0", "gpu", ("model",))
        self.device = SimDevice(1, spec, STAGES, TABLE, self._schedule, contention=contention, sequences=sequences)

    def _schedule(self, at_ns: int, device: SimDevice, payload: object) -> None:
        self._sequence += 1
        heappush(self._heap, (at_ns, self._sequence, payload))

    def run(self, *batches: tuple[int, RunBatch]) -> dict[int, BatchFinished]:
        """Send batches at their times and go on to the end."""
        for at_ns, batch in batches:
            self._schedule(at_ns, self.device, batch)
        events: list[Event] = []
        while self._heap:
            self.now_ns, _, payload = heappop(self._heap)
            step = self.device.take if type(payload) is RunBatch else self.device.wake
            events += step(payload, self.now_ns)  # type: ignore[arg-type]
            self.device.machine.validate()
        return {e.batch: e for e in events if isinstance(e, BatchFinished)}


def batch(ident: int, stage: str = "a", *, share_pct: int = 50, priority: int = 1) -> RunBatch:
    items = ((ident, 0, 0),)
    return RunBatch(ident, ident, 1, stage, items, 1, share_pct, 0, NEVER_NS, RUN_NS, priority=priority)


def took_ms(finished: BatchFinished) -> float:
    return (finished.end_ns - finished.begin_ns) / MS


def test_two_at_half_the_device_each_take_longer_beside_each_other_and_not_one_after_the_other() -> None:
    together = World(PairContention()).run((0, batch(1)), (0, batch(2)))
    assert [took_ms(f) for f in together.values()] == pytest.approx([10 * BESIDE] * 2)
    apart = World(PairContention()).run((0, batch(1)), (20 * MS, batch(2)))
    assert [took_ms(f) for f in apart.values()] == [10, 10]
    without = World(None).run((0, batch(1)), (0, batch(2)))
    assert [took_ms(f) for f in without.values()] == [10, 10]


def test_one_is_slowed_down_only_while_the_other_is_there() -> None:
    """The second comes when the first is half done: 5 ms alone, then 5 ms of work at 1 / 1.09."""
    found = World(PairContention()).run((0, batch(1)), (5 * MS, batch(2)))
    assert took_ms(found[1]) == pytest.approx(5 + 5 * BESIDE)
    # Of the second, as much was done in that time, and the rest alone.
    assert took_ms(found[2]) == pytest.approx(5 * BESIDE + 5)


def test_what_neighbours_cost_adds_up() -> None:
    found = World(PairContention()).run(*((0, batch(i, share_pct=25)) for i in range(1, 5)))
    assert [took_ms(f) for f in found.values()] == pytest.approx([10 * (1 + 3 * (BESIDE - 1))] * 4)


def test_the_cost_of_a_neighbour_can_be_set_and_none_makes_anybody_faster() -> None:
    found = World(PairContention(beside=1.5)).run((0, batch(1)), (0, batch(2)))
    assert [took_ms(f) for f in found.values()] == pytest.approx([15, 15])
    with pytest.raises(ValueError, match="faster"):
        PairContention(beside=0.9)


def test_the_less_two_fit_the_more_they_slow_each_other_down_by_what_bounds_them() -> None:
    assert slowdown("compute", 30, "memory", 70) == BESIDE
    assert slowdown("compute", 100, "compute", 100) == SAME_COMPUTE
    assert slowdown("memory", 100, "memory", 100) == SAME_MEMORY
    assert slowdown("compute", 100, "memory", 100) == OPPOSITE
    assert slowdown("memory", 60, "memory", 60) == slowdown("memory", 70, "memory", 50)


def test_two_that_do_not_fit_flow_as_their_pair_does() -> None:
    one, other = Flow(), Flow()
    one.kind, other.kind = "compute", "memory"
    assert PairContention()([one, other]) == [1 / OPPOSITE] * 2
    assert PairContention()([one]) == [1.0]


KERNELS = 20
SEQUENCE = KernelSequence("b", tuple(Kernel(f"b{i}", "compute", 100, 1_000) for i in range(KERNELS)))


@pytest.mark.parametrize("contention", [None, PairContention()])
def test_a_higher_class_beside_a_busy_lower_one_waits_for_a_kernel_and_without_kernels_for_a_batch(
    contention: Contention | None,
) -> None:
    def wait_ms(sequences: dict[str, KernelSequence]) -> float:
        world = World(contention, sequences)
        sent = [(i * MS, batch(10 + i, "b", share_pct=100, priority=2)) for i in range(4)]
        at_ns = 3 * MS + MS // 5
        found = world.run(*sent, (at_ns, batch(1, share_pct=100)))
        assert len(found) == 5
        # The lower one that was stopped went on where it was: no kernel ran twice.
        low = found[10]
        assert low.busy_ns in (0, RUN_NS)
        return (found[1].begin_ns - at_ns) / MS

    kernel_ms = RUN_NS / MS / KERNELS
    assert wait_ms({}) == pytest.approx(6.8)
    assert 0 < wait_ms({"b": SEQUENCE}) <= kernel_ms


def test_a_batch_that_was_stopped_ends_after_its_own_work_and_the_higher_one() -> None:
    found = World(None, {"b": SEQUENCE}).run(
        (0, batch(2, "b", share_pct=100, priority=2)), (3 * MS, batch(1, share_pct=100))
    )
    assert took_ms(found[1]) == 10
    assert found[2].end_ns == 20 * MS
    assert found[2].busy_ns == RUN_NS
