"""Random workflows of catalogue models, and a cluster whose run times scatter otherwise than the profiles say.

Rules of this file
- A graph follows from its number alone: shape, models, objective, load, and what is believed of the scatter. Half of
  the graphs are series-parallel, half are layers with edges by chance.
- Only models count that more share makes faster: of the others there is nothing to plan. An objective that the
  fastest configurations alone could not meet with some room is no question of planning either: the models are drawn
  again.
- Every policy is given the profiles with the believed scatter. The devices scatter by the true one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec

from ...control import Controller, Policy, RequestArrived
from ...profile import catalogue
from ...profile.table import Entry, ProfileTable
from ...record.ledger import Ledger
from ...sim import SimDevice, Simulation
from ...state import WorkerSpec
from ...units import MS, SECOND
from ...workflow.graph import Graph, StageSpec, chain
from ..rivals import unverified as u
from ..rivals.common import longest_path
from .esg_world import KIND, SLICE_PCT, function_entry

__all__ = ["GraphWorld", "Outcome", "Recipe", "random_edges", "recipe_of", "usable_models"]

#: Nodes of the cluster, each with a sliced A100 as in ESG's setting.
NODES = 4
#: Stages of a graph, from and to.
STAGES = (4, 8)
#: Models that take from and to so long in one slice, and at least so many times as long as on all slices.
SLICE_NS = (5 * MS, 400 * MS)
LEAST_GAIN = 1.4
#: Objective over the length with every stage in its minimum configuration. [the issue: 0.7 to 2]
FACTORS = (0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.75, 2.0)
#: What is believed of the scatter, and what it is: right, and wrong by a factor of two and of four. [the issue]
SCATTERS = ((0.05, 0.05), (0.05, 0.10), (0.05, 0.20), (0.20, 0.05))
#: Part of the cluster that the work takes with every stage in its minimum configuration.
LOADS = (0.2, 0.35, 0.5)
#: The fastest configurations need at most this part of the objective.
ROOM = 0.85
#: Requests before this are not counted: rivals that scale and those that learn have found their feet.
WARMUP_S = 10.0


class Recipe(msgspec.Struct, frozen=True):
    """What a graph's number says."""

    number: int
    series_parallel: bool
    factor: float
    believed: float
    true: float
    load: float
    #: Stage -> stages before it, in the order in which they were made.
    after: dict[str, tuple[str, ...]]
    models: dict[str, str]


class Outcome(msgspec.Struct, frozen=True):
    """What one policy did with one graph and one seed."""

    requests: int
    #: Part of all requests answered within the objective, and refused or given up.
    hit_rate: float
    shed: float
    usd_per_1000: float


def usable_models() -> list[str]:
    """Models worth planning, in the order of the catalogue."""
    found = []
    for name in catalogue.models():
        curve = catalogue.model(name).curve(KIND)
        slice_ns, whole_ns = curve.latency_ns(1, SLICE_PCT), curve.latency_ns(1, SLICE_PCT * u.SLICES_PER_NODE)
        if SLICE_NS[0] <= slice_ns <= SLICE_NS[1] and slice_ns >= LEAST_GAIN * whole_ns:
            found.append(name)
    return found


def random_edges(rng: random.Random, stages: int, series_parallel: bool) -> list[tuple[int, ...]]:
    """Per stage the stages before it; there is at least one fork."""
    while True:
        before = _series_parallel(rng, stages) if series_parallel else _layers(rng, stages)
        followers = [sum(i in row for row in before) for i in range(stages)]
        if max(followers) > 1 or sum(not row for row in before) > 1:
            return before


def _series_parallel(rng: random.Random, stages: int) -> list[tuple[int, ...]]:
    """Parts one after the other or side by side, cut at random places until they are single stages."""
    before: list[tuple[int, ...]] = []

    def build(count: int, entries: tuple[int, ...], in_series: bool) -> tuple[int, ...]:
        """Add so many stages after these; those at their end."""
        if count == 1:
            before.append(entries)
            return (len(before) - 1,)
        cut = rng.randint(1, count - 1)
        first = build(cut, entries, not in_series)
        if in_series:
            return build(count - cut, first, False)
        return (*first, *build(count - cut, entries, True))

    build(stages, (), True)
    return before


def _layers(rng: random.Random, stages: int) -> list[tuple[int, ...]]:
    """Layers of one to three stages; each stage after one or two of the layer before, and each is followed."""
    before: list[tuple[int, ...]] = []
    last: list[int] = []
    while len(before) < stages:
        width = min(rng.randint(1, 3), stages - len(before))
        layer = list(range(len(before), len(before) + width))
        rows = [set(rng.sample(last, min(len(last), rng.randint(1, 2)))) for _ in layer]
        for i in last:  # nobody's work is for nothing
            if not any(i in row for row in rows):
                rng.choice(rows).add(i)
        before.extend(tuple(sorted(row)) for row in rows)
        last = layer
    return before


