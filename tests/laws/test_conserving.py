"""Law 4 under pressure: a planner whose answers change with time and with whatever else has started.

Workflows share their stages and are short, workers are few and hold everything: so at any time some work waits beside
room that is too small for what the planner offers, and the next moment may make it offer less.
"""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.laws.play import Pace, Play

from dovetail.units import MS, US
from dovetail.wiring import PolicySpec
from dovetail.workflow.graph import Graph, StageSpec, chain

LAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

STAGES = [StageSpec(name, "model", (1, 2, 4), weights_bytes=10) for name in ("x", "y", "z")]
workflows = st.lists(
    st.tuples(st.sampled_from([30, 60, 200]), st.lists(st.sampled_from(STAGES), min_size=1, max_size=3, unique=True)),
    min_size=1,
    max_size=3,
)
policies = st.builds(
    PolicySpec,
    name=st.just("dovetail"),
    percentile=st.sampled_from([0.99, 0.5]),
    lead_us=st.sampled_from([0, 0, 1_000]),
)
#: After so many microseconds: a request of which workflow, with which objective, or (None) one that is given up.
moves = st.lists(
    st.tuples(st.integers(0, 9_000), st.sampled_from([0, 0, 1, 1, 2, 2, None]), st.sampled_from([0, 0, 12, 25, 60])),
    min_size=10,
    max_size=80,
)
#: By how much clocks are late, and how much of what is expected a batch takes.
worlds = st.tuples(st.integers(1, 2), st.sampled_from([0, MS // 2]), st.sampled_from([0.8, 1.0, 1.4]))
paces = st.lists(
    st.tuples(st.integers(6, 30), st.sampled_from([20, 40, 60, 80])),
    min_size=len(STAGES),
    max_size=len(STAGES),
)


def rush(
    declared: list[Graph],
    policy: PolicySpec,
    world: tuple[int, int, float],
    made: list[tuple[int, int | None, int]],
    paces: list[Pace],
) -> Play:
    """Play these moves on workers that hold every model and do their work."""
    workers, late_ns, pace = world
    play = Play(declared, policy, *paces)
    for _ in range(workers):
        play.join()
    while play.loading:
        play.load(0)
    for gap_us, which, within_ms in made:
        until_ns = play.now_ns + gap_us * US
        while play.running:
            end_ns, batch = min((b.earliest_ns + int(b.expected_ns * pace), b.batch) for b in play.running.values())
            if end_ns > until_ns:
                break
            play.wait(max(end_ns, play.now_ns), late_ns)
            if batch in play.running:
                play.finish(batch)
        play.wait(until_ns, late_ns)
        if which is None:
            play.cancel(len(play.given))
        else:
            play.arrive(which % len(declared), {}, within_ns=within_ms * MS)
    play.end()
    return play


@settings(LAW, max_examples=200)
@given(workflows, policies, worlds, moves, paces)
def test_no_device_idles_beside_work_that_the_planner_would_start(
    declared: list[tuple[int, list[StageSpec]]],
    policy: PolicySpec,
    world: tuple[int, int, float],
    made: list[tuple[int, int | None, int]],
    paces: list[Pace],
) -> None:
    """`validate` asks after every step; and a controller that nobody asks decides the same, byte for byte."""
    graphs = [chain(f"w{i}", slo_ms * MS, stages) for i, (slo_ms, stages) in enumerate(declared)]
    play = rush(graphs, policy, world, made, paces)
    play.check_end()
    unasked = Play(graphs, policy, *paces).controller
    for event, actions in zip(play.events, play.actions, strict=True):
        assert msgspec.msgpack.encode(unasked.step(event)) == msgspec.msgpack.encode(actions)
