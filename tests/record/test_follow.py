"""Following a log gives the controller's own books, step by step."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.record.recorded import header, run

from dovetail.record.follow import Follower
from dovetail.record.story import Moment, Story, story
from dovetail.record.window import Window
from dovetail.wiring import PolicySpec, make_controller

SPECS = st.builds(
    PolicySpec,
    name=st.sampled_from(["first-come", "by-class"]),
    share_pct=st.sampled_from([100, 50, 30]),
    max_open=st.sampled_from([5, 10_000]),
)


@given(seed=st.integers(0, 10**6), spec=SPECS)
@settings(deadline=None, max_examples=25)
def test_the_books_agree_after_every_step(
    tmp_path_factory: pytest.TempPathFactory, seed: int, spec: PolicySpec
) -> None:
    steps = run(tmp_path_factory.getbasetemp() / "follow.log", seed=seed, spec=spec)
    log = header(spec)
    controller = make_controller(log.graphs, spec, log.entries, log.cores)
    follower = Follower(log.graphs)
    for step in steps:
        controller.step(step.event)
        follower.step(step.event, step.actions)
        assert follower.number == controller.step_number
        assert list(follower.requests) == list(controller.requests)
        assert follower.running.keys() == controller.batches.keys()
        assert follower.workers == {ident: worker.spec for ident, worker in controller.workers.items()}
        assert follower.depth == {queue.stage.name: queue.size for queue in controller.queues.values()}
        assert follower.holders.keys() == controller.holders.keys()
        assert all(set(follower.holders[stage]) == set(controller.holders[stage]) for stage in follower.holders)
        waiting = sum(len(items) for items in follower.waiting.values())
        assert waiting == sum(follower.depth.values())
    assert not follower.requests and not follower.waiting


@given(seed=st.integers(0, 10**6), spec=SPECS, part=st.floats(0, 1))
@settings(deadline=None, max_examples=8)
def test_who_begins_in_the_middle_tells_the_same_of_all_that_arrives_later(
    tmp_path_factory: pytest.TempPathFactory, seed: int, spec: PolicySpec, part: float
) -> None:
    steps = run(tmp_path_factory.getbasetemp() / "midway.log", seed=seed, spec=spec)
    graphs = header(spec).graphs
    cut = round(part * len(steps))
    whole = Follower(graphs)
    for step in steps[:cut]:
        whole.step(step.event, step.actions)
    present = whole.present()
    before = set(whole.requests)
    late = Follower(graphs, present)
    for step in steps[cut:]:
        ours, theirs = late.step(step.event, step.actions), whole.step(step.event, step.actions)
        assert [a for _, a in ours.closed] == [a for _, a in theirs.closed if a.request not in before]
        followed = [(i.request.id, i.node, i.index) for i in theirs.queued if i.request.id not in before]
        assert [(i.request.id, i.node, i.index) for i in ours.queued] == followed
        assert late.number == whole.number and late.workers == whole.workers
        assert late.holders == whole.holders
        assert set(late.requests) == set(whole.requests) - before


def told_of(told: Story) -> list[Moment]:
    """Its moments without how many others waited: of those who came before the window nothing is counted."""
    return [
        msgspec.structs.replace(m, text=re.sub(r"; \d+ other items? waiting for it", "", m.text))
        for m in told.moments
    ]


@example(seed=32445, most=3)
@given(seed=st.integers(0, 10**6), most=st.integers(1, 300))
@settings(deadline=None, max_examples=5)
def test_a_window_that_forgets_tells_the_same_stories(
    tmp_path_factory: pytest.TempPathFactory, seed: int, most: int
) -> None:
    steps = run(tmp_path_factory.getbasetemp() / "window.log", seed=seed, count=25)
    graphs = header(PolicySpec()).graphs
    window = Window(graphs, Follower(graphs).present(), most_steps=most)
    told = 0
    for step in steps:
        change = window.add(step)
        assert len(window) <= most
        known = window.begin.open
        for request, _ in change.closed:
            arrived_here = request.id not in known and any(
                getattr(s.event, "request", None) == request.id and type(s.event).__name__ == "RequestArrived"
                for s in window.steps()
            )
            if arrived_here and told < 8:
                told += 1
                ours = window.story(request.id)
                whole = story(steps, request.id, graphs)
                assert (ours.outcome, told_of(ours), ours.path) == (whole.outcome, told_of(whole), whole.path)
