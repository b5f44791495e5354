"""The controller's laws under everything that may happen. Numbers are those of docs/invariants.md."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.laws.play import CLASSES, REASONS, Play, outcome
from tests.laws.recipes import graphs, lengths, plainly

from dovetail.control import TimerFired
from dovetail.units import MS
from dovetail.wiring import POLICIES, PolicySpec
from dovetail.workflow.graph import Graph

STEPS = 40
#: A busy machine is no reason to fail.
LAW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

policies = st.builds(
    PolicySpec,
    # Aquatope plans for seconds; but for its plan it runs as Orion does.
    name=st.sampled_from(sorted(set(POLICIES) - {"aquatope"})),
    share_pct=st.sampled_from([100, 50, 34]),
    max_open=st.sampled_from([3, 10_000]),
    lead_us=st.sampled_from([0, 1_000, 10_000]),
)


def play_out(data: st.DataObject, declared: list[Graph], policy: PolicySpec) -> Play:
    """Anything that may happen, in any order, for a while; then everything comes to its end."""
    play = Play(declared, policy)
    for _ in range(data.draw(st.integers(1, STEPS), label="steps")):
        happens = ["arrive", "arrive", "arrive", "refuse", "join", "wait", "cancel"]
        happens += ["finish", "finish", "fail"] * bool(play.running)
        happens += ["load", "load", "load", "no load"] * bool(play.loading)
        happens += ["lose"] * bool(play.held)
        kept = [(w, s) for w in sorted(play.keeping & set(play.held)) for s in play.held[w]]
        happens += ["evict"] * bool(kept) + ["tell"] * bool(play.keeping)
        happens += ["drain"] * (len(play.events) > STEPS // 2)
        match data.draw(st.sampled_from(happens)):
            case "arrive":
                graph = data.draw(st.integers(0, len(declared) - 1))
                patience_ns = data.draw(st.sampled_from([0, 0, 1, 20 * MS]))
                priority = data.draw(st.integers(0, CLASSES))
                play.arrive(
                    graph,
                    data.draw(lengths(declared[graph])),
                    priority=priority,
                    patience_ns=patience_ns,
                    within_ns=data.draw(st.sampled_from([0, 0, 12 * MS, 40 * MS])),
                )
            case "refuse":
                play.refuse(data.draw(st.integers(0, len(declared) - 1)), data.draw(st.integers(0, CLASSES)))
            case "join":
                play.join(data.draw(st.sampled_from([0, 0, 25])), preempts=data.draw(st.booleans()))
            case "lose":
                play.lose(data.draw(st.sampled_from(sorted(play.held))))
            case "wait":
                wait_ns = data.draw(st.sampled_from([0, 1, MS, 30 * MS]))
                play.wait(play.now_ns + wait_ns, late_ns=data.draw(st.sampled_from([0, MS])))
            case "cancel":
                play.cancel(data.draw(st.integers(1, len(play.given) + 1)))
            case "finish":
                play.finish(data.draw(st.sampled_from(sorted(play.running))))
            case "fail":
                play.fail(data.draw(st.sampled_from(sorted(play.running))), data.draw(st.sampled_from(REASONS)))
            case "load":
                play.load(data.draw(st.integers(0, len(play.loading) - 1)))
            case "no load":
                play.load(0, fails=True)
            case "evict":
                play.evict(*data.draw(st.sampled_from(kept)))
            case "tell":
                wait_ns, age_ns = data.draw(st.sampled_from([0, MS, 90 * MS])), data.draw(st.sampled_from([0, 1, MS]))
                play.tell(data.draw(st.sampled_from(sorted(play.keeping))), wait_ns, age_ns)
            case "drain":
                play.drain()
    play.end()
    return play


@settings(LAW, max_examples=150)
@given(st.data(), graphs("one"), graphs("two"), policies)
def test_every_request_ends_exactly_once_whatever_happens(
    data: st.DataObject, one: Graph, two: Graph, policy: PolicySpec
) -> None:
    """Laws 1 to 4: `Play` looks at shares, memory and idle devices after every step, at the answers in the end."""
    play = play_out(data, [one, two], policy)
    play.check_end()
    assert play.drains == play.controller.draining


@settings(LAW, max_examples=150)
@given(st.data(), graphs())
def test_the_walk_through_a_graph_is_what_the_graph_means(data: st.DataObject, graph: Graph) -> None:
    """Law 1: which nodes run, and how many items of each, is what running the graph step by step would do."""
    play = Play([graph], PolicySpec("first-come", share_pct=data.draw(st.sampled_from([100, 50]))))
    given_lengths = [data.draw(lengths(graph)) for _ in range(data.draw(st.integers(1, 3)))]
    for one in given_lengths:
        play.arrive(0, one)
    play.join()
    while play.loading or play.running:
        if play.loading:
            play.load(data.draw(st.integers(0, len(play.loading) - 1)))
        else:
            play.finish(data.draw(st.sampled_from(sorted(play.running))))
    play.check_end()
    for request, one in enumerate(given_lengths, start=1):
        expected = plainly(graph, one)
        if expected is None:
            assert outcome(play.answers, request) == "failed"
        else:
            assert outcome(play.answers, request) == "ok"
            assert dict(play.done[request]) == expected


@settings(LAW, max_examples=50)
@given(st.data(), graphs("one"), graphs("two"), policies)
def test_the_same_events_give_the_same_bytes(data: st.DataObject, one: Graph, two: Graph, policy: PolicySpec) -> None:
    """Law 5: a fresh controller that is told the same events decides the same, byte for byte."""
    play = play_out(data, [one, two], policy)
    again = Play([one, two], policy).controller
    for event, actions in zip(play.events, play.actions, strict=True):
        assert msgspec.msgpack.encode(again.step(event)) == msgspec.msgpack.encode(actions)


@settings(LAW, max_examples=25)
@given(st.data(), graphs("one"), graphs("two"))
def test_time_never_goes_back(data: st.DataObject, one: Graph, two: Graph) -> None:
    """An event of the past is refused, and refusing it changes nothing."""
    play = play_out(data, [one, two], PolicySpec())
    again = Play([one, two]).controller
    for event, actions in zip(play.events, play.actions, strict=True):
        if again.now_ns:
            with pytest.raises(ValueError, match="time went back"):
                again.step(TimerFired(again.now_ns - 1, 0, 1))
        assert msgspec.msgpack.encode(again.step(event)) == msgspec.msgpack.encode(actions)
