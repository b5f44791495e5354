"""Figures of the experiment on kernels."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from ...units import MS
from ..experiment import Lab
from ..kernels.device import TaskResult
from ..kernels.hosts import HOSTS
from .fikit_world import POLICIES, Outcome

__all__ = [
    "draw_ageing",
    "draw_bound",
    "draw_loads",
    "draw_policies",
    "draw_sensitivity",
    "draw_speedups",
    "draw_stability",
]

Cells = Mapping[tuple[str, str, str], Sequence[Sequence[Outcome]]]
TITLES = {
    "ahead": "host ahead of the device",
    "host": "host slower than the device",
    "sync": "host waits for every kernel",
}


def _means(seeds: Sequence[Sequence[Outcome]], of: str) -> list[float]:
    """Mean over seeds for each pair."""
    return [statistics.fmean(getattr(o, of) for o in pair) for pair in zip(*seeds, strict=True)]


def draw_speedups(lab: Lab, cells: Cells, pairs: Sequence[tuple[str, str]]) -> None:
    """How many times as fast high-priority tasks are under ours as under default sharing, pair by pair."""
    with lab.figure("speedups", width_in=11.0, height_in=4.6) as figure:
        for axes, host in zip(figure.subplots(1, len(HOSTS), sharey=True), HOSTS, strict=True):
            ours = _means(cells["preemptive", host, "ours"], "high")
            for policy, marker in (("slices", "o"), ("fifo", "s")):
                theirs = _means(cells["preemptive", host, policy], "high")
                ratios = [a / b for a, b in zip(theirs, ours, strict=True)]
                axes.plot(ratios, range(len(pairs)), marker, ms=5, label=f"default: {policy}")
            axes.axvspan(1.32, 16.41, color="#00000010", label="published range")
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
            axes.set_xlim(left=0.9)
            axes.set(xlabel="default / ours", title=TITLES[host])
            axes.set_yticks(range(len(pairs)), [f"{high} | {low}" for high, low in pairs])
        figure.axes[0].invert_yaxis()
        figure.axes[1].legend(frameon=False, fontsize=8, loc="center right")


def draw_policies(lab: Lab, cells: Cells) -> None:
    """High and low completion times of all ways of sharing: down and left is better."""
    with lab.figure("policies", width_in=11.0, height_in=4.2) as figure:
        for axes, host in zip(figure.subplots(1, len(HOSTS), sharey=True), HOSTS, strict=True):
            for number, policy in enumerate(POLICIES):
                seeds = cells["preemptive", host, policy]
                high = statistics.median(_means(seeds, "high"))
                low = statistics.median(_means(seeds, "low"))
                marker = {"ours": "*", "parts": "P"}.get(policy, "osD^vPX"[number % 7])
                if policy in ("ours", "parts"):
                    axes.plot(high, low, marker, ms=11, color="#CC0000", label=policy)
                else:
                    axes.plot(high, low, marker, ms=7, label=policy)
            if axes.get_xlim()[1] > 5:
                axes.set_xscale("log")
            axes.set(xlabel="high priority, alone = 1 (median of pairs)", title=TITLES[host])
        figure.axes[0].set(ylabel="low priority, alone = 1")
        figure.axes[-1].legend(frameon=False, fontsize=8)


def draw_bound(
    lab: Lab,
    pairs: Sequence[tuple[str, str]],
    default: Sequence[Sequence[float]],
    found: Mapping[str, Sequence[Sequence[float]]],
) -> None:
    """Low-priority speed of default sharing that is kept, pair by pair, and what no plan can exceed."""
    with lab.figure("bound", width_in=8.0, height_in=4.6) as figure:
        axes = figure.subplots()
        for (name, seeds), marker in zip(found.items(), ("o", "*", "P", "|", "|"), strict=True):
            ratios = [
                statistics.fmean(d / f for d, f in zip(defaults, lows, strict=True))
                for defaults, lows in zip(zip(*default, strict=True), zip(*seeds, strict=True), strict=True)
            ]
            axes.plot(ratios, range(len(pairs)), marker, ms=14 if marker == "|" else 7, mew=2, label=name)
        axes.axvspan(0.86, 1.0, color="#00000010", label="published range")
        axes.set_yticks(range(len(pairs)), [f"{high} | {low}" for high, low in pairs])
        axes.set(xlabel="low-priority work per time, one queue = 1", title=TITLES["sync"])
        axes.invert_yaxis()
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _medians(outcomes: Sequence[Sequence[Outcome]], of: str) -> list[float]:
    return [statistics.median(getattr(o, of) for o in variant) for variant in outcomes]


def draw_sensitivity(
    lab: Lab,
    gaps: tuple[Sequence[float], Mapping[str, Sequence[Sequence[Outcome]]]],
    lengths: tuple[Sequence[float], Mapping[str, Sequence[Sequence[Outcome]]]],
    errors: tuple[Sequence[tuple[float, float]], Mapping[str, Sequence[Sequence[Outcome]]]],
) -> None:
    """What changes when gaps, the low client's kernels, or what is believed of them change."""
    with lab.figure("sensitivity", width_in=11.0, height_in=6.4) as figure:
        rows = figure.subplots(2, 3, sharex="col")
        for row, of in ((0, "high"), (1, "low")):
            for column, (xs, found) in ((0, gaps), (1, lengths)):
                axes = rows[row][column]
                for policy, outcomes in found.items():
                    axes.plot(xs, _medians(outcomes, of), "o-", ms=4, label=policy)
                axes.set_xscale("log", base=2)
            axes = rows[row][2]
            for policy, outcomes in errors[1].items():
                axes.plot(range(len(errors[0])), _medians(outcomes, of), "o-", ms=4, label=policy)
            axes.set_xticks(range(len(errors[0])), [f"{d:g}, {g:g}" for d, g in errors[0]])
            rows[row][0].set(ylabel=f"{of} priority, alone = 1")
        rows[0][0].set_yscale("log")
        rows[1][0].set(xlabel="host times, usual = 1")
        rows[1][1].set(xlabel="low client's kernels, usual = 1")
        rows[1][2].set(xlabel="believed durations, gaps; right = 1")
        for axes in rows[0]:
            axes.legend(frameon=False, fontsize=8)


