"""The runs of `compass`: which router on which worker, with which jobs. Plain functions, which processes can share.

Routers: `dovetail`; `navigator` (the authors' simulator as it made their figure: no adjustment, the running task left
out of waits); `compass` (Cascade's form, with adjustment); `heft`, `jit`, `hash`; and `hash, drawn`, which is Hash
with the authors' own draws.
"""

from __future__ import annotations

import msgspec

from ...control import Policy
from ...device.rules import Rules
from ...place import SharedWorkers
from ...place.transfer import CASCADE, SIMULATOR
from ...plan import Space
from ...predict import Estimator
from ...schedule import PlannerSettings
from ...sim.state_table import Staleness
from ...units import MS, SECOND
from ...wiring import shared_policy
from ..rivals.compass import CASCADE_FORM, HEFT_FORM, SIMULATOR_FORM, CompassRouter
from ..rivals.compass_worker import AUTHORS_SIMULATOR, COMPASS
from ..rivals.hashed import HashRouter
from ..rivals.jit import JitRouter
from ..rivals.routed import Router, policy_of
from .compass_world import DrawnRouter, Outcome, World, draw_jobs

__all__ = ["FIGURE_INTERVAL_MS", "GRID", "JOBS", "TARGET", "Job", "Search", "figure_job", "search", "simulate"]

#: Mean time between the jobs of one client: 40 jobs/s in all.
FIGURE_INTERVAL_MS = 100.0
JOBS = 1000
#: Slow-down whose price in workers is asked for, and the grid on which it is searched.
TARGET, GRID = 5.0, 2
#: Longer than any run: who does not look at the table need not read it.
NEVER_NS = 1_000_000 * SECOND


class Job(msgspec.Struct, frozen=True):
    """One policy with the jobs of one seed. `stale_ms` below nought: everything is seen at once."""

    setting: str
    policy: str
    workers: int
    interval_ms: float
    seed: int
    stale_ms: float = 2.0
    #: Whose worker, if not the policy's own.
    worker: str = ""


class Search(msgspec.Struct, frozen=True):
    """How many workers a policy needs with the jobs of one seed; more than `low`, at most `high`."""

    policy: str
    seed: int
    low: int
    high: int


def simulate(job: Job) -> Outcome:
    """Run one job."""
    figure = job.setting == "figure"
    world = World(SIMULATOR if figure else CASCADE, share_models=not figure)
    drawn = job.policy == "hash, drawn"
    tasks = tuple(len(g.nodes) for g in world.graphs) if drawn else ()
    draws = draw_jobs(job.seed, job.workers, job.interval_ms, JOBS, tasks)
    placed = {i + 1: d.tasks for i, d in enumerate(draws)}

    def policy(predictor: Estimator, ingress: int, home: int) -> Policy:
        if job.policy == "dovetail":
            where = SharedWorkers(predictor, ingress=ingress, home=home, delays=world.delays, in_bytes=world.in_bytes)
            # None of the others refuses: all requests are answered, and their completion times compared. A worker of
            # that world runs one task at a time.
            settings = PlannerSettings(Space(sharing=False), admission=False)
            return shared_policy(predictor, settings, where)
        router = DrawnRouter(placed, world.task_of) if drawn else make_router(world, job, predictor, ingress, home)
        return policy_of(router, predictor)

    half_ns = NEVER_NS if job.policy.startswith("hash") else round(max(0.0, job.stale_ms) * MS / 2)
    return world.run(policy, draws, job.workers, _rules(job), Staleness(half_ns, half_ns), jobs=JOBS)


def make_router(world: World, job: Job, predictor: Estimator, ingress: int, home: int) -> Router:
    """The router of that name for one ingress."""
    sizes = world.in_bytes
    links = world.delays.links
    match job.policy:
        case "place":
            return SharedWorkers(predictor, ingress=ingress, home=home, delays=world.delays, in_bytes=sizes)
        case "navigator":
            return CompassRouter(predictor, SIMULATOR_FORM, home=home, in_bytes=sizes)
        case "compass":
            form = msgspec.structs.replace(CASCADE_FORM, links=links)
            return CompassRouter(predictor, form, home=home, in_bytes=sizes)
        case "heft":
            return CompassRouter(predictor, HEFT_FORM, home=home, in_bytes=sizes)
        case "jit":
            return JitRouter(predictor, home=home, in_bytes=sizes, seed=job.seed)
        case "hash":
            return HashRouter(job.seed)
        case _:
            raise ValueError(f"there is no router {job.policy!r}")


def _rules(job: Job) -> Rules:
    worker = job.worker or ("ours" if job.policy == "dovetail" else "theirs")
    if worker == "ours":
        return Rules()
    return AUTHORS_SIMULATOR if job.setting == "figure" and job.policy != "compass" else COMPASS


def figure_job(policy: str, workers: int, seed: int, stale_ms: float = 2.0, worker: str = "") -> Job:
    """A run in the setting of the figure. As shipped, the authors' Navigator sees others' load at once."""
    if policy == "navigator" and stale_ms == 2.0:
        stale_ms = -1.0
    return Job("figure", policy, workers, FIGURE_INTERVAL_MS, seed, stale_ms, worker)


def search(job: Search) -> int:
    """The fewest workers on the grid with a median slow-down of at most the target, by halving."""
    low, high = job.low // GRID, job.high // GRID
    while high - low > 1:
        middle = (low + high) // 2
        if simulate(figure_job(job.policy, middle * GRID, job.seed)).median <= TARGET:
            high = middle
        else:
            low = middle
    return high * GRID
