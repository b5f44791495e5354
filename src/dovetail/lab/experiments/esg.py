"""How should each stage be run? ESG's setting, its rivals, ESG itself and Dovetail's planner on the same requests.

Read with care: ESG's result tables, application profiles and cluster were not at hand. What stands in for them is
recollection and inference (`lab.rivals.unverified`, the catalogue's `esg/` entries), so the published margins can be
compared with only in kind. What is exact here is the comparison of policies with each other: same requests, same
simulated devices, same profiles.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from ...control import Policy
from ...plan import Space
from ...predict import Estimator
from ...schedule import PlannerSettings
from ...wiring import PolicySpec, own_policy
from ...wiring import make_policy as registered
from ..experiment import Goal, Lab, over_seeds
from ..rivals import unverified as u
from ..rivals.esg import make as make_esg
from .esg_world import Outcome, World

#: Held out: the planner's settings were chosen on seeds 1 to 5 and 101 to 105.
SEEDS = (11, 12, 13, 14, 15)
QUICK_SEEDS = (11, 12)

PAPER = "ESG, HPDC '24 (arXiv 2404.16812), abstract"
SETTING = "our own; setting unverified (lab/rivals/unverified.py)"
RIVALS = ("infless", "fast-gshare", "orion", "aquatope")
#: Name -> what is different from the product.
ABLATIONS = {
    "without batching": PlannerSettings(space=Space(batching=False)),
    "without sharing": PlannerSettings(space=Space(sharing=False)),
    "without re-planning": PlannerSettings(replan=False),
    "without waiting": PlannerSettings(wait=False),
    "without weighing chances": PlannerSettings(premium=None),
    "without percentiles": PlannerSettings(percentile=0.5),
}
ESG_VARIANTS = {
    "k = 1": (1, u.GROUP_SIZE),
    "k = 20": (20, u.GROUP_SIZE),
    "groups of 1": (u.K_BEST, 1),
    "groups of 2": (u.K_BEST, 2),
}


#: (setting, policy) -> one outcome per seed.
_Outcomes = Callable[[str, str], list[Outcome]]


#: Sizes of the cluster for the heavy setting; the whole and less.
FEWER_NODES = (16, 14, 13, 12, 10)


class Job(msgspec.Struct, frozen=True):
    """One policy in one setting with one seed."""

    setting: str
    policy: str
    seed: int
    seconds: float
    nodes: int = u.NODES


def make_policy(world: World, name: str, seed: int) -> Policy:
    """The policy of that name for a world: the registry's, told what may be chosen there."""
    spec = PolicySpec(name, shares_pct=world.shares(), cpus=u.CPUS, seed=seed)
    if name in ESG_VARIANTS:
        k, group_size = ESG_VARIANTS[name]
        return make_esg(spec, Estimator(world.table), u.CPUS_PER_NODE, 0, k=k, group_size=group_size)
    if name in ABLATIONS:
        settings = ABLATIONS[name]
        space = Space(spec.shares_pct, spec.cpus, settings.space.batching, settings.space.sharing)
        return own_policy(Estimator(world.table), msgspec.structs.replace(settings, space=space))
    return registered(spec, Estimator(world.table), u.CPUS_PER_NODE)


def simulate(job: Job) -> Outcome:
    """Run one job."""
    return World(job.setting, nodes=job.nodes).run(
        lambda world: make_policy(world, job.policy, job.seed), job.seed, job.seconds
    )


class Cell(msgspec.Struct, frozen=True):
    """One policy in one setting, for one application or for all: means over the seeds."""

    hit_rate: float
    usd_per_1000: float


def run(lab: Lab) -> None:
    """All policies in all settings; then claims, tables and figures."""
    seconds = 60.0 if lab.quick else 120.0
    policies = ("dovetail", "esg", *RIVALS)
    jobs = [Job(s, p, seed, seconds) for s in u.SETTINGS for p in policies for seed in lab.seeds]
    found = dict(zip(jobs, lab.map(simulate, jobs, "policies in ESG's three settings"), strict=True))

    def outcomes(setting: str, policy: str) -> list[Outcome]:
        return [found[Job(setting, policy, seed, seconds)] for seed in lab.seeds]

    _against_rivals(lab, outcomes)
    _against_esg(lab, outcomes)
    _planning_time(lab, outcomes)
    _draw(lab, policies, outcomes)
    _ablations(lab, seconds, outcomes)
    # Aquatope plans for seconds before every run: left out of the last part where time is short.
    _scarcity(lab, seconds, [p for p in policies if not (lab.quick and p == "aquatope")])


