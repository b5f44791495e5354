"""Spans of OpenTelemetry from a log: what is in them, that they are the same each time, and how they are sent."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import msgspec
import pytest

from dovetail.cli import main


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    from dovetail.control import BatchFinished, Reply, RequestArrived, RunBatch, WorkerJoined
    from dovetail.control.actions import Reject
    from dovetail.record.log import LogWriter, make_header
    from dovetail.state import WorkerSpec
    from dovetail.units import MS
    from dovetail.wiring import PolicySpec
    from dovetail.workflow.graph import StageSpec, chain

    path = tmp_path_factory.mktemp("spans") / "run.log"
    graph = chain("read", 100 * MS, [StageSpec("look", "model", (1, 2), model="look")])
    header = make_header(
        "live",
        (graph,),
        msgspec.msgpack.encode(PolicySpec()),
        (),
        1,
        seed=3,
        started_unix_ns=1_700_000_000_000_000_000,
    )
    trace = f"00-{'ab' * 16}-{'cd' * 8}-01"
    batch = RunBatch(3, 1, 1, "look", ((1, 0, 0), (2, 0, 0)), 1, 50, 0, 0, 4 * MS)
    with LogWriter(path, header) as writer:
        writer.step(WorkerJoined(0, 0, 1, WorkerSpec("cpu-0", "cpu", ("model",))), [])
        writer.step(RequestArrived(1 * MS, 0, 1, 0), [], "mine")
        writer.step(RequestArrived(2 * MS, 0, 2, 0), [batch], trace)
        replies = [Reply(4, i, 0, 1, "ok", i * MS, 0.5) for i in (1, 2)]
        writer.step(BatchFinished(9 * MS, 3, 1, 3 * MS, 8 * MS), replies)
        writer.step(RequestArrived(10 * MS, 0, 3, 0), [Reject(5, 3, 0, 1, "shed", 10 * MS, 0.0, "no room")])
    return path


def spans_of(text: str) -> list[dict]:
    return [
        span
        for line in text.splitlines()
        for resource in json.loads(line)["resourceSpans"]
        for scope in resource["scopeSpans"]
        for span in scope["spans"]
    ]


def attributes(span: dict) -> dict[str, object]:
    return {a["key"]: next(iter(a["value"].values())) for a in span["attributes"]}


def test_a_log_as_spans(log, capsys):
    assert main(["spans", str(log)]) == 0
    told = capsys.readouterr()
    spans = spans_of(told.out)
    assert "6 spans" in told.err
    for span in spans:
        assert re.fullmatch("[0-9a-f]{32}", span["traceId"]) and re.fullmatch("[0-9a-f]{16}", span["spanId"])
        assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
    assert len({span["spanId"] for span in spans}) == len(spans)
    items = [span for span in spans if span["name"] == "look"]
    (batch,) = [span for span in spans if span["name"] == "batch of look"]
    one, two, three = [span for span in spans if span["name"] == "read"]
    assert [item["parentSpanId"] for item in items] == [one["spanId"], two["spanId"]]
    assert batch["links"] == [{"traceId": s["traceId"], "spanId": s["spanId"]} for s in (one, two)]
    assert batch["traceId"] not in (one["traceId"], two["traceId"])
    assert (two["traceId"], two["parentSpanId"]) == ("ab" * 16, "cd" * 8), "the client's own trace"
    assert attributes(one)["dovetail.request.id"] == "mine" and "parentSpanId" not in one
    assert one["startTimeUnixNano"] == "1700000000001000000" and one["endTimeUnixNano"] == "1700000000009000000"
    assert attributes(one)["dovetail.slack"] == pytest.approx(0.092)
    assert attributes(batch)["dovetail.batch.size"] == "2" and attributes(batch)["dovetail.worker"] == "cpu-0"
    assert three["status"] == {"code": 2, "message": "no room"}
    assert main(["spans", str(log)]) == 0
    assert capsys.readouterr().out == told.out


class Collector(BaseHTTPRequestHandler):
    got: ClassVar[list[tuple[str, str, bytes]]] = []
    statuses: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.statuses.pop(0) if self.statuses else 200
        self.got.append((self.path, self.headers["Content-Type"], body))
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quietly."""


@pytest.fixture
def collector() -> Iterator[str]:
    Collector.got, Collector.statuses = [], []
    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_go_to_a_collector_which_may_be_busy(log, collector, capsys):
    Collector.statuses = [503]
    assert main(["spans", str(log), "--otlp", collector]) == 0
    assert [(path, kind) for path, kind, _ in Collector.got] == [("/v1/traces", "application/json")] * 2
    assert len(spans_of(Collector.got[-1][2].decode())) == 6
    assert capsys.readouterr().out == ""
    Collector.statuses = [400]
    assert main(["spans", str(log), "--otlp", collector]) == 2
    assert "refused the spans with status 400" in capsys.readouterr().err


def test_nobody_there_is_told(log, capsys, monkeypatch):
    from dovetail.cli import spans

    monkeypatch.setattr(spans, "WAITS_SECONDS", (0.0, 0.0))
    assert main(["spans", str(log), "--otlp", "http://127.0.0.1:9"]) == 1
    assert "did not take the spans" in capsys.readouterr().err


def test_a_log_that_grows_is_followed(log, tmp_path, monkeypatch, capsys):
    from dovetail.cli import spans

    data = log.read_bytes()
    path = tmp_path / "run.log"
    path.write_bytes(data[:-40])
    waits = 0

    def sleep(_: float) -> None:
        nonlocal waits
        waits += 1
        path.write_bytes(data)
        if waits > 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(spans.time, "sleep", sleep)
    assert main(["spans", str(path), "--follow"]) == 0
    assert len(spans_of(capsys.readouterr().out)) == 6
