"""Models that do not fit, batches that pay, shares and two classes, all at once: the world of `joint`.

ESG's four applications and Compass's four workflows, on cards of one kind, with the catalogue's times. Rules of it:
- Memory is a card's; the models of all workflows take more. Every model is in host memory, and a fetch takes what the
  bus takes. A third of all requests is of class 1. Batches are not interrupted.
- The objective of a workflow is a multiple of its fastest length on an idle card of that kind, as in the catalogue:
  three times ESG's, five times Compass's.
- Load is given in parts of what the cards could do if every batch ran in its leanest configuration and every model
  were everywhere: nobody can answer more than a load of 1.
- Requests of ESG's and of Compass's workflows need about the same work in all. ESG's are longer, so they are fewer.
- In a burst all workflows come at the same time: calm and burst alternate by chance.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import msgspec

from ...control import Controller, Policy, Reject, Reply, RequestArrived
from ...errors import DovetailError
from ...plan.space import Space, configs_for
from ...predict import Estimator
from ...profile import catalogue
from ...profile.machine import HOST
from ...profile.table import Entry, Point, ProfileTable
from ...record.ledger import Ledger, Summary
from ...sim import SimDevice, Simulation
from ...sim.arrivals import Poisson, Process, Steps, Stream, requests
from ...sim.scenario.declared import catalogue_graph
from ...state import WorkerSpec
from ...units import MS, SECOND
from ...workflow.graph import Graph
from ..rivals.common import longest_path

__all__ = ["WORKFLOWS", "Outcome", "Setting", "World", "burst_steps"]

#: Workflow -> how many of its requests come for one of any other with 1. [our choice: half of the work is ESG's]
WORKFLOWS: Mapping[str, float] = {
    "esg/image-classification": 2.0,
    "esg/depth-recognition": 1.0,
    "esg/background-elimination": 1.0,
    "esg/expanded-image-classification": 1.0,
    "compass/translation": 4.0,
    "compass/question-answer": 8.0,
    "compass/image-to-sound": 8.0,
    "compass/image-object-detection": 8.0,
}
#: Family -> objective over the fastest length. [catalogue, workflows.toml: each family's own, on its own device]
SLO_FACTORS = {"esg": 3.0, "compass": 5.0}
#: Scatter of a single run's time (standard deviation over mean), as in `esg_world`. [assumption]
SPREAD = 0.05
#: Part of requests that are of class 1. [our choice]
FIRST_CLASS = 1 / 3
#: Rates of calm and burst over the mean rate, and how long they last on average; the mean is 1. [our choice]
CALM, CALM_S, BURST, BURST_S = 0.5, 6.0, 2.5, 2.0
#: Left out of the books: caches are empty and nothing waits at first. [our choice]
WARMUP_S = 10.0


class Setting(msgspec.Struct, frozen=True):
    """What is served on what."""

    devices: int
    #: Memory of a card for models; all models together take 22 GB.
    memory_gb: float
    #: In parts of what could be done at most.
    load: float
    bursty: bool = False
    kind: str = "t4"
    #: The load is in parts of what so many cards could do; 0: those that are there.
    load_of: int = 0

    @property
    def key(self) -> str:
        """Short name."""
        return f"{self.devices}x{self.memory_gb:.0f}.{self.load:g}{'b' if self.bursty else 'p'}.{self.kind}"

    @property
    def title(self) -> str:
        """For people."""
        arrivals = "bursty" if self.bursty else "Poisson"
        return f"{self.devices} × {self.kind.upper()} with {self.memory_gb:.0f} GB, load {self.load:g}, {arrivals}"


class Outcome(msgspec.Struct, frozen=True):
    """What one policy did in one run."""

    summaries: list[Summary]
    #: Answers in time per second, of all requests and of class 1.
    goodput: float
    #: Part of the requests that were answered in time, of all and of class 1.
    hit_rate: float
    first_hit_rate: float
    #: Mean share of the cards at work, and models fetched per answer in time.
    busy: float
    loads: int
    #: Dollars for the cards, used or not, per 1,000 answers in time.
    usd_per_1000: float


class _TrueClasses:
    """A ledger that knows the classes of requests which the policy was not told of."""

    def __init__(self, workflows: Sequence[tuple[str, int]], *, skip_before_ns: int = 0) -> None:
        # The ledger may be compiled, and then nothing interpreted can derive from it.
        self._ledger = Ledger(workflows, skip_before_ns=skip_before_ns)
        self.summary = self._ledger.summary
        self._classes: dict[int, int] = {}

    def hidden(self, arrivals: Iterator[RequestArrived]) -> Iterator[RequestArrived]:
        """The same requests, all of class 1."""
        for arrival in arrivals:
            self._classes[arrival.request] = arrival.priority
            yield msgspec.structs.replace(arrival, priority=1)

    def add(self, action: Reply | Reject, now_ns: int) -> None:
        """Take one answer, in the class that it has."""
        known = self._classes.pop(action.request, 0)
        self._ledger.add(msgspec.structs.replace(action, priority=known) if known else action, now_ns)


class World:
    """The workflows, their profiles and the cards of one setting."""

    def __init__(self, setting: Setting, *, names: Sequence[str] = tuple(WORKFLOWS)) -> None:
        self.setting = setting
        self.card = catalogue.device(setting.kind)
        self.graphs: list[Graph] = []
        entries: dict[tuple[str, str], Entry] = {}
        for name in names:
            graph, times = catalogue_graph(name)
            for stage in graph.stages:
                if stage.on_host:
                    point = Point(1, 1, round(times[stage.name].ms[0] * MS), SPREAD, 1)
                    entries[stage.name, HOST] = Entry(stage.name, HOST, points=(point,), spread=SPREAD)
                elif (entry := catalogue.modelled(stage, setting.kind)) is not None:
                    entries[stage.name, setting.kind] = msgspec.structs.replace(entry, spread=SPREAD)
                else:
                    raise DovetailError(f"the catalogue has no times of stage {stage.name!r}")
            self.table = ProfileTable(entries.values())
            slo_ns = round(SLO_FACTORS[name.partition("/")[0]] * self._fastest_ns(graph))
            self.graphs.append(msgspec.structs.replace(graph, slo_ns=slo_ns))
        weights = [WORKFLOWS[name] for name in names]
        work_ns = [self._least_work_ns(graph) for graph in self.graphs]
        mean_ns = sum(w * n for w, n in zip(weights, work_ns, strict=True)) / sum(weights)
        #: Requests per second in all, and of each workflow.
        self.rate_per_s = setting.load * (setting.load_of or setting.devices) * SECOND / mean_ns
        self.rates_per_s = [self.rate_per_s * w / sum(weights) for w in weights]

    def _kind_of(self, on_host: bool) -> str:
        return HOST if on_host else self.setting.kind

    def _fastest_ns(self, graph: Graph) -> float:
        """How long a request takes alone, on whole cards that hold its models."""
        stages = [graph.stage_of(i) for i in range(len(graph.nodes))]
        times = [self.table.latency_ns(s.name, self._kind_of(s.on_host), 1, 1, 100) or 0 for s in stages]
        return longest_path(graph, times)

    def _least_work_ns(self, graph: Graph) -> float:
        """Time of a whole card that a request takes in the leanest configurations."""
        return sum(self.least_work_ns(graph, i) for i in range(len(graph.nodes)))

    def least_work_ns(self, graph: Graph, node: int) -> float:
        """Of one of its stages; those on the host take none."""
        stage = graph.stage_of(node)
        if stage.on_host:
            return 0.0
        kind = self.setting.kind
        return min(
            (self.table.latency_ns(stage.name, kind, c.batch, c.cpus, c.share_pct) or 0) * c.share_pct / 100 / c.batch
            for c in configs_for(stage, self.device_spec(0), Space())
        )

    def device_spec(self, number: int) -> WorkerSpec:
        """One of the cards."""
        setting = self.setting
        return WorkerSpec(
            f"{setting.kind}-{number}",
            setting.kind,
            ("model",),
            0,
            round(setting.memory_gb * 1e9),
            self.card.usd_per_hour,
            "simulated",
        )

    def host_spec(self, number: int) -> WorkerSpec:
        """A process for steps on the host; there is one for each card, so that they are nobody's concern."""
        return WorkerSpec(f"{HOST}-{number}", HOST, ("python",), 1, 0, 0.0, "simulated")

    def arrivals(self, seed: int, seconds: float) -> Iterator[RequestArrived]:
        """The requests of a seed: every workflow in two classes."""
        parts = (1, FIRST_CLASS), (2, 1 - FIRST_CLASS)
        steps = burst_steps(seed, seconds) if self.setting.bursty else ()

        def process(rate: float) -> Process:
            return Steps(tuple((ns, rate * factor) for ns, factor in steps)) if steps else Poisson(rate)

        streams = [Stream(process(rate * part), i, c) for i, rate in enumerate(self.rates_per_s) for c, part in parts]
        return requests(streams, seed, until_ns=round(seconds * SECOND))

    def run(
        self,
        make_policy: Callable[[World], Policy],
        seed: int,
        seconds: float,
        *,
        classes: bool = True,
        first_only: bool = False,
    ) -> Outcome:
        """Simulate one policy; without `classes` it is told that all requests are of the same one.

        With `first_only` nothing but class 1 comes: what nobody else can be in the way of.
        """
        controller = Controller(self.graphs, make_policy(self))
        ledger = _TrueClasses([(g.name, g.slo_ns) for g in self.graphs], skip_before_ns=round(WARMUP_S * SECOND))
        arrivals = self.arrivals(seed, seconds)
        if first_only:
            arrivals = (arrival for arrival in arrivals if arrival.priority == 1)
        simulation = Simulation(controller, cast(Ledger, ledger), arrivals if classes else ledger.hidden(arrivals))
        devices = []
        for number in range(2 * self.setting.devices):
            card, position = number < self.setting.devices, number % self.setting.devices
            spec = self.device_spec(position) if card else self.host_spec(position)
            rng = random.Random(f"joint/{seed}/{spec.name}")
            device = SimDevice(number + 1, spec, controller.stages, self.table, simulation.schedule, rng=rng)
            simulation.join(device)
            if card:
                devices.append(device)
        simulation.run()
        return self._outcome(ledger, devices, seconds, simulation.now_ns)

    def _outcome(self, ledger: _TrueClasses, devices: Sequence[SimDevice], seconds: float, end_ns: int) -> Outcome:
        summaries = ledger.summary()
        counted_s = seconds - WARMUP_S
        ok = sum(s.outcomes["ok"] for s in summaries)
        first = [s for s in summaries if s.priority == 1]
        usd = len(devices) * self.card.usd_per_hour * counted_s / 3600
        return Outcome(
            summaries=summaries,
            goodput=ok / counted_s,
            hit_rate=ok / sum(s.requests for s in summaries),
            first_hit_rate=sum(s.outcomes["ok"] for s in first) / sum(s.requests for s in first),
            busy=sum(d.busy_pct_ns for d in devices) / 100 / len(devices) / max(1, end_ns),
            loads=sum(d.loads for d in devices),
            usd_per_1000=1000 * usd / max(1, ok),
        )

    def estimator(self) -> Estimator:
        """Who says how long things take: the profile, and what is learned."""
        return Estimator(self.table)


def burst_steps(seed: int, seconds: float) -> list[tuple[int, float]]:
    """(duration in ns, rate over the mean rate), calm and burst in turn, until the time is over."""
    rng = random.Random(f"joint/bursts/{seed}")
    steps, left_ns, burst = [], round(seconds * SECOND), False
    while left_ns > 0:
        ns = min(left_ns, 1 + round(rng.expovariate(1 / (BURST_S if burst else CALM_S)) * SECOND))
        steps.append((ns, BURST if burst else CALM))
        left_ns, burst = left_ns - ns, not burst
    return steps
