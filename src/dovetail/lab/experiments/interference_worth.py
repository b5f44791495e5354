"""What better predictions buy: two classes near saturation, the same policy with each predictor of interference.

Rules of this file
- The truth is hidden: how much a batch suffers beside another depends on numbers of both models that nobody is told,
  and on their shares of the device. A predictor sees a rough measure of them, as a profile would have it.
- Static rivals are fitted beforehand on a run of another seed in which nobody predicts interference. Those who learn
  online are fitted on the same, and go on. Ours starts from the same run.
- Everything else is equal: requests, classes, devices, policy, seeds.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from ...control import Controller
from ...predict import Estimator
from ...predict.interference import Interference
from ...profile import catalogue
from ...profile.table import ProfileTable
from ...record.ledger import Ledger
from ...sim import SimDevice, Simulation
from ...sim.arrivals import Poisson, Stream, requests
from ...sim.fluid import BatchRun, Flow
from ...sim.scenario.declared import catalogue_graph
from ...state import WorkerSpec
from ...units import SECOND
from ...wiring import PolicySpec, make_policy
from ...workflow.graph import Graph
from ..experiment import Goal, Lab, over_seeds
from ..rivals.interference import RIVALS, Sample
from ..rivals.interference.served import Served

__all__ = ["Hidden", "Outcome", "Worth", "bought", "calibration", "run", "worth"]

OURS = "our own"
KIND, DEVICES = "v100", 4
WORKFLOWS = ("esg/image-classification", "esg/depth-recognition", "esg/background-elimination")
#: Objective over the time alone on a whole device. Part of the requests that are of the first class.
SLO_FACTOR, FIRST = 2.5, 0.3
SPREAD, WARMUP_S = 0.05, 5.0
#: What a pair of average models costs each of them: iGniter's pairs cost 1 to 23 %, unpartitioned ones much more.
_COST = 0.45
#: Requests per second of each workflow at a load of 1.
_RATE = 9.0


class Hidden:
    """The truth: rates of those who run together, by numbers of the models that nobody is told."""

    def __init__(self, seed: int, stages: Sequence[str]) -> None:
        rng = random.Random(f"hidden/{seed}")
        self.sensitive = {name: rng.uniform(0.2, 1.8) for name in stages}
        self.rough = {name: rng.uniform(0.2, 1.8) for name in stages}
        #: Stage -> what a profile would say of its use of arithmetic, cache and memory.
        self.uses = {
            name: (
                min(1.0, max(0.0, 1 - self.sensitive[name] / 2 + rng.gauss(0, 0.1))),
                min(1.0, max(0.0, self.rough[name] / 2 + rng.gauss(0, 0.1))),
                min(1.0, max(0.0, (self.rough[name] + self.sensitive[name]) / 4 + rng.gauss(0, 0.1))),
            )
            for name in sorted(stages)
        }

    def __call__(self, running: Sequence[Flow]) -> list[float]:
        """Work per time of each of these."""
        return [1 / (1 + sum(self._extra(flow, other) for other in running if other is not flow)) for flow in running]

    def _extra(self, flow: Flow, other: Flow) -> float:
        assert isinstance(flow, BatchRun) and isinstance(other, BatchRun)
        pair = self.sensitive[flow.action.stage] * self.rough[other.action.stage]
        return _COST * pair * (flow.share_pct + other.share_pct) / 100


class Worth(msgspec.Struct, frozen=True):
    """One predictor in one world."""

    seed: int
    rival: str
    load: float = 1.0
    seconds: float = 45.0


class Outcome(msgspec.Struct, frozen=True):
    """What came of it."""

    #: Part of the requests of each class that were not answered in time, in per cent.
    missed: dict[int, float]
    #: Answers in time per second.
    goodput: float
    #: Of those that were let in, the part that was late or given up, in per cent, by class.
    broken: dict[int, float]


def _graphs() -> tuple[list[Graph], ProfileTable]:
    graphs, entries = [], {}
    for name in WORKFLOWS:
        graph, _ = catalogue_graph(name)
        for stage in graph.stages:
            entry = catalogue.modelled(stage, KIND)
            assert entry is not None
            entries[stage.name] = msgspec.structs.replace(entry, spread=SPREAD)
        table = ProfileTable(entries.values())
        whole_ns = sum(
            table.latency_ns(graph.stage_of(i).name, KIND, 1, 1, 100) or 0 for i in range(len(graph.nodes))
        )
        graphs.append(msgspec.structs.replace(graph, slo_ns=round(SLO_FACTOR * whole_ns)))
    return graphs, ProfileTable(entries.values())


def run(job: Worth, model: Interference | None) -> Outcome:
    """Serve with this model of interference."""
    graphs, table = _graphs()
    hidden = Hidden(job.seed, sorted({s.name for g in graphs for s in g.stages}))
    estimator = Estimator(table, interference=model, uses=hidden.uses)
    controller = Controller(graphs, make_policy(PolicySpec(), estimator, 1))
    ledger = Ledger([(g.name, g.slo_ns) for g in graphs], skip_before_ns=round(WARMUP_S * SECOND))
    streams = [
        Stream(Poisson(_RATE * job.load * part), index, priority)
        for index in range(len(graphs))
        for priority, part in ((1, FIRST), (2, 1 - FIRST))
    ]
    arrivals = requests(streams, job.seed, until_ns=round(job.seconds * SECOND))
    simulation = Simulation(controller, ledger, arrivals)
    for number in range(1, DEVICES + 1):
        spec = WorkerSpec(
            f"{KIND}-{number}", KIND, ("model",), 0, 0, catalogue.device(KIND).usd_per_hour, "simulated"
        )
        rng = random.Random(f"worth/{job.seed}/{number}")
        simulation.join(
            SimDevice(number, spec, controller.stages, table, simulation.schedule, rng=rng, contention=hidden)
        )
    simulation.run()
    lines = ledger.summary()

    def part(priority: int, *outcomes: str, of: Sequence[str] = ()) -> float:
        own = [line for line in lines if line.priority == priority]
        total = sum(sum(n for o, n in line.outcomes.items() if not of or o in of) for line in own)
        return 100 * sum(line.outcomes.get(o, 0) for line in own for o in outcomes) / max(1, total)

    good = sum(line.outcomes["ok"] for line in lines)
    return Outcome(
        {c: 100 - part(c, "ok") for c in (1, 2)},
        good / (job.seconds - WARMUP_S),
        {c: part(c, "late", "expired", of=("ok", "late", "expired")) for c in (1, 2)},
    )


def calibration(seed: int, load: float, seconds: float) -> list[Sample]:
    """Batches of a run of the same world with other requests, in which nobody predicts interference."""
    watching = Served(RIVALS["none"]())
    run(Worth(seed, "none", load, seconds), watching)
    return watching.told


def worth(job: Worth) -> Outcome:
    """One cell: the rival fitted beforehand, then served."""
    if job.rival == "none":
        return run(job, None)
    fitted = calibration(job.seed, 0.8 * job.load, 20.0)
    if job.rival == "ours":
        model = Interference()
        for sample in fitted:
            model.observe(sample.kind, sample.victim, sample.solo_ns, sample.duration_ns, sample.beside)
        return run(job, model)
    rival = RIVALS[job.rival]()
    rival.fit(fitted)
    return run(job, Served(rival))


#: Of what four devices can do: there is room for nearly all, and too little if pairs that hurt each other meet.
LOAD, SECONDS = 0.3, 150.0


#: Seeds that only count for differences within seeds, where five say little.
MORE_SEEDS = tuple(range(301, 316))


def bought(lab: Lab) -> None:
    """Claims: misses of the first class and goodput, ours against each rival in the same place."""
    rivals = [name for name in RIVALS if name != "boosting"]
    lab.leave_out("worth.boosting", "a prediction of boosting takes milliseconds, and a scheduler asks for many")
    seconds = 60.0 if lab.quick else SECONDS
    seeds = (*lab.seeds, *MORE_SEEDS) if len(lab.seeds) > 1 else lab.seeds
    jobs = [Worth(seed, name, LOAD, seconds) for name in rivals for seed in seeds]
    found = lab.map(worth, jobs, "what predictions buy")
    paired = {name: found[n * len(seeds) : (n + 1) * len(seeds)] for n, name in enumerate(rivals)}
    by = {name: outcomes[: len(lab.seeds)] for name, outcomes in paired.items()}
    if len(seeds) > 1:
        _paired(lab, paired)

    def mean(name: str, of: Callable[[Outcome], float]) -> float:
        return statistics.fmean(of(outcome) for outcome in by[name])

    def listed(of: Callable[[Outcome], float]) -> str:
        return ", ".join(f"{name} {mean(name, of):.2f}" for name in rivals if name != "ours")

    ours = by["ours"]
    lab.claim(
        "worth.first-class",
        f"requests of the first class that were not answered in time, in per cent; with a rival in our place: "
        f"{listed(lambda o: o.missed[1])}",
        source=OURS,
        goal=Goal("at most", 2.0, "%"),
        measured=over_seeds([o.missed[1] for o in ours]),
    )
    others = [name for name in rivals if name != "ours"]
    best = min(mean(name, lambda o: o.missed[1]) for name in others)
    lab.claim(
        "worth.first-class.best",
        f"the same over the best rival's mean ({best:.2f} %)",
        source=OURS,
        goal=Goal("at most", 1.0, "×"),
        measured=over_seeds([o.missed[1] / max(0.01, best) for o in ours]),
    )
    lab.claim(
        "worth.goodput",
        f"answers in time per second over those of the policy that knows no interference; answers per second: ours "
        f"{mean('ours', lambda o: o.goodput):.2f}, {listed(lambda o: o.goodput)}",
        source=OURS,
        goal=Goal("at least", 1.3, "×"),
        measured=over_seeds([o.goodput / n.goodput for o, n in zip(ours, by["none"], strict=True)]),
    )
    best = max(mean(name, lambda o: o.goodput) for name in others)
    lab.claim(
        "worth.goodput.best",
        "answers in time per second over the best rival's mean",
        source=OURS,
        goal=Goal("at least", 1.0, "×"),
        measured=over_seeds([o.goodput / best for o in ours]),
    )
    lab.claim(
        "worth.broken",
        f"requests of the second class that were let in and not answered in time, in per cent; rivals: "
        f"{listed(lambda o: o.broken[2])}",
        source=OURS,
        goal=Goal("at most", 5.0, "%"),
        measured=over_seeds([o.broken[2] for o in ours]),
    )


def _paired(lab: Lab, by: Mapping[str, Sequence[Outcome]]) -> None:
    """Claims on differences within seeds: who is better than ours by more than chance?

    The best of eight means over five seeds is lower than the mean of the best: the luckiest of eight is taken.
    """
    figures: tuple[tuple[str, str, Callable[[Outcome], float], int], ...] = (
        ("first-class", "requests of the first class not in time, in points", lambda o: o.missed[1], 1),
        ("goodput", "answers in time per second", lambda o: o.goodput, -1),
    )
    for ident, what, of, sign in figures:
        apart = {
            name: over_seeds([of(own) - of(other) for own, other in zip(by["ours"], outcomes, strict=True)])
            for name, outcomes in by.items()
            if name != "ours"
        }
        means = ", ".join(f"{name} {statistics.fmean(map(of, outcomes)):.2f}" for name, outcomes in by.items())
        each = ", ".join(f"{name} {e.mean:+.2f} ({e.low:+.2f} to {e.high:+.2f})" for name, e in apart.items())
        lab.claim(
            f"worth.{ident}.paired",
            f"{what}, ours less each rival's, within {len(by['ours'])} seeds (95 % interval): {each}; how many of "
            f"{len(apart)} are better by more than chance; means: {means}",
            source=OURS,
            goal=Goal("at most", 0.0, "rivals"),
            measured=float(sum(min(sign * e.low, sign * e.high) > 0 for e in apart.values())),
        )
