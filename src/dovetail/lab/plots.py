"""Pictures of a run: how latencies are distributed, and what happened when.

Drawn off screen, without pyplot and its global state. Colours are Okabe and Ito's, which people with any kind of
colour vision can tell apart; lines of different classes differ in dash as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from ..control.ledger import Ledger
from ..units import MS, SECOND
from ..workflow.graph import Graph
from .timeline import Bin, Timeline

__all__ = ["draw_latency", "draw_timeline"]

#: Okabe and Ito 2008, without the yellow, which is too faint for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")
GREY, FAINT = "#555555", "#CCCCCC"
#: Panels beside each other before the next row.
MAX_COLUMNS = 3


def draw_latency(ledger: Ledger, path: Path) -> None:
    """Share of the requests answered by then, for each workflow, with a line for each class and the objective."""
    graphs = sorted({graph for graph, _ in ledger.rows})
    columns = min(len(graphs), MAX_COLUMNS)
    rows = -(-len(graphs) // columns)
    figure = _figure(4.4 * columns + 0.6, 3.4 * rows + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(graphs) :]:
        panel.set_visible(False)
    for panel, graph in zip(panels.flat, graphs, strict=False):
        name, objective_ns = ledger.workflows[graph]
        for (of, priority), row in sorted(ledger.rows.items()):
            total = sum(row.outcomes.values())
            if of != graph or not row.latency.count:
                continue
            answered = row.latency.count / total
            points = row.latency.cumulative()
            x = [points[0][0] / MS, *(ns / MS for ns, _ in points)]
            y = [0.0, *(share * answered for _, share in points)]
            panel.step(x, y, where="post", **_style(priority), label=f"class {priority}")
        panel.axvline(objective_ns / MS, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        panel.annotate(
            f"objective {_plain(objective_ns / MS)} ms", (objective_ns / MS, 0.02), rotation=90, color=GREY,
            fontsize=8, ha="right", va="bottom", xytext=(-3, 0), textcoords="offset points",
        )  # fmt: skip
        panel.set(title=name, xscale="log", ylim=(0, 1.01), xlabel="latency (ms)")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _plain(x)))
        panel.xaxis.set_minor_formatter(FuncFormatter(lambda x, _: ""))
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        panel.legend(loc="upper left", frameon=False)
    for panel in panels[:, 0]:
        panel.set_ylabel("share of requests answered")
    _save(figure, path)


def draw_timeline(timeline: Timeline, graphs: Sequence[Graph], path: Path) -> None:
    """Load, latency and devices over the time of the run, one above the other."""
    figure = _figure(9.0, 7.5)
    load, latency, devices = figure.subplots(3, 1, sharex=True, height_ratios=(1.1, 1.3, 0.9))
    bins = timeline.bins[: timeline.end_ns // timeline.width_ns + 1]
    width_s = timeline.width_ns / SECOND
    edges_s = [i * width_s for i in range(len(bins) + 1)]
    centres_s = [(a + b) / 2 for a, b in zip(edges_s, edges_s[1:], strict=False)]
    lines = sorted({line for b in bins for line in b.latency})

    arrived = [b.arrived / width_s for b in bins]
    load.stairs(arrived, edges_s, fill=True, color=FAINT, label="arrivals")
    for line in lines:
        load.plot(centres_s, [b.good[line] / width_s for b in bins], **_line_style(line), label=_label(line, graphs))
    load.set(ylabel="requests per second", title="arrivals, and answers within the objective")
    load.set_ylim(bottom=0)

    for line in lines:
        latency.plot(centres_s, [_p95_ms(b, line) for b in bins], **_line_style(line), label=_label(line, graphs))
    for graph in sorted({graph for graph, _ in lines}):
        latency.axhline(
            graphs[graph].slo_ns / MS, color=_colour(graph), linewidth=1, linestyle=(0, (4, 3)), alpha=0.7
        )
    latency.set(ylabel="95th percentile (ms)", title="latency by time of answer; objectives dashed")
    latency.set_ylim(bottom=0)

    kinds = sorted({kind for b in bins for kind in b.there_ns})
    for number, kind in enumerate(kinds):
        busy = [b.busy(kind) for b in bins]
        devices.plot(centres_s, busy, color=COLOURS[-1 - number % len(COLOURS)], label=kind, linewidth=1.4)
    devices.set(ylabel="share at work", xlabel="time (s)", ylim=(0, 1.05), xlim=(0, edges_s[-1]), title="devices")
    devices.yaxis.set_major_formatter(PercentFormatter(1.0))

    for panel in (load, latency, devices):
        panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8)
    _save(figure, path)


def _p95_ms(b: Bin, line: tuple[int, int]) -> float:
    """Not a number where nothing was answered, so that the line has a gap there."""
    histogram = b.latency.get(line)
    return histogram.quantile(0.95) / MS if histogram is not None and histogram.count else float("nan")


def _colour(graph: int) -> str:
    return COLOURS[graph % len(COLOURS)]


def _style(priority: int) -> dict[str, Any]:
    """Of a class, where workflows have panels of their own."""
    return {
        "color": COLOURS[(priority - 1) % len(COLOURS)],
        "linestyle": DASHES[(priority - 1) % len(DASHES)],
        "linewidth": 1.6,
    }


def _line_style(line: tuple[int, int]) -> dict[str, Any]:
    """Colour says the workflow, dash the class."""
    graph, priority = line
    return {"color": _colour(graph), "linestyle": DASHES[(priority - 1) % len(DASHES)], "linewidth": 1.4}


def _label(line: tuple[int, int], graphs: Sequence[Graph]) -> str:
    return f"{graphs[line[0]].name}, class {line[1]}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def _figure(width_in: float, height_in: float) -> Figure:
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(True, color="#EEEEEE", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.title.set(fontsize=10)
        panel.tick_params(labelsize=8)
    # No date and no version inside: the same run gives the same bytes.
    figure.savefig(path, dpi=130, metadata={"Software": None})
