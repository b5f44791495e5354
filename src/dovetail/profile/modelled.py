"""The profile entry of a stage on a device of the catalogue."""

from __future__ import annotations

from ..workflow.graph import StageSpec
from . import catalogue
from .table import Entry

__all__ = ["modelled"]


def modelled(spec: StageSpec, kind: str) -> Entry | None:
    """Curve and load time of the catalogue model that the stage is, or is said to be like; None if it is neither."""
    name = spec.like or (spec.model if spec.kind == "model" else "")
    if not name:
        return None
    model = catalogue.model(name)
    return Entry(
        spec.name,
        kind,
        curve=model.curve(kind),
        load_ns=model.load_ns(kind),
        memory_bytes=model.weights_bytes,
        source=f"catalogue model {name}",
    )
