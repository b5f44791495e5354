"""What somebody who watches a run is shown: records only. The page, `dovetail top` and tests read the same.

Rules of this file: times are milliseconds or nanoseconds since the start of the run, as the names say; bytes are
bytes; everything is bounded by what there is (workflows, stages, workers) or by a number in `view`.
"""

from __future__ import annotations

import msgspec

__all__ = [
    "Banner", "ClassNow", "Ended", "Evicted", "Held", "MemoryNow", "Node", "Note", "Ran", "Running", "Sample",
    "Span", "StageInfo", "StageNow", "Tick", "Totals", "WorkerNow", "Workflow",
]  # fmt: skip


class Node(msgspec.Struct, frozen=True):
    """A node of a workflow's graph; `after` are its predecessors, below nought are inputs of the workflow."""

    name: str
    stage: str
    after: tuple[int, ...]
    mapped: bool = False
    conditional: bool = False


class Workflow(msgspec.Struct, frozen=True):
    """A workflow as it is drawn."""

    name: str
    objective_ms: float
    priority: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    #: Nodes whose results are outputs.
    results: tuple[int, ...]


class StageInfo(msgspec.Struct, frozen=True):
    """What a stage is."""

    name: str
    kind: str
    batch: tuple[int, ...]
    weights: str
    weights_bytes: int


class Banner(msgspec.Struct, frozen=True):
    """What does not change while it is watched."""

    dovetail: str
    policy: str
    device: str
    #: The wall clock at time 0, in Unix milliseconds.
    started_unix_ms: int
    workflows: tuple[Workflow, ...]
    stages: tuple[StageInfo, ...]


class Totals(msgspec.Struct, frozen=True, array_like=True):
    """Requests of one workflow and class that have ended since the server started, by outcome."""

    graph: int
    priority: int
    ok: int
    late: int
    shed: int
    expired: int
    failed: int
    cancelled: int


class MemoryNow(msgspec.Struct, frozen=True):
    """Models in a worker's memory, as it told last."""

    held_bytes: int
    usable_bytes: int
    hits: int
    misses: int
    loads: int
    evictions: int


class Evicted(msgspec.Struct, frozen=True):
    """A model that was let go, and why."""

    at_ms: float
    worker: str
    weights: str
    nbytes: int
    reason: str


class Sample(msgspec.Struct, frozen=True):
    """What the front knows beside its steps, at a moment."""

    now_ns: int
    totals: tuple[Totals, ...]
    #: Stage -> items that wait.
    depth: dict[str, int]
    open: int
    draining: bool
    #: Worker -> weights -> bytes; those that are on their way; and memory of workers that keep it themselves.
    resident: dict[int, dict[str, int]]
    loading: dict[int, list[str]]
    memory: dict[str, MemoryNow]
    evictions: tuple[Evicted, ...]
    #: Bytes of bodies and results, and of the memory for them.
    arena_used_bytes: int
    arena_bytes: int


class ClassNow(msgspec.Struct, frozen=True):
    """A workflow and class: totals since the start, and latency of the answers of the last seconds."""

    workflow: str
    priority: int
    objective_ms: float
    totals: Totals
    #: Of the last seconds: arrivals per second, answers in time per second, their part of all that ended.
    arrivals_per_s: float
    goodput_per_s: float
    #: None where nothing has ended.
    attainment: float | None
    p50_ms: float | None
    p99_ms: float | None


class StageNow(msgspec.Struct, frozen=True):
    """A stage: what waits, and what its batches of the last seconds were like."""

    name: str
    depth: int
    workers: int
    running: int
    batches_per_s: float
    items_per_batch: float
    run_ms: float
    wait_ms: float


class Held(msgspec.Struct, frozen=True):
    """A model in memory."""

    weights: str
    nbytes: int
    #: It is on its way.
    loading: bool = False


class WorkerNow(msgspec.Struct, frozen=True):
    """A worker."""

    ident: int
    name: str
    kind: str
    cores: int
    on_host: bool
    preempts: bool
    memory_bytes: int
    #: Part of the last seconds during which at least one batch ran.
    busy: float
    models: tuple[Held, ...]
    memory: MemoryNow | None


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A batch that has ended; `stage` is its place in `Banner.stages`."""

    worker: int
    stage: int
    priority: int
    begin_ns: int
    end_ns: int
    #: How long it had the device of that.
    busy_ns: int
    items: int
    batch: int
    requests: tuple[int, ...]
    failed: str = ""


class Running(msgspec.Struct, frozen=True, array_like=True):
    """A batch that was sent and has not ended."""

    worker: int
    stage: int
    priority: int
    sent_ns: int
    expected_ns: int
    items: int
    batch: int


class Ran(msgspec.Struct, frozen=True, array_like=True):
    """A kernel of a batch that ran as several."""

    worker: int
    stage: int
    priority: int
    begin_ns: int
    end_ns: int
    batch: int
    why: str


class Ended(msgspec.Struct, frozen=True):
    """A request that has ended."""

    request: int
    client_id: str
    workflow: str
    priority: int
    outcome: str
    latency_ms: float
    at_ms: float


class Note(msgspec.Struct, frozen=True):
    """A worker came or went, a model could not be loaded."""

    at_ms: float
    text: str


class Tick(msgspec.Struct, frozen=True):
    """The present, and what is new since the tick before."""

    now_ms: float
    #: Length of "the last seconds".
    over_s: float
    open: int
    draining: bool
    classes: tuple[ClassNow, ...]
    stages: tuple[StageNow, ...]
    workers: tuple[WorkerNow, ...]
    running: tuple[Running, ...]
    #: New since the last tick; a few are left out if there are too many.
    spans: tuple[Span, ...]
    kernels: tuple[Ran, ...]
    #: The last ones, whenever they were.
    ended: tuple[Ended, ...]
    evictions: tuple[Evicted, ...]
    notes: tuple[Note, ...]
    arena_used_bytes: int
    arena_bytes: int
