"""Graphs that are not chains, and tight objectives: Dovetail's planner and its rivals, all behind the same admission.

Twenty random workflows of catalogue models, objectives from 0.7 to 2 times the minimum-configuration length, and run
times that scatter as believed, or up to four times more or less. All policies meet the same requests and the same
devices. All refuse and give up by Dovetail's rules, so that what differs is planning.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ...control import Policy
from ...predict import Estimator
from ...wiring import PolicySpec
from ...wiring import make_policy as registered
from ..experiment import Goal, Lab, over_seeds
from ..rivals import unverified as u
from ..rivals.admitting import admitting
from ..rivals.esg import make as make_esg
from .graphs_world import GraphWorld, Outcome, Recipe, recipe_of

#: Held out: graphs 1000 to 1019 and seeds from 101 on were tuned on.
SEEDS = (11, 12, 13, 14, 15)
QUICK_SEEDS = (11,)
GRAPHS = tuple(range(20))
QUICK_GRAPHS = tuple(range(6))
#: Counted requests of a run.
REQUESTS = 600

OURS = "dovetail"
ESG = "esg"
#: ESG that plans for 95 % of the objective.
HEAD_ROOM = "esg with 5 % head-room"
HEAD_ROOM_PCT = 5
RIVALS = (ESG, "orion", "infless", "fast-gshare", "aquatope")
#: They plan once per graph, so all seeds share the plan.
STATIC = ("orion", "aquatope")
SOURCE = (
    "our own; ESG's cluster and prices (lab/rivals/unverified.py), random graphs (lab/experiments/graphs_world.py)"
)


class Job(msgspec.Struct, frozen=True):
    """One policy with one graph, all seeds."""

    graph: int
    policy: str
    seeds: tuple[int, ...]
    requests: int


def make_policy(world: GraphWorld, name: str) -> Policy:
    """The policy of that name, without admission if it is a rival's."""
    spec = PolicySpec(ESG if name == HEAD_ROOM else name, shares_pct=world.shares(), cpus=u.CPUS)
    if name == HEAD_ROOM:
        return make_esg(spec, Estimator(world.table), u.CPUS_PER_NODE, 0, head_room_pct=HEAD_ROOM_PCT)
    return registered(spec, Estimator(world.table), u.CPUS_PER_NODE)


def simulate(job: Job) -> list[Outcome]:
    """Run one job; one outcome per seed."""
    world = GraphWorld(recipe_of(job.graph))
    space = PolicySpec(OURS, shares_pct=world.shares(), cpus=u.CPUS).space
    outcomes: list[Outcome] = []
    policy = make_policy(world, job.policy)
    for seed in job.seeds:
        if outcomes and job.policy not in STATIC:
            policy = make_policy(world, job.policy)
        ready = policy if job.policy == OURS else admitting(policy, space)
        outcomes.append(world.run(ready, seed, job.requests))
    return outcomes


#: Policy -> graph by graph, one outcome per seed.
Outcomes = Mapping[str, Sequence[Sequence[Outcome]]]


def run(lab: Lab) -> None:
    """All policies on all graphs; then claims and the figure."""
    graphs = QUICK_GRAPHS if lab.quick else GRAPHS
    rivals = tuple(r for r in RIVALS if not (lab.quick and r == "aquatope"))
    if lab.quick:
        lab.leave_out("graphs.gain.aquatope", "Aquatope plans for seconds per graph: only without --quick")
    policies = (OURS, *rivals, HEAD_ROOM)
    jobs = [Job(graph, policy, lab.seeds, REQUESTS) for graph in graphs for policy in policies]
    found = lab.map(simulate, jobs, "policies on random graphs")
    by_policy = {p: [o for job, o in zip(jobs, found, strict=True) if job.policy == p] for p in policies}
    judge(lab, by_policy, rivals)
    draw(lab, [recipe_of(graph) for graph in graphs], by_policy)


def hits(runs: Sequence[Outcome]) -> float:
    """Mean hit rate of the seeds, in per cent."""
    return 100 * statistics.fmean(o.hit_rate for o in runs)


def usd(runs: Sequence[Outcome]) -> float:
    """Mean cost of the seeds."""
    return statistics.fmean(o.usd_per_1000 for o in runs)


def usd_in_time(runs: Sequence[Outcome]) -> float:
    """What 1,000 answers in time cost, mean of the seeds: who is refused costs nothing, and who is late is no answer.

    Nothing in time is infinitely dear.
    """
    return statistics.fmean(o.usd_per_1000 / o.hit_rate if o.hit_rate else math.inf for o in runs)


