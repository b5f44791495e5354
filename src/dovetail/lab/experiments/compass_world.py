"""The setting of Compass's scalability figure, as its authors' simulator has it: four clients, one per workflow.

Jobs are drawn in the order in which that simulator draws them (numpy's legacy generator: a gap, then an ingress), so
that a seed means the same jobs here and there, and single runs can be compared as well as their means. What is read
from the authors' code and kept: client i starts at i/4 of the interval; 1,007 jobs arrive; the first 1,000 to end
count, of which the first tenth by creation is dropped; caches are empty at first; every worker is an ingress.

What is not kept: there, a result is sent to a join as soon as it is made; here, a join's inputs set out together when
the last is there (up to 0.8 ms later). That changes the order in queues now and then, and with it single runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from heapq import heappop, heappush

import msgspec
import numpy as np

from ...control import Action, Controller, Event, Policy, Reply, RequestArrived
from ...device.rules import Rules
from ...place.transfer import SIMULATOR, Delays, Links
from ...predict import Estimator
from ...profile import catalogue
from ...profile.table import Entry, Point, ProfileTable
from ...record.ledger import Ledger
from ...sim.device import SimDevice
from ...sim.driver import Simulation
from ...sim.network import Network
from ...sim.state_table import Staleness
from ...state import Item, Request, WorkerSpec
from ...units import MS
from ...workflow.graph import Graph, StageSpec, chain
from ..rivals.routed import PlannedRouter

__all__ = ["WORKFLOWS", "Draw", "DrawnRouter", "Outcome", "World", "draw_jobs"]

#: In the order of the authors' workflow list, which is also that of the clients.
WORKFLOWS = (
    "compass/translation",
    "compass/question-answer",
    "compass/image-to-sound",
    "compass/image-object-detection",
)
KIND = "t4"
#: 14,000,000 KB: what the authors take to be usable of a Tesla T4.
MEMORY_BYTES = 14_000_000 * 1024
#: Jobs beyond those counted that the authors' clients create (10), less the four that never arrive, plus one.
EXTRA_JOBS = 7


class Draw(msgspec.Struct, frozen=True):
    """One job: when its client made it, which workflow, where it enters, and where chance would place its tasks."""

    created_ns: int
    workflow: int
    ingress: int
    #: Position of a worker for each task; only drawn for Hash.
    tasks: tuple[int, ...] = ()


def draw_jobs(seed: int, workers: int, interval_ms: float, jobs: int, tasks: tuple[int, ...] = ()) -> list[Draw]:
    """The jobs of a seed, in order of creation.

    With `tasks` (how many each workflow has) the draws are those of the authors' Hash: a worker for each task when
    the job has reached the scheduler, and no ingress.
    """
    rng = np.random.RandomState(seed)
    clients = len(WORKFLOWS)
    reach_ms = [_entry_ms(name) for name in WORKFLOWS]
    heap: list[tuple[float, int, int, float]] = []
    for client in range(clients):
        heappush(heap, (client * interval_ms / clients, len(heap), client, -1.0))
    events = clients
    made = 0
    found: list[Draw] = []
    while made < jobs + EXTRA_JOBS or any(entry[3] >= 0 for entry in heap):
        at_ms, _, client, created_ms = heappop(heap)
        if created_ms >= 0:  # it has reached the scheduler
            placed = tuple(int(rng.randint(0, workers)) for _ in range(tasks[client]))
            found.append(Draw(round(created_ms * MS), client, 0, placed))
            continue
        gap_ms = rng.exponential(interval_ms)
        if made >= jobs + EXTRA_JOBS:
            continue
        made += 1
        events += 1
        heappush(heap, (at_ms + gap_ms, events, client, -1.0))
        if tasks:
            events += 1
            heappush(heap, (at_ms + reach_ms[client], events, client, at_ms))
        else:
            found.append(Draw(round(at_ms * MS), client, int(rng.randint(0, workers))))
    return sorted(found, key=lambda job: job.created_ns)


def _entry_ms(workflow: str) -> float:
    return Delays(SIMULATOR).message_ns(catalogue.workflow(workflow).stages[0].in_bytes) / MS


class Outcome(msgspec.Struct, frozen=True):
    """What one policy did with one set of jobs. Slow-down is latency over the workflow's lower bound."""

    median: float
    mean: float
    p95: float
    #: Workers that ran anything.
    used: int
    #: Tasks with a model that found it on their worker's device.
    hit_rate: float
    #: Median by workflow, in the order of `WORKFLOWS`.
    medians: tuple[float, ...]
    answered: int
    evictions: int


class DrawnRouter(PlannedRouter):
    """Hash with the authors' own draws, to compare single runs."""

    def __init__(self, draws: Mapping[int, tuple[int, ...]], task_of: Mapping[str, Mapping[int, int]]) -> None:
        super().__init__()
        self._draws = draws
        self._task_of = task_of

    def decide(self, request: Request, now_ns: int) -> dict[int, int]:
        """Where chance has placed it."""
        members = list(self.members)
        task_of = self._task_of[request.graph.name]
        return {n.index: members[self._draws[request.id][task_of[n.index]]] for n in request.graph.nodes}

    def replace(self, item: Item, now_ns: int) -> int | None:
        """The first that is left; nobody is lost in this setting."""
        return next(iter(self.members), None)


#: (predictor, ingress number, its own worker) -> its policy.
MakePolicy = Callable[[Estimator, int, int], Policy]