def recipe_of(number: int) -> Recipe:
    """The graph of that number."""
    rng = random.Random(f"graphs/{number}")
    series_parallel = number % 2 == 0
    factor = FACTORS[number % len(FACTORS)]
    believed, true = SCATTERS[number // 2 % len(SCATTERS)]
    load = rng.choice(LOADS)
    names, models = usable_models(), list[str]()
    while True:
        count = rng.randint(*STAGES)
        before = random_edges(rng, count, series_parallel)
        models = rng.sample(names, count)
        stages = [f"s{i}" for i in range(count)]
        after = {stages[i]: tuple(stages[j] for j in row) for i, row in enumerate(before)}
        recipe = Recipe(
            number, series_parallel, factor, believed, true, load, after, dict(zip(stages, models, strict=True))
        )
        world = GraphWorld(recipe)
        if world.length_ns(1, SLICE_PCT * u.SLICES_PER_NODE) <= ROOM * world.graph.slo_ns:
            return recipe


class GraphWorld:
    """One graph, its profiles as they are believed and as they are, and the cluster."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        prices = catalogue.unit_prices()
        self.usd_per_core_hour = prices.usd_per_vcpu_hour
        self.usd_per_device_hour = prices.usd_per_vgpu_hour * 100 / SLICE_PCT
        specs = []
        entries: list[Entry] = []
        for stage, model in recipe.models.items():
            entries.append(function_entry(stage, model, recipe.believed))
            weights = catalogue.model(model).weights_bytes
            specs.append(StageSpec(stage, "model", u.BATCHES, model=model, weights_bytes=weights))
        #: As believed, and as it is.
        self.table = ProfileTable(entries)
        self.true_table = ProfileTable([msgspec.structs.replace(e, spread=recipe.true) for e in entries])
        after = {stage: list(row) for stage, row in recipe.after.items()}
        self.graph: Graph = chain(f"graph-{recipe.number}", 1, specs, after)
        slo_ns = round(recipe.factor * self.length_ns(1, SLICE_PCT))
        self.graph = msgspec.structs.replace(self.graph, slo_ns=slo_ns)
        least_ns = sum(entry.latency_ns(1, 1, SLICE_PCT) for entry in entries)
        slices = NODES * u.SLICES_PER_NODE
        self.rate_per_s = recipe.load * slices * SECOND / least_ns

    def length_ns(self, cpus: int, share_pct: int) -> int:
        """The longest way with every stage alone in this configuration."""
        times = [self.table.entries[n.stage, KIND].latency_ns(1, cpus, share_pct) for n in self.graph.nodes]
        return round(longest_path(self.graph, times))

    def shares(self) -> tuple[int, ...]:
        """Shares that a configuration may take: whole slices."""
        return tuple(SLICE_PCT * n for n in range(1, u.SLICES_PER_NODE + 1))

    def arrivals(self, seed: int, seconds: float) -> Iterator[RequestArrived]:
        """Requests by chance at the recipe's load."""
        rng = random.Random(f"graphs/{self.recipe.number}/{seed}")
        at = 0.0
        number = 0
        while True:
            at += rng.expovariate(self.rate_per_s)
            if at > seconds:
                return
            number += 1
            yield RequestArrived(round(at * SECOND), 0, number, 0)

    def run(
        self,
        policy: Policy,
        seed: int,
        requests: int,
        *,
        observers: Sequence[Callable[..., None]] = (),
    ) -> Outcome:
        """Simulate one policy with so many requests, and some more before they are counted."""
        controller = Controller([self.graph], policy)
        seconds = WARMUP_S + requests / self.rate_per_s
        ledger = Ledger([(self.graph.name, self.graph.slo_ns)], skip_before_ns=round(WARMUP_S * SECOND))
        simulation = Simulation(controller, ledger, self.arrivals(seed, seconds), tuple(observers))
        for i in range(NODES):
            spec = WorkerSpec(
                f"node-{i}", KIND, ("model",), u.CPUS_PER_NODE, 0, self.usd_per_device_hour, "simulated",
                self.usd_per_core_hour,
            )  # fmt: skip
            rng = random.Random(f"graphs/device/{self.recipe.number}/{seed}/{i}")
            device = SimDevice(i + 1, spec, controller.stages, self.true_table, simulation.schedule, rng=rng)
            simulation.join(device)
        simulation.run()
        (row,) = ledger.summary()
        ok, shed = row.outcomes.get("ok", 0), row.outcomes.get("shed", 0)
        return Outcome(row.requests, ok / row.requests, shed / row.requests, row.cost_usd_per_1000)
