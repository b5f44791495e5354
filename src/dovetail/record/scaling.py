"""What the scaler decided, and why, from the steps of a run: slices, and devices that came and went.

Rules of this file: it reads actions and decides nothing. `dovetail explain` tells them in the story of a request, and
all of them in order with `--scaling`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..control.actions import Action, SetSlice, StartWorker, StopWorker

__all__ = ["Decision", "Decisions", "told"]


class Decision(msgspec.Struct, frozen=True):
    """One decision of the scaler."""

    at_ns: int
    step: int
    #: "slice", "start" or "stop".
    kind: str
    text: str
    #: It was only said.
    dry: bool


def told(action: Action, name: Callable[[int], str], before: tuple[int, int] = (0, 0)) -> str:
    """An action of the scaler in words; empty: it is none. `before` is what a slice was."""
    would = "would " if getattr(action, "dry", False) else ""
    if isinstance(action, StartWorker):
        return f"{would or 'was to '}start one more device: {action.reason}"
    if isinstance(action, StopWorker):
        return f"{would or 'was to '}stop {name(action.worker)}: {action.reason}"
    if not isinstance(action, SetSlice):
        return ""
    where = f"slice {action.slice} of {action.stage} on {name(action.worker)}"
    size = f"{action.share_pct} % for {action.quota_pct} % of the time"
    reason = f": {action.reason}" if action.reason else ""
    if not action.quota_pct:
        return f"{would}close {where}{reason}" if would else f"{where} closed{reason}"
    if before == (0, 0):
        return f"{would}open {where}, {size}{reason}" if would else f"{where} opened, {size}{reason}"
    was = f"{before[0]} % for {before[1]} %"
    return f"{would}resize {where} from {was} to {size}{reason}" if would else f"{where} from {was} to {size}{reason}"


class Decisions:
    """Collects them; step by step."""

    def __init__(self) -> None:
        self.found: list[Decision] = []
        self._sizes: dict[int, tuple[int, int]] = {}

    def take(self, at_ns: int, actions: Sequence[Action], name: Callable[[int], str]) -> None:
        """The actions of one step."""
        for action in actions:
            text = told(action, name, self._sizes.get(getattr(action, "slice", 0), (0, 0)))
            if isinstance(action, SetSlice):
                self._sizes[action.slice] = (action.share_pct, action.quota_pct)
                self.found.append(Decision(at_ns, action.cause, "slice", text, action.dry))
            elif isinstance(action, StartWorker | StopWorker):
                kind = "start" if isinstance(action, StartWorker) else "stop"
                self.found.append(Decision(at_ns, action.cause, kind, text, action.dry))
