"""Stages with a slice of their own: what the controller sends of them, and when."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.control import (
    Action,
    BatchFailed,
    BatchFinished,
    Controller,
    ModelLoaded,
    Policy,
    RequestArrived,
    RunBatch,
    WorkerJoined,
)
from dovetail.control.validate import validate
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.scale import LoadEverything
from dovetail.schedule import FirstCome
from dovetail.state import WorkerSpec
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec, chain

NAMES = ["quota", "share", "plain"]
SPEC = WorkerSpec("gpu", "gpu", ("model",), cores=4, preempts=True)


class Sliced:
    """A controller with one worker of four cores and three workflows: with a quota, with a share, with neither."""

    def __init__(self, lead_ns: int = 0) -> None:
        stages = {
            "quota": StageSpec("quota", "model", (1, 2), quota_pct=30, client="flow", share_pct=50),
            "share": StageSpec("share", "model", (1,), share_pct=25),
            "plain": StageSpec("plain", "model", (1,)),
        }
        points = (Point(1, 1, 3 * MS, 0.0, 1), Point(2, 1, 5 * MS, 0.0, 1))
        table = ProfileTable([Entry(name, "gpu", points=points) for name in stages])
        graphs = [chain(name, SECOND, [stage]) for name, stage in stages.items()]
        policy = Policy(FirstCome(cores=4, bind_ns=lead_ns), LoadEverything(), Estimator(table))
        self.controller = Controller(graphs, policy)
        self.at_ns = 0
        self.requests = 0
        for event in (WorkerJoined(0, 0, 1, SPEC), *(ModelLoaded(0, 0, 1, name, 0) for name in stages)):
            self.step(event)

    def step(self, event: object) -> list[RunBatch]:
        actions: list[Action] = list(self.controller.step(event))  # type: ignore[arg-type]
        validate(self.controller)
        return [a for a in actions if isinstance(a, RunBatch)]

    def ask(self, name: str, priority: int = 1) -> list[RunBatch]:
        self.requests += 1
        self.at_ns += MS
        return self.step(RequestArrived(self.at_ns, 0, self.requests, NAMES.index(name), priority))

    def done(self, run: RunBatch) -> list[RunBatch]:
        begin_ns, self.at_ns = self.at_ns, self.at_ns + MS
        return self.step(BatchFinished(self.at_ns, 0, run.batch, begin_ns, self.at_ns))


def test_two_batches_of_a_stage_with_a_quota_wait_at_the_worker_whatever_else_is_there() -> None:
    s = Sliced()
    (plain,) = s.ask("plain")
    assert (plain.share_pct, plain.quota_pct, plain.client) == (100, 100, "")
    (first,), (second,) = s.ask("quota"), s.ask("quota")
    assert (first.share_pct, first.cpus, first.quota_pct, first.client) == (50, 2, 30, "flow")
    assert s.ask("quota") == [] and s.ask("quota") == [], "two are there"
    (third,) = s.done(first)
    assert len(third.items) == 2 and third.quota_pct == 30, "those that waited go together"
    assert s.done(second) == []


def test_it_takes_no_room_in_the_books_from_others() -> None:
    s = Sliced()
    s.ask("quota")
    (plain,) = s.ask("plain")
    assert s.ask("plain") == [] and len(s.done(plain)) == 1


def test_a_batch_that_was_refused_is_sent_again() -> None:
    s = Sliced()
    (first,) = s.ask("quota")
    s.at_ns += MS
    (again,) = s.step(BatchFailed(s.at_ns, 0, first.batch, s.at_ns, s.at_ns, "too_late"))
    assert again.items == first.items and again.batch != first.batch


def test_a_declared_share_is_what_a_batch_takes() -> None:
    s = Sliced()
    runs = [run for _ in range(5) for run in s.ask("share")]
    assert [(r.share_pct, r.cpus, r.quota_pct) for r in runs] == [(25, 1, 100)] * 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 3), st.integers(0, 2)), max_size=40))
def test_batches_with_a_quota_lend_no_room_to_those_that_are_sent_ahead(asks: list[tuple[str, int, int]]) -> None:
    """They have none in the books: `validate` looks after every step."""
    s = Sliced(lead_ns=MS)
    running: list[RunBatch] = []
    for name, priority, ends in asks:
        running += s.ask(name, priority)
        sliced = [b for b in s.controller.batches.values() if b.queue.stage.sliced]
        assert not any(batch.got_pct or batch.waits for batch in sliced)
        for _ in range(min(ends, len(running))):
            running += s.done(running.pop(0))
    while running:
        running += s.done(running.pop(0))
    assert not s.controller.batches and not s.controller.requests, "all are answered"
