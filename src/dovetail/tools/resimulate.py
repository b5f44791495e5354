"""What a log recorded, simulated: the same requests, workers and policy, or another policy, in virtual time.

    result = Resimulation(Path("run.log"), policy="first-come").go()

Rules of this file
- The world is taken from the log alone: workers as they joined and left, requests when they came and what they asked
  for, how many elements each result had. Nothing is left to chance but the order of run times.
- A batch takes as long as batches of its stage and size took, drawn from those that were recorded; a size that was
  not recorded takes what the predictor has learned from the others. Loads take what they took.
- A stage whose batches ran kernel by kernel has kernels here, too, of about the length that models are cut to.
- What lies between front and worker (a fraction of a millisecond) is not simulated.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from ..control import (
    Action,
    BatchFinished,
    Event,
    ModelLoaded,
    RequestArrived,
    RunBatch,
    StopWorker,
    WorkerJoined,
    WorkerLost,
)
from ..errors import LogError
from ..predict import Estimator
from ..profile.table import ProfileTable
from ..record.follow import Present
from ..record.ledger import Ledger, Summary
from ..record.log import Header, LogReader, Step
from ..sim import SimDevice, Simulation
from ..sim.sequences import Kernel, KernelSequence
from ..state import Config, WorkerSpec
from ..wiring import PolicySpec, make_controller, unread
from ..workflow.graph import StageSpec
from .replay import policy_spec

__all__ = ["Compared", "Recorded", "Resimulation", "Service", "unscaled"]

#: Length of a kernel that a model is cut to (`live.kernels.cut_model.TARGET_NS`).
KERNEL_NS = 2_500_000


class Compared(msgspec.Struct, frozen=True):
    """What became of the requests as it was recorded, and as it is simulated."""

    recorded: list[Summary]
    simulated: list[Summary]
    policy: PolicySpec
    seed: int


class Recorded:
    """What a log says of the world, from its beginning or from the moment that `present` tells of."""

    def __init__(self, header: Header, steps: Iterable[Step], present: Present | None = None) -> None:
        self.header = header
        self.workers: dict[int, tuple[int, WorkerSpec]] = {}
        self.lost: dict[int, int] = {}
        self.arrivals: list[RequestArrived] = []
        #: (kind, stage, items) -> run times.
        self.runs: dict[tuple[str, str, int], list[int]] = {}
        #: (kind, stage) -> load times.
        self.loads: dict[tuple[str, str], list[int]] = {}
        #: (request, node, index) -> counts of its result.
        self.counts: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self._usual: dict[tuple[int, int], tuple[int, ...]] = {}
        #: Stages whose batches ran kernel by kernel.
        self.divided: set[str] = set()
        self._running: dict[int, RunBatch] = {}
        self.ledger = Ledger([(g.name, g.slo_ns) for g in header.graphs])
        self._widths = [[len(graph.counted(i)) for i in range(len(graph.nodes))] for graph in header.graphs]
        self._graph_of: dict[int, int] = {}
        if present is not None:
            self._graph_of.update(present.open)
            self.workers.update((ident, (present.now_ns, spec)) for ident, spec in present.workers.items())
        for step in steps:
            self._take(step.event, step.actions)

    def _take(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, WorkerJoined):
            self.workers[event.worker] = (event.at_ns, event.spec)
        elif isinstance(event, WorkerLost):
            self.lost[event.worker] = event.at_ns
        elif isinstance(event, RequestArrived):
            self.arrivals.append(event)
            self._graph_of[event.request] = event.graph
        elif isinstance(event, ModelLoaded) and event.load_ns and event.worker in self.workers:
            kind = self.workers[event.worker][1].kind
            self.loads.setdefault((kind, event.stage), []).append(event.load_ns)
        elif isinstance(event, BatchFinished):
            self._finished(event)
        self._running.update((action.batch, action) for action in actions if isinstance(action, RunBatch))
        self.lost.update((a.worker, event.at_ns) for a in actions if isinstance(a, StopWorker) and not a.dry)
        self.ledger.note(actions, event.at_ns)

    def _finished(self, event: BatchFinished) -> None:
        run = self._running.pop(event.batch, None)
        if run is None or run.worker not in self.workers:
            return
        kind = self.workers[run.worker][1].kind
        took_ns = event.busy_ns or event.end_ns - event.begin_ns
        self.runs.setdefault((kind, run.stage, len(run.items)), []).append(took_ns)
        if event.busy_ns:
            self.divided.add(run.stage)
        at = 0
        for request, node, index in run.items if event.counts else ():
            width = self._widths[self._graph_of[request]][node]
            self.counts[request, node, index] = event.counts[at : at + width]
            at += width

    def sequences(self, kind: str) -> dict[str, KernelSequence]:
        """Kernels of equal length for stages that had some."""
        found = {}
        for stage in self.divided:
            times = [t for (of, name, _), many in self.runs.items() if (of, name) == (kind, stage) for t in many]
            if times:
                count = max(2, round(_median(times) / KERNEL_NS))
                kernels = tuple(Kernel(f"{stage} {i}", "compute", 100, KERNEL_NS) for i in range(count))
                found[stage] = KernelSequence(stage, kernels)
        return found

    def counts_of(self, request: int, node: int, index: int, width: int) -> tuple[int, ...]:
        """What a result had; one that was never made has as many as the usual one of its node."""
        if not width:
            return ()
        known = self.counts.get((request, node, index))
        if known:
            return known
        usual = self._usual.get((node, width))
        if usual is None:
            same = [c for (_, of, _), c in self.counts.items() if of == node and len(c) == width]
            usual = self._usual[node, width] = sorted(same)[len(same) // 2] if same else (1,) * width
        return usual

    def load_ns(self, kind: str, stages: Mapping[str, StageSpec]) -> dict[str, int]:
        """Load times of models on one kind of worker, where some were recorded."""
        return {stages[s].weights: _median(t) for (k, s), t in self.loads.items() if k == kind}


class Service:
    """Run times of one kind of worker, drawn from those that were recorded."""

    def __init__(self, recorded: Recorded, kind: str, stages: dict[str, StageSpec], seed: str) -> None:
        self._runs = recorded.runs
        self._kind = kind
        self._stages = stages
        self._rng = random.Random(seed)
        self._learned = Estimator(ProfileTable(recorded.header.entries))
        for (of, stage, items), times_ns in recorded.runs.items():
            if of == kind and stage in stages:
                for took_ns in times_ns[-64:]:
                    self._learned.observe_run(stages[stage], kind, items, Config(items, 1, 100), took_ns)

    def __call__(self, run: RunBatch) -> int:
        times_ns = self._runs.get((self._kind, run.stage, len(run.items)))
        if times_ns:
            return max(1, self._rng.choice(times_ns))
        config = Config(len(run.items), 1, run.share_pct)
        return max(1, self._learned.run(self._stages[run.stage], self._kind, len(run.items), config).mean_ns)


def unscaled(spec: PolicySpec) -> PolicySpec:
    """The same policy where workers are said to come and go, and a server's scaler is not to say it again."""
    servers = spec.scale is not None and (spec.scale.learns or not spec.scale.slices)
    return msgspec.structs.replace(spec, scale=None) if servers else spec


