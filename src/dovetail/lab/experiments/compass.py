"""Where should each task run? Compass (Navigator), its rivals and Dovetail's router on the same jobs.

Two settings. `figure`: that of the authors' scalability figure, 20 to 240 workers and 40 jobs/s, with the semantics
of their simulator; its published medians are one seed each. `cluster`: five workers as in their testbed, 0.5 to 2.5
jobs/s, with the semantics of Cascade; no figures of it could be found, so policies are compared with each other only.

Workers differ as well as routers: Compass's fetches a model when a task comes up and copies out what it evicts, ours
fetches beside execution and lets weights go. Which of the two is worth what is drawn in `router-or-worker`.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ..experiment import Estimate, Goal, Lab, over_seeds
from . import compass_plots as plots
from .compass_runs import FIGURE_INTERVAL_MS, GRID, TARGET, Job, Search, figure_job, search, simulate
from .compass_world import Outcome

SEEDS = (1, 2, 3, 4, 5)
QUICK_SEEDS = (1, 2)

#: experiments/plot_scalability.py of the authors' simulator.
POINTS = tuple(range(20, 241, 20))
PUBLISHED = {
    "navigator": (74.15, 5.65, 4.27, 4.13, 4.462, 3.99, 3.38, 3.95, 3.96, 3.99, 4.53, 4.08),
    "hash": (113.74, 37.62, 17.21, 9.49, 6.89, 4.72, 4.18, 3.77, 3.4, 3.19, 2.98, 2.97),
}
#: Workers that Navigator used, of those that there were.
PUBLISHED_USED = (20, 40, 48, 46, 51, 46, 50, 46, 45, 46, 49, 48)
#: The seed behind the published medians.
THEIR_SEED = 42
THEIR_PLOT = "aliciayuting/NavigatorSimulator, experiments/plot_scalability.py"
PAPER = "Compass (arXiv 2402.17652)"
OURS = "our own; same jobs, same simulated devices"
QUICK_POINTS = (20, 60, 120, 240)
#: Where Cascade's Compass with adjustment is run as well: the strongest Compass there is.
STRONG_POINTS = (20, 40, 60, 120, 240)
#: Jobs per second on five workers -> the same per client.
RATES = {0.5: 8000.0, 1.0: 4000.0, 2.0: 2000.0, 2.5: 1600.0}
#: How old what a controller knows may be: half between pushes, half between pulls.
STALE_MS = (1, 50, 200, 1000)
RIVALS = ("jit", "heft", "hash")


def run(lab: Lab) -> None:
    """The figure, the price in workers, five workers, stale state; then which part is worth what."""
    points = QUICK_POINTS if lab.quick else POINTS
    found = _scale(lab, points)
    if lab.quick:
        lab.leave_out("workers.*", "the search for the number of workers takes minutes; run without --quick")
    else:
        _needed(lab, found)
    _five(lab)
    _stale(lab)
    _parts(lab)


# -- the authors' figure ------------------------------------------------------------------------------------------


def _scale(lab: Lab, points: Sequence[int]) -> dict[Job, Outcome]:
    policies = ("hash", "navigator", "dovetail")
    jobs = [figure_job(p, w, s) for p in policies for w in points for s in lab.seeds]
    jobs += [figure_job("compass", w, s) for w in STRONG_POINTS if w in points for s in lab.seeds]
    jobs += [figure_job(p, w, THEIR_SEED, -1.0) for p in ("hash, drawn", "navigator") for w in points]
    found = dict(zip(jobs, lab.map(simulate, jobs, "20 to 240 workers"), strict=True))

    def medians(policy: str, workers: int) -> list[float]:
        return [found[figure_job(policy, workers, seed)].median for seed in lab.seeds]

    for policy in ("hash", "navigator"):
        for workers in points:
            published = PUBLISHED[policy][POINTS.index(workers)]
            theirs = found[
                figure_job("hash, drawn" if policy == "hash" else policy, workers, THEIR_SEED, -1.0)
            ].median
            seeds = over_seeds(medians(policy, workers))
            _published(lab, policy, workers, published, theirs, seeds)
    used = []
    for seed in lab.seeds:
        share = [found[figure_job("navigator", w, seed)].used / PUBLISHED_USED[POINTS.index(w)] for w in points]
        used.append(100 * (statistics.fmean(share) - 1))
    lab.claim(
        "navigator.used",
        "workers that Navigator uses of those that there are, mean deviation from the published over all points",
        source=THEIR_PLOT,
        published=0.0,
        goal=Goal("within", 10.0, "%"),
        measured=over_seeds(used),
    )
    for workers in points:
        ours, nav, hashed = medians("dovetail", workers), medians("navigator", workers), medians("hash", workers)
        ratios = [a / min(b, c) for a, b, c in zip(ours, nav, hashed, strict=True)]
        lab.claim(
            f"dovetail.{workers}",
            f"{workers} workers: median slow-down of Dovetail ({statistics.fmean(ours):.2f}) over the lesser of "
            f"Navigator's ({statistics.fmean(nav):.2f}) and Hash's ({statistics.fmean(hashed):.2f})",
            source=OURS,
            goal=Goal("at most", 1.0),
            measured=over_seeds(ratios),
        )
    lab.claim(
        "dovetail.median.60",
        "60 workers: median slow-down of Dovetail",
        source=OURS,
        goal=Goal("at most", 2.0),
        measured=over_seeds(medians("dovetail", 60)),
    )
    for workers in (w for w in STRONG_POINTS if w in points):
        strong = medians("compass", workers)
        lab.claim(
            f"dovetail.strong.{workers}",
            f"{workers} workers: median slow-down of Dovetail over that of Compass in Cascade's form, with "
            f"adjustment ({statistics.fmean(strong):.2f})",
            source=OURS,
            goal=Goal("at most", 1.0),
            measured=over_seeds([a / b for a, b in zip(medians("dovetail", workers), strong, strict=True)]),
        )
    plots.scale(
        lab, points, medians, STRONG_POINTS, {p: dict(zip(POINTS, v, strict=True)) for p, v in PUBLISHED.items()}
    )
    return found


def _published(lab: Lab, policy: str, workers: int, published: float, theirs: float, seeds: Estimate) -> None:
    """Hash with the authors' own draws, which settle it; Navigator as the mean of seeds, since it is chaotic."""
    exact = policy == "hash"
    interval = f"{seeds.low:.2f} to {seeds.high:.2f}"
    text = (
        f"{workers} workers: median slow-down of {policy}, deviation from the published {published:g} (one seed); "
        f"with the authors' seed {theirs:.2f}, mean of our seeds {seeds.mean:.2f} ({interval})"
    )
    deviations = [100 * (value / published - 1) for value in (seeds.mean, seeds.low, seeds.high)]
    lab.claim(
        f"{policy}.{workers}",
        text,
        source=THEIR_PLOT,
        published=0.0,
        goal=Goal("within", 10.0 if exact else 20.0, "%"),
        measured=100 * (theirs / published - 1) if exact else Estimate(*deviations),
    )