def judge(lab: Lab, outcomes: Outcomes, rivals: Sequence[str]) -> None:
    """On each graph hits of the best rival and ESG's cost; then what is gained in the mean."""
    ours = outcomes[OURS]
    gaps = [max(hits(outcomes[r][i]) for r in rivals) - hits(mine) for i, mine in enumerate(ours)]
    lab.claim(
        "graphs.hits",
        f"graphs (of {len(ours)}) on which Dovetail's hit rate is below that of the best rival (largest gap "
        f"{max(0.0, *gaps):.2f} points)",
        source=SOURCE,
        goal=Goal("exactly", 0, "graphs"),
        measured=sum(gap > 0 for gap in gaps),
    )
    for name, id_ in ((ESG, "graphs.cost"), (HEAD_ROOM, "graphs.cost.head-room")):
        _dearer(lab, id_, ours, outcomes[name], usd, f"cost per request is above that of {name}")
    _dearer(
        lab,
        "graphs.cost-in-time",
        ours,
        outcomes[ESG],
        usd_in_time,
        f"cost per answer in time is above that of {ESG}, who pays nothing for whom it refuses",
    )
    gaps = [hits(outcomes[HEAD_ROOM][i]) - hits(mine) for i, mine in enumerate(ours)]
    lab.claim(
        "graphs.hits.head-room",
        f"graphs (of {len(ours)}) on which Dovetail's hit rate is below that of {HEAD_ROOM} (largest gap "
        f"{max(0.0, *gaps):.2f} points)",
        source=SOURCE,
        goal=Goal("exactly", 0, "graphs"),
        measured=sum(gap > 0 for gap in gaps),
    )
    for rival in (*rivals, HEAD_ROOM):
        name = "head-room" if rival == HEAD_ROOM else rival
        seeds = range(len(lab.seeds))
        lab.claim(
            f"graphs.gain.{name}",
            f"points of hit rate above {rival}, mean of the graphs",
            source=SOURCE,
            goal=Goal("at least", 0, "points"),
            measured=over_seeds(
                [
                    statistics.fmean(hits([a[s]]) - hits([b[s]]) for a, b in zip(ours, outcomes[rival], strict=True))
                    for s in seeds
                ]
            ),
        )
    lab.claim(
        "graphs.saving.esg",
        "cost per request below ESG's, mean of the graphs, in per cent of ESG's",
        source=SOURCE,
        goal=Goal("at least", 0, "%"),
        measured=over_seeds(
            [
                statistics.fmean(
                    100 * (1 - usd([a[s]]) / usd([b[s]])) for a, b in zip(ours, outcomes[ESG], strict=True)
                )
                for s in range(len(lab.seeds))
            ]
        ),
    )


def _dearer(
    lab: Lab,
    id_: str,
    ours: Sequence[Sequence[Outcome]],
    theirs: Sequence[Sequence[Outcome]],
    cost: Callable[[Sequence[Outcome]], float],
    what: str,
) -> None:
    """On how many graphs ours costs more than another's."""
    excess = [100 * (cost(mine) / cost(other) - 1) for mine, other in zip(ours, theirs, strict=True)]
    lab.claim(
        id_,
        f"graphs (of {len(ours)}) on which Dovetail's {what} (largest excess {max(0.0, *excess):.2f} %)",
        source=SOURCE,
        goal=Goal("exactly", 0, "graphs"),
        measured=sum(e > 0 for e in excess),
    )


def draw(lab: Lab, recipes: Sequence[Recipe], outcomes: Outcomes) -> None:
    """Hit rates and costs graph by graph, from the tightest objective to the loosest."""
    order = sorted(range(len(recipes)), key=lambda i: (recipes[i].factor, recipes[i].number))
    labels = [f"{recipes[i].factor:g}\n{recipes[i].believed:g}\n{recipes[i].true:g}" for i in order]
    with lab.figure("graphs", width_in=11.0, height_in=7.0) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True)
        for policy, rows in outcomes.items():
            mine = policy == OURS
            style = {"marker": "o" if mine else "x", "ms": 7 if mine else 5, "lw": 0, "zorder": 3 if mine else 2}
            top.plot([hits(rows[i]) for i in order], label=policy, **style)
            bottom.plot([100 * (usd(rows[i]) / usd(outcomes[ESG][i]) - 1) for i in order], label=policy, **style)
        top.set(ylabel="answered within the objective, %", ylim=(40, 101))
        bottom.set(ylabel="cost per request over ESG's, %", ylim=(-35, 35))
        bottom.set_xticks(range(len(order)), labels, fontsize=7)
        bottom.set_xlabel("graphs: objective over minimum-configuration length, then believed and true scatter")
        top.legend(frameon=False, fontsize=8, ncol=4, loc="lower right")
