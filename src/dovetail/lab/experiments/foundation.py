"""Is the ground firm? The simulator against queueing theory, profiles against measurements, and the promises.

Every later experiment rests on these claims: if the simulated queues were off by a few per cent, so would be any
policy that is judged by them.
"""

from __future__ import annotations

import filecmp
import random
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ...control import Action, BatchFinished, Event, Reject, Reply, RequestCancelled
from ...control.validate import validate
from ...profile import catalogue
from ...profile.table import Entry, Point, ProfileTable
from ...record.ledger import Ledger
from ...record.log import LogWriter, make_header
from ...sim import SimDevice, Simulation
from ...sim.arrivals import Poisson, Stream, requests
from ...state import WorkerSpec
from ...tools.replay import replay
from ...units import MS, SECOND
from ...wiring import PolicySpec, make_controller
from ...workflow.graph import StageSpec, chain
from ..experiment import Goal, Lab, over_seeds
from ..queueing import (
    SERVICE_NS,
    Queueing,
    cobham_wait_s,
    lindley_differences,
    mean_waits_s,
    mg1_wait_s,
    mmc_wait_s,
)
from .foundation_profiles import profiles

SEEDS = tuple(range(1, 11))
QUICK_SEEDS = tuple(range(1, 6))

SERVICE_S = SERVICE_NS / SECOND
#: Load at which the queues are compared with theory, and customers of each run. Means settle the more slowly the
#: higher the load is: four times the customers for every halving of what is left to 1.
FULL, QUICK = (0.7, 100_000), (0.5, 30_000)
#: What the mean of so many runs may be off by chance alone is about 1 %; a wrong formula is off by tens.
THEORY = Goal("within", 3, "%")
KLEINROCK = "Kleinrock, Queueing Systems I (1975) and II (1976)"


def run(lab: Lab) -> None:
    """All claims, in the order in which one rests on the other."""
    queues(lab)
    exactness(lab)
    saturation(lab)
    conservation(lab)
    determinism(lab)
    profiles(lab)


# -- queueing theory ----------------------------------------------------------------------------------------------


class System(msgspec.Struct, frozen=True):
    """A queue and what theory says of the waiting time of each of its classes."""

    name: str
    queue: Queueing
    wait_s: tuple[float, ...]


def systems(load: float, customers: int) -> dict[str, System]:
    """The queues that are compared with theory."""
    lower = load - 0.2
    markov = Queueing((load,), 0, customers, exponential=True)
    single_s = mg1_wait_s(load, SERVICE_S, 1)
    return {
        "mm1": System("M/M/1", markov, (single_s,)),
        "md1": System("M/D/1", Queueing((load,), 0, customers), (mg1_wait_s(load, SERVICE_S, 0),)),
        "mg1": System(
            "M/G/1, log-normal with cv 0.5",
            Queueing((load,), 0, customers, cv=0.5),
            (mg1_wait_s(load, SERVICE_S, 0.5),),
        ),
        "mm2": System("M/M/2", replace(markov, servers=2), (mmc_wait_s(2, load, SERVICE_S),)),
        "tandem": System("three M/M/1 in tandem", replace(markov, stations=3), (3 * single_s,)),
        "classes": System(
            "M/M/1 with two classes",
            replace(markov, loads=(0.2, lower)),
            tuple(cobham_wait_s((0.2, lower), SERVICE_S, 1)),
        ),
    }


def queues(lab: Lab) -> None:
    """Mean waiting times against theory."""
    load, customers = QUICK if lab.quick else FULL
    compared = systems(load, customers)
    jobs = [replace(system.queue, seed=seed) for system in compared.values() for seed in lab.seeds]
    waits = iter(lab.map(mean_waits_s, jobs, "queues against theory"))
    for ident, system in compared.items():
        of_seeds = [next(waits) for _ in lab.seeds]
        for number, expected in enumerate(system.wait_s):
            which = "" if len(system.wait_s) == 1 else (", higher class", ", lower class")[number]
            lab.claim(
                f"queue.{ident}" + (f".{number + 1}" if which else ""),
                f"mean waiting time of {system.name}{which} at load {load:g}, simulated against theory",
                source=KLEINROCK,
                goal=THEORY,
                measured=over_seeds([100 * (waits_s[number] / expected - 1) for waits_s in of_seeds]),
            )
    if lab.out is not None:
        _draw_queues(lab, 10_000 if lab.quick else 40_000)


