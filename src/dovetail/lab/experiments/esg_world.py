"""The setting of ESG's evaluation as far as it is known: four applications on sixteen nodes with a sliced A100 each.

What is unverified comes from `lab.rivals.unverified` and the catalogue's `esg/` entries, which say so themselves.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import msgspec

from ...control import Controller, Policy, RequestArrived
from ...profile import catalogue
from ...profile.table import Entry, ProfileTable
from ...record.ledger import Ledger, Summary
from ...sim import SimDevice, Simulation
from ...state import WorkerSpec
from ...units import MS, SECOND
from ...workflow.graph import Graph, StageSpec, chain
from ..rivals import unverified as u

__all__ = ["APPLICATIONS", "KIND", "SLICE_PCT", "Outcome", "World", "function_entry"]

APPLICATIONS = (
    "esg/image-classification",
    "esg/depth-recognition",
    "esg/background-elimination",
    "esg/expanded-image-classification",
)
KIND = "a100"
#: A slice in whole per cents: seven of them are 98 % of the device.
SLICE_PCT = 100 // u.SLICES_PER_NODE
#: Scatter of a single run's time (standard deviation over mean). ESG's own noise model is not known. [assumption]
SPREAD = 0.05


class Outcome(msgspec.Struct, frozen=True):
    """What one policy did in one run."""

    summaries: list[Summary]
    #: Share of all requests answered within the objective.
    hit_rate: float
    usd_per_1000: float
    #: Wall-clock time of one planning decision; the only figure here that is not deterministic.
    plan_p50_us: float
    plan_p99_us: float
    decisions: int


class World:
    """The applications, their profiles and the cluster, for one setting."""

    def __init__(self, setting: str, *, nodes: int = u.NODES, spread: float = SPREAD) -> None:
        tightness, load = u.SETTINGS[setting]
        self.setting = setting
        self.nodes = nodes
        self.interval_ms = u.ARRIVAL_INTERVAL_MS[load]
        prices = catalogue.unit_prices()
        self.usd_per_core_hour = prices.usd_per_vcpu_hour
        self.usd_per_device_hour = prices.usd_per_vgpu_hour * 100 / SLICE_PCT
        self.graphs: list[Graph] = []
        entries: dict[str, Entry] = {}
        for name in APPLICATIONS:
            app = catalogue.workflow(name)
            specs = []
            least_ns = 0
            for stage in app.stages:
                entry = entries.setdefault(stage.name, function_entry(stage.name, stage.model, spread))
                least_ns += entry.latency_ns(1, 1, SLICE_PCT)
                weights = catalogue.model(stage.model).weights_bytes
                specs.append(StageSpec(stage.name, "model", u.BATCHES, model=stage.model, weights_bytes=weights))
            after = {s.name: list(s.after) for s in app.stages}
            slo_ns = round(least_ns * u.SLO_FACTORS[tightness])
            self.graphs.append(chain(name.partition("/")[2], slo_ns, specs, after))
        self.table = ProfileTable(entries.values())

    def shares(self) -> tuple[int, ...]:
        """Shares that a configuration may take: whole slices."""
        return tuple(SLICE_PCT * n for n in range(1, u.SLICES_PER_NODE + 1))

    def node(self) -> WorkerSpec:
        """One node of the cluster."""
        return WorkerSpec(
            "node",
            KIND,
            ("model",),
            u.CPUS_PER_NODE,
            0,
            self.usd_per_device_hour,
            "simulated",
            self.usd_per_core_hour,
        )

    def arrivals(self, seed: int, seconds: float) -> Iterator[RequestArrived]:
        """Requests for the four applications in turn by chance, at intervals of the setting."""
        rng = random.Random(f"esg/{self.setting}/{seed}")
        at = 0.0
        number = 0
        while True:
            at += rng.uniform(*self.interval_ms)
            if at > seconds * 1000:
                return
            number += 1
            yield RequestArrived(round(at * MS), 0, number, rng.randrange(len(self.graphs)))

    def run(
        self,
        make_policy: Callable[[World], Policy],
        seed: int,
        seconds: float,
        *,
        warmup_s: float = 5.0,
        observers: tuple[Callable[..., None], ...] = (),
    ) -> Outcome:
        """Simulate one policy; planning decisions are timed from outside."""
        policy = make_policy(self)
        clock = _Timed(policy.scheduler)
        controller = Controller(self.graphs, msgspec.structs.replace(policy, scheduler=clock))
        ledger = Ledger([(g.name, g.slo_ns) for g in self.graphs], skip_before_ns=round(warmup_s * SECOND))
        simulation = Simulation(controller, ledger, self.arrivals(seed, seconds), observers)
        for i in range(self.nodes):
            spec = msgspec.structs.replace(self.node(), name=f"node-{i}")
            rng = random.Random(f"esg/device/{seed}/{i}")
            simulation.join(SimDevice(i + 1, spec, controller.stages, self.table, simulation.schedule, rng=rng))
        simulation.run()
        summaries = ledger.summary()
        total = sum(s.requests for s in summaries)
        return Outcome(
            summaries=summaries,
            hit_rate=sum(s.outcomes["ok"] for s in summaries) / total,
            usd_per_1000=sum(s.cost_usd_per_1000 * s.requests for s in summaries) / total,
            plan_p50_us=clock.quantile(0.5),
            plan_p99_us=clock.quantile(0.99),
            decisions=clock.count,
        )


def function_entry(stage: str, model_name: str, spread: float) -> Entry:
    """A function's profile: part of its minimum-configuration time on the processor, the rest on the device."""
    model = catalogue.model(model_name)
    curve = model.curve(KIND)
    host_ns = round(u.HOST_FRACTION * curve.latency_ns(1, SLICE_PCT))
    device_part = 1 - u.HOST_FRACTION
    return Entry(
        stage,
        KIND,
        curve=curve.scaled(device_part, device_part),
        host_ns=host_ns,
        spread=spread,
        memory_bytes=model.weights_bytes,
        source=f"catalogue model {model_name} (unverified)",
    )


class _Timed:
    """A scheduler whose decisions are timed; everything else goes straight through."""

    def __init__(self, scheduler: object) -> None:
        self._scheduler = scheduler
        self._offers = scheduler.offers  # type: ignore[attr-defined]
        self._ns: list[int] = []
        self.count = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)

    def offers(self, queue: object, now_ns: int) -> object:
        begin = time.perf_counter_ns()
        answer = self._offers(queue, now_ns)
        self.count += 1
        if len(self._ns) < 100_000:
            self._ns.append(time.perf_counter_ns() - begin)
        return answer

    def quantile(self, q: float) -> float:
        """In microseconds."""
        ordered = sorted(self._ns) or [0]
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] / 1000