def _needed(lab: Lab, found: dict[Job, Outcome]) -> None:
    """Workers for a median slow-down of five, seed by seed, inside the first step of twenty that reaches it."""
    policies = ("hash", "navigator", "dovetail")
    jobs = []
    for policy in policies:
        for seed in lab.seeds:
            reached = (w for w in POINTS if found[figure_job(policy, w, seed)].median <= TARGET)
            high = next(reached, POINTS[-1] + 20)
            jobs.append(Search(policy, seed, high - 20, high))
    counts = dict(zip(jobs, lab.map(search, jobs, "workers for a slow-down of five"), strict=True))
    needed = {p: [n for job, n in counts.items() if job.policy == p] for p in policies}
    means = ", ".join(f"{p} {statistics.fmean(needed[p]):.0f}" for p in policies)
    for rival, limit in (("hash", 0.5), ("navigator", 0.999)):
        lab.claim(
            f"workers.{rival}",
            f"workers that Dovetail needs for a median slow-down of {TARGET:g} over those of {rival} ({means}; grid "
            f"of {GRID}, by halving)",
            source=f"{PAPER}: half the servers in one case" if rival == "hash" else OURS,
            goal=Goal("at most", limit),
            measured=over_seeds([a / b for a, b in zip(needed["dovetail"], needed[rival], strict=True)]),
        )


# -- five workers -------------------------------------------------------------------------------------------------


