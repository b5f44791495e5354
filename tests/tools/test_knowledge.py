"""What is said at the start: what is known of times, and which objectives nobody can meet."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.plan.space import Space
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.state import Config, WorkerSpec
from dovetail.tools.knowledge import fastest, known_of, longest_ns, outlook
from dovetail.units import MS
from dovetail.workflow.graph import Graph, Source, StageSpec, chain

CUT, NET, READ = StageSpec("cut", "python", (1,)), StageSpec("net", "onnx", (1, 4)), StageSpec("read", "onnx", (1,))
WORKERS = (
    WorkerSpec("cpu-0", "cpu", ("onnx",), 2, 0, 1.0, "cooperative"),
    WorkerSpec("host-0", "host", ("python",), 1, 0, 1.0, "none"),
)


def flow(slo_ms: int, *stages: StageSpec, after: dict[str, tuple[str, ...]] | None = None) -> Graph:
    return chain("flow", slo_ms * MS, stages, after)


def entry(stage: StageSpec, ms: float, source: str = "measured 2026-11-18 on a machine") -> Entry:
    """So long on one core, and half of it on two."""
    kind = "host" if stage.on_host else "cpu"
    points = tuple(Point(b, c, round(ms * b / c * MS), 0.1, 9) for b in stage.batch for c in (1, 2))
    return Entry(stage.name, kind, points=points, source=source)


def test_each_basis_is_called_by_its_name() -> None:
    estimator = Estimator(ProfileTable([entry(CUT, 2), entry(NET, 8, "scenario")]))
    assert known_of(CUT, "host", estimator).basis == "measured"
    assert known_of(CUT, "host", estimator).why == "2026-11-18 on a machine"
    assert known_of(NET, "cpu", estimator).basis == "assumed"
    assert known_of(READ, "cpu", estimator).basis == "unknown"
    for _ in range(3):
        estimator.observe_run(READ, "cpu", 1, Config(1, 2, 100), 5 * MS)
    learned = known_of(READ, "cpu", estimator)
    assert (learned.basis, learned.why) == ("learned", "seen 3 times while serving")


def test_a_guess_is_told_with_what_it_rests_on_and_is_unknown_all_the_same() -> None:
    net, read = (msgspec.structs.replace(stage, macs=100_000_000) for stage in (NET, READ))
    alone = known_of(read, "cpu", Estimator(ProfileTable(), stages=(net, read)))
    assert (alone.basis, alone.why) == (
        "unknown",
        "nobody has measured it; its 100 million multiply-accumulates suggest about 3.05 ms",
    )
    beside = known_of(read, "cpu", Estimator(ProfileTable([entry(net, 8)]), stages=(net, read)))
    assert beside.basis == "unknown" and beside.why.endswith("suggest about 8 ms, by what net take")


def test_the_fastest_time_is_that_of_the_longest_way_in_the_fastest_configurations() -> None:
    estimator = Estimator(ProfileTable([entry(CUT, 2), entry(NET, 8), entry(READ, 20)]))
    side_by_side = flow(100, CUT, NET, READ, after={"net": ("cut",), "read": ("cut",)})
    found = fastest(side_by_side, WORKERS, estimator)
    assert found.mean_ns == (2 + 10) * MS, "on two cores, and the other branch is shorter"
    assert fastest(flow(100, CUT, NET, READ), WORKERS, estimator).mean_ns == (2 + 4 + 10) * MS
    one_core = (msgspec.structs.replace(WORKERS[0], cores=1), WORKERS[1])
    assert fastest(flow(100, CUT, NET, READ), one_core, estimator, Space()).mean_ns == (2 + 8 + 20) * MS


@pytest.mark.parametrize(("slo_ms", "hopeless"), [(17, False), (16, False), (15, True)])
def test_an_objective_that_nobody_can_meet_is_said_with_the_fastest_time_and_its_origin(
    slo_ms: int, hopeless: bool
) -> None:
    estimator = Estimator(ProfileTable([entry(CUT, 2), entry(NET, 8)]))
    estimator.observe_run(READ, "cpu", 1, Config(1, 2, 100), 10 * MS)
    first, *rest = outlook([flow(slo_ms, CUT, NET, READ)], WORKERS, estimator)
    assert first == "how long stages take: of 3, 2 profiled, 1 learned while serving"
    said = (
        "nobody can meet the objective of 'flow', 15 ms: its fastest plan takes 16 ms on average on idle devices "
        "(profiled: cut, net; learned while serving: read)"
    )
    assert rest == ([said] if hopeless else [])


def test_what_is_unknown_counts_as_nothing_and_is_named() -> None:
    estimator = Estimator(ProfileTable([entry(CUT, 2), entry(NET, 8)]))
    assert outlook([flow(6, CUT, NET, READ)], WORKERS, estimator) == [
        "how long stages take: of 3, 2 profiled, 1 not known yet (read)"
    ]
    (_, said) = outlook([flow(5, CUT, NET, READ)], WORKERS, estimator)
    assert "the stages that are known take alone 6 ms" in said and "unknown: read" in said


def test_what_may_be_left_out_counts_as_nothing() -> None:
    estimator = Estimator(ProfileTable([entry(CUT, 2), entry(NET, 8), entry(READ, 20)]))
    graph = flow(100, CUT, NET, READ)
    cut, net, read = graph.nodes
    sometimes = msgspec.structs.replace(net, when=Source(0))
    listed = msgspec.structs.replace(read, mapped=True)
    for nodes, ms in (((cut, sometimes, read), 12), ((cut, net, listed), 6)):
        changed = msgspec.structs.replace(graph, nodes=nodes)
        found = fastest(changed, WORKERS, estimator)
        assert found.mean_ns == ms * MS
        left_out = "net" if nodes[1] is sometimes else "read"
        assert left_out not in str(found) and "cut" in str(found)


def test_the_longest_way_of_nothing_takes_no_time() -> None:
    assert longest_ns(msgspec.structs.replace(flow(1, CUT), nodes=()), lambda _: 1.0) == 0.0
