"""Spans of OpenTelemetry from a log: of requests, of what ran for them, and of batches. No server knows of it.

A batch serves several requests, so it is in no request's tree: its span is a trace of its own, with a link to each of
them. What ran for one request at one stage is a child of that request, and names its batch.

Rules of this file
- Pure and streaming: what is kept are requests and batches that are open.
- Numbers of traces and spans come from the log, so that the same log gives the same spans. If the client's id is a
  W3C `traceparent`, the request is a part of that trace.

Format: OTLP/JSON, opentelemetry-proto 1.x (ids in hex, times as strings of nanoseconds).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..control import (
    BatchFailed,
    BatchFinished,
    Reject,
    Reply,
    RequestArrived,
    RequestRefused,
    RunBatch,
    WorkerJoined,
)
from ..record.log import Header, Step
from ..version import __version__

__all__ = ["Spans", "document"]

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_INTERNAL, _SERVER = 1, 2
_OK, _ERROR = 1, 2

Span = dict[str, Any]


class Spans:
    """Takes the steps of a log and gives the spans that have ended."""

    def __init__(self, header: Header) -> None:
        self._graphs = header.graphs
        self._unix_ns = header.started_unix_ns
        self._seed = f"{header.started_unix_ns}/{header.seed}".encode()
        #: Request -> (trace, span, parent, what its client calls it, when it should be answered)
        self._requests: dict[int, tuple[str, str, str, str, int]] = {}
        self._batches: dict[int, RunBatch] = {}
        self._workers: dict[int, str] = {}

    def take(self, step: Step) -> Iterator[Span]:
        """The spans that end with a step."""
        event = step.event
        if isinstance(event, RequestArrived | RequestRefused):
            self._requests[event.request] = self._begin(event, step.note)
        elif isinstance(event, WorkerJoined):
            self._workers[event.worker] = event.spec.name
        elif isinstance(event, BatchFinished | BatchFailed):
            ran = self._batches.pop(event.batch, None)
            if ran is not None:
                yield from self._ran(ran, event)
        for action in step.actions:
            if isinstance(action, RunBatch):
                self._batches[action.batch] = action
            elif isinstance(action, Reply | Reject) and action.request in self._requests:
                yield self._ended(action, event.at_ns)

    def _begin(self, event: RequestArrived | RequestRefused, note: str) -> tuple[str, str, str, str, int]:
        span = self._ident("request", event.request, 8)
        graph = self._graphs[event.graph]
        objective_ns = event.at_ns + graph.slo_ns
        if isinstance(event, RequestArrived) and event.objective_ns:
            objective_ns = event.objective_ns
        if match := _TRACEPARENT.fullmatch(note):
            return match[1], span, match[2], "", objective_ns
        return self._ident("trace", event.request, 16), span, "", note, objective_ns

    def _ended(self, action: Reply | Reject, at_ns: int) -> Span:
        trace, span, parent, name, objective_ns = self._requests.pop(action.request)
        graph = self._graphs[action.graph]
        given: dict[str, Any] = {
            "dovetail.workflow": graph.name,
            "dovetail.request": action.request,
            "dovetail.class": action.priority,
            "dovetail.outcome": action.outcome,
            "dovetail.slack": (objective_ns - at_ns) / 1e9,
            "dovetail.cost_usd": action.cost_usd,
        }
        if name:
            given["dovetail.request.id"] = name
        status: dict[str, Any] = {"code": _OK}
        if isinstance(action, Reject):
            status = {"code": _ERROR, "message": action.reason}
        made = self._span(trace, span, graph.name, action.arrived_ns, at_ns, given, _SERVER)
        return made | {"status": status} | ({"parentSpanId": parent} if parent else {})

    def _ran(self, action: RunBatch, event: BatchFinished | BatchFailed) -> Iterator[Span]:
        begin_ns, end_ns = event.begin_ns, max(event.begin_ns, event.end_ns)
        given: dict[str, Any] = {
            "dovetail.stage": action.stage,
            "dovetail.batch": action.batch,
            "dovetail.batch.size": len(action.items),
            "dovetail.worker": self._workers.get(action.worker, str(action.worker)),
            "dovetail.share": action.share_pct / 100,
            "dovetail.expected": action.expected_ns / 1e9,
        }
        status: dict[str, Any] = {"code": _OK}
        if isinstance(event, BatchFailed):
            status = {"code": _ERROR, "message": f"{event.reason}: {event.detail}".rstrip(": ")}
        links = []
        for request, node, index in action.items:
            known = self._requests.get(request)
            if known is None:
                continue  # it has ended meanwhile
            links.append({"traceId": known[0], "spanId": known[1]})
            span = self._ident(f"item {node} {index} {action.batch}", request, 8)
            made = self._span(known[0], span, action.stage, begin_ns, end_ns, given, _INTERNAL)
            yield made | {"parentSpanId": known[1], "status": status}
        trace, span = self._ident("batch", action.batch, 16), self._ident("batch", action.batch, 8)
        made = self._span(trace, span, f"batch of {action.stage}", begin_ns, end_ns, given, _INTERNAL)
        yield made | {"links": links, "status": status}

    def _span(
        self, trace: str, span: str, name: str, begin_ns: int, end_ns: int, given: dict[str, Any], kind: int
    ) -> Span:
        return {
            "traceId": trace,
            "spanId": span,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": str(self._unix_ns + begin_ns),
            "endTimeUnixNano": str(self._unix_ns + end_ns),
            "attributes": _attributes(given),
        }

    def _ident(self, what: str, number: int, nbytes: int) -> str:
        return hashlib.blake2b(f"{what} {number}".encode(), digest_size=nbytes, key=self._seed[:64]).hexdigest()


def document(spans: Sequence[Span], more: Iterable[tuple[str, str]] = ()) -> dict[str, Any]:
    """An `ExportTraceServiceRequest`; `more` is said of the server."""
    resource = {"service.name": "dovetail", "service.version": __version__, **dict(more)}
    scope = {"scope": {"name": "dovetail", "version": __version__}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scope]}]}


def _attributes(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in given.items()]


def _value(value: str | int | float) -> dict[str, Any]:
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"doubleValue": value} if isinstance(value, float) else {"stringValue": value}
