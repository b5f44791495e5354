"""What an experiment is: claims that can fail, each with its source, its goal and what was measured.

Rules of this file
- A goal is written down before it is measured, and `holds` is computed from both, never set by hand.
- Seeds are explicit. Two runs with the same seeds give the same report but for `seconds`.
- What needs measurements that are not part of the project is left out where they are absent, with the reason; no
  figure stands in for one that could not be made.
- It prints nothing: `cli/reproduce.py` shows progress, table and plots.

To add one: a module in `experiments/` with `SEEDS`, `QUICK_SEEDS` and `run(lab)`, and a line in its registry.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import msgspec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Claim",
    "Estimate",
    "Experiment",
    "Goal",
    "Lab",
    "LeftOut",
    "Report",
    "bootstrap",
    "over_seeds",
    "run_experiment",
]

T = TypeVar("T")
R = TypeVar("R")
#: Called with what is being done, and how much of it (0 to 1).
Watch = Callable[[str, float], None]

#: Two-sided 95 % quantiles of Student's t by degrees of freedom; the normal's 1.96 from 31 on is at most 4 % less.
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class Estimate(msgspec.Struct, frozen=True):
    """A mean and a 95 % interval around it."""

    mean: float
    low: float
    high: float


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean over independent runs with Student's t interval; a single run has no interval but itself."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean, mean, mean)
    freedom = len(values) - 1
    quantile = T_95[freedom - 1] if freedom <= len(T_95) else 1.96
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half)


def bootstrap(values: Sequence[float], *, seed: int = 1, rounds: int = 2000) -> Estimate:
    """Mean with a percentile bootstrap interval, for values that are far from normal; `seed` fixes the draws."""
    rng = random.Random(seed)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(rounds))
    low, high = means[rounds * 25 // 1000], means[rounds * 975 // 1000 - 1]
    return Estimate(statistics.fmean(values), low, high)


class Goal(msgspec.Struct, frozen=True):
    """What a claim has to reach. `within` is for signed errors: nought give or take the limit."""

    relation: Literal["at most", "at least", "exactly", "within"]
    limit: float
    unit: str = ""

    def holds(self, value: float) -> bool:
        """Whether a measured value reaches it."""
        match self.relation:
            case "at most":
                return value <= self.limit
            case "at least":
                return value >= self.limit
            case "exactly":
                return value == self.limit
            case "within":
                return abs(value) <= self.limit

    def __str__(self) -> str:
        sign = {"at most": "≤", "at least": "≥", "exactly": "=", "within": "±"}[self.relation]
        return f"{sign} {self.limit:g} {self.unit}".rstrip()


class Claim(msgspec.Struct, frozen=True):
    """One line of a report."""

    id: str
    text: str
    #: Where the claim, or the value it is compared with, comes from.
    source: str
    #: The published value in the goal's unit; None where nobody published one.
    published: float | None
    goal: str
    #: In the goal's unit.
    measured: float
    #: 95 % interval over seeds (or over whatever `text` says); None where there is nothing to vary.
    spread: tuple[float, float] | None
    holds: bool


class LeftOut(msgspec.Struct, frozen=True):
    """A claim that could not be measured here."""

    id: str
    reason: str


class Report(msgspec.Struct, frozen=True):
    """What `dovetail reproduce NAME --json` prints."""

    name: str
    command: str
    seeds: tuple[int, ...]
    seconds: float
    claims: list[Claim]
    left_out: list[LeftOut]
    figures: list[str]

    @property
    def holds(self) -> bool:
        """Whether every goal was reached; what was left out is not judged."""
        return all(claim.holds for claim in self.claims)


class Experiment(Protocol):
    """A module of `experiments`."""

    SEEDS: tuple[int, ...]
    QUICK_SEEDS: tuple[int, ...]

    def run(self, lab: Lab) -> None:
        """Measure, and hand claims and figures to the lab."""
        ...


class Lab:
    """What an experiment works with: its seeds, and where its claims and figures go."""

    def __init__(
        self,
        seeds: Sequence[int],
        *,
        quick: bool = False,
        out: Path | None = None,
        data: Path | None = None,
        processes: int = 1,
        watch: Watch = lambda _what, _done: None,
    ) -> None:
        self.seeds = tuple(seeds)
        #: Fewer points and shorter runs are fine; the goals stay.
        self.quick = quick
        #: Where figures go; None draws none.
        self.out = out
        self.claims: list[Claim] = []
        self.left_out: list[LeftOut] = []
        self.figures: list[str] = []
        self._data = data
        self._processes = processes
        self._watch = watch

    def claim(
        self,
        ident: str,
        text: str,
        *,
        source: str,
        goal: Goal,
        measured: float | Estimate,
        published: float | None = None,
    ) -> None:
        """Put a measured claim on record. It is judged by its mean; the spread shows how sure that is."""
        if any(ident == known.id for known in self.claims):
            raise ValueError(f"two claims are named {ident!r}")
        if isinstance(measured, Estimate):
            value, spread = measured.mean, (measured.low, measured.high)
        else:
            value, spread = measured, None
        self.claims.append(Claim(ident, text, source, published, str(goal), value, spread, goal.holds(value)))

    def show(self, what: str, done: float) -> None:
        """Progress of work that is not a `map`: what is under way, and which part of it is done."""
        self._watch(what, done)

    def leave_out(self, ident: str, reason: str) -> None:
        """Say that a claim was not measured, and why."""
        self.left_out.append(LeftOut(ident, reason))

    def data(self, *names: str) -> Path | None:
        """A file of measurements that are not part of the project, or None where it is absent."""
        path = self._data.joinpath(*names) if self._data is not None else None
        return path if path is not None and path.exists() else None

    def map(self, function: Callable[[T], R], jobs: Sequence[T], what: str) -> list[R]:
        """The function's result for each job, in order, on all cores. It must be a plain function of a module."""
        results: list[R] = []
        self._watch(what, 0.0)
        if self._processes < 2 or len(jobs) < 2:
            for job in jobs:
                results.append(function(job))
                self._watch(what, len(results) / len(jobs))
            return results
        # A fresh interpreter each: what a fork would inherit depends on what ran before.
        with ProcessPoolExecutor(min(self._processes, len(jobs)), mp_context=get_context("spawn")) as pool:
            for result in pool.map(function, jobs):
                results.append(result)
                self._watch(what, len(results) / len(jobs))
        return results

    @contextmanager
    def figure(self, name: str, *, width_in: float = 6.4, height_in: float = 4.0) -> Iterator[Figure]:
        """A figure to draw on, written to `out/NAME.png` at the end; drawn and thrown away if there is no `out`."""
        from cycler import cycler  # matplotlib's own
        from matplotlib import rc_context
        from matplotlib.figure import Figure as MatplotlibFigure

        from ..tools.plots import COLOURS

        with rc_context({"axes.prop_cycle": cycler(color=COLOURS)}):
            figure = MatplotlibFigure((width_in, height_in), dpi=130, layout="constrained")
            yield figure
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            path = self.out / f"{name}.png"
            figure.savefig(path, metadata={"Software": None})  # no version inside: the same run gives the same bytes
            self.figures.append(str(path))


def data_dir() -> Path:
    """Where measurements that are not part of the project are looked for."""
    return Path(os.environ.get("DOVETAIL_DATA") or Path("..", "shared", "data"))


def run_experiment(
    name: str,
    experiment: Experiment,
    *,
    quick: bool = False,
    out: Path | None = None,
    processes: int | None = None,
    watch: Watch = lambda _what, _done: None,
) -> Report:
    """Run an experiment and report."""
    seeds = experiment.QUICK_SEEDS if quick else experiment.SEEDS
    cores = len(os.sched_getaffinity(0)) if processes is None else processes
    lab = Lab(seeds, quick=quick, out=out, data=data_dir(), processes=cores, watch=watch)
    begin = time.monotonic()
    experiment.run(lab)
    seconds = round(time.monotonic() - begin, 1)
    command = f"dovetail reproduce {name}{' --quick' if quick else ''}"
    return Report(name, command, lab.seeds, seconds, lab.claims, lab.left_out, lab.figures)