def _draw_queues(lab: Lab, customers: int) -> None:
    """Waiting time by load: lines are theory, marks are simulations."""
    loads = (0.3, 0.5, 0.7) if lab.quick else (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85)
    seeds = lab.seeds[: 3 if lab.quick else 5]
    shown = ("mm1", "mm2", "md1")
    queues = [systems(load, customers)[ident].queue for ident in shown for load in loads]
    jobs = [replace(queue, seed=seed) for queue in queues for seed in seeds]
    waits = iter(lab.map(mean_waits_s, jobs, "figure: waiting time by load"))
    fine = [load / 200 for load in range(1, 178)]
    with lab.figure("waiting") as figure:
        axes = figure.subplots()
        for ident in shown:
            theory = [systems(load, customers)[ident] for load in fine]
            label = f"{theory[0].name}, theory"
            (line,) = axes.plot(fine, [system.wait_s[0] / SERVICE_S for system in theory], label=label, lw=1.2)
            points = [over_seeds([next(waits)[0] / SERVICE_S for _ in seeds]) for _ in loads]
            bars = [[p.mean - p.low for p in points], [p.high - p.mean for p in points]]
            axes.errorbar(loads, [p.mean for p in points], bars, fmt="o", ms=4, color=line.get_color(), capsize=2)
        axes.set(
            xlabel="load of each server", ylabel="mean waiting time / service time", ylim=(0, 6.5), xlim=(0, 0.9)
        )
        axes.set_title(f"Waiting in simulated queues: mean of {len(seeds)} seeds, 95 % interval")
        axes.legend(frameon=False)


def exactness(lab: Lab) -> None:
    """Not only on average: each single request."""
    customers = 4_000 if lab.quick else 20_000
    jobs = [Queueing((0.7,), seed, customers, exponential=True) for seed in lab.seeds]
    differences = lab.map(lindley_differences, jobs, "every request against Lindley's recursion")
    lab.claim(
        "queue.exact",
        f"requests among {customers * len(lab.seeds):,} whose latency is not that of Lindley's recursion, to the ns",
        source="Lindley (1952)",
        goal=Goal("exactly", 0, "requests"),
        measured=sum(differences),
    )


# -- batches and shares -------------------------------------------------------------------------------------------


class Saturated(msgspec.Struct, frozen=True):
    """A stage that always has work waiting."""

    model: str
    batch: int
    share_pct: int
    seed: int

    @property
    def expected_per_s(self) -> float:
        """As many batches side by side as shares fit on a device, each as long as the curve says."""
        latency_ns = catalogue.model(self.model).curve("v100").latency_ns(self.batch, self.share_pct)
        return 100 // self.share_pct * self.batch * SECOND / latency_ns


