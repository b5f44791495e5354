"""`dovetail profile app:wf --slices`: each model by batch, share and quota, and the surface through the points.

Exit code 0: every model has its points. 1: some could not be measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
from rich.console import Console

from ..profile.machine import Identity
from ..profile.profiler import ProfileRequest
from ..profile.store import ProfileStore
from ..profile.surface import SlicePoint, Surface, fit_surface
from ..tools.slice_profile import SliceProfile, profile_slices
from ..units import MS, format_bytes
from ..workflow.app import App
from .reading import new_table, print_json, printable

__all__ = ["MOST_POINTS", "measure_slices"]

#: Of one stage, unless told otherwise [our choice].
MOST_POINTS = 20


def measure_slices(
    app: App,
    store: ProfileStore,
    identity: Identity,
    request: ProfileRequest,
    most: int,
    *,
    as_json: bool,
    watch: Callable[[str, float], None],
) -> int:
    """Measure what the store does not have, and show all of it; the exit code."""
    out = Console(highlight=False)
    found: list[SliceProfile] = []
    try:
        for one in profile_slices(app, store, identity, request, most, watch):
            found.append(one)
            if not as_json and not one.trouble:
                _show(out, one)
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is in {store.path}, the same command goes on", file=sys.stderr)
        return 130
    for one in found:
        if one.trouble:
            print(f"dovetail profile: stage {one.spec.name!r} was not measured: {one.trouble}", file=sys.stderr)
    if as_json:
        print_json({"store": str(store.path), "identity": identity, "stages": [_plain(one) for one in found]})
    else:
        measured = sum(one.measured for one in found)
        held = sum(len(one.points) for one in found) - measured
        out.print(f"{measured} points measured, {held} already there; in {store.path}", soft_wrap=True)
    return 1 if any(one.trouble for one in found) else 0


def _surfaces(one: SliceProfile) -> dict[str, Surface | None]:
    return {
        "per_s": fit_surface(one.grid, one.points),
        "p95_ns": fit_surface(one.grid, one.points, lambda point: point.p95_ns),
    }


def _show(out: Console, one: SliceProfile) -> None:
    out.print(f"[bold]{printable(one.spec.name)}[/]")
    table = new_table(">batch", ">share %", ">quota %", ">items/s", ">p50 ms", ">p95 ms", ">p99 ms", ">memory", "")
    surfaces = _surfaces(one)
    for p in sorted(one.points, key=lambda point: point.place):
        times = [f"{ns / MS:.3g}" for ns in (p.p50_ns, p.p95_ns, p.p99_ns)]
        cells = (str(p.batch), str(p.share_pct), str(p.quota_pct), f"{p.per_s:.4g}")
        table.add_row(*cells, *times, format_bytes(p.memory_bytes), _judged(p, surfaces["per_s"]))
    out.print(table)
    for name, what in (("per_s", "items per second"), ("p95_ns", "p95")):
        surface = surfaces[name]
        if surface is None:
            out.print(f"{what}: not all corners are measured; give more --slices POINTS")
        elif surface.errors:
            off, count = f"{100 * surface.worst:.1f} %", len(surface.errors)
            out.print(f"{what}: the surface is off by {off} at most in {count} point(s) that it was not fitted to")
        else:
            out.print(f"{what}: all points are fitted; give more --slices POINTS to see how good the surface is")
    out.print()


def _judged(point: SlicePoint, surface: Surface | None) -> str:
    error = None if surface is None else surface.errors.get(point.place)
    return "" if error is None else f"not fitted: {100 * error:+.1f} %"


def _plain(one: SliceProfile) -> dict[str, Any]:
    surfaces = {
        name: None
        if surface is None
        else {
            "worst_error": surface.worst,
            "errors": [{"place": list(place), "error": error} for place, error in surface.errors.items()],
        }
        for name, surface in _surfaces(one).items()
    }
    points = [msgspec.structs.asdict(point) for point in one.points]
    about = {"stage": one.spec.name, "measured": one.measured, "trouble": one.trouble}
    return {**about, "grid": msgspec.to_builtins(one.grid), "points": points, "surfaces": surfaces}
