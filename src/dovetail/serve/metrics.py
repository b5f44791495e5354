"""Metrics in Prometheus' text form, made from the books when somebody asks for them. Nothing is counted twice for it.

Rules of this file
- Base units (seconds, bytes), `_total` on counters, one unit per name (prometheus.io/docs/practices/naming).
- Labels have few values: workflows, classes from 1 to 10, six outcomes, stages, workers. Nothing that a client says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from .. import __version__
from ..live.front.system import LiveSystem
from ..record.ledger import Histogram
from ..units import SECOND
from .backend import Metric
from .tenants import REASONS, Tenants

__all__ = ["BOUNDS_S", "Exposition", "render"]

#: Upper bounds of the buckets of latency [our choice: the client libraries' own, and two longer ones]. The ledger's
#: buckets are 1.6 % wide, so a request may be counted in a bucket whose bound it exceeds by as much.
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
Kind = Literal["counter", "gauge", "histogram", "summary"]


class Exposition:
    """Collects families of samples; `text` is what is scraped."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, kind: Kind, meaning: str) -> None:
        """All samples until the next family belong to this one."""
        self._name = name
        self._lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]

    def add(self, value: float, suffix: str = "", **labels: object) -> None:
        """One sample; `class_` is the label class."""
        self._lines.append(f"{self._name}{suffix}{_labels(labels)} {_number(value)}")

    def histogram(self, counted: Histogram, **labels: object) -> None:
        """All samples of one histogram of durations."""
        points = counted.cumulative() if counted.count else []
        at = 0
        below = 0.0
        for bound_s in BOUNDS_S:
            while at < len(points) and points[at][0] <= bound_s * SECOND * 1.016:
                below = points[at][1]
                at += 1
            self.add(round(below * counted.count), "_bucket", **labels, le=_number(bound_s))
        self.add(counted.count, "_bucket", **labels, le="+Inf")
        self.add(counted.total_ns / SECOND, "_sum", **labels)
        self.add(counted.count, "_count", **labels)

    @property
    def text(self) -> str:
        """Everything so far."""
        return "\n".join([*self._lines, ""])


def _labels(labels: Mapping[str, object]) -> str:
    if not labels:
        return ""
    quoted = ",".join(f'{name.rstrip("_")}="{_escaped(str(value))}"' for name, value in labels.items())
    return f"{{{quoted}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def render(system: LiveSystem, http: Iterable[Metric] = (), tenants: Tenants | None = None) -> str:
    """All metrics of a server; `http` are more: name, kind, meaning and value."""
    out = Exposition()
    out.family("dovetail_build_info", "gauge", "The version that runs; always 1.")
    out.add(1, version=__version__)
    _requests(out, system)
    _stages(out, system)
    _predictions(out, system)
    _workers(out, system)
    if tenants is not None:
        _tenants(out, tenants)
    for name, kind, meaning, value in http:
        out.family(name, kind, meaning)
        out.add(value)
    return out.text


def _requests(out: Exposition, system: LiveSystem) -> None:
    ledger = system.ledger
    rows = [(ledger.workflows[graph][0], priority, row) for (graph, priority), row in sorted(ledger.rows.items())]
    out.family("dovetail_requests_total", "counter", "Requests that have ended, by outcome.")
    for workflow, priority, row in rows:
        for outcome, count in row.outcomes.items():
            out.add(count, workflow=workflow, class_=priority, outcome=outcome)
    out.family("dovetail_goodput_requests_total", "counter", "Requests answered within their objective.")
    for workflow, priority, row in rows:
        out.add(row.outcomes["ok"], workflow=workflow, class_=priority)
    out.family("dovetail_request_duration_seconds", "histogram", "From arrival to answer, of ok and late requests.")
    for workflow, priority, row in rows:
        out.histogram(row.latency, workflow=workflow, class_=priority)
    out.family("dovetail_request_cost_usd_total", "counter", "What the devices of these requests have cost.")
    for workflow, priority, row in rows:
        out.add(row.cost_usd, workflow=workflow, class_=priority)
    out.family("dovetail_request_objective_seconds", "gauge", "Objective of a workflow.")
    for workflow, slo_ns in ledger.workflows:
        out.add(slo_ns / SECOND, workflow=workflow)
    out.family("dovetail_requests_open", "gauge", "Requests that have been admitted and not ended.")
    out.add(len(system.controller.requests))
    out.family("dovetail_draining", "gauge", "1 while nothing new is admitted.")
    out.add(system.controller.draining)


