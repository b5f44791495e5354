"""What is each idea of Dovetail's router worth? Each is switched off in turn, in four settings.

    python bench/ideas.py            # two minutes on two cores

Compass's four workflows, 1,000 jobs, every worker an ingress, Dovetail's worker throughout. Printed are mean and 95th
percentile of slow-down and, in brackets, evictions, as means of two seeds that nothing was tuned on. Simulated, so
the same on any machine. Results go to stdout, progress to stderr.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from dovetail.control import Policy
from dovetail.device.rules import Rules
from dovetail.lab.experiments.compass_runs import JOBS, Job, make_router
from dovetail.lab.experiments.compass_world import MEMORY_BYTES, Outcome, World, draw_jobs
from dovetail.lab.rivals.routed import policy_of
from dovetail.place import RouterSettings, SharedWorkers
from dovetail.place.transfer import CASCADE, SIMULATOR
from dovetail.predict import Estimator
from dovetail.sim.state_table import Staleness
from dovetail.units import MS

SEEDS = (6, 7)


@dataclass(frozen=True)
class Setting:
    """Workers, time between jobs of a client, age of rows (push and pull each), and memory."""

    name: str
    workers: int
    interval_ms: float
    stale_ms: int = 1
    memory_bytes: int = MEMORY_BYTES
    #: Workflows share models, as in Cascade; otherwise each has its own, as in Compass's simulator.
    share_models: bool = False


SETTINGS = (
    Setting("40 workers, 40 jobs/s", 40, 100.0),
    Setting("60 workers, 40 jobs/s, stale 200 ms", 60, 100.0, stale_ms=200),
    Setting("5 workers, 2.5 jobs/s", 5, 1600.0),
    Setting("5 workers of 8 GB, 4 jobs/s", 5, 1000.0, memory_bytes=8_000_000_000, share_models=True),
)
#: None is Compass in Cascade's form.
IDEAS: dict[str, RouterSettings | None] = {
    "**all ideas**": RouterSettings(),
    "no windows, so nobody asked (`bounces=0`)": RouterSettings(bounces=0),
    "windows, but nobody asked (`ask_pct=()`)": RouterSettings(ask_pct=()),
    "no copies (`spares=0`)": RouterSettings(spares=0),
    "no hints": RouterSettings(hints=False),
    "plan kept at hand-over (`afresh=False`)": RouterSettings(afresh=False),
    "fetches behind the wait (`overlap=False`)": RouterSettings(overlap=False),
    "no toll on evictions (`toll_pct=0`)": RouterSettings(toll_pct=0),
    "rows taken at their word (`corrections=False`)": RouterSettings(corrections=False),
    "no hash among equals (`spread=False`)": RouterSettings(spread=False),
    "first come, first served (`favour=0`)": RouterSettings(favour=0),
    "Compass's router on the same workers": None,
}


def policy(
    world: World, idea: RouterSettings | None, job: Job, predictor: Estimator, ingress: int, home: int
) -> Policy:
    """The router of one ingress, by itself: one item on a whole device."""
    if idea is None:
        return policy_of(make_router(world, job, predictor, ingress, home), predictor)
    sizes = world.in_bytes
    where = SharedWorkers(predictor, idea, ingress=ingress, home=home, delays=world.delays, in_bytes=sizes)
    return policy_of(where, predictor)


def measure(case: tuple[Setting, str, int]) -> Outcome:
    """One idea in one setting with the jobs of one seed."""
    setting, idea, seed = case
    world = World(CASCADE if setting.share_models else SIMULATOR, share_models=setting.share_models)
    job = Job("", "compass", setting.workers, setting.interval_ms, seed)
    return world.run(
        partial(policy, world, IDEAS[idea], job),
        draw_jobs(seed, setting.workers, setting.interval_ms, JOBS),
        setting.workers,
        Rules(),
        Staleness(setting.stale_ms * MS, setting.stale_ms * MS),
        jobs=JOBS,
        memory_bytes=setting.memory_bytes,
    )


def main() -> None:
    """All ideas in all settings, as a table."""
    cases = [(setting, idea, seed) for idea in IDEAS for setting in SETTINGS for seed in SEEDS]
    print(f"| | {' | '.join(s.name for s in SETTINGS)} |", "|---" * (len(SETTINGS) + 1) + "|", sep="\n")
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(measure, cases)
        for number, idea in enumerate(IDEAS, start=1):
            cells = []
            for _ in SETTINGS:
                runs = [next(found) for _ in SEEDS]
                mean, p95, gone = (fmean(getattr(r, name) for r in runs) for name in ("mean", "p95", "evictions"))
                cells.append(f"{mean:.2f} / {p95:.2f} ({gone:.0f})")
            print(f"| {idea} | {' | '.join(cells)} |", flush=True)
            print(f"{number} of {len(IDEAS)}", file=sys.stderr)


if __name__ == "__main__":
    main()
