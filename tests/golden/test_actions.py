"""Small runs, checked by hand: the exact actions of every step.

A run is written as a list of (event, actions). Steps are numbered from 1 on; an action's first field is the number of
its step, an event's second the number of the step that caused it. Every stage takes 10 ms alone, 12, 14 and 16 ms in
batches of two, three and four. A batch says by when the first of its requests should be answered (`due_ms`: 100 ms
after that one's arrival), its class, and whether a model follows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.control import (
    NEVER_NS,
    Action,
    BatchFailed,
    BatchFinished,
    Controller,
    Drained,
    DrainStarted,
    Event,
    LoadModel,
    ModelLoaded,
    Policy,
    Reject,
    Reply,
    RequestArrived,
    RequestCancelled,
    RequestRefused,
    RunBatch,
    SetTimer,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from dovetail.control.validate import validate
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.scale import LoadEverything
from dovetail.schedule import FirstCome
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import Graph, Node, Source, StageSpec, chain

Steps = list[tuple[Event, list[Action]]]

TIMES_MS = {1: 10, 2: 12, 3: 14, 4: 16}
SPEC = WorkerSpec("gpu", "gpu", ("model",), usd_per_hour=3600.0)
SLO_NS = 100 * MS


def stage(name: str, batch: int = 1) -> StageSpec:
    return StageSpec(name, "model", (batch,))


def controller(graph: Graph, share_pct: int = 100, *, lead_ms: int = 0, by_class: bool = False) -> Controller:
    points = tuple(Point(batch, 1, ms * MS, 0.0, 1) for batch, ms in TIMES_MS.items())
    table = ProfileTable([Entry(s.name, "gpu", points=points) for s in graph.stages])
    scheduler = FirstCome(share_pct=share_pct, by_class=by_class, bind_ns=lead_ms * MS)
    predictor = Estimator(table)
    policy = Policy(scheduler, LoadEverything(), predictor)
    return Controller([graph], policy)


def play(c: Controller, steps: Steps) -> None:
    for event, actions in steps:
        assert c.step(event) == actions, f"step {c.step_number}"
        validate(c)


def with_worker(c: Controller, worker: int = 1, spec: WorkerSpec = SPEC) -> Controller:
    """The worker has joined and holds every model; that took a step and one more per model."""
    c.step(WorkerJoined(0, 0, worker, spec))
    for name in c.stages:
        c.step(ModelLoaded(0, 1, worker, name, 0))
    return c


def run(
    cause: int,
    batch: int,
    name: str,
    items: Sequence[tuple[int, int, int]],
    now_ms: int,
    *,
    due_ms: int = 100,
    priority: int = 1,
    follows: bool = False,
    worker: int = 1,
    share_pct: int = 100,
    latest_ns: int = NEVER_NS,
    reason: str = "",
) -> RunBatch:
    expected_ns = TIMES_MS[len(items)] * MS
    window = (now_ms * MS, latest_ns)
    return RunBatch(
        cause,
        batch,
        worker,
        name,
        tuple(items),
        1,
        share_pct,
        *window,
        expected_ns,
        reason=reason,
        priority=priority,
        objective_ns=due_ms * MS,
        follows=follows,
    )


def arrived(
    at_ms: int, request: int, *, deadline_ms: int = 0, counts: tuple[int, ...] = (), priority: int = 0
) -> RequestArrived:
    return RequestArrived(at_ms * MS, 0, request, 0, priority, deadline_ns=deadline_ms * MS, counts=counts)


def finished(at_ms: int, cause: int, batch: int, took_ms: int, counts: tuple[int, ...] = ()) -> BatchFinished:
    return BatchFinished(at_ms * MS, cause, batch, (at_ms - took_ms) * MS, at_ms * MS, counts)


def ok(cause: int, request: int, arrived_ms: int, cost_usd: float) -> Reply:
    return Reply(cause, request, 0, 1, "ok", arrived_ms * MS, cost_usd)


def test_what_the_front_refused_has_its_outcome_and_leaves_nothing() -> None:
    c = with_worker(controller(chain("one", SLO_NS, [stage("a")], priority=2)))
    play(
        c,
        [
            (RequestRefused(1 * MS, 0, 1, 0, 0, "no memory", 5), [refused(3, 1, 2, 1, 5)]),
            (RequestRefused(2 * MS, 0, 2, 0, 3, "no memory"), [refused(4, 2, 3, 2)]),
            (RequestCancelled(3 * MS, 0, 1), []),
        ],
    )
    assert not c.requests and not c.timers
    # Also while the server drains: it is answered, so nothing is left to wait for.
    play(
        c,
        [
            (DrainStarted(4 * MS, 0), [Drained(6)]),
            (RequestRefused(5 * MS, 0, 3, 0, 0, "no memory"), [refused(7, 3, 2, 5)]),
        ],
    )


def refused(cause: int, request: int, priority: int, at_ms: int, retry_ns: int = 0) -> Reject:
    return Reject(cause, request, 0, priority, "shed", at_ms * MS, 0.0, "no memory", retry_ns)


def test_one_request_through_a_diamond() -> None:
    """a, then b and c side by side on half the device each, then d; a worker that joins is given the models first.

    d follows neither b nor c when they start: each of them leaves the other one to wait for.
    """
    after = {"b": ["a"], "c": ["a"], "d": ["b", "c"]}
    c = controller(chain("diamond", SLO_NS, [stage(n) for n in "abcd"], after), share_pct=50)
    half = {"share_pct": 50, "due_ms": 110}
    play(
        c,
        [
            (WorkerJoined(0, 0, 1, SPEC), [LoadModel(1, 1, name, keep=True) for name in "abcd"]),
            (ModelLoaded(1 * MS, 1, 1, "a", 0), []),
            (ModelLoaded(2 * MS, 1, 1, "b", 0), []),
            (ModelLoaded(3 * MS, 1, 1, "c", 0), []),
            (ModelLoaded(4 * MS, 1, 1, "d", 0), []),
            (arrived(10, 1), [run(6, 1, "a", [(1, 0, 0)], 10, follows=True, **half)]),
            (
                finished(20, 6, 1, 10),
                [run(7, 2, "b", [(1, 1, 0)], 20, **half), run(7, 3, "c", [(1, 2, 0)], 20, **half)],
            ),
            (finished(30, 7, 3, 10), []),
            (finished(31, 7, 2, 11), [run(9, 4, "d", [(1, 3, 0)], 31, **half)]),
            # 41 ms of half a device at a dollar a second.
            (finished(41, 9, 4, 10), [ok(10, 1, 10, 0.005 + 0.005 + 0.0055 + 0.005)]),
        ],
    )


def test_of_two_entries_the_one_that_was_declared_first_has_the_device_first() -> None:
    c = with_worker(controller(chain("fork", SLO_NS, [stage(n) for n in "abc"], {"c": ["a", "b"]})))
    play(
        c,
        [
            (arrived(10, 1), [run(5, 1, "a", [(1, 0, 0)], 10, due_ms=110)]),
            (finished(20, 5, 1, 10), [run(6, 2, "b", [(1, 1, 0)], 20, due_ms=110, follows=True)]),
        ],
    )


def test_a_batch_forms_across_requests() -> None:
    """The first runs alone at once; those that come meanwhile run together, up to the batch size."""
    c = with_worker(controller(chain("one", SLO_NS, [stage("a", 2)])))
    play(
        c,
        [
            (arrived(0, 1), [run(3, 1, "a", [(1, 0, 0)], 0)]),
            (arrived(1, 2), []),
            (arrived(2, 3), []),
            (arrived(3, 4), []),
            (finished(10, 3, 1, 10), [ok(7, 1, 0, 0.01), run(7, 2, "a", [(2, 0, 0), (3, 0, 0)], 10, due_ms=101)]),
            (
                finished(22, 7, 2, 12),
                [ok(8, 2, 1, 0.006), ok(8, 3, 2, 0.006), run(8, 3, "a", [(4, 0, 0)], 22, due_ms=103)],
            ),
            (finished(32, 8, 3, 10), [ok(9, 4, 3, 0.01)]),
        ],
    )


def test_a_batch_is_of_its_highest_class_and_due_when_the_first_of_that_class_is() -> None:
    """Request 2 is due first of all, but it is of a lower class: that it is in the batch hurries nobody."""
    c = with_worker(controller(chain("one", SLO_NS, [stage("a", 4)])))
    play(
        c,
        [
            (arrived(0, 1, priority=3), [run(3, 1, "a", [(1, 0, 0)], 0, priority=3)]),
            (arrived(1, 2, priority=3), []),
            (arrived(2, 3, priority=2), []),
            (arrived(3, 4, priority=2), []),
            (
                finished(10, 3, 1, 10),
                [
                    Reply(7, 1, 0, 3, "ok", 0, 0.01),
                    run(7, 2, "a", [(n, 0, 0) for n in (2, 3, 4)], 10, due_ms=102, priority=2),
                ],
            ),
        ],
    )


def fan_out() -> Graph:
    """detect(page), then read.map over what was detected, then join of the whole."""
    return Graph(
        "pages",
        SLO_NS,
        1,
        (stage("detect", 2), stage("read", 4), stage("join", 2)),
        (
            Node("detect", "detect", (Source(-1),)),
            Node("read", "read", (Source(0),), mapped=True),
            Node("join", "join", (Source(1),)),
        ),
        results=(Source(2),),
    )


def test_a_fan_out_of_three_and_one_of_two_share_batches() -> None:
    """Three lines of page 1 and one of page 2 run together; page 2 is joined only when its second line is read."""
    c = with_worker(controller(fan_out()))
    play(
        c,
        [
            (arrived(0, 1), [run(5, 1, "detect", [(1, 0, 0)], 0, follows=True)]),
            (arrived(1, 2), []),
            # Page 1 has three lines. Its lines come before page 2, which arrived later.
            (finished(10, 5, 1, 10, (3,)), [run(7, 2, "read", [(1, 1, 0), (1, 1, 1), (1, 1, 2)], 10)]),
            (finished(24, 7, 2, 14), [run(8, 3, "join", [(1, 2, 0)], 24)]),
            (
                finished(34, 8, 3, 10),
                [
                    ok(9, 1, 0, 0.01 + 0.014 / 3 + 0.014 / 3 + 0.014 / 3 + 0.01),
                    run(9, 4, "detect", [(2, 0, 0)], 34, due_ms=101, follows=True),
                ],
            ),
            (arrived(35, 3), []),
            (finished(44, 9, 4, 10, (2,)), [run(11, 5, "read", [(2, 1, 0), (2, 1, 1)], 44, due_ms=101)]),
            (arrived(45, 4), []),
            (finished(56, 11, 5, 12), [run(13, 6, "join", [(2, 2, 0)], 56, due_ms=101)]),
            (
                finished(66, 13, 6, 10),
                [
                    ok(14, 2, 1, 0.01 + 0.006 + 0.006 + 0.01),
                    run(14, 7, "detect", [(3, 0, 0), (4, 0, 0)], 66, due_ms=135, follows=True),
                ],
            ),
            # Two pages at once: three lines and two, of which the first four fit into a batch.
            (
                finished(78, 14, 7, 12, (3, 2)),
                [run(15, 8, "read", [(3, 1, 0), (3, 1, 1), (3, 1, 2), (4, 1, 0)], 78, due_ms=135)],
            ),
            (finished(94, 15, 8, 16), [run(16, 9, "join", [(3, 2, 0)], 94, due_ms=135)]),
            (
                finished(104, 16, 9, 10),
                [
                    ok(17, 3, 35, 0.006 + 0.004 + 0.004 + 0.004 + 0.01),
                    run(17, 10, "read", [(4, 1, 1)], 104, due_ms=145),
                ],
            ),
            (finished(114, 17, 10, 10), [run(18, 11, "join", [(4, 2, 0)], 114, due_ms=145)]),
            (finished(124, 18, 11, 10), [ok(19, 4, 45, 0.006 + 0.004 + 0.01 + 0.01)]),
        ],
    )


def test_a_page_without_lines_is_joined_at_once() -> None:
    c = with_worker(controller(fan_out()))
    play(
        c,
        [
            (arrived(0, 1), [run(5, 1, "detect", [(1, 0, 0)], 0, follows=True)]),
            (finished(10, 5, 1, 10, (0,)), [run(6, 2, "join", [(1, 2, 0)], 10)]),
            (finished(20, 6, 2, 10), [ok(7, 1, 0, 0.02)]),
        ],
    )


def cascade() -> Graph:
    """quick(x), and careful(x) only if quick was unsure; then tell."""
    return Graph(
        "cascade",
        SLO_NS,
        1,
        (stage("quick"), stage("careful"), stage("tell")),
        (
            Node("quick", "quick", (Source(-1),)),
            Node("careful", "careful", (Source(-1),), when=Source(0), otherwise=Source(0)),
            Node("tell", "tell", (Source(1),)),
        ),
        results=(Source(2),),
    )


def test_a_condition_that_does_not_hold_skips_its_step() -> None:
    c = with_worker(controller(cascade()))
    play(
        c,
        [
            (arrived(0, 1), [run(5, 1, "quick", [(1, 0, 0)], 0, follows=True)]),
            (finished(10, 5, 1, 10, (0,)), [run(6, 2, "tell", [(1, 2, 0)], 10)]),
            (finished(20, 6, 2, 10), [ok(7, 1, 0, 0.02)]),
        ],
    )


def test_a_condition_that_holds_runs_its_step() -> None:
    c = with_worker(controller(cascade()))
    play(
        c,
        [
            (arrived(0, 1), [run(5, 1, "quick", [(1, 0, 0)], 0, follows=True)]),
            (finished(10, 5, 1, 10, (1,)), [run(6, 2, "careful", [(1, 1, 0)], 10, follows=True)]),
            (finished(20, 6, 2, 10), [run(7, 3, "tell", [(1, 2, 0)], 20)]),
            (finished(30, 7, 3, 10), [ok(8, 1, 0, 0.03)]),
        ],
    )


def test_a_batch_on_a_lost_worker_is_run_on_another() -> None:
    """What the lost worker still says of it is not listened to."""
    c = with_worker(with_worker(controller(chain("one", SLO_NS, [stage("a", 2)]))), worker=2)
    play(
        c,
        [
            (arrived(0, 1), [run(5, 1, "a", [(1, 0, 0)], 0)]),
            (WorkerLost(5 * MS, 0, 1, "killed"), [run(6, 2, "a", [(1, 0, 0)], 5, worker=2)]),
            (finished(10, 5, 1, 10), []),
            (finished(15, 6, 2, 10), [ok(8, 1, 0, 0.01)]),
        ],
    )


def test_of_a_batch_that_raised_only_the_culprit_fails() -> None:
    """Its items are run again one by one, ahead of what came later."""
    c = with_worker(controller(chain("one", 200 * MS, [stage("a", 4)])))
    play(
        c,
        [
            (arrived(0, 1), [run(3, 1, "a", [(1, 0, 0)], 0, due_ms=200)]),
            *((arrived(n - 1, n), []) for n in (2, 3, 4, 5)),
            (
                finished(10, 3, 1, 10),
                [ok(8, 1, 0, 0.01), run(8, 2, "a", [(n, 0, 0) for n in (2, 3, 4, 5)], 10, due_ms=201)],
            ),
            (arrived(11, 6), []),
            (
                BatchFailed(20 * MS, 8, 2, 10 * MS, 20 * MS, "error", "no picture"),
                [run(10, 3, "a", [(2, 0, 0)], 20, due_ms=201)],
            ),
            (finished(30, 10, 3, 10), [ok(11, 2, 1, 0.01), run(11, 4, "a", [(3, 0, 0)], 30, due_ms=202)]),
            (
                BatchFailed(40 * MS, 11, 4, 30 * MS, 40 * MS, "error", "no picture"),
                [
                    Reject(12, 3, 0, 1, "failed", 2 * MS, 0.0, "error: no picture"),
                    run(12, 5, "a", [(4, 0, 0)], 40, due_ms=203),
                ],
            ),
            (finished(50, 12, 5, 10), [ok(13, 4, 3, 0.01), run(13, 6, "a", [(5, 0, 0)], 50, due_ms=204)]),
            (finished(60, 13, 6, 10), [ok(14, 5, 4, 0.01), run(14, 7, "a", [(6, 0, 0)], 60, due_ms=211)]),
            (finished(70, 14, 7, 10), [ok(15, 6, 11, 0.01)]),
        ],
    )


def test_a_request_that_expires_in_the_queue_leaves_it() -> None:
    """A batch must start before the last deadline in it; the timer of what was answered in time means nothing."""
    c = with_worker(controller(chain("one", SLO_NS, [stage("a")])))
    play(
        c,
        [
            (
                arrived(0, 1, deadline_ms=50),
                [SetTimer(3, 1, 50 * MS), run(3, 1, "a", [(1, 0, 0)], 0, latest_ns=50 * MS)],
            ),
            (arrived(1, 2, deadline_ms=8), [SetTimer(4, 2, 8 * MS)]),
            (arrived(2, 3), []),
            (
                TimerFired(8 * MS, 4, 2),
                [Reject(6, 2, 0, 1, "expired", 1 * MS, 0.0, "its deadline passed before it was done")],
            ),
            (finished(10, 3, 1, 10), [ok(7, 1, 0, 0.01), run(7, 2, "a", [(3, 0, 0)], 10, due_ms=102)]),
            (finished(20, 7, 2, 10), [ok(8, 3, 2, 0.01)]),
            (TimerFired(50 * MS, 3, 1), []),
        ],
    )


def test_a_drain_finishes_what_is_open_and_takes_nothing_new() -> None:
    c = with_worker(controller(chain("two", SLO_NS, [stage("a"), stage("b")])))
    play(
        c,
        [
            (arrived(0, 1), [run(4, 1, "a", [(1, 0, 0)], 0, follows=True)]),
            (DrainStarted(5 * MS, 0), []),
            (
                arrived(6, 2),
                [Reject(6, 2, 0, 1, "shed", 6 * MS, 0.0, "the server is draining", 2000 * MS)],
            ),
            (finished(10, 4, 1, 10), [run(7, 2, "b", [(1, 1, 0)], 10)]),
            (finished(20, 7, 2, 10), [ok(8, 1, 0, 0.02), Drained(8)]),
            (DrainStarted(21 * MS, 0), []),
        ],
    )
