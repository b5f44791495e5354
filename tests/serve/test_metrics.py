"""Metrics at /metrics: well-formed, in base units, and the same as the books."""

from __future__ import annotations

import re

import pytest
from tests.serve.live_support import LiveServer
from tests.serve.support import Wire

from dovetail.control import RunBatch
from dovetail.live.front.statistics import Statistics
from dovetail.record.ledger import Histogram
from dovetail.serve.metrics import BOUNDS_S, Exposition
from dovetail.units import MS, SECOND

SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\[\\n"])*",?)*)\})? (\+?[0-9.e+-]+|NaN)')


def parse(text: str) -> dict[str, dict[str, float]]:
    """Name -> labels -> value; strict in what Prometheus is strict in."""
    assert text.endswith("\n")
    found: dict[str, dict[str, float]] = {}
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in kinds, "one family, one place"
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            family = re.sub(r"_(bucket|sum|count)$", "", match[1]) if match[1] not in kinds else match[1]
            assert family in kinds, line
            assert (kinds[family] == "counter") == family.endswith("_total"), family
            labels = found.setdefault(match[1], {})
            assert (match[2] or "") not in labels, "no sample twice"
            labels[match[2] or ""] = float(match[3])
    return found


def test_a_histogram_is_that_of_the_ledger():
    counted = Histogram()
    for ns in (MS // 2, 3 * MS, 3 * MS, 40 * MS, 700 * MS, 100 * SECOND):
        counted.add(ns)
    out = Exposition()
    out.family("x_seconds", "histogram", "Time.")
    out.histogram(counted, workflow='a"b\\')
    found = parse(out.text)
    buckets = list(found["x_seconds_bucket"].values())
    assert len(buckets) == len(BOUNDS_S) + 1
    assert buckets == sorted(buckets)
    assert buckets[0] == 1 and buckets[2] == 3 and buckets[5] == 4 and buckets[9] == 5 and buckets[-1] == 6
    assert list(found["x_seconds_count"].values()) == [6]
    assert next(iter(found["x_seconds_sum"].values())) == pytest.approx(100.7465)


@pytest.mark.cpu
def test_a_live_server_tells_what_its_books_say():
    server = LiveServer("tests.live.apps:hosted", device="cpu:1")
    try:
        for _ in range(3):
            assert server.ask("big", 1).status == 200
        assert server.ask("breakable", 7, parameters={"priority": 2}).status == 500
        with Wire(server.port) as wire:
            reply = wire.ask("GET", "/metrics")
            assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = parse(reply.body.decode())
        requests = found["dovetail_requests_total"]
        assert requests['workflow="breakable",class="2",outcome="failed"'] == 1
        answered = [requests[f'workflow="big",class="1",outcome="{outcome}"'] for outcome in ("ok", "late")]
        assert sum(answered) == 3
        assert found["dovetail_request_duration_seconds_count"]['workflow="big",class="1"'] == 3
        assert found["dovetail_goodput_requests_total"]['workflow="big",class="1"'] == answered[0]
        assert found["dovetail_stage_execute_seconds_count"]['stage="weigh"'] >= 1
        assert found["dovetail_stage_batch_size_sum"]['stage="weigh"'] == 3
        assert found["dovetail_stage_queue_seconds_count"]['stage="weigh"'] == 3
        assert 0 < found["dovetail_stage_queue_seconds_sum"]['stage="weigh"'] < 60
        device = found["dovetail_stage_device_seconds_total"]['stage="weigh"']
        assert device == pytest.approx(found["dovetail_stage_execute_seconds_sum"]['stage="weigh"'])
        predicted = found["dovetail_prediction_error_ratio_count"]['stage="weigh"']
        assert 0 <= found["dovetail_prediction_covered_total"]['stage="weigh"'] <= predicted <= 3
        assert found["dovetail_stage_queue_depth"]['stage="weigh"'] == 0
        assert found["dovetail_worker_up"]['worker="host-0",kind="host"'] == 1
        assert found["dovetail_arena_size_bytes"]['arena="front"'] == 1 << 30
        assert found["dovetail_http_requests_total"][""] == 4
        assert found["dovetail_requests_open"][""] == 0
    finally:
        server.stop()


def test_predictions_are_judged_by_what_came():
    counted = Statistics(())
    batch = RunBatch(1, 1, 1, "read", ((1, 0, 0), (2, 0, 0)), 1, 50, 0, 0, 10 * MS, spread=0.1)
    for took_ms in (10, 12, 13):  # as predicted, just within two deviations, and beyond
        counted.batch(batch, took_ms * MS, 4 * MS)
    counts = counted.stages["read"]
    assert (counts.predicted, counts.held, counts.items, counts.waited_ns) == (3, 2, 6, 12 * MS)
    assert counts.error == pytest.approx(0.5)
    assert counts.device_ns == pytest.approx(35 / 2 * MS)
