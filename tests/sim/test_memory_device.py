"""The simulated worker and its memory: events, causes, counts, and Compass' worker against a plain restatement."""

from __future__ import annotations

from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.control import (
    Action,
    BatchFailed,
    BatchFinished,
    Event,
    EvictModel,
    LoadFailed,
    LoadModel,
    ModelEvicted,
    ModelLoaded,
    RunBatch,
)
from dovetail.control.actions import NEVER_NS
from dovetail.device.rules import Rules
from dovetail.lab.rivals.compass_worker import AUTHORS_SIMULATOR, COMPASS
from dovetail.profile.curve import Curve
from dovetail.profile.table import Entry, ProfileTable
from dovetail.sim.device import SimDevice
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

GB = 10**9
#: Stage: model, bytes, load in ms, run in ms. "half" and "whole" are stages of one model.
STAGES = {
    "opt": ("opt", 6 * GB, 60, 50),
    "nli": ("nli", 2 * GB, 20, 3),
    "tts": ("tts", 3 * GB, 30, 8),
    "depth": ("depth", 4 * GB, 40, 15),
    "whole": ("mt5", 2 * GB, 20, 78),
    "half": ("mt5", 2 * GB, 20, 40),
    "join": ("", 0, 0, 1),
    "giant": ("giant", 15 * GB, 150, 1),
}
SPECS = {
    name: StageSpec(name, "model", (1,), model=model, weights_bytes=size)
    for name, (model, size, _, _) in STAGES.items()
}
TABLE = ProfileTable(
    [
        Entry(name, "t4", curve=Curve((1, 2), (run * MS, 2 * run * MS), (run * MS, 2 * run * MS)), load_ns=load * MS)
        for name, (_, _, load, run) in STAGES.items()
    ]
)
SPEC = WorkerSpec("t4-0", "t4", ("model",), memory_bytes=10 * GB)


class World:
    """A clock and one device."""

    def __init__(self, **options: object) -> None:
        self.heap: list[tuple[int, int, object]] = []
        self.sequence = 0
        self.events: list[Event] = []
        self.device = SimDevice(7, SPEC, SPECS, TABLE, self.schedule, **options)  # type: ignore[arg-type]

    def schedule(self, at_ns: int, device: SimDevice | None, payload: object) -> None:
        self.sequence += 1
        heappush(self.heap, (at_ns, self.sequence, payload))

    def at(self, at_ns: int, action: Action) -> None:
        self.schedule(at_ns, None, action)

    def run(self) -> list[Event]:
        """Go on to the end; returns what was reported since last time."""
        seen = len(self.events)
        while self.heap:
            now_ns, _, payload = heappop(self.heap)
            action = isinstance(payload, RunBatch | LoadModel | EvictModel)
            step = self.device.take if action else self.device.wake
            self.events += step(payload, now_ns)  # type: ignore[arg-type]
            self.device.machine.validate()
        return self.events[seen:]


def batch(ident: int, stage: str, *, latest_ns: int = NEVER_NS, order: int = 0) -> RunBatch:
    run_ns = STAGES[stage][3] * MS
    return RunBatch(100 + ident, ident, 7, stage, ((ident, 0, 0),), 1, 100, 0, latest_ns, run_ns, order)


def test_a_batch_brings_its_model_and_runs() -> None:
    world = World()
    world.at(5 * MS, batch(1, "nli"))
    assert world.run() == [
        ModelLoaded(25 * MS, 101, 7, "nli", 2 * GB),
        BatchFinished(28 * MS, 101, 1, 25 * MS, 28 * MS),
    ]
    assert (world.device.loads, world.device.evictions, world.device.used) == (1, 0, True)
    assert world.device.busy_pct_ns == 300 * MS


