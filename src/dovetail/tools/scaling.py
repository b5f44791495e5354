"""What the scaler decided, as lines for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ..record.scaling import Decision
from ..units import SECOND
from .table import results_console

__all__ = ["print_decisions"]


def print_decisions(found: Sequence[Decision]) -> None:
    """One line each, and how many of each kind."""
    out = results_console()
    for decision in found:
        out.print(Text(f"{decision.at_ns / SECOND:10.3f} s  {decision.text}"), soft_wrap=True)
    kinds = {kind: sum(d.kind == kind for d in found) for kind in ("slice", "start", "stop")}
    summary = f"{kinds['slice']} changes of slices, {kinds['start']} devices started, {kinds['stop']} stopped"
    out.print(Text(summary if found else "the scaler decided nothing, or there was none"))
