"""The figures of `compass`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from ..experiment import Lab, over_seeds
from .compass_world import Outcome

__all__ = ["five", "parts", "scale", "stale"]

NAMES = {
    "hash": "Hash",
    "navigator": "Navigator (authors' simulator)",
    "compass": "Compass (Cascade's form, adjusting)",
    "dovetail": "Dovetail",
    "jit": "JIT",
    "heft": "HEFT",
}


def scale(
    lab: Lab,
    points: Sequence[int],
    medians: Callable[[str, int], list[float]],
    strong: Sequence[int],
    published: Mapping[str, Mapping[int, float]],
) -> None:
    """Median slow-down over the number of workers, and what was published."""
    with lab.figure("workers", width_in=7.5, height_in=4.6) as figure:
        axes = figure.subplots()
        for policy in ("hash", "navigator", "compass", "dovetail"):
            at = [w for w in points if policy != "compass" or w in strong]
            seen = [over_seeds(medians(policy, w)) for w in at]
            means = [e.mean for e in seen]
            # On a logarithmic axis an interval must not reach nought.
            low = [e.mean - max(e.low, e.mean / 3) for e in seen]
            axes.errorbar(
                at, means, yerr=[low, [e.high - e.mean for e in seen]], fmt="o-", ms=4, capsize=2, label=NAMES[policy]
            )
        for policy, row in published.items():
            axes.plot(
                list(points), [row[w] for w in points], "x", color="black", ms=5,
                label="published (one seed)" if policy == "hash" else None,
            )  # fmt: skip
        axes.set(yscale="log", xlabel="workers", ylabel="median slow-down", title="40 jobs/s, four workflows")
        axes.legend(frameon=False, fontsize=8)


def five(
    lab: Lab, policies: Sequence[str], rates: Sequence[float], outcomes: Callable[[str, float], list[Outcome]]
) -> None:
    """Mean, p95 and hit rate on five workers."""
    with lab.figure("five-workers", width_in=11.0, height_in=4.0) as figure:
        panels = (("mean", "mean slow-down"), ("p95", "95th percentile of slow-down"), ("hit_rate", "model hits, %"))
        for axes, (field, title) in zip(figure.subplots(1, 3), panels, strict=True):
            width = 0.8 / len(policies)
            for i, policy in enumerate(policies):
                factor = 100 if field == "hit_rate" else 1
                values = [factor * statistics.fmean(getattr(o, field) for o in outcomes(policy, r)) for r in rates]
                axes.bar([k + i * width for k in range(len(rates))], values, width, label=NAMES[policy])
            axes.set_xticks([k + 0.4 - width / 2 for k in range(len(rates))], [f"{r:g}/s" for r in rates])
            axes.set(title=title, xlabel="jobs per second on 5 workers")
            if field != "hit_rate":
                axes.set(yscale="log")
        figure.axes[0].legend(frameon=False, fontsize=7)


def stale(
    lab: Lab, titles: Sequence[str], delays: Sequence[int], means: Mapping[tuple[str, str, int], list[float]]
) -> None:
    """Mean slow-down over how old the state may be."""
    with lab.figure("stale", width_in=9.0, height_in=3.8) as figure:
        for axes, title in zip(figure.subplots(1, len(titles)), titles, strict=True):
            for policy in dict.fromkeys(p for t, p, _ in means if t == title):
                values = [statistics.fmean(means[title, policy, d]) for d in delays]
                axes.plot(list(delays), values, "o-", ms=4, label=NAMES[policy])
            axes.set(xscale="log", yscale="log", xlabel="age of the state at most, ms", title=title)
            axes.legend(frameon=False, fontsize=7)
        figure.axes[0].set(ylabel="mean slow-down")


def parts(lab: Lab, sizes: Sequence[int], medians: Mapping[str, list[float]]) -> None:
    """Both routers on both workers."""
    with lab.figure("router-or-worker", width_in=8.0, height_in=3.0) as figure:
        for axes, (at, size) in zip(figure.subplots(1, len(sizes), sharey=True), enumerate(sizes), strict=True):
            values = [row[at] for row in medians.values()]
            bars = axes.barh(range(len(values)), values, height=0.7)
            axes.bar_label(bars, fmt="%.2f", fontsize=7)
            axes.set_yticks(range(len(values)), list(medians))
            axes.set(xlabel="median slow-down", title=f"{size} workers")
        figure.axes[0].invert_yaxis()