def test_stages_of_one_model_share_one_load_and_it_is_told_by_the_stage_that_caused_it() -> None:
    world = World()
    world.at(0, batch(1, "half"))
    world.at(0, batch(2, "whole"))
    loaded = [e for e in world.run() if isinstance(e, ModelLoaded)]
    assert loaded == [ModelLoaded(20 * MS, 101, 7, "half", 2 * GB)]
    assert world.device.row(0).resident == ("mt5",)


def test_an_eviction_says_why_and_carries_the_cause_of_the_batch_that_needed_the_room() -> None:
    world = World()
    for ident, stage in enumerate(("opt", "depth", "nli"), 1):
        world.at(ident * 200 * MS, batch(ident, stage))
    evicted = [e for e in world.run() if isinstance(e, ModelEvicted)]
    reason = "room for nli (2.0 GB): nothing queued needs it, last used 290 ms ago"
    assert evicted == [ModelEvicted(600 * MS, 103, 7, "opt", 6 * GB, reason)]
    assert world.device.evictions == 1


def test_an_eviction_for_a_hint_carries_the_cause_of_the_hint_though_something_else_made_it_possible() -> None:
    world = World()
    world.at(0, batch(1, "opt"))
    world.at(0, batch(2, "depth", order=1))
    world.at(50 * MS, LoadModel(55, 7, "nli"))
    events = world.run()
    assert [(e.at_ns, e.cause, e.weights) for e in events if isinstance(e, ModelEvicted)] == [(55 * MS, 55, "depth")]
    assert ModelLoaded(75 * MS, 55, 7, "nli", 2 * GB) in events


def test_a_hint_is_answered_when_it_leads_to_a_load_or_never_can() -> None:
    world = World()
    world.at(0, LoadModel(4, 7, "nli"))
    world.at(50 * MS, LoadModel(5, 7, "nli"))
    world.at(60 * MS, LoadModel(6, 7, "giant"))
    loaded, failed = world.run()
    assert loaded == ModelLoaded(20 * MS, 4, 7, "nli", 2 * GB)
    assert isinstance(failed, LoadFailed) and failed.cause == 6 and "giant needs 15.0 GB" in failed.detail
    assert not world.device.used


def test_a_model_goes_when_it_is_told_to_or_if_it_is_in_use_when_its_last_batch_has_ended() -> None:
    world = World()
    world.at(0, batch(1, "nli"))
    world.at(21 * MS, EvictModel(8, 7, "nli", "scaled down"))
    world.at(22 * MS, batch(2, "nli"))
    world.at(50 * MS, batch(3, "nli"))
    world.at(90 * MS, EvictModel(9, 7, "nli", "scaled down"))
    world.at(95 * MS, EvictModel(10, 7, "nli", "not here any more"))
    events = world.run()
    assert [e for e in events if isinstance(e, ModelEvicted)] == [
        ModelEvicted(26 * MS, 8, 7, "nli", 2 * GB, "scaled down"),
        ModelEvicted(90 * MS, 9, 7, "nli", 2 * GB, "scaled down"),
    ]


def test_what_cannot_run_is_refused_with_a_reason() -> None:
    world = World()
    world.at(0, batch(1, "giant"))
    world.at(0, batch(2, "nli", latest_ns=19 * MS))
    world.at(0, batch(3, "nli", latest_ns=20 * MS))
    giant, late, *_ = world.run()
    assert isinstance(giant, BatchFailed) and (giant.cause, giant.reason) == (101, "no_memory")
    assert isinstance(late, BatchFailed) and (late.cause, late.reason) == (102, "too_late")
    assert isinstance(world.events[-1], BatchFinished)


def test_a_hit_is_a_model_that_was_there_when_the_device_was_free_for_the_batch() -> None:
    world = World()
    world.at(0, batch(1, "opt"))
    world.at(1 * MS, batch(2, "nli"))
    world.at(70 * MS, batch(3, "opt"))
    world.at(70 * MS, batch(4, "tts"))
    world.at(70 * MS, batch(5, "join"))
    world.run()
    # 1 waited for its load, and so did 2, which overtook it. 3 found its model, and so did 4, for which it was loaded
    # while 1 ran. 5 has no model and does not count.
    assert (world.device.hits, world.device.misses, world.device.here_when_taken) == (2, 2, 1)


