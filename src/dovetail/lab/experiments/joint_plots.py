"""The figures of `joint`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..experiment import Lab
from .joint_runs import HIGH
from .joint_world import Outcome, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["cards", "goodput", "parts"]

_Outcomes = Callable[[Setting, str], list[Outcome]]


def goodput(lab: Lab, settings: Sequence[Setting], policies: Sequence[str], outcomes: _Outcomes) -> None:
    """Part of the requests in time by policy, of all (bar) and of class 1 (mark), one panel per setting."""
    columns = 2
    rows = -(-len(settings) // columns)
    with lab.figure("goodput", width_in=10.0, height_in=2.4 * rows) as figure:
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for number, setting in enumerate(settings):
            axes = grid[number // columns][number % columns]
            every = [[100 * o.hit_rate for o in outcomes(setting, p)] for p in policies]
            first = [statistics.fmean(100 * o.first_hit_rate for o in outcomes(setting, p)) for p in policies]
            means = [statistics.fmean(row) for row in every]
            bars = axes.bar(range(len(policies)), means, width=0.7, color="C0", label="all requests, mean")
            bars[0].set_color("C1")
            at = [i for i, row in enumerate(every) for _ in row]
            axes.plot(at, [value for row in every for value in row], "wo", mec="k", ms=3, label="single seeds")
            axes.plot(range(len(policies)), first, "k_", ms=14, mew=2, label="class 1, mean")
            axes.set_axisbelow(True)
            axes.set_xticks(range(len(policies)), policies, rotation=35, ha="right", fontsize=8)
            axes.set_title(setting.title, fontsize=9)
            axes.set(ylim=(0, 105))
        for row in grid:
            row[0].set(ylabel="in time, %")
        _legend(figure)


def cards(
    lab: Lab, settings: Sequence[Setting], policies: Sequence[str], needed: Mapping[tuple[Setting, str], list[int]]
) -> None:
    """Cards for the same requests."""
    with lab.figure("cards", width_in=9.0, height_in=3.6) as figure:
        for axes, setting in zip(figure.subplots(1, len(settings), sharey=True), settings, strict=True):
            values = [statistics.fmean(needed[setting, policy]) for policy in policies]
            bars = axes.barh(range(len(values)), values, height=0.7)
            bars[0].set_color("C1")
            axes.bar_label(bars, [f"> {HIGH}" if v > HIGH else f"{v:.0f}" for v in values], fontsize=8, padding=2)
            axes.set_yticks(range(len(values)), policies)
            arrivals = "bursty" if setting.bursty else "Poisson"
            axes.set_title(f"{setting.memory_gb:.0f} GB, {arrivals}", fontsize=9)
            axes.set(xlabel="cards for 95 % in time", xlim=(0, 1.15 * HIGH))
            axes.set_axisbelow(True)
        figure.axes[0].invert_yaxis()


def parts(
    lab: Lab, settings: Sequence[Setting], names: Sequence[str], outcomes: _Outcomes, without: _Outcomes
) -> None:
    """Goodput with everything, and without each part."""
    with lab.figure("parts", width_in=9.0, height_in=3.4) as figure:
        for axes, setting in zip(figure.subplots(1, len(settings), sharey=True), settings, strict=True):
            runs = [outcomes(setting, "dovetail"), *(without(setting, name) for name in names)]
            every = [100 * statistics.fmean(o.hit_rate for o in row) for row in runs]
            first = [100 * statistics.fmean(o.first_hit_rate for o in row) for row in runs]
            bars = axes.barh(range(len(every)), every, height=0.7, color="C0", label="all requests")
            bars[0].set_color("C1")
            axes.plot(first, range(len(first)), "k|", ms=14, mew=2, label="class 1")
            axes.set_yticks(range(len(every)), ["dovetail", *names])
            axes.set_title(setting.title, fontsize=9)
            axes.set(xlabel="in time, %", xlim=(0, 105))
            axes.set_axisbelow(True)
        figure.axes[0].invert_yaxis()
        _legend(figure)


def _legend(figure: Figure) -> None:
    """Of the first panel, above all of them; without the colour of ours, which has a name."""
    marks, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(marks, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=8)