def _tenants(out: Exposition, tenants: Tenants) -> None:
    rows = tenants.rows()
    out.family("dovetail_tenant_requests_open", "gauge", "Requests of a tenant that have not ended.")
    for name, row in rows.items():
        out.add(row["open"], tenant=name)
    out.family("dovetail_tenant_share_ratio", "gauge", "Part of a tenant in what all have had of late, by cost.")
    for name, row in rows.items():
        out.add(row["share"], tenant=name)
    out.family("dovetail_tenant_refused_total", "counter", "Requests beyond a tenant's limits or its fair part.")
    for name, row in rows.items():
        for reason in REASONS:
            out.add(row[f"refused_{reason}"], tenant=name, reason=reason)


def _stages(out: Exposition, system: LiveSystem) -> None:
    depth: dict[str, int] = dict.fromkeys(sorted(system.controller.stages), 0)
    for queue in system.controller.queues.values():
        depth[queue.stage.name] += queue.size
    out.family("dovetail_stage_queue_depth", "gauge", "Items that wait for a batch.")
    for stage, items in depth.items():
        out.add(items, stage=stage)
    out.family("dovetail_stage_workers", "gauge", "Workers that hold a stage and can run it.")
    for stage in depth:
        out.add(len(system.controller.holders[stage]), stage=stage)
    ran = system.statistics.batches()
    out.family("dovetail_stage_execute_seconds", "summary", "Time of batches on their workers.")
    for stage, sizes in ran.items():
        out.add(sum(ns for _, ns in sizes.values()) / SECOND, "_sum", stage=stage)
        out.add(sum(count for count, _ in sizes.values()), "_count", stage=stage)
    out.family("dovetail_stage_batch_size", "summary", "Items per batch.")
    for stage, sizes in ran.items():
        out.add(sum(size * count for size, (count, _) in sizes.items()), "_sum", stage=stage)
        out.add(sum(count for count, _ in sizes.values()), "_count", stage=stage)


def _predictions(out: Exposition, system: LiveSystem) -> None:
    stages = sorted(system.statistics.stages.items())
    out.family("dovetail_stage_queue_seconds", "summary", "How long items waited for their batch to begin.")
    for stage, counts in stages:
        out.add(counts.waited_ns / SECOND, "_sum", stage=stage)
        out.add(counts.items, "_count", stage=stage)
    out.family("dovetail_stage_device_seconds_total", "counter", "Time of batches, multiplied by their share.")
    for stage, counts in stages:
        out.add(counts.device_ns / SECOND, stage=stage)
    out.family("dovetail_stage_share_asked_ratio", "gauge", "Share of a device that a stage declares, if it does.")
    for spec in sorted(system.controller.stages.values(), key=lambda spec: spec.name):
        if spec.share_pct or spec.quota_pct:
            out.add((spec.share_pct or 100) * (spec.quota_pct or 100) / 10_000, stage=spec.name)
    out.family("dovetail_prediction_error_ratio", "summary", "How far batches were off their prediction, relative.")
    for stage, counts in stages:
        out.add(counts.error, "_sum", stage=stage)
        out.add(counts.predicted, "_count", stage=stage)
    out.family("dovetail_prediction_expected_seconds_total", "counter", "What batches were predicted to take.")
    for stage, counts in stages:
        out.add(counts.expected_ns / SECOND, stage=stage)
    out.family("dovetail_prediction_covered_total", "counter", "Batches within their mean and two deviations.")
    for stage, counts in stages:
        out.add(counts.held, stage=stage)


def _workers(out: Exposition, system: LiveSystem) -> None:
    workers = sorted(system.controller.workers.values(), key=lambda worker: worker.spec.name)
    out.family("dovetail_worker_up", "gauge", "1 for each worker that is here.")
    for worker in workers:
        out.add(1, worker=worker.spec.name, kind=worker.spec.kind)
    memory = system.memory
    out.family("dovetail_arena_size_bytes", "gauge", "Shared memory of the front and of each worker.")
    out.add(memory.front.size, arena="front")
    names = {w.ident: w.spec.name for w in system.fleet.workers.values() if w.ident in memory.used_bytes}
    for ident, name in sorted(names.items()):
        out.add(memory.arenas[ident].size, arena=name)
    out.family("dovetail_arena_used_bytes", "gauge", "What of it is in use: bodies, and results.")
    out.add(memory.front.used_bytes, arena="front")
    for ident, name in sorted(names.items()):
        out.add(memory.used_bytes[ident], arena=name)
    cache = system.statistics.memory()
    out.family("dovetail_model_cache_bytes", "gauge", "Models that a worker holds.")
    for name, told in cache.items():
        out.add(told["held_bytes"], worker=name)
    counters = {
        "hits": "Batches that found their model.",
        "misses": "Batches that waited for their model.",
        "loads": "Models that were loaded.",
        "evictions": "Models that were let go.",
    }
    for key, what in counters.items():
        out.family(f"dovetail_model_cache_{key}_total", "counter", what)
        for name, told in cache.items():
            out.add(told[key], worker=name)
