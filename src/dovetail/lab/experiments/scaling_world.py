"""A world in which scalers are compared: simulated V100s that come and go, and slices whose quotas are limits.

What is the same for every scaler: the workflow, its profile, the arrivals, the default policy's scheduler, and the
devices. What differs is who says how many slices and devices there are. That is kind to the rivals, whose own systems
refuse nobody and let queues grow.

Rules of this file
- GPU-seconds are what is reserved: share times quota of all slices over time, as HAS-GPU counts "GPU in use". What a
  slice does not use is paid for. Device-seconds count a device from the moment it is asked for.
- A quota is a limit, as in HAS-GPU's runs: otherwise what is reserved would not be what is used.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import msgspec

from ...control import (
    Action,
    Controller,
    Event,
    Policy,
    Reject,
    Reply,
    RequestArrived,
)
from ...control.validate import validate
from ...device import GapArbiter, GapSettings, TokenAccount, TokenSettings
from ...place import OwnWorkers
from ...predict import Estimator, Predictor
from ...profile import catalogue
from ...profile.table import Entry, ProfileTable
from ...record.ledger import Ledger
from ...record.usage import Usage
from ...scale import Scaler
from ...schedule import Dovetail, PlannerSettings
from ...sim import SimDevice, Simulation
from ...state import WorkerSpec
from ...units import SECOND
from ...workflow.graph import Graph, StageSpec, chain

__all__ = ["KIND", "Run", "ScalingWorld"]

#: Scatter of a single run's time: standard deviation over mean [assumption].
SPREAD = 0.05
KIND = "v100"


class Run(msgspec.Struct, frozen=True):
    """What came out of one run."""

    requests: int
    #: Part of all requests that were answered within the objective.
    in_time: float
    #: Of those that were answered.
    p50_ms: float
    p95_ms: float
    #: Share times quota reserved, over time; and devices, over time.
    gpu_s: float
    device_s: float
    #: Mean and most of the GPUs that were reserved.
    gpus: float
    most_gpus: float
    most_devices: int
    #: Times that slices were opened, resized or closed.
    changes: int
    #: Requests that were refused, given up or failed.
    refused: int
    #: (second, GPUs reserved): for plots.
    usage: tuple[tuple[float, float], ...]
    #: (second, latency in ms), of those that were answered; thinned.
    latencies: tuple[tuple[float, float], ...]

    @property
    def goodput_per_gpu_s(self) -> float:
        """Requests in time for each GPU-second that was reserved."""
        return self.requests * self.in_time / max(self.gpu_s, 1e-9)


class ScalingWorld(msgspec.Struct, frozen=True):
    """One workflow of one model on devices of one kind."""

    #: Of the catalogue.
    model: str
    slo_ns: int
    #: Devices that are there from the start, and how long another one takes to start.
    devices: int = 1
    start_ns: int = 0
    #: How long a model takes to load; None: as the catalogue says.
    load_ns: int | None = None
    batches: tuple[int, ...] = (1, 2, 4, 8)
    #: Time on the device, as a multiple of the catalogue's.
    times: float = 1.0
    #: A window of quotas.
    window_ns: int = SECOND // 10

    def graph(self) -> Graph:
        """The workflow."""
        weights = catalogue.model(self.model).weights_bytes
        return chain(
            "served",
            self.slo_ns,
            [StageSpec("model", "model", self.batches, model=self.model, weights_bytes=weights)],
        )

    def table(self) -> ProfileTable:
        """What is known of times."""
        found = catalogue.model(self.model)
        curve = found.curve(KIND).scaled(self.times, self.times)
        load_ns = found.load_ns(KIND) if self.load_ns is None else self.load_ns
        return ProfileTable([Entry("model", KIND, curve=curve, load_ns=load_ns, spread=SPREAD)])

    def run(
        self,
        make: Callable[[Predictor, Graph], Scaler],
        arrivals: Iterator[int],
        seed: int,
        *,
        check: bool = False,
        until_ns: int = 0,
    ) -> Run:
        """Simulate one scaler. GPU-seconds count up to `until_ns`, or to the last answer."""
        graph, table = self.graph(), self.table()
        predictor = Estimator(table)
        scheduler = Dovetail(predictor, OwnWorkers(predictor), PlannerSettings(goal="time"))
        controller = Controller([graph], Policy(scheduler, make(predictor, graph), predictor))
        usage = Usage(self.devices)
        latencies: list[tuple[int, int]] = []
        counts = {"ok": 0, "refused": 0}

        def note(event: Event, actions: list[Action]) -> None:
            for action in actions:
                if isinstance(action, Reply):
                    latencies.append((event.at_ns, event.at_ns - action.arrived_ns))
                    counts["ok"] += action.outcome == "ok"
                elif isinstance(action, Reject):
                    counts["refused"] += 1
            if check:
                validate(controller)

        ledger = Ledger([(graph.name, graph.slo_ns)])
        requests = (RequestArrived(at_ns, 0, number, 0) for number, at_ns in enumerate(arrivals, 1))
        simulation = Simulation(controller, ledger, requests, [usage, note])
        simulation.spawn = lambda ident: (self._device(ident, table, controller, simulation, seed), self.start_ns)
        for ident in range(1, self.devices + 1):
            simulation.join(self._device(ident, table, controller, simulation, seed))
        simulation.run()
        total = simulation.arrived
        end_ns = until_ns or ledger.last_ns
        if usage.at_ns < end_ns:
            usage.advance(end_ns)
        assert not controller.requests, "every request has an outcome"
        sorted_ns = sorted(ns for _, ns in latencies)
        step = max(1, len(latencies) // 4000)
        return Run(
            requests=total,
            in_time=counts["ok"] / max(1, total),
            p50_ms=_quantile(sorted_ns, 0.5),
            p95_ms=_quantile(sorted_ns, 0.95),
            gpu_s=usage.gpu_s,
            device_s=usage.device_s,
            gpus=usage.gpu_s * SECOND / max(1, usage.at_ns),
            most_gpus=max((area for _, area in usage.points), default=0.0),
            most_devices=usage.most_devices,
            changes=usage.changes,
            refused=counts["refused"],
            usage=tuple(usage.points),
            latencies=tuple((at / SECOND, ns / 1e6) for at, ns in latencies[::step]),
        )

    def _device(
        self, ident: int, table: ProfileTable, controller: Controller, simulation: Simulation, seed: int
    ) -> SimDevice:
        card = catalogue.device(KIND)
        spec = WorkerSpec(f"{KIND}-{ident}", KIND, ("model",), 0, card.memory_bytes, card.usd_per_hour, "simulated")
        account = TokenAccount(TokenSettings(window_ns=self.window_ns, mode="strict"))
        arbiter = GapArbiter({}, GapSettings(order="slack"), account=account, learn=False)
        rng = random.Random(f"{seed}/{ident}")
        return SimDevice(ident, spec, controller.stages, table, simulation.schedule, rng=rng, arbiter=arbiter)


def _quantile(values_ns: list[int], q: float) -> float:
    return values_ns[min(len(values_ns) - 1, int(q * len(values_ns)))] / 1e6 if values_ns else 0.0