def _scarcity(lab: Lab, seconds: float, policies: Sequence[str]) -> None:
    """The heavy setting on fewer nodes: where the margin that was published would have to come from."""
    seeds = lab.seeds[:3]
    jobs = [
        Job("relaxed-heavy", p, seed, seconds, nodes) for p in policies for nodes in FEWER_NODES for seed in seeds
    ]
    found = dict(zip(jobs, lab.map(simulate, jobs, "fewer nodes"), strict=True))

    def hits(policy: str, nodes: int) -> list[float]:
        return [found[Job("relaxed-heavy", policy, seed, seconds, nodes)].hit_rate for seed in seeds]

    for nodes in FEWER_NODES[1:]:
        best = max((p for p in policies if p != "dovetail"), key=lambda p: statistics.fmean(hits(p, nodes)))
        gaps = [100 * (a - b) for a, b in zip(hits("dovetail", nodes), hits(best, nodes), strict=True)]
        lab.claim(
            f"dovetail.scarce.{nodes}",
            f"relaxed-heavy on {nodes} of {u.NODES} nodes: points of hit rate above {best}, the best of the others",
            source=SETTING,
            goal=Goal("at least", 0, "points"),
            measured=over_seeds(gaps),
        )
    with lab.figure("fewer-nodes") as figure:
        axes = figure.subplots()
        for policy in policies:
            means = [100 * statistics.fmean(hits(policy, nodes)) for nodes in FEWER_NODES]
            axes.plot(FEWER_NODES, means, "o-", ms=4, label=policy)
        axes.set(xlabel="nodes", ylabel="answered within the objective, %", title="relaxed-heavy on fewer nodes")
        axes.invert_xaxis()
        axes.legend(frameon=False, fontsize=8)


def _against_rivals(lab: Lab, outcomes: _Outcomes) -> None:
    for who, source in (("esg", PAPER), ("dovetail", SETTING)):
        for rival in RIVALS:
            gains, savings = [], []
            for i in range(len(lab.seeds)):
                hits = [(outcomes(s, who)[i].hit_rate, outcomes(s, rival)[i].hit_rate) for s in u.SETTINGS]
                costs = [(outcomes(s, who)[i].usd_per_1000, outcomes(s, rival)[i].usd_per_1000) for s in u.SETTINGS]
                gains.append(100 * (statistics.fmean(a for a, _ in hits) / statistics.fmean(b for _, b in hits) - 1))
                savings.append(
                    100 * (statistics.fmean(b for _, b in costs) / statistics.fmean(a for a, _ in costs) - 1)
                )
            lab.claim(
                f"{who}.hits.{rival}",
                f"hit rate of {who} above {rival}'s, mean of the three settings, in per cent of {rival}'s",
                source=source,
                published=61.0 if who == "esg" else None,
                goal=Goal("at least", 61.0 if who == "esg" else 0.0, "%"),
                measured=over_seeds(gains),
            )
            lab.claim(
                f"{who}.cost.{rival}",
                f"cost per request of {rival} above {who}'s, mean of the three settings, in per cent of {who}'s",
                source=source,
                published=47.0 if who == "esg" else None,
                goal=Goal("at least", 47.0 if who == "esg" else 0.0, "%"),
                measured=over_seeds(savings),
            )


def _by_application(runs: Sequence[Outcome]) -> dict[str, Cell]:
    names = [s.workflow for s in runs[0].summaries]
    return {
        name: Cell(
            statistics.fmean(run.summaries[i].hit_rate for run in runs),
            statistics.fmean(run.summaries[i].cost_usd_per_1000 for run in runs),
        )
        for i, name in enumerate(names)
    }