def draw_loads(lab: Lab, found: Mapping[tuple[str, str], Mapping[float, Sequence[float]]]) -> None:
    """What low-priority tasks keep, by the part of the time that the high client wants; for each pair and host."""
    with lab.figure("loads", width_in=5.5, height_in=3.8) as figure:
        axes = figure.subplots()
        for (default, ours), ratios in found.items():
            loads = sorted(ratios)
            label = f"{default} over {ours}"
            (line,) = axes.plot(loads, [statistics.median(ratios[x]) for x in loads], "o-", ms=4, label=label)
            axes.plot(loads, [min(ratios[x]) for x in loads], "v--", ms=4, color=line.get_color())
        axes.axhline(0.86, color="0.6", lw=0.8)
        axes.set(
            xlabel="part of the time that high-priority tasks take alone",
            ylabel="low-priority time, default / ours",
        )
        axes.legend(title="median (line), lowest (dashed)", frameon=False, fontsize=8, title_fontsize=8)


def draw_stability(
    lab: Lab,
    pair: tuple[str, str],
    found: Mapping[str, Sequence[TaskResult]],
    alone_ns: int,
    variation: Mapping[str, Sequence[float]],
) -> None:
    """Low-priority completion times one after the other, high-priority tasks in grey; and how much they vary."""
    with lab.figure("stability", width_in=11.0, height_in=6.4) as figure:
        grid = figure.add_gridspec(len(found), 2, width_ratios=(3, 1))
        last_ns = min(max(r.end_ns for r in results) for results in found.values())
        above = None
        for row, (policy, results) in enumerate(found.items()):
            axes = above = figure.add_subplot(grid[row, 0], sharex=above, sharey=above)
            for result in results:
                if result.client == 0 and result.begin_ns < last_ns:
                    axes.axvspan(result.begin_ns / MS, min(result.end_ns, last_ns) / MS, color="0.9", lw=0)
            lows = [r for r in results if r.client == 1 and r.end_ns <= last_ns]
            axes.plot([r.end_ns / MS for r in lows], [r.took_ns / alone_ns for r in lows], ".-", ms=4, lw=0.8)
            axes.set_ylabel(policy)
            axes.tick_params(labelbottom=row == len(found) - 1)
        figure.axes[0].set_yscale("log", base=2)
        figure.axes[0].yaxis.set_major_formatter("{x:g}")
        figure.axes[0].set_title(f"time of each {pair[1]} task beside {pair[0]} (grey: it is there), alone = 1")
        figure.axes[-1].set_xlabel("ms")
        right = figure.add_subplot(grid[:, 1])
        right.boxplot(list(variation.values()), whis=(0, 100))
        right.set_xticks(range(1, len(variation) + 1), list(variation))
        right.set(title="variation, all pairs", ylabel="deviation / mean")
        right.set_ylim(bottom=0)


def draw_ageing(lab: Lab, cells: Mapping[tuple[str, int], Sequence[Outcome]], ageing_ms: Sequence[int]) -> None:
    """Both sides of ageing, beside a high client that never rests."""
    with lab.figure("ageing", width_in=9.0, height_in=3.8) as figure:
        left, right = figure.subplots(1, 2)
        labels = ["never" if ms == 0 else f"{ms}" for ms in ageing_ms]
        for host in ("ahead", "sync"):
            high = [statistics.fmean(o.high for o in cells[host, ms]) for ms in ageing_ms]
            low = [100 * statistics.fmean(1 / o.low for o in cells[host, ms]) for ms in ageing_ms]
            left.plot(labels, high, "o-", ms=4, label=TITLES[host])
            right.plot(labels, low, "o-", ms=4, label=TITLES[host])
        left.set(xlabel="a start at the latest every ... ms", ylabel="high priority, alone = 1")
        right.set(xlabel="a start at the latest every ... ms", ylabel="low priority, speed alone = 100")
        left.legend(frameon=False, fontsize=8)