def test_a_cold_load_takes_longer_and_what_was_evicted_comes_back_from_host_memory() -> None:
    world = World(starts_on_host=False, cold_factor=3.0)
    world.at(0, batch(1, "nli"))
    world.at(100 * MS, EvictModel(8, 7, "nli", "scaled down"))
    world.at(200 * MS, batch(2, "nli"))
    assert [e.at_ns for e in world.run() if isinstance(e, ModelLoaded)] == [60 * MS, 220 * MS]


def test_a_worker_whose_memory_is_not_counted_holds_everything() -> None:
    spec = WorkerSpec("cpu-0", "t4", ("model",))
    device = SimDevice(7, spec, SPECS, TABLE, lambda at_ns, device, payload: None)
    assert device.take(batch(1, "giant"), 0) == []


# -- against plain restatements -----------------------------------------------------------------------------------

arrivals = st.lists(
    st.tuples(st.integers(0, 80), st.sampled_from([name for name in STAGES if name != "giant"])), max_size=40
)


def plain(jobs: list[tuple[int, str]], unload: bool) -> tuple[dict[int, int], int]:
    """The worker of the authors' simulator in a few lines: one slot, and the oldest models go. Ends and hits."""
    cached: list[str] = []
    ends: dict[int, int] = {}
    free = hits = 0
    sizes = {model: (size, load) for model, size, load, _ in STAGES.values()}
    for ident, (arrive, stage) in enumerate(jobs):
        model, size, load, run = STAGES[stage]
        free = max(free, arrive)
        if model in cached:
            hits += 1
        elif size:
            free += load
            cached.append(model)
            while sum(sizes[m][0] for m in cached) > 10 * GB:
                gone = cached.pop(0)
                free += sizes[gone][1] if unload else 0
        free += run
        ends[ident] = free * MS
    return ends, hits


@pytest.mark.parametrize("unload", [False, True])
@settings(max_examples=100, deadline=None)
@given(gaps=arrivals)
def test_with_the_authors_rules_it_is_the_worker_of_their_simulator(
    unload: bool, gaps: list[tuple[int, str]]
) -> None:
    clock, jobs = 0, []
    for gap, stage in gaps:
        clock += gap
        jobs.append((clock, stage))
    loads = {model: load * MS for model, _, load, _ in STAGES.values()}
    world = World(rules=AUTHORS_SIMULATOR, unload_ns=loads.__getitem__ if unload else None)
    for ident, (at, stage) in enumerate(jobs):
        world.at(at * MS, batch(ident, stage))
    ends = {e.batch: e.end_ns for e in world.run() if isinstance(e, BatchFinished)}
    assert (ends, world.device.hits) == plain(jobs, unload)


@settings(max_examples=100, deadline=None)
@given(gaps=arrivals, rules=st.sampled_from([Rules(), Rules(in_order=True), COMPASS, AUTHORS_SIMULATOR]))
def test_everything_is_answered_once_and_loads_and_evictions_add_up(
    gaps: list[tuple[int, str]], rules: Rules
) -> None:
    world = World(rules=rules)
    clock = 0
    for ident, (gap, stage) in enumerate(gaps):
        clock += gap * MS
        world.at(clock, batch(ident, stage))
    events = world.run()
    answered = sorted(e.batch for e in events if isinstance(e, BatchFinished))
    assert answered == list(range(len(gaps)))
    device = world.device
    here = device.row(10**12).resident
    assert device.loads == sum(isinstance(e, ModelLoaded) for e in events)
    assert device.loads - device.evictions == len(here)
    assert device.hits + device.misses == sum(STAGES[stage][1] > 0 for _, stage in gaps)
    assert device.row(10**12).wait_ns == 0