def _against_esg(lab: Lab, outcomes: _Outcomes) -> None:
    cells = worse_hits = dearer = dearer_in_time = better_both = 0
    worst_cost = worst_hit = 0.0
    for setting in u.SETTINGS:
        ours, theirs = _by_application(outcomes(setting, "dovetail")), _by_application(outcomes(setting, "esg"))
        for name, mine in ours.items():
            other = theirs[name]
            cells += 1
            worse_hits += mine.hit_rate < other.hit_rate
            dearer += mine.usd_per_1000 > other.usd_per_1000
            dearer_in_time += mine.usd_per_1000 / mine.hit_rate > other.usd_per_1000 / other.hit_rate
            better_both += mine.hit_rate >= other.hit_rate and mine.usd_per_1000 <= other.usd_per_1000
            worst_cost = max(worst_cost, 100 * (mine.usd_per_1000 / other.usd_per_1000 - 1))
            worst_hit = max(worst_hit, 100 * (other.hit_rate - mine.hit_rate))
    lab.claim(
        "dovetail.hits.esg",
        f"settings and applications (of {cells}) in which Dovetail's hit rate is below ESG's (largest gap "
        f"{worst_hit:.2f} points)",
        source=SETTING,
        goal=Goal("exactly", 0, "cells"),
        measured=worse_hits,
    )
    lab.claim(
        "dovetail.cost.esg",
        f"settings and applications (of {cells}) in which Dovetail's cost per request is above ESG's (largest excess "
        f"{worst_cost:.2f} %)",
        source=SETTING,
        goal=Goal("exactly", 0, "cells"),
        measured=dearer,
    )
    lab.claim(
        "dovetail.cost-in-time.esg",
        f"settings and applications (of {cells}) in which Dovetail pays more per request answered in time than ESG",
        source=SETTING,
        goal=Goal("exactly", 0, "cells"),
        measured=dearer_in_time,
    )
    lab.claim(
        "dovetail.both.esg",
        f"settings and applications (of {cells}) in which Dovetail is at least as good in hit rate and in cost",
        source=SETTING,
        goal=Goal("at least", cells // 2 + 1, "cells"),
        measured=better_both,
    )


def _planning_time(lab: Lab, outcomes: _Outcomes) -> None:
    for policy in ("dovetail", "esg"):
        runs = [o for s in u.SETTINGS for o in outcomes(s, policy)]
        worst_us = max(o.plan_p99_us for o in runs)
        medians_us = [o.plan_p50_us for o in runs]
        note = f"; medians of the runs are {min(medians_us):.0f} to {max(medians_us):.0f} µs"
        note += "" if policy == "dovetail" else " (searches that were remembered included)"
        lab.claim(
            f"{policy}.planning",
            f"99th percentile of a planning decision of {policy} in the worst run{note}",
            source=f"{PAPER}; bound from a third-party summary",
            published=10.0,
            goal=Goal("at most", 10.0, "ms"),
            measured=worst_us / 1000,
        )


def _ablations(lab: Lab, seconds: float, outcomes: _Outcomes) -> None:
    """What each part is worth: hit rate and cost without it, in the three settings. Shown, not judged."""
    names = (*ABLATIONS, *ESG_VARIANTS)
    seeds = lab.seeds[:2]
    jobs = [Job(s, name, seed, seconds) for s in u.SETTINGS for name in names for seed in seeds]
    found = dict(zip(jobs, lab.map(simulate, jobs, "ablations"), strict=True))
    with lab.figure("ablations", width_in=10.0, height_in=7.0) as figure:
        rows = figure.subplots(2, len(u.SETTINGS), sharey=True)
        for column, setting in enumerate(u.SETTINGS):
            hits, costs, labels = [], [], []
            for name in ("dovetail", "esg", *names):
                runs = (
                    outcomes(setting, name)[: len(seeds)]
                    if name in ("dovetail", "esg")
                    else [found[Job(setting, name, seed, seconds)] for seed in seeds]
                )
                labels.append(f"ESG, {name}" if name in ESG_VARIANTS else name)
                hits.append(100 * statistics.fmean(o.hit_rate for o in runs))
                costs.append(statistics.fmean(o.usd_per_1000 for o in runs))
            for row, values, what in ((0, hits, "answered in time, %"), (1, costs, "$ per 1,000 requests")):
                axes = rows[row][column]
                axes.barh(range(len(values)), values, height=0.7)
                axes.set_yticks(range(len(values)), labels)
                axes.invert_yaxis() if column == 0 else None
                axes.set(xlabel=what, title=setting if row == 0 else "")


def _draw(lab: Lab, policies: Sequence[str], outcomes: _Outcomes) -> None:
    with lab.figure("hits-and-cost", width_in=10.0, height_in=4.2) as figure:
        for axes, setting in zip(figure.subplots(1, len(u.SETTINGS), sharey=True), u.SETTINGS, strict=True):
            for policy in policies:
                runs = outcomes(setting, policy)
                hit = over_seeds([100 * o.hit_rate for o in runs])
                cost = over_seeds([o.usd_per_1000 for o in runs])
                axes.errorbar(
                    cost.mean,
                    hit.mean,
                    xerr=[[cost.mean - cost.low], [cost.high - cost.mean]],
                    yerr=[[hit.mean - hit.low], [hit.high - hit.mean]],
                    fmt="o",
                    ms=6,
                    capsize=2,
                    label=policy,
                )
            axes.set(xlabel="$ per 1,000 requests", title=f"{setting} (unverified)")
            axes.set_xlim(left=0)
        figure.axes[0].set(ylabel="answered within the objective, %", ylim=(0, 103))
        figure.axes[-1].legend(frameon=False, fontsize=8, loc="lower right")