def saturation(lab: Lab) -> None:
    """Throughput of a stage that always has work is what its curve says."""
    models = ("resnet50", "vgg19") if lab.quick else ("resnet50", "vgg19", "mobilenet_v2")
    shares = (20, 50, 100) if lab.quick else (5, 10, 20, 30, 50, 100)
    cells = [Saturated(m, b, s, lab.seeds[0]) for m in models for b in (1, 4, 8) for s in shares]
    rates = lab.map(saturated_per_s, cells, "throughput at saturation")
    errors = [100 * (rate / cell.expected_per_s - 1) for rate, cell in zip(rates, cells, strict=True)]
    lab.claim(
        "stage.saturation",
        f"largest error of throughput at saturation against batch / latency(batch, share), {len(cells)} settings",
        source="catalogue curves of the V100",
        goal=Goal("at most", 0.5, "%"),
        measured=max(abs(error) for error in errors),
    )
    with lab.figure("saturation") as figure:
        axes = figure.subplots()
        for batch in (1, 4, 8):
            of_batch = [
                (c, r) for c, r in zip(cells, rates, strict=True) if c.batch == batch and c.model == "resnet50"
            ]
            every = [Saturated("resnet50", batch, share, 1) for share in range(5, 101)]
            xs, ys = [c.share_pct for c in every], [c.expected_per_s for c in every]
            (line,) = axes.step(xs, ys, where="post", label=f"batch {batch}, curve", lw=1.2)
            axes.plot([c.share_pct for c, _ in of_batch], [r for _, r in of_batch], "o", ms=4, color=line.get_color())
        axes.set(
            xlabel="share of each batch, %", ylabel="images per second", title="resnet50 on a V100 at saturation"
        )
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, title="marks: simulated")


