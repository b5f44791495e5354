"""The scaler and the offers in slices ask what company costs, and batches in slices teach it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.scale.scaled import CURVE, SPEC, STAGE, TABLE

from dovetail.predict import Estimator
from dovetail.predict.interference import Beside, Interference, Load
from dovetail.scale import LoadScaler, ScaleSettings
from dovetail.scale.points import points_of
from dovetail.schedule.in_slices import slice_offers
from dovetail.state import Cluster, Config, Item, Request, Slice, Worker, compile_graphs
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import chain

HALF = Config(1, 1, 50)
GRAPH = chain("flow", 300 * MS, [STAGE])


def in_company(slow: float) -> Estimator:
    """Batches of the stage were beside others, which made them so many times as long; alone they are as profiled."""
    predictor = Estimator(TABLE, interference=Interference())
    alone_ns = predictor.run(STAGE, "gpu", 1, HALF).mean_ns
    for _ in range(200):
        took_ns = round(slow * alone_ns)
        predictor.observe_run(STAGE, "gpu", 1, HALF, took_ns, [Beside(Load("other", 1, 50))])
    return predictor


@pytest.mark.parametrize("slow", [1.0, 1.5])
def test_what_a_slice_yields_is_what_its_stage_takes_in_its_company(slow: float) -> None:
    predictor = in_company(slow)
    found = {(p.share_pct, p.batch): p for p in points_of(STAGE, "gpu", 0, predictor, SECOND, (20, 50, 100))}
    plain = {(p.share_pct, p.batch): p for p in points_of(STAGE, "gpu", 0, Estimator(TABLE), SECOND, (20, 50, 100))}
    assert found.keys() == plain.keys()
    for key, point in found.items():
        factor = 1.0 if key[0] == 100 else slow
        assert point.batch_ns == pytest.approx(factor * plain[key].batch_ns, rel=0.06)
        assert point.least_quota_pct >= plain[key].least_quota_pct


def _asked(predictor: Any, rate_per_s: int) -> int:
    """Hundredths of a device that the scaler gives the stage at a constant rate, for three seconds."""
    _, queues = compile_graphs([GRAPH], lambda _graph, node: node.stage)
    cluster = Cluster(queues, [STAGE.name])
    cluster.workers[1] = worker = Worker(1, SPEC)
    cluster.hold(STAGE.name, worker)
    cluster.slices[STAGE.name] = {}
    scaler = LoadScaler(predictor, [GRAPH], ScaleSettings(least=1, most=1, shares_pct=(50,)))
    area = 0
    for second in range(1, 4):
        queues[STAGE.name].arrived += rate_per_s
        for wish in scaler.adjust(cluster, (), second * SECOND).slices:
            area = max(area, wish.share_pct * wish.quota_pct)
    return area


def test_the_scaler_gives_more_where_neighbours_are_known_to_cost() -> None:
    assert _asked(in_company(1.5), 60) >= 1.25 * _asked(in_company(1.0), 60)
    assert _asked(in_company(1.0), 60) == _asked(Estimator(TABLE), 60)


def test_the_scaler_looks_again_when_neighbours_begin_to_cost() -> None:
    predictor = Estimator(TABLE, interference=Interference())
    cluster = Cluster(compile_graphs([GRAPH], lambda _graph, node: node.stage)[1], [STAGE.name])
    cluster.workers[1] = Worker(1, SPEC)
    scaler = LoadScaler(predictor, [GRAPH], ScaleSettings())
    assert scaler._prepare(cluster)
    before = scaler._stages[STAGE.name].points
    for _ in range(100):
        predictor.observe_run(STAGE, "gpu", 1, HALF, 20 * MS, [Beside(Load("other", 1, 50))])
    assert scaler._prepare(cluster)
    assert scaler._stages[STAGE.name].points != before


def test_offers_in_slices_count_on_the_usual_company() -> None:
    graphs, queues = compile_graphs([GRAPH], lambda _graph, node: node.stage)
    cluster = Cluster(queues, [STAGE.name])
    cluster.workers[1] = worker = Worker(1, SPEC)
    cluster.hold(STAGE.name, worker)
    cluster.slices[STAGE.name] = {1: Slice(1, STAGE.name, 1, 50, 100, 1)}
    queues[STAGE.name].push(0, Item(Request(1, graphs[0], 1, 0, SECOND, 0), 0, 0, 0))
    times = [
        slice_offers(cluster, queues[STAGE.name], p, (), 0)[0].run_ns for p in (in_company(1.5), Estimator(TABLE))
    ]
    assert math.isclose(times[0], 1.5 * times[1], rel_tol=0.06)
    assert times[1] == CURVE.latency_ns(1, 50)
