"""What was learned of run and load times, as the profile store keeps it: a row per stage, and one per model's loads.

Rules of this file: plain data; it opens no file. A row holds for the stage, the model, the machine and the libraries
that it was learned with. A store travels: nothing is used further than it was looked over here, and what is wrong
with a row is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ..errors import ProfileError
from ..predict import EstimatorState
from ..predict.loads import LOAD_WINDOW
from ..predict.running import Seen
from ..predict.sizes import WINDOW
from ..predict.state import LearnedLoad, LearnedRun, trouble_of
from ..profile.kernelrows import DAMAGED, MAX_ROW_BYTES
from ..profile.machine import Identity
from ..profile.record import FRESH, STALE, Key, LearnedRow
from ..profile.table import ProfileTable
from ..workflow.graph import StageSpec
from .interference import is_interference, row_of

__all__ = ["LearnedStatus", "judge_learned", "known_state", "learned_figures", "rows_of"]


#: Digits of a model's content hash that are shown.
_DIGITS = 12


class LearnedStatus(msgspec.Struct, frozen=True):
    """What the store knows of one stage's runs or one model's loads, and whether it holds here and now."""

    key: Key
    state: str
    reasons: tuple[str, ...]
    learned_at: str
    runs: tuple[LearnedRun, ...] = ()
    loads: tuple[LearnedLoad, ...] = ()


def rows_of(state: EstimatorState, specs: Sequence[StageSpec], identity: Identity) -> list[LearnedRow]:
    """The rows of a state; what it has of other stages than these is left out."""
    rows = []
    for spec in {s.name: s for s in specs}.values():
        for kind in sorted({run.kind for run in state.runs if run.stage == spec.name}):
            runs = tuple(run for run in state.runs if (run.stage, run.kind) == (spec.name, kind))
            rows.append(_row(Key.of(spec, identity, kind), EstimatorState(runs=runs), sum(r.count for r in runs)))
    models = {spec.weights for spec in specs}
    for load in state.loads:
        if load.weights in models:
            key = Key.of_kernels("", load.weights, identity, load.kind)
            rows.append(_row(key, EstimatorState(loads=(load,)), load.count))
    if state.interference:
        rows.append(row_of(state.interference, identity))
    return rows


def _row(key: Key, state: EstimatorState, seen: int) -> LearnedRow:
    value = msgspec.msgpack.encode(state)
    if trouble := trouble_of(state):
        raise ProfileError(f"what was learned of {key.stage or key.model!r} cannot be kept: {trouble}")
    return LearnedRow(key, seen, value)


def judge_learned(
    rows: Iterable[LearnedRow], identity: Identity, specs: Sequence[StageSpec] | None = None
) -> list[LearnedStatus]:
    """How each row stands for these stages; without any, for this machine and its libraries."""
    found = []
    stages = None if specs is None else {spec.name: spec for spec in specs}
    models = None if specs is None else {spec.weights for spec in specs}
    for row in rows:
        key = row.key
        if is_interference(row):
            continue  # `record.interference` reads it
        now = Key.of_kernels(key.stage, key.model, identity, key.kind)
        if key.stage:
            spec = None if stages is None else stages.get(key.stage)
            if stages is not None and spec is None:
                continue
            now = msgspec.structs.replace(now, pad=key.pad) if spec is None else Key.of(spec, identity, key.kind)
        elif models is not None and key.model not in models:
            continue
        reasons = key.changes_to(now)
        try:
            state = _unpacked(row)
        except ProfileError as error:
            found.append(LearnedStatus(key, DAMAGED, (str(error),), row.learned_at))
        else:
            judged = STALE if reasons else FRESH
            found.append(LearnedStatus(key, judged, reasons, row.learned_at, state.runs, state.loads))
    return found


def _unpacked(row: LearnedRow) -> EstimatorState:
    value: object = row.value
    try:
        if not isinstance(value, bytes) or len(value) > MAX_ROW_BYTES:
            raise ValueError("it is no row of ours")
        state = msgspec.msgpack.decode(value, type=EstimatorState)
    except (msgspec.DecodeError, ValueError) as error:
        raise ProfileError(f"not what was learned of times: {error}") from error
    key = row.key
    trouble = trouble_of(state)
    strangers = any((run.stage, run.kind) != (key.stage, key.kind) for run in state.runs)
    strangers = strangers or any((load.weights, load.kind) != (key.model, key.kind) for load in state.loads)
    if trouble or strangers:
        raise ProfileError(f"not what was learned of times: {trouble or 'it is of something else'}")
    return state


def known_state(found: Iterable[LearnedStatus]) -> EstimatorState:
    """All that holds, as an estimator takes it."""
    fresh = [status for status in found if status.state == FRESH]
    return EstimatorState(
        runs=tuple(run for status in fresh for run in status.runs),
        loads=tuple(load for status in fresh for load in status.loads),
    )


def learned_figures(status: LearnedStatus, table: ProfileTable) -> list[dict[str, Any]]:
    """A row of the store in figures: for each size and configuration what it takes, and what the profile says."""
    same = {"on": status.key.kind, "state": status.state, "learned_at": status.learned_at, "reasons": status.reasons}
    nothing = {"items": 0, "cpus": 0, "share_pct": 0, "seen": 0, "mean_ns": 0, "spread": 0.0, "profile_ns": 0}
    stage = status.key.stage
    found = []
    for run in status.runs:
        seen = Seen(WINDOW, run.count, run.mean_ns, run.squares)
        figures = {
            "items": run.items,
            "cpus": run.cpus,
            "share_pct": run.share_pct,
            "seen": run.count,
            "mean_ns": run.mean_ns,
            "spread": seen.spread(),
            "profile_ns": table.latency_ns(stage, run.kind, run.items, run.cpus, run.share_pct) or 0,
        }
        found.append({"what": stage, **figures, **same})
    for load in status.loads:
        seen = Seen(LOAD_WINDOW, load.count, load.mean_ns, load.squares)
        figures = {**nothing, "seen": load.count, "mean_ns": load.mean_ns, "spread": seen.spread()}
        found.append({"what": _load_of(load.weights), **figures, **same})
    return found or [{"what": stage or _load_of(status.key.model), **nothing, **same}]


def _load_of(weights: str) -> str:
    """Weights are a content hash, of which the beginning is enough to tell them apart."""
    return f"load of {weights[:_DIGITS]}"