class World:
    """The workflows, their profiles and a number of workers."""

    def __init__(self, links: Links, *, share_models: bool) -> None:
        self.delays = Delays(links)
        self.graphs: list[Graph] = []
        #: Bytes of a task's input, by workflow and node.
        self.in_bytes: dict[tuple[str, str], int] = {}
        #: Workflow -> node -> the task's number in the authors' list.
        self.task_of: dict[str, dict[int, int]] = {}
        self.lower_bound_ns = [catalogue.workflow(name).lower_bound_ns for name in WORKFLOWS]
        entries: list[Entry] = []
        for name in WORKFLOWS:
            workflow = catalogue.workflow(name)
            short = name.partition("/")[2]
            specs = []
            for stage in workflow.stages:
                nbytes = catalogue.model(stage.model).weights_bytes if stage.model else 0
                model = stage.model if share_models or not stage.model else f"{short}/{stage.model}"
                spec = StageSpec(f"{short}/{stage.name}", "model", model=model, weights_bytes=nbytes)
                specs.append(spec)
                point = Point(1, 1, stage.quoted_ns or stage.host_ns, 0.0, 1)
                entries.append(
                    Entry(spec.name, KIND, points=(point,), load_ns=self.delays.load_ns(nbytes), memory_bytes=nbytes)
                )
                self.in_bytes[short, spec.name] = stage.in_bytes
            after = {f"{short}/{s.name}": [f"{short}/{a}" for a in s.after] for s in workflow.stages}
            out_bytes = {f"{short}/{s.name}": s.out_bytes for s in workflow.stages}
            graph = chain(short, workflow.slo_ns, specs, after, out_bytes=out_bytes)
            self.graphs.append(graph)
            names = [s.name for s in specs]
            self.task_of[short] = {i: names.index(n.name) for i, n in enumerate(graph.nodes)}
        self.table = ProfileTable(entries)
        sizes = {s.weights: s.weights_bytes for g in self.graphs for s in g.stages}
        self._unload_ns = {weights: self.delays.save_ns(nbytes) for weights, nbytes in sizes.items()}

    def entry_bytes(self) -> dict[str, int]:
        """Bytes of each workflow's input."""
        return {g.name: self.in_bytes[g.name, g.nodes[0].name] for g in self.graphs}

    def run(
        self,
        make_policy: MakePolicy,
        draws: list[Draw],
        workers: int,
        rules: Rules,
        staleness: Staleness,
        *,
        jobs: int,
        lost: Mapping[int, int] | None = None,
        memory_bytes: int = MEMORY_BYTES,
    ) -> Outcome:
        """Let the jobs through, every worker being an ingress. `lost`: worker -> when its device vanishes."""
        controllers = []
        for ingress in range(workers):
            predictor = Estimator(self.table, load_ns=self.delays.load_ns)
            controllers.append(Controller(self.graphs, make_policy(predictor, ingress, ingress + 1), ingress))
        entry_bytes = self.entry_bytes()
        reach_ns = [self.delays.message_ns(entry_bytes[g.name]) for g in self.graphs]
        arrivals = [
            (d.ingress, RequestArrived(d.created_ns + reach_ns[d.workflow], 0, i + 1, d.workflow))
            for i, d in enumerate(draws)
        ]
        arrivals.sort(key=lambda arrival: arrival[1].at_ns)
        ends: dict[int, int] = {}

        def note(_ingress: int, event: Event, actions: list[Action]) -> None:
            for action in actions:
                if type(action) is Reply:
                    ends[action.request] = event.at_ns

        ledger = Ledger([(g.name, g.slo_ns) for g in self.graphs])
        network = Network(controllers, self.delays, staleness, input_bytes=entry_bytes)
        simulation = Simulation.linked(controllers, network, ledger, iter(arrivals), [note])
        stages = controllers[0].stages
        devices = []
        for ingress in range(workers):
            spec = WorkerSpec(f"worker-{ingress + 1}", KIND, ("model",), memory_bytes=memory_bytes)
            unload_ns = self._unload_ns.__getitem__ if rules.fetch_blocks else None
            device = SimDevice(
                ingress + 1, spec, stages, self.table, simulation.schedule, rules=rules, unload_ns=unload_ns
            )
            devices.append(device)
            simulation.join(device, own_of=ingress)
        for ident, at_ns in (lost or {}).items():
            simulation.lose(ident, at_ns)
        simulation.run()
        return self._summary(draws, ends, devices, jobs)

    def _summary(self, draws: list[Draw], ends: dict[int, int], devices: list[SimDevice], jobs: int) -> Outcome:
        counted = sorted(sorted(ends, key=lambda ident: (ends[ident], ident))[:jobs])
        counted = counted[len(counted) // 10 :]
        by_workflow: list[list[float]] = [[] for _ in WORKFLOWS]
        slow_downs = []
        for ident in counted:
            draw = draws[ident - 1]
            slow_down = (ends[ident] - draw.created_ns) / self.lower_bound_ns[draw.workflow]
            slow_downs.append(slow_down)
            by_workflow[draw.workflow].append(slow_down)
        slow_downs.sort()
        hits, misses = sum(d.hits for d in devices), sum(d.misses for d in devices)
        return Outcome(
            median=statistics.median(slow_downs),
            mean=statistics.fmean(slow_downs),
            p95=slow_downs[min(len(slow_downs) - 1, int(0.95 * len(slow_downs)))],
            used=sum(d.used for d in devices),
            hit_rate=hits / (hits + misses),
            # A short run may have no job of some workflow.
            medians=tuple(statistics.median(row) if row else 0.0 for row in by_workflow),
            answered=len(ends),
            evictions=sum(d.evictions for d in devices),
        )
