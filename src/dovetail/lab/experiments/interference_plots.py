"""Figures of the experiment on interference."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from ...tools.plots import COLOURS, FAINT, GREY
from ..experiment import Lab
from .interference_simulated import CHANGE_AT, FITTED, Course
from .interference_world import CHANGES

__all__ = ["draw_changes", "draw_rivals"]

_SHOWN = ("gpulets", "ewma", "fine", "rls", "ours")
_ROLL = 25
#: By predictor, the same in all figures; ours is black.
_COLOUR = {
    "none": FAINT, "constant": GREY, "gpulets": COLOURS[0], "ewma": COLOURS[1], "fine": COLOURS[2],
    "igniter": COLOURS[3], "sgd": COLOURS[4], "rls": COLOURS[5], "boosting": "#7F5F3F", "ours": COLOURS[6],
}  # fmt: skip


def draw_rivals(lab: Lab, courses: Mapping[tuple[str, str], Sequence[Course]]) -> None:
    """Median and 95th percentile of the error as it came, before and after each change, by predictor."""
    names = [name for name, change in courses if change == CHANGES[0]]
    with lab.figure("rivals", width_in=8.0, height_in=4.2) as figure:
        axes = figure.subplots()
        groups = ("stationary", *CHANGES)
        width = 0.8 / len(names)
        for place, name in enumerate(names):
            middles, tops = [], []
            for group in groups:
                found = courses[name, CHANGES[0] if group == "stationary" else group]
                cut = CHANGE_AT - FITTED
                parts = [c.came[:cut] if group == "stationary" else c.came[cut:] for c in found]
                middles.append(statistics.fmean(statistics.median(part) for part in parts))
                tops.append(statistics.fmean(float(np.percentile(part, 95)) for part in parts))
            at = np.arange(len(groups)) + (place - (len(names) - 1) / 2) * width
            colour = _COLOUR[name]
            axes.bar(at, middles, width * 0.9, label=name, color=colour)
            axes.plot(at, tops, linestyle="none", marker="_", markersize=6, color=colour)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_yscale("log")
        axes.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        axes.set_ylabel("error as it came, % (bar: median, dash: p95)")
        axes.legend(ncols=5, fontsize="small", frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def draw_changes(lab: Lab, courses: Mapping[tuple[str, str], Sequence[Course]]) -> None:
    """Rolling median of the error around each change."""
    with lab.figure("changes", width_in=8.0, height_in=5.6) as figure:
        all_axes = figure.subplots(2, 2, sharex=True, sharey=True)
        for axes, change in zip(all_axes.ravel(), CHANGES, strict=True):
            for name in _SHOWN:
                if (name, change) not in courses:
                    continue
                rows = np.array([c.came for c in courses[name, change]])
                first = CHANGE_AT - FITTED - 150
                at = range(first, rows.shape[1])
                rolled = [np.median(rows[:, max(0, n - _ROLL) : n + 1]) for n in at]
                axes.plot(
                    [n - (CHANGE_AT - FITTED) for n in at], rolled, label=name, color=_COLOUR[name], linewidth=1.3
                )
            axes.axvline(0, color="grey", linewidth=0.8)
            axes.set_yscale("log")
            axes.set_title(change, fontsize="medium")
        all_axes[0, 0].set_yticks([1, 2, 5, 10, 20, 40], ["1", "2", "5", "10", "20", "40"])
        handles, labels = all_axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize="small", frameon=False, ncols=5, loc="outside upper center")
        figure.supxlabel("batches after the change")
        figure.supylabel(f"median error of the last {_ROLL} batches, %")
