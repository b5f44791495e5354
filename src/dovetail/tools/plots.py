"""Pictures of a run: how latencies are distributed, and what happened when.

Drawn off screen, without pyplot and its global state. Colours are Okabe and Ito's, which people with any kind of
colour vision can tell apart; lines of different classes differ in dash as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from ..profile.machine import HOST
from ..record.ledger import Ledger
from ..record.shares import ShareReport
from ..units import MS, SECOND
from ..workflow.graph import Graph
from .timeline import Bin, Timeline

__all__ = ["draw_latency", "draw_shares", "draw_timeline"]

#: Okabe and Ito 2008, without the yellow, which is too faint for lines on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")
DASHED = (0, (4, 3))
GREY, FAINT = "#555555", "#CCCCCC"
#: Answers that a bin should have on average, so that its 95th percentile means something.
MIN_ANSWERS = 40
#: Latencies are drawn on a logarithmic axis if the slowest took so many times the objective.
LOG_ABOVE = 8
#: Panels beside each other before the next row.
MAX_COLUMNS = 3


def draw_latency(ledger: Ledger, path: Path) -> None:
    """Share of the requests answered by then, for each workflow, with a line for each class and the objective."""
    graphs = sorted({graph for graph, _ in ledger.rows})
    columns = 2 if len(graphs) == 4 else min(len(graphs), MAX_COLUMNS)
    rows = -(-len(graphs) // columns)
    figure = _figure(4.4 * columns + 0.6, 3.4 * rows + 0.5)
    panels = figure.subplots(rows, columns, squeeze=False)
    for panel in panels.flat[len(graphs) :]:
        panel.set_visible(False)
    for panel, graph in zip(panels.flat, graphs, strict=False):
        name, objective_ns = ledger.workflows[graph]
        slowest_ms = 0.0
        for (of, priority), row in sorted(ledger.rows.items()):
            total = sum(row.outcomes.values())
            if of != graph or not row.latency.count:
                continue
            answered = row.latency.count / total
            points = row.latency.cumulative()
            x = [points[0][0] / MS, *(ns / MS for ns, _ in points)]
            y = [0.0, *(share * answered for _, share in points)]
            slowest_ms = max(slowest_ms, x[-1])
            panel.step(x, y, where="post", **_line_style(priority - 1, priority), label=f"class {priority}")
        panel.axvline(objective_ns / MS, color=GREY, linewidth=1, linestyle=DASHED)
        panel.annotate(
            f"objective {_plain(objective_ns / MS)} ms",
            (objective_ns / MS, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            color=GREY,
            fontsize=8,
        )
        panel.set(ylim=(0, 1.01), xlabel="latency (ms)")
        panel.set_title(name, pad=18, fontsize=10)
        wide = slowest_ms > LOG_ABOVE * objective_ns / MS
        panel.set(xscale="log") if wide else panel.set_xlim(left=0)
        panel.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _plain(x)))
        panel.yaxis.set_major_formatter(PercentFormatter(1.0))
        if panel.lines[:-1]:
            place = "lower right" if wide else "upper left"
            panel.legend(loc=place, fontsize=8, framealpha=0.9, edgecolor="none")
    for panel in panels[:, 0]:
        panel.set_ylabel("share of requests answered")
    _save(figure, path)


def draw_timeline(timeline: Timeline, graphs: Sequence[Graph], path: Path) -> None:
    """Load, latency and devices over the time of the run, one above the other."""
    figure = _figure(9.0, 7.5)
    load, latency, devices = figure.subplots(3, 1, sharex=True, height_ratios=(1.1, 1.3, 0.9))
    timeline.widen(MIN_ANSWERS)
    bins = timeline.bins[: timeline.end_ns // timeline.width_ns + 1]
    end_s = timeline.end_ns / SECOND
    edges_s = [min(i * timeline.width_ns / SECOND, end_s) for i in range(len(bins) + 1)]
    widths_s = [max(b - a, 1e-9) for a, b in pairwise(edges_s)]
    middles_s = [(a + b) / 2 for a, b in pairwise(edges_s)]
    lines = sorted({line for b in bins for line in b.latency})
    styles = {line: _line_style(number, line[1]) for number, line in enumerate(lines)}
    names = {line: f"{graphs[line[0]].name}, class {line[1]}" for line in lines}

    def per_s(counts: Iterable[int]) -> list[float]:
        return [count / width for count, width in zip(counts, widths_s, strict=True)]

    load.stairs(per_s(b.arrived for b in bins), edges_s, fill=True, color=FAINT, label="arrivals")
    for line in lines:
        load.plot(middles_s, per_s(b.good[line] for b in bins), **styles[line], label=names[line])
    load.set(ylabel="requests per second", ylim=(0, None))
    load.set_title("Arrivals, and answers within the objective", loc="left", fontsize=10)

    objectives_ms = {line: graphs[line[0]].slo_ns / MS for line in lines}
    same = len(set(objectives_ms.values())) == 1
    for line in lines:
        # Workflows with different objectives can only be compared by how much of it they used up.
        unit = 1.0 if same else objectives_ms[line]
        latency.plot(middles_s, [_p95_ms(b, line) / unit for b in bins], **styles[line], label=names[line])
    objective = next(iter(objectives_ms.values())) if same else 1.0
    latency.axhline(objective, color=GREY, linewidth=1, linestyle=DASHED)
    latency.annotate(
        f"objective {_plain(objective)} ms" if same else "objective",
        (1.0, objective),
        xycoords=("axes fraction", "data"),
        xytext=(-2, 2),
        textcoords="offset points",
        ha="right",
        color=GREY,
        fontsize=8,
    )
    latency.set(ylabel="95th percentile (ms)" if same else "95th percentile / objective", ylim=(0, None))
    latency.set_title("Latency, by time of answer", loc="left", fontsize=10)

    kinds = sorted({kind for b in bins for kind in b.there_ns}, key=lambda kind: (kind == HOST, kind))
    for number, kind in enumerate(kinds):
        devices.plot(middles_s, [b.busy(kind) for b in bins], **_line_style(-1 - number, number + 1), label=kind)
    devices.set(ylabel="share at work", xlabel="time (s)", ylim=(0, 1.05), xlim=(0, end_s))
    devices.set_title("Devices", loc="left", fontsize=10)
    devices.yaxis.set_major_formatter(PercentFormatter(1.0))

    for panel in (load, latency, devices):
        if panel.get_legend_handles_labels()[0]:
            panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8)
    _save(figure, path)


def draw_shares(report: ShareReport, path: Path) -> None:
    """What each client had of the device in every window, beside what it asked for."""
    figure = _figure(7.0, 3.2)
    panel = figure.subplots()
    seconds = report.window_ns / SECOND
    for number, client in enumerate(report.got_pct):
        windows = [w for w in report.windows if w.client == client]
        style = _line_style(number, 1)
        panel.plot([w.window * seconds for w in windows], [w.got_pct for w in windows], label=client, **style)
        if windows and windows[0].asked_pct:
            panel.axhline(windows[0].asked_pct, color=style["color"], linestyle=DASHED, linewidth=0.8)
    panel.set(xlabel="time, s", ylabel="of the device's time, %", ylim=(0, 100))
    panel.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8)
    _save(figure, path)


def _p95_ms(b: Bin, line: tuple[int, int]) -> float:
    """Not a number where nothing was answered, so that the line has a gap there."""
    histogram = b.latency.get(line)
    return histogram.quantile(0.95) / MS if histogram is not None and histogram.count else float("nan")


def _line_style(number: int, priority: int) -> dict[str, Any]:
    """Colour tells lines apart, dash tells classes."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[(priority - 1) % len(DASHES)],
        "linewidth": 1.6,
    }


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
        panel.tick_params(labelsize=8)
    # No date and no version inside: the same run gives the same bytes.
    figure.savefig(path, dpi=130, metadata={"Software": None})
