"""The runs of `joint`: which policy in which setting with which requests. Plain functions, which processes can share.

Rivals that place replicas once (`triton`, `ray-serve`) are told how often each workflow is called. `compass` and
`place` send single items to whole cards, each on the worker that keeps its queue and its memory.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from ...control import Policy
from ...place import OwnSettings
from ...plan import Space
from ...schedule import PlannerSettings
from ...wiring import PolicySpec, own_policy
from ...wiring import make_policy as registered
from ..rivals.admitting import admitting
from ..rivals.common import Market, rival_policy
from ..rivals.ray_serve import RayServePlanner
from ..rivals.triton import TritonPlanner
from .joint_world import Outcome, Setting, World

__all__ = [
    "ABLATIONS",
    "ALONE",
    "HIGH",
    "LOW",
    "OURS",
    "STEP",
    "TARGET",
    "Job",
    "Search",
    "make_policy",
    "search",
    "seconds",
    "simulate",
]

OURS = "dovetail"
#: Ours, with the same requests of class 1 and no others.
ALONE = "dovetail, class 1 alone"
#: Part of the requests that has to be in time where the price of that is asked for; fewest and most cards looked at.
TARGET, LOW, HIGH = 0.95, 4, 40
#: Cards between two sizes of a cluster that are looked at.
STEP = 2
#: Simulated seconds by cards: a larger cluster has more requests in a second. [our choice]
SECONDS = {8: 40.0, 16: 30.0, 32: 25.0, 64: 20.0}


class Job(msgspec.Struct, frozen=True):
    """One policy in one setting with one seed."""

    setting: Setting
    policy: str
    seed: int
    seconds: float


class Search(msgspec.Struct, frozen=True):
    """How many cards a policy needs for the requests of one seed; `setting.devices` is not looked at."""

    setting: Setting
    policy: str
    seed: int
    seconds: float


def seconds(setting: Setting, *, quick: bool) -> float:
    """How long a setting is simulated."""
    whole = next((s for devices, s in SECONDS.items() if setting.devices <= devices), SECONDS[64])
    return max(20.0, whole * 0.75) if quick else whole


def _settings(world: World, settings: PlannerSettings, own: OwnSettings | None = None) -> Policy:
    return own_policy(world.estimator(), settings, own)


#: Name -> what is different from the product.
ABLATIONS: dict[str, Callable[[World], Policy]] = {
    "batching": lambda world: _settings(world, PlannerSettings(space=Space(batching=False))),
    "sharing": lambda world: _settings(world, PlannerSettings(space=Space(sharing=False))),
    "memory": lambda world: _settings(world, PlannerSettings(), OwnSettings(memory=False)),
    "copies": lambda world: _settings(world, PlannerSettings(), OwnSettings(queues=False, copy_every_ns=0)),
    "admission": lambda world: _settings(world, PlannerSettings(admission=False)),
    "waiting": lambda world: _settings(world, PlannerSettings(wait=False)),
    "classes": lambda world: _settings(world, PlannerSettings()),
}


def make_policy(world: World, name: str, seed: int) -> Policy:
    """The policy of that name for a world; `without X` is an ablation of ours, `X, refusing` a rival that refuses."""
    what = name.removeprefix("without ")
    if what != name:
        return ABLATIONS[what](world)
    if name.endswith(", refusing"):
        return admitting(make_policy(world, name.removesuffix(", refusing"), seed), Space())
    spec = PolicySpec(name, seed=seed if name == "ray-serve" else 0)
    demand = {g.name: rate for g, rate in zip(world.graphs, world.rates_per_s, strict=True)}
    match name:
        case "triton":
            return rival_policy(TritonPlanner(Market(world.estimator(), spec.space), demand=demand))
        case "ray-serve":
            market = Market(world.estimator(), spec.space)
            return rival_policy(RayServePlanner(market, demand=demand, seed=seed))
        case _:
            return registered(spec, world.estimator(), 1)


def simulate(job: Job) -> Outcome:
    """Run one job."""
    return World(job.setting).run(
        lambda world: make_policy(world, OURS if job.policy == ALONE else job.policy, job.seed),
        job.seed,
        job.seconds,
        classes=job.policy != "without classes",
        first_only=job.policy == ALONE,
    )


def search(job: Search) -> int:
    """The fewest cards, in steps, with which enough is in time, by halving; one step above `HIGH` if none are."""
    low, high = LOW // STEP - 1, HIGH // STEP + 1
    while high - low > 1:
        middle = (low + high) // 2
        setting = msgspec.structs.replace(job.setting, devices=middle * STEP)
        if simulate(Job(setting, job.policy, job.seed, job.seconds)).hit_rate >= TARGET:
            high = middle
        else:
            low = middle
    return high * STEP
