"""What was measured, what it was measured with, and whether it still holds.

Rules of this file: plain data and comparisons; it knows neither files nor clocks. `store` keeps these records,
`profiler` makes them.

A profile holds while everything that decides its times is as it was: the stage's model (or function), how items
are padded, the machine and the libraries. Times change with what a stage is fed, too, so the kind of items is kept
and compared when the profiler has new ones at hand; nobody else has.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..workflow.graph import StageSpec
from .machine import CPU, HOST, LIBRARIES, Identity, core_counts, machine_text
from .table import Entry, Point

__all__ = [
    "FRESH", "MISSING", "STALE", "Key", "LearnedRow", "Measured", "Record", "Status", "judge", "wanted_points",
]  # fmt: skip

#: States of a stage's profile.
FRESH, STALE, MISSING = "fresh", "stale", "missing"


class Key(msgspec.Struct, frozen=True):
    """Everything a profile depends on. Equal keys, equal times."""

    stage: str
    kind: str
    #: Content hash of the ONNX file or of the function's source.
    model: str
    #: Value that fills up items of unequal shape, as text; empty for none.
    pad: str
    cpu: str
    cores: int
    libraries: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, spec: StageSpec, identity: Identity, kind: str = "") -> Key:
        """The key of a stage here and now, on the kind of device that it is profiled on unless another is named."""
        key = cls.of_kernels(spec.name, spec.model, identity, kind or (HOST if spec.on_host else CPU))
        return key if spec.pad is None else msgspec.structs.replace(key, pad=repr(float(spec.pad)))

    @classmethod
    def of_kernels(cls, sequence: str, model: str, identity: Identity, kind: str = CPU) -> Key:
        """The key of a sequence of kernels here and now; of a model's cut if the sequence is empty."""
        libraries = tuple((name, identity.libraries.get(name, "")) for name in sorted(LIBRARIES.get(kind, ())))
        return cls(sequence, kind, model, "", identity.cpu, identity.cores, libraries)

    def changes_to(self, now: Key) -> tuple[str, ...]:
        """What differs from the key of today, each in a few words."""
        found = []
        if self.model != now.model:
            found.append("its function changed" if now.kind == HOST else "its model file changed")
        if self.pad != now.pad:
            found.append(f"pad {self.pad or 'none'} → {now.pad or 'none'}")
        if (self.cpu, self.cores) != (now.cpu, now.cores):
            found.append(f"machine {machine_text(self.cpu, self.cores)} → {machine_text(now.cpu, now.cores)}")
        before, after = dict(self.libraries), dict(now.libraries)
        found += [
            f"{name} {before.get(name, 'none')} → {after.get(name, 'none')}"
            for name in sorted(before.keys() | after.keys())
            if before.get(name) != after.get(name)
        ]
        return tuple(found)


class Measured(msgspec.Struct, frozen=True):
    """One batch size on one number of cores."""

    batch: int
    cpus: int
    #: Mean of a run without the slowest tenth.
    mean_ns: int
    p50_ns: int
    p95_ns: int
    #: Standard deviation over mean of a single run, the slowest tenth drawn in.
    spread: float
    #: Half-width of the 95 % interval of the mean, over the mean.
    error: float
    runs: int
    #: Measured with few repeats, or cut short; a full run measures it again.
    quick: bool = False


class Record(msgspec.Struct, frozen=True):
    """The profile of one stage under one key."""

    key: Key
    points: tuple[Measured, ...]
    load_ns: int
    memory_bytes: int
    #: What the stage was fed, such as ``float32[3,224,224]``.
    items: str
    #: UTC, ISO 8601.
    measured_at: str = ""

    def entry(self) -> Entry:
        """As the scheduler reads it."""
        points = tuple(Point(p.batch, p.cpus, p.mean_ns, p.spread, p.runs) for p in self.points)
        spreads = sorted(p.spread for p in self.points)
        machine = machine_text(self.key.cpu, self.key.cores)
        return Entry(
            stage=self.key.stage,
            kind=self.key.kind,
            points=points,
            load_ns=self.load_ns,
            memory_bytes=self.memory_bytes,
            spread=spreads[len(spreads) // 2] if spreads else 0.0,
            source=f"measured {self.measured_at} on {machine}",
        )


class LearnedRow(msgspec.Struct, frozen=True):
    """What was learned of a stage or a model while running, packed by whoever learned it."""

    key: Key
    #: How often it was seen.
    seen: int
    value: bytes
    #: UTC, ISO 8601.
    learned_at: str = ""


class Status(msgspec.Struct, frozen=True):
    """Whether a stage's profile holds here and now, and if not, what changed."""

    stage: str
    kind: str
    state: str
    reasons: tuple[str, ...] = ()
    measured_at: str = ""

    def __str__(self) -> str:
        if self.state == MISSING:
            return f"stage {self.stage!r} has no profile on {self.kind!r}"
        why = f": {'; '.join(self.reasons)}" if self.reasons else ""
        return f"the profile of stage {self.stage!r} on {self.kind!r} is {self.state}{why}"


def wanted_points(spec: StageSpec, identity: Identity) -> list[tuple[int, int]]:
    """(batch, cores) that a whole profile has; a Python function has one core, as the interpreter lock leaves it."""
    counts = (1,) if spec.on_host else core_counts(identity.cores)
    return [(batch, cpus) for cpus in counts for batch in spec.batch]


def judge(spec: StageSpec, identity: Identity, records: Sequence[Record]) -> tuple[Status, Record | None]:
    """How a stage's profile stands, and the record to use: of today's key, else the one with the fewest changes.

    `records` are the stage's, newest first.
    """
    now = Key.of(spec, identity)
    if not records:
        return Status(spec.name, now.kind, MISSING), None
    record = min(records, key=lambda r: len(r.key.changes_to(now)))
    reasons = record.key.changes_to(now)
    # Under another key the cores may differ, so only whole batch sizes can be missing.
    counts = {p.cpus for p in record.points} if reasons else {cpus for _, cpus in wanted_points(spec, identity)}
    reasons += _gaps(spec.batch, sorted(counts), record)
    return Status(spec.name, now.kind, STALE if reasons else FRESH, reasons, record.measured_at), record


def _gaps(batches: Sequence[int], counts: Sequence[int], record: Record) -> tuple[str, ...]:
    """Which of the points are not there, in a few words: a batch size once if it is missing altogether."""
    have = {(p.batch, p.cpus) for p in record.points}
    lost = {batch: [c for c in counts if (batch, c) not in have] for batch in batches}
    whole = [str(batch) for batch, cores in lost.items() if cores == counts]
    named = [f"batch {', '.join(whole)}"] if whole else []
    named += [f"batch {b} on {'/'.join(map(str, c))} core(s)" for b, c in lost.items() if c and c != counts]
    return (f"{' and '.join(named)} not measured",) if named else ()
