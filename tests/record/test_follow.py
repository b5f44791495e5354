"""Following a log gives the controller's own books, step by step."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.record.recorded import header, run

from dovetail.record.follow import Follower
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
