"""What somebody who watches is shown agrees with what happened."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
from tests.record.recorded import header, run

from dovetail.control import BatchFailed, BatchFinished, Reply, RunBatch
from dovetail.record.follow import Follower
from dovetail.record.sight import Banner, Sample, StageInfo, Tick, Totals, Workflow
from dovetail.record.view import OVER_NS, View
from dovetail.record.window import Window
from dovetail.units import MS
from dovetail.wiring import PolicySpec


def banner() -> Banner:
    graphs = header(PolicySpec()).graphs
    stages = {s.name: s for g in graphs for s in g.stages}
    workflows = tuple(Workflow(g.name, g.slo_ns / MS, g.priority, (), (), (), ()) for g in graphs)
    infos = tuple(StageInfo(s.name, s.kind, s.batch, s.weights, s.weights_bytes) for s in stages.values())
    return Banner("0", "first-come", "sim", 0, workflows, infos)


def sample(now_ns: int, totals: tuple[Totals, ...] = (), **depth: int) -> Sample:
    return Sample(now_ns, totals, depth, 0, False, {}, {}, {}, (), 0, 1)


def test_ticks_have_every_batch_once_and_the_requests_of_the_last_seconds(tmp_path: Path) -> None:
    steps = run(tmp_path / "view.log", seed=5, count=60)
    graphs = header(PolicySpec()).graphs
    view = View(banner(), Window(graphs, Follower(graphs).present()))
    seen: list[Tick] = []
    for number, step in enumerate(steps):
        view.add(step)
        if number % 20 == 0:
            seen.append(view.tick(sample(step.event.at_ns)))
    last_ns = steps[-1].event.at_ns
    seen.append(view.tick(sample(last_ns, detect=3)))
    ran = Counter(span.batch for tick in seen for span in tick.spans)
    ended = [s.event for s in steps if isinstance(s.event, BatchFinished | BatchFailed)]
    assert {e.batch for e in ended} <= set(ran) and set(ran.values()) == {1}
    sent = {a.batch: a for s in steps for a in s.actions if isinstance(a, RunBatch)}
    for span in (span for tick in seen for span in tick.spans):
        assert span.items == len(sent[span.batch].items) and span.worker == sent[span.batch].worker
        assert span.begin_ns <= span.end_ns and span.busy_ns <= span.end_ns - span.begin_ns
    assert last_ns < OVER_NS  # so that the last tick is about the whole run
    outcomes = Counter((a.graph, a.priority, a.outcome) for s in steps for a in s.actions if hasattr(a, "arrived_ns"))
    for row in seen[-1].classes:
        graph = [g.name for g in graphs].index(row.workflow)
        mine = {name: count for (g, p, name), count in outcomes.items() if (g, p) == (graph, row.priority)}
        all_but_cancelled = sum(count for name, count in mine.items() if name != "cancelled")
        assert row.attainment == mine.get("ok", 0) / all_but_cancelled
        latencies = [
            s.event.at_ns - a.arrived_ns for s in steps for a in s.actions
            if isinstance(a, Reply) and (a.graph, a.priority) == (graph, row.priority)
        ]  # fmt: skip
        assert row.p50_ms is not None and min(latencies) / MS <= row.p50_ms <= max(latencies) / MS * 1.02
    stages = {stage.name: stage for stage in seen[-1].stages}
    assert stages["detect"].depth == 3
    assert stages["detect"].run_ms > 0
    by_name = {worker.name: worker for worker in seen[-1].workers}
    assert "gpu2" not in by_name and 0 < by_name["gpu1"].busy <= 1
    assert any("gpu2 was lost: the process died" in note.text for note in seen[-1].notes)
    assert msgspec.json.decode(msgspec.json.encode(seen[-1]), type=Tick) == seen[-1]
