"""What was learned of interference, as the profile store keeps it: one row for a machine and its libraries.

Rules of this file: plain data; it opens no file. A row holds for the machine and the libraries that it was learned
with. A row that is stale or damaged is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from ..errors import ProfileError
from ..predict.interference import InterferenceState
from ..predict.interference.margin import LEVELS
from ..predict.interference.state import trouble_of
from ..profile.kernelrows import MAX_ROW_BYTES
from ..profile.machine import Identity
from ..profile.record import Key, LearnedRow

__all__ = ["INTERFERENCE", "NOTHING", "figures_of", "is_interference", "row_of", "state_of"]

#: Stands where rows of loads have the model: no content hash and no catalogue name has spaces.
INTERFERENCE: Final = "interference of neighbours"
#: Why there is nothing, where nobody was ever beside anybody.
NOTHING: Final = "nothing was learned yet"


def is_interference(row: LearnedRow) -> bool:
    """Whether a row is one of these."""
    return not row.key.stage and row.key.model == INTERFERENCE


def row_of(state: InterferenceState, identity: Identity) -> LearnedRow:
    """The row that keeps a state."""
    if trouble := trouble_of(state):
        raise ProfileError(f"what was learned of interference cannot be kept: {trouble}")
    seen = sum(kind.seen for kind in state.kinds)
    return LearnedRow(Key.of_kernels("", INTERFERENCE, identity), seen, msgspec.msgpack.encode(state))


def state_of(rows: Iterable[LearnedRow], identity: Identity) -> tuple[InterferenceState | None, str]:
    """What holds here, and if nothing does, why; the newest row counts."""
    now = Key.of_kernels("", INTERFERENCE, identity)
    why = NOTHING
    for row in filter(is_interference, rows):
        reasons = row.key.changes_to(now)
        if reasons:
            why = "; ".join(reasons)
            continue
        try:
            if not isinstance(row.value, bytes) or len(row.value) > MAX_ROW_BYTES:
                raise ValueError("it is no row of ours")
            state = msgspec.msgpack.decode(row.value, type=InterferenceState)
        except (msgspec.DecodeError, ValueError) as error:
            why = f"the row is damaged: {error}"
            continue
        why = trouble_of(state)
        if not why:
            return state, ""
    return None, why


def figures_of(state: InterferenceState) -> list[dict[str, Any]]:
    """A state in figures, by kind of device."""
    return [
        {
            "on": kind.kind,
            "seen": kind.seen,
            "felt": kind.presence.felt,
            "beside_others": kind.presence.mean - kind.presence.alone_mean,
            "neighbours_add_up": kind.power,
            "scatter": kind.variance**0.5,
            "unannounced": kind.churn**0.5,
            "changes_noticed": kind.alarms,
            "haste": kind.haste,
            "weights": dict(zip(state.features, kind.weights, strict=True)),
            "situations": [
                {
                    "situation": row.name,
                    "seen": row.margin.asked,
                    "covered": _covered(row.margin.asked, row.margin.hits),
                }
                for row in kind.classes
            ],
            "usual_company": {row.model: row.mean for row in kind.stretches},
            "effects": [
                {
                    "victim": effect.victim,
                    "beside": effect.other,
                    "effect": effect.mean,
                    "doubt": effect.variance**0.5,
                }
                for effect in state.effects
                if effect.scope == kind.kind
            ],
        }
        for kind in state.kinds
    ]


def _covered(asked: int, hits: Sequence[int]) -> dict[str, float]:
    return {f"{level:g}": hit / asked for level, hit in zip(LEVELS, hits, strict=True)} if asked else {}