def _five(lab: Lab) -> None:
    policies = ("dovetail", "compass", *RIVALS)
    rates = {r: i for r, i in RATES.items() if not lab.quick or r in (0.5, 2.0)}
    jobs = [Job("cluster", p, 5, i, s) for p in policies for i in rates.values() for s in lab.seeds]
    found = dict(zip(jobs, lab.map(simulate, jobs, "five workers"), strict=True))

    def outcomes(policy: str, rate: float) -> list[Outcome]:
        return [found[Job("cluster", policy, 5, rates[rate], seed)] for seed in lab.seeds]

    def show(policy: str, rate: float) -> str:
        runs = outcomes(policy, rate)
        mean, p95, hits = (statistics.fmean(getattr(o, f) for o in runs) for f in ("mean", "p95", "hit_rate"))
        return f"{policy} {mean:.2f}/{p95:.2f}/{100 * hits:.1f} %"

    for rate in rates:
        everybody = "; ".join(show(p, rate) for p in policies)
        for field in ("mean", "p95"):
            ours = [getattr(o, field) for o in outcomes("dovetail", rate)]
            others = zip(*([getattr(o, field) for o in outcomes(p, rate)] for p in policies[1:]), strict=True)
            lab.claim(
                f"five.{field}.{rate:g}",
                f"5 workers, {rate:g} jobs/s: {field} slow-down of Dovetail over that of the best other (mean/p95/"
                f"hits: {everybody})",
                source=OURS,
                goal=Goal("at most", 1.0),
                measured=over_seeds([a / min(b) for a, b in zip(ours, others, strict=True)]),
            )
        compass = [o.mean for o in outcomes("compass", rate)]
        rivals = zip(*([o.mean for o in outcomes(p, rate)] for p in RIVALS), strict=True)
        gains = [min(others) / own for others, own in zip(rivals, compass, strict=True)]
        lab.claim(
            f"five.compass.{rate:g}",
            f"5 workers, {rate:g} jobs/s: mean slow-down of the best of JIT, HEFT and Hash over Compass's",
            source=f"{PAPER}: 2 to 6 times lower latency, by a third-party summary",
            published=2.0,
            goal=Goal("at least", 2.0),
            measured=over_seeds(gains),
        )
    plots.five(lab, policies, list(rates), outcomes)


# -- old news -----------------------------------------------------------------------------------------------------


def _stale(lab: Lab) -> None:
    delays = (1, 200) if lab.quick else STALE_MS
    settings = {
        "60 workers, 40 jobs/s": ("figure", 60, FIGURE_INTERVAL_MS, ("dovetail", "navigator", "compass")),
        "5 workers, 2 jobs/s": ("cluster", 5, RATES[2.0], ("dovetail", "compass")),
    }
    jobs = {
        (title, policy, delay): [Job(setting, policy, workers, interval, seed, float(delay)) for seed in lab.seeds]
        for title, (setting, workers, interval, policies) in settings.items()
        for policy in policies
        for delay in delays
    }
    flat = [job for row in jobs.values() for job in row]
    found = dict(zip(flat, lab.map(simulate, flat, "old news"), strict=True))
    means = {key: [found[job].mean for job in row] for key, row in jobs.items()}
    for title, (_, workers, _, policies) in settings.items():
        for policy in policies:
            fresh = means[title, policy, delays[0]]
            old = [means[title, policy, d] for d in delays]
            shown = ", ".join(f"{d} ms {statistics.fmean(v):.2f}" for d, v in zip(delays, old, strict=True))
            ratios = [b / a for a, b in zip(fresh, means[title, policy, 200], strict=True)]
            if policy == "dovetail":
                lab.claim(
                    f"stale.{workers}",
                    f"{title}: mean slow-down of Dovetail with state up to 200 ms old over that with 1 ms ({shown})",
                    source=OURS,
                    goal=Goal("at most", 2.0),
                    measured=over_seeds(ratios),
                )
                continue
            ours = [
                b / a for a, b in zip(means[title, "dovetail", delays[0]], means[title, "dovetail", 200], strict=True)
            ]
            lab.claim(
                f"stale.{workers}.{policy}",
                f"{title}: how much worse Dovetail gets at 200 ms over how much worse {policy} does ({shown})",
                source=OURS,
                goal=Goal("at most", 1.0),
                measured=over_seeds([a / b for a, b in zip(ours, ratios, strict=True)]),
            )
    plots.stale(lab, list(settings), delays, means)


# -- which part is worth what -------------------------------------------------------------------------------------


def _parts(lab: Lab) -> None:
    """Both routers on both workers: shown, not judged."""
    seeds = lab.seeds[: 1 if lab.quick else 2]
    sizes = (40, 60)
    cells = {
        f"{policy}, {whose} worker": [figure_job(policy, w, s, worker=worker) for w in sizes for s in seeds]
        for policy in ("navigator", "dovetail")
        for worker, whose in (("theirs", "their"), ("ours", "our"))
    }
    flat = [job for row in cells.values() for job in row]
    found = dict(zip(flat, lab.map(simulate, flat, "router or worker"), strict=True))
    plots.parts(
        lab,
        sizes,
        {
            name: [statistics.fmean(found[j].median for j in row if j.workers == w) for w in sizes]
            for name, row in cells.items()
        },
    )
