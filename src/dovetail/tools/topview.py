"""One picture of a running server for the terminal: classes, stages, devices, models, requests that had trouble.

Rules of this file: it draws what `record.sight` has and computes nothing of its own. Nothing is told by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..record.sight import Banner, ClassNow, StageNow, Tick, WorkerNow
from ..units import format_bytes

__all__ = ["render"]

TARGET = 0.95
BAR_CELLS = 12
#: Lines of the tables that can be cut: stages and requests share what is left of the screen.
LEAST_LINES = 4
_MARKS = {"ok": "✓", "late": "◷", "shed": "⊘", "expired": "⌛", "failed": "✕", "cancelled": "–"}


def render(banner: Banner, tick: Tick, height: int) -> RenderableType:
    """`height` is how many lines there are; 0: as many as it takes."""
    devices = [worker for worker in tick.workers if not worker.on_host]
    evictions = list(tick.evictions[-3:])
    rest = LEAST_LINES * 2
    if height:
        fixed = 14 + max(1, len(tick.classes)) + len(tick.workers) + len(evictions)
        rest = max(LEAST_LINES, height - fixed)
    busiest = sorted(tick.stages, key=lambda s: (-s.depth, -s.batches_per_s * s.run_ms))
    stages = busiest if not height else busiest[: max(LEAST_LINES, rest * 2 // 3)]
    trouble = [ended for ended in tick.ended if ended.outcome != "ok"][: max(2, rest // 3)]
    parts: list[RenderableType] = [_title(banner, tick, devices), _classes(tick.classes), _stages(stages)]
    parts.append(_workers(banner, tick.workers))
    parts += [
        Text(f"  evicted {_model(banner, gone.weights)} from {gone.worker}: {gone.reason}", "dim")
        for gone in reversed(evictions)
    ]
    for ended in trouble:
        what = f"  {_MARKS.get(ended.outcome, '?')} {ended.outcome}: request {ended.request} of {ended.workflow}, "
        parts.append(Text(f"{what}class {ended.priority}, {ended.latency_ms:,.0f} ms", "yellow"))
    parts += [Text(f"  {note.text}", "dim") for note in tick.notes[-2:]]
    return Group(*parts)


def _title(banner: Banner, tick: Tick, devices: Sequence[WorkerNow]) -> Text:
    state = "draining" if tick.draining else "serving"
    busy = sum(worker.busy for worker in devices) / max(1, len(devices))
    good = sum(c.goodput_per_s for c in tick.classes)
    come = sum(c.arrivals_per_s for c in tick.classes)
    return Text.assemble(
        ("dovetail ", "bold"),
        f"{banner.dovetail} on {banner.device}, policy {banner.policy}, {state}, up {tick.now_ms / 1000:,.0f} s\n",
        (f"{come:.1f}", "bold"),
        " arrivals/s   ",
        (f"{good:.1f}", "bold"),
        " in time/s   ",
        (f"{tick.open}", "bold"),
        " open   devices ",
        (f"{busy:.0%}", "bold"),
        f" busy   over {tick.over_s:.0f} s",
    )


def _table(*heads: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in heads:
        table.add_column(head.lstrip(">"), justify="right" if head.startswith(">") else "left", no_wrap=True)
    return table


def _bar(part: float, cells: int = BAR_CELLS) -> str:
    full = round(min(1.0, max(0.0, part)) * cells)
    return "█" * full + "░" * (cells - full)


def _classes(classes: Sequence[ClassNow]) -> Table:
    table = _table(
        "workflow", ">class", "attainment", ">arrive/s", ">good/s", ">p50 ms", ">p99 ms", ">goal ms", "ended"
    )
    for each in classes:
        totals = {name: getattr(each.totals, name) for name in _MARKS}
        if each.attainment is None:
            hits = Text(f"{_bar(0)}      –", "dim")
        else:
            well = each.attainment >= TARGET
            hits = Text(f"{_bar(each.attainment)} {each.attainment:6.1%}", "green" if well else "bold red")
        table.add_row(
            each.workflow,
            str(each.priority),
            hits,
            f"{each.arrivals_per_s:.1f}",
            f"{each.goodput_per_s:.1f}",
            _ms(each.p50_ms),
            Text(_ms(each.p99_ms), "bold red" if (each.p99_ms or 0) > each.objective_ms else ""),
            f"{each.objective_ms:,.0f}",
            " ".join(f"{_MARKS[name]}{count:,}" for name, count in totals.items() if count),
        )
    if not classes:
        table.add_row("no requests yet")
    return table


def _stages(stages: Sequence[StageNow]) -> Table:
    table = _table("stage", ">queue", ">runs", ">batch/s", ">items", ">run ms", ">wait ms", ">workers", "")
    longest = max((s.run_ms + s.wait_ms for s in stages), default=1.0) or 1.0
    for each in stages:
        bar = "█" * round(each.run_ms / longest * BAR_CELLS) + "░" * round(each.wait_ms / longest * BAR_CELLS)
        queue = Text(str(each.depth), "bold yellow" if each.depth else "dim")
        figures = (f"{each.batches_per_s:.1f}", f"{each.items_per_batch:.1f}", _ms(each.run_ms), _ms(each.wait_ms))
        table.add_row(each.name, queue, str(each.running), *figures, str(each.workers), bar)
    return table


def _workers(banner: Banner, workers: Sequence[WorkerNow]) -> Table:
    table = _table("worker", "busy", ">cores", "models", ">in memory", ">hits", ">misses", ">evicted")
    for each in workers:
        names = ", ".join(_model(banner, held.weights) for held in each.models if held.nbytes)
        memory = each.memory
        held = f"{format_bytes(memory.held_bytes)} of {format_bytes(memory.usable_bytes)}" if memory else "-"
        counts = (memory.hits, memory.misses, memory.evictions) if memory else ("-", "-", "-")
        models = Text("Python" if each.on_host else names or "-", overflow="ellipsis")
        models.truncate(36, overflow="ellipsis")
        busy = f"{_bar(each.busy)} {each.busy:4.0%}"
        table.add_row(each.name, busy, str(each.cores or "-"), models, held, *map(str, counts))
    return table


def _model(banner: Banner, weights: str) -> str:
    """The stages that use a model."""
    return "/".join(stage.name for stage in banner.stages if stage.weights == weights) or weights[:8]


def _ms(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"