def saturated_per_s(cell: Saturated) -> float:
    """Items per second of a simulated device whose queue is never empty, from its first batch to its last."""
    stage = StageSpec("stage", "model", (cell.batch,), model=cell.model)
    graph = chain("stage", SECOND, [stage])
    entry = Entry("stage", "v100", curve=catalogue.model(cell.model).curve("v100"))
    waves = 400
    count = waves * cell.batch * (100 // cell.share_pct)
    finished: list[int] = []

    def observe(event: Event, _: list[Action]) -> None:
        if type(event) is BatchFinished:
            finished.append(event.at_ns)

    policy = PolicySpec("first-come", share_pct=cell.share_pct, max_open=count)
    controller = make_controller([graph], policy, [entry], 1)
    # Ten times as many as it can do: the queue is long after an instant, and the last batch is full.
    arrivals = requests([Stream(Poisson(10 * cell.expected_per_s), 0)], cell.seed, limit=count)
    simulation = Simulation(controller, Ledger([("stage", SECOND)]), arrivals, [observe])
    spec = WorkerSpec("device", "v100", ("model",))
    simulation.join(SimDevice(1, spec, controller.stages, ProfileTable([entry]), simulation.schedule))
    simulation.run()
    # Between a tenth and nine tenths of the batches: without the ramp at either end.
    first, last = len(finished) // 10, len(finished) * 9 // 10
    return (last - first) * cell.batch * SECOND / (finished[last] - finished[first])


# -- promises -----------------------------------------------------------------------------------------------------

STORM_REQUESTS = 2_000
STORM_POLICY = PolicySpec("by-class", max_open=60)
STORM_PER_S = 150.0
STORM_NS = round(STORM_REQUESTS / STORM_PER_S * SECOND)


class Storm(msgspec.Struct, frozen=True):
    """A run in which workers come and go, with deadlines too tight for some: everything that can end a request."""

    seed: int
    #: Check every invariant after every step.
    check: bool = False
    log: Path | None = None


def storm(job: Storm) -> tuple[int, dict[str, int]]:
    """Requests that did not end in exactly one outcome, and how many ended in which."""
    rng = random.Random(job.seed)
    names = ("first", "left", "right", "last")
    stages = [StageSpec(n, "model", (1, 2, 4), model=n) for n in names]
    after = {"left": ["first"], "right": ["first"], "last": ["left", "right"]}
    graph = chain("diamond", 150 * MS, stages, after)
    points = (Point(1, 1, 8 * MS, 0.3, 1), Point(4, 1, 16 * MS, 0.3, 1))
    entries = [Entry(n, "device", points=points, load_ns=40 * MS, spread=0.3) for n in names]
    controller = make_controller([graph], STORM_POLICY, entries, 1)
    table = ProfileTable(entries)
    streams = [
        Stream(Poisson(0.3 * STORM_PER_S), 0, 1, timeout_ns=120 * MS),
        Stream(Poisson(0.7 * STORM_PER_S), 0, 2),
    ]
    outcomes: Counter[str] = Counter()
    ends: Counter[int] = Counter()

    def observe(event: Event, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Reply | Reject):
                ends[action.request] += 1
                outcomes[action.outcome] += 1
        if job.check:
            validate(controller)

    observers = [observe]
    log = None
    if job.log is not None:
        policy = msgspec.msgpack.encode(STORM_POLICY)
        log = LogWriter(job.log, make_header("sim", [graph], policy, entries, 1, seed=job.seed))
        observers.append(log.step)
    arrivals = requests(streams, job.seed, limit=STORM_REQUESTS)
    simulation = Simulation(controller, Ledger([(graph.name, graph.slo_ns)]), arrivals, observers)
    spec = WorkerSpec("device", "device", ("model",))
    # Three places: whoever sits there is lost after a while and another one comes a little later; the last stays.
    ident = 0
    for _ in range(3):
        at_ns, stays = 0, False
        while not stays:
            ident += 1
            device_rng = random.Random(f"{job.seed} {ident}")
            device = SimDevice(ident, spec, controller.stages, table, simulation.schedule, rng=device_rng)
            simulation.join(device, at_ns)
            stays = at_ns >= STORM_NS
            if not stays:
                at_ns += round(rng.expovariate(1.0) * SECOND)
                simulation.lose(ident, at_ns)
                at_ns += round(rng.expovariate(5.0) * SECOND)
    # About when it arrives, one client in fifty gives up; too early or too late, and nothing comes of it.
    for request in rng.sample(range(1, STORM_REQUESTS + 1), STORM_REQUESTS // 50):
        at_ns = round((request / STORM_PER_S + rng.uniform(0, 0.2)) * SECOND)
        simulation.post(RequestCancelled(at_ns, 0, request))
    simulation.run()
    if log is not None:
        log.close()
    wrong = sum(ends[request] != 1 for request in range(1, STORM_REQUESTS + 1)) + len(controller.requests)
    return wrong, dict(outcomes)


def conservation(lab: Lab) -> None:
    """Every request ends in exactly one outcome while workers are lost around it."""
    found = lab.map(storm, [Storm(seed, check=True) for seed in lab.seeds], "requests in a storm of lost workers")
    ends: Counter[str] = Counter()
    for _, outcomes in found:
        ends.update(outcomes)
    seen = ", ".join(f"{count} {outcome}" for outcome, count in sorted(ends.items(), key=lambda e: -e[1]))
    lab.claim(
        "promise.one-outcome",
        f"requests without exactly one outcome while workers are lost, all invariants checked at every step ({seen})",
        source="docs/invariants.md, 1 to 4",
        goal=Goal("exactly", 0, "requests"),
        measured=sum(wrong for wrong, _ in found),
    )


def twice(seed: int) -> tuple[int, int]:
    """Whether two runs of a seed wrote different logs (0 or 1), and steps that a replay decided otherwise."""
    with tempfile.TemporaryDirectory() as scratch:
        first, second = Path(scratch, "first.log"), Path(scratch, "second.log")
        for path in (first, second):
            storm(Storm(seed, log=path))
        found = replay(first)
        return int(not filecmp.cmp(first, second, shallow=False)), found.steps - found.same_steps


def determinism(lab: Lab) -> None:
    """Same seed, same bytes; and a replay of the log decides the same."""
    found = lab.map(twice, lab.seeds, "every seed twice, and replayed")
    lab.claim(
        "promise.same-bytes",
        f"seeds among {len(lab.seeds)} whose second run wrote another log than the first",
        source="docs/invariants.md, 5",
        goal=Goal("exactly", 0, "seeds"),
        measured=sum(different for different, _ in found),
    )
    lab.claim(
        "promise.replay",
        "steps that a fresh controller decided otherwise when the log was replayed",
        source="docs/invariants.md, 5",
        goal=Goal("exactly", 0, "steps"),
        measured=sum(steps for _, steps in found),
    )
