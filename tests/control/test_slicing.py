"""Slices that change while work is under way: the next batch has the new one, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.test_sliced import NAMES, SPEC, Sliced

from dovetail.control import ModelLoaded, RunBatch, SliceChanged, WorkerJoined, WorkerLost
from dovetail.units import MS


class TwoWorkers(Sliced):
    """The same with a second worker."""

    def __init__(self) -> None:
        super().__init__()
        self.step(WorkerJoined(0, 0, 2, SPEC))
        for name in NAMES:
            self.step(ModelLoaded(0, 0, 2, name, 0))

    def change(self, share_pct: int = 50, quota_pct: int = 30, worker: int = 0) -> list[RunBatch]:
        self.at_ns += MS
        return self.step(SliceChanged(self.at_ns, 0, "flow", share_pct, quota_pct, worker))


def slice_of(run: RunBatch) -> tuple[int, int, int, int]:
    return run.share_pct, run.cpus, run.quota_pct, run.worker


def test_a_change_counts_from_the_next_batch_on_and_is_told_to_the_device() -> None:
    s = Sliced()
    (before,) = s.ask("quota")
    s.at_ns += MS
    assert s.step(SliceChanged(s.at_ns, 0, "flow", 25, 70)) == [], "what runs goes on"
    (after,) = s.ask("quota")
    assert slice_of(before) == (50, 2, 30, 1) and slice_of(after) == (25, 1, 70, 1)
    assert after.client == "flow"


def test_a_slice_is_moved_by_what_is_sent_next_and_what_was_sent_is_answered_where_it_is() -> None:
    s = TwoWorkers()
    (old,) = s.ask("quota")
    other = 3 - old.worker
    s.change(worker=other)
    moved = [run for _ in range(3) for run in s.ask("quota")]
    assert [run.worker for run in moved] == [other] * 2, "two at a time, and the third waits for its new home"
    assert [run.worker for run in s.done(old)] == [], "room at the old one is not its room any more"
    (third,) = s.done(moved[0])
    assert third.worker == other
    s.done(moved[1])
    s.done(third)
    assert not s.controller.requests


def test_what_waits_goes_at_once_when_its_slice_may_go_anywhere() -> None:
    s = TwoWorkers()
    s.change(worker=1)
    for _ in range(4):
        s.ask("quota")
    assert [run.worker for run in s.change(worker=0)] == [2]


def test_a_worker_that_is_lost_is_nobodys_home() -> None:
    s = TwoWorkers()
    s.change(worker=2)
    (run,) = s.ask("quota")
    s.at_ns += MS
    (again,) = s.step(WorkerLost(s.at_ns, 0, 2, "killed"))
    assert (run.worker, again.worker) == (2, 1) and again.items == run.items
    assert s.controller.homes == {}


def test_a_worker_that_was_lost_on_the_way_changes_nothing() -> None:
    s = TwoWorkers()
    s.change(quota_pct=90, worker=7)
    (run,) = s.ask("quota")
    assert run.quota_pct == 30


@pytest.mark.parametrize("client", ["share", "plain", "nobody"])
def test_whoever_declared_no_quota_has_no_slice_to_change(client: str) -> None:
    with pytest.raises(ValueError, match="no stage with a quota"):
        Sliced().step(SliceChanged(1, 0, client, 50, 50))


CHANGES = st.tuples(st.integers(1, 100), st.integers(1, 100), st.integers(0, 2))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(["quota", "plain"]), CHANGES, st.integers(0, 9)), max_size=60))
def test_a_slice_that_is_resized_and_moved_at_any_time_loses_nothing(story: list[object]) -> None:
    """Every request is answered, each of its items ran once, and batches always have the slice of their time."""
    s = TwoWorkers()
    now = (50, 30, 0)
    running: list[RunBatch] = []
    asked = 0
    ran: list[tuple[int, int, int]] = []

    def begin(runs: list[RunBatch]) -> None:
        for run in runs:
            if run.stage == "quota":
                assert (run.share_pct, run.quota_pct) == now[:2]
                assert run.worker == now[2] or not now[2]
        running.extend(runs)

    for part in story:
        if isinstance(part, str):
            begin(s.ask(part))
            asked += 1
        elif isinstance(part, tuple):
            now = part
            begin(s.change(*part))
        elif running:
            run = running.pop(int(str(part)) % len(running))
            ran += run.items
            begin(s.done(run))
    while running:
        run = running.pop()
        ran += run.items
        begin(s.done(run))
    assert not s.controller.requests and not s.controller.batches
    assert len(ran) == len(set(ran)) == asked