#: Settings that a server gives by itself.
_SERVERS_OWN = ("near", "lead_us", "goal")


class Resimulation:
    """A recorded run that is ready to be simulated, once."""

    def __init__(self, path: Path, *, policy: str | None = None, seed: int = 1) -> None:
        with LogReader(path) as reader:
            self.recorded = recorded = Recorded(reader.header, reader)
        if not recorded.arrivals:
            raise LogError(f"{path} has no requests: there is nothing to simulate")
        self.seed = seed
        spec = unscaled(policy_spec(recorded.header))
        self.policy = spec if policy is None else msgspec.structs.replace(spec, name=policy)
        #: What the user should know of how it was put together.
        self.notes = [
            f"the policy {policy!r} does not look at {setting}, with which the run was recorded"
            for setting in unread(self.policy)
            if setting not in _SERVERS_OWN
        ]
        header = recorded.header
        self.controller = make_controller(
            header.graphs, self.policy, header.entries, header.cores, learned=header.learned
        )
        self.ledger = Ledger([(g.name, g.slo_ns) for g in header.graphs])

    def counts(self, items: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
        """What the results had; one that was never made has as many as the usual one of its node."""
        found: list[int] = []
        for request, node, index in items:
            width = len(self.controller.requests[request].graph.nodes[node].counted)
            found += self.recorded.counts_of(request, node, index, width)
        return tuple(found)

    def go(self) -> Compared:
        """Simulate, and set it beside what was recorded."""
        recorded = self.recorded
        simulation = Simulation(self.controller, self.ledger, iter(recorded.arrivals))
        stages = self.controller.stages
        for ident, (at_ns, spec) in recorded.workers.items():
            service = Service(recorded, spec.kind, stages, f"{self.seed}/{spec.name}")
            device = SimDevice(
                ident,
                spec,
                stages,
                ProfileTable(recorded.header.entries),
                simulation.schedule,
                branching=self,
                service=service,
                sequences=recorded.sequences(spec.kind),
                load_ns=recorded.load_ns(spec.kind, stages),
            )
            simulation.join(device, at_ns)
            if ident in recorded.lost:
                simulation.lose(ident, recorded.lost[ident])
        simulation.run()
        return Compared(recorded.ledger.summary(), self.ledger.summary(), self.policy, self.seed)


def _median(times_ns: Sequence[int]) -> int:
    return sorted(times_ns)[len(times_ns) // 2]
