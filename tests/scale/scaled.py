"""A small world with a scaler: one stage of known times on simulated devices, promises checked after each step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from dovetail.control import (
    Action,
    Controller,
    Event,
    Policy,
    RequestArrived,
    RunBatch,
    SetSlice,
    StartWorker,
    StopWorker,
)
from dovetail.control.validate import validate
from dovetail.device import GapArbiter, GapSettings, TokenAccount, TokenSettings
from dovetail.place import OwnWorkers
from dovetail.predict import Estimator
from dovetail.profile.curve import Curve
from dovetail.profile.table import Entry, ProfileTable
from dovetail.record.ledger import Ledger
from dovetail.scale import LoadScaler, ScaleSettings
from dovetail.scale.points import ScalePoint
from dovetail.schedule import Dovetail, PlannerSettings
from dovetail.sim import SimDevice, Simulation
from dovetail.state import WorkerSpec
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import Graph, StageSpec, chain

STAGE = StageSpec("look", "model", (1, 2, 4), model="look", weights_bytes=1 << 20)
GRAPH = chain("flow", 300 * MS, [STAGE])
#: 10 ms for one on half of the device or more; work grows with the batch.
CURVE = Curve((1, 2, 4), (10 * MS, 11 * MS, 14 * MS), (5 * MS, 9 * MS, 16 * MS))
TABLE = ProfileTable([Entry("look", "gpu", curve=CURVE, load_ns=20 * MS)])
SPEC = WorkerSpec("gpu", "gpu", ("model",), 0, 1 << 30)


class Scaled:
    """Runs a load, and keeps what the scaler did."""

    def __init__(
        self,
        settings: ScaleSettings,
        *,
        devices: int = 1,
        start_ms: int = 500,
        graph: Graph = GRAPH,
        table: ProfileTable = TABLE,
    ) -> None:
        """`table` is what is known of times beforehand."""
        predictor = Estimator(table)
        self.scaler = LoadScaler(predictor, [graph], settings)
        scheduler = Dovetail(predictor, OwnWorkers(predictor), PlannerSettings(goal="time"))
        self.controller = Controller([graph], Policy(scheduler, self.scaler, predictor))
        self.ledger = Ledger([(graph.name, graph.slo_ns)])
        self.told: list[tuple[int, Action]] = []
        self.runs: list[RunBatch] = []
        self._devices = devices
        self._start_ns = start_ms * MS
        self._simulation: Simulation

    def run(self, arrivals: Iterator[int], lose: Sequence[tuple[int, int]] = ()) -> Scaled:
        """Play it; `lose` are (worker, when)."""
        requests = (RequestArrived(at_ns, 0, number, 0) for number, at_ns in enumerate(arrivals, 1))
        self._simulation = simulation = Simulation(self.controller, self.ledger, requests, [self._watch])
        simulation.spawn = lambda ident: (self._device(ident), self._start_ns)
        for ident in range(1, self._devices + 1):
            simulation.join(self._device(ident))
        for worker, at_ns in lose:
            simulation.lose(worker, at_ns)
        simulation.run()
        return self

    def _device(self, ident: int) -> SimDevice:
        account = TokenAccount(TokenSettings(mode="strict"))
        arbiter = GapArbiter({}, GapSettings(order="slack"), account=account, learn=False)
        schedule = self._simulation.schedule
        rng = random.Random(ident)
        return SimDevice(ident, SPEC, self.controller.stages, TABLE, schedule, rng=rng, arbiter=arbiter)

    def _watch(self, event: Event, actions: list[Action]) -> None:
        assert event.at_ns < 3600 * SECOND, "somebody waits for ever"
        validate(self.controller)
        for action in actions:
            if isinstance(action, SetSlice | StartWorker | StopWorker):
                self.told.append((event.at_ns, action))
            elif isinstance(action, RunBatch):
                self.runs.append(action)

    @property
    def slices(self) -> list[tuple[int, SetSlice]]:
        """What was done with slices."""
        return [(at_ns, action) for at_ns, action in self.told if isinstance(action, SetSlice)]

    @property
    def outcomes(self) -> dict[str, int]:
        """How requests ended."""
        found: dict[str, int] = {}
        for line in self.ledger.summary():
            for outcome, count in line.outcomes.items():
                found[outcome] = found.get(outcome, 0) + count
        return {outcome: count for outcome, count in found.items() if count}

    def point(self, action: SetSlice) -> ScalePoint:
        """The point that a slice is made of."""
        stage = self.scaler._stages[action.stage]
        return next(p for p in stage.points if (p.share_pct, p.batch) == (action.share_pct, action.batch))


def every(gap_ns: int, count: int, begin_ns: int = 0) -> Iterator[int]:
    """Arrivals at even intervals."""
    return (begin_ns + number * gap_ns for number in range(count))


def poisson(steps: Sequence[tuple[int, float]], seed: int) -> list[int]:
    """Arrivals by chance: (seconds, rate)."""
    rng, begin, found = random.Random(seed), 0.0, []
    for seconds, rate in steps:
        at = begin
        while rate and (at := at + rng.expovariate(rate)) < begin + seconds:
            found.append(round(at * SECOND))
        begin += seconds
    return found
