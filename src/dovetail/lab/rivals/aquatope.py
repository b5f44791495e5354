"""Aquatope (ASPLOS '23), its resource manager: constrained Bayesian optimisation of a whole workflow's configuration.

Source of the rules: the authors' public code, zzhou612/aquatope, src/container_resource_manager. docs/rivals.md says
what was adapted and why.

- A configuration of all stages is a black box: trying it gives a noisy end-to-end latency and a noisy cost.
- Ten random configurations first; then twenty rounds of three. A round fits one Gaussian process (Matern 5/2) to the
  cost and one to the latency, and runs the three configurations with the highest noisy expected improvement times
  probability of being within the objective.
- After each round, runs whose cost leave-one-out prediction puts outside 95 % are taken for anomalies and forgotten.
- The cheapest configuration seen within the objective is used, for good: nothing is re-planned while running.

Aquatope's other half, predicting how many containers to keep warm, is left out: there are no cold starts in the
worlds it is compared in. All chance comes from the seed. The Gaussian processes are in `surrogate`.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from ...control import Policy
from ...predict import Predictor
from ...state import Config
from ...wiring import PolicySpec
from ...workflow.graph import Graph
from .common import MAX_OPEN, Market, StaticPlanner, longest_path, rival_policy
from .surrogate import Floats, Surrogate, expected_gain, normal_below, one_thread

__all__ = ["AquatopePlanner", "BlackBox", "make"]

#: Random configurations at first, rounds, configurations per round, draws of the best. [bayesian_optimization.py]
INITIAL = 10
ROUNDS = 20
PER_ROUND = 3
DRAWS = 32
#: A round looks among so many random configurations and the neighbours of the best so far. The original climbs the
#: gradient from ten of 32 random starts; between whole slices and cores there is no gradient.
CANDIDATES = 256
NEIGHBOURED = 3

#: Runs per trial, and what of their latencies has to be within the objective. The code runs each configuration once;
#: then one whose mean is at the objective passes half of the time and is kept for good. Orion is given the same
#: percentile.
TRIAL_RUNS = 20
PERCENTILE = 0.95

#: For each stage, which of its configurations.
Choice = tuple[int, ...]


class BlackBox:
    """A workflow as Aquatope sees it: something to run in a configuration."""

    def __init__(self, graph: Graph, market: Market, rng: np.random.Generator, *, runs: int = TRIAL_RUNS) -> None:
        self.stages = graph.stages
        #: Per stage, what may be chosen. The original knows no batches, so all are of the smallest.
        self.configs = [[c for c in market.configs(s) if c.batch == market.least(s).batch] for s in self.stages]
        self._graph = graph
        self._market = market
        self._rng = rng
        self._runs = runs
        self._features = [_ranks(row) for row in self.configs]
        self._seen: dict[Choice, tuple[float, float]] = {}

    def run(self, choice: Choice) -> tuple[float, float]:
        """Latency in ns (95th percentile) and cost in USD (mean) of its runs, alone on the cluster.

        As in the original a configuration is tried only once: asked again, the answer is the same.
        """
        if choice not in self._seen:
            chosen = {s.name: row[at] for s, row, at in zip(self.stages, self.configs, choice, strict=True)}
            nodes = [self._graph.stage_of(i) for i in range(len(self._graph.nodes))]
            means = np.array([self._market.time_ns(s, chosen[s.name]) for s in nodes], dtype=np.float64)
            sigmas = np.array([math.sqrt(math.log1p(self._market.spread(s) ** 2)) for s in nodes])
            prices = np.array([self._market.usd_per_ns(s, chosen[s.name]) for s in nodes])
            scatter = self._rng.standard_normal((self._runs, len(nodes)))
            times = means * np.exp(sigmas * scatter - sigmas * sigmas / 2)
            latency = np.quantile([longest_path(self._graph, row) for row in times.tolist()], PERCENTILE)
            self._seen[choice] = (float(latency), float((times @ prices).mean()))
        return self._seen[choice]

    def random(self, count: int) -> list[Choice]:
        """Configurations drawn evenly."""
        columns = [self._rng.integers(len(row), size=count) for row in self.configs]
        return [tuple(int(at) for at in row) for row in zip(*columns, strict=True)]

    def neighbours(self, choice: Choice) -> list[Choice]:
        """Configurations that differ in one stage, there by at most one rank in each resource."""
        found: list[Choice] = []
        for stage, table in enumerate(self._features):
            steps = 1 / np.maximum(1, [len(np.unique(column)) - 1 for column in table.T])
            near = np.all(np.abs(table - table[choice[stage]]) < 1.5 * steps, axis=1)
            found.extend((*choice[:stage], int(at), *choice[stage + 1 :]) for at in np.flatnonzero(near))
        return found

    def features(self, choices: Sequence[Choice]) -> Floats:
        """Cores and share of every stage, as ranks from nought to one."""
        return np.array([np.concatenate([t[at] for t, at in zip(self._features, c, strict=True)]) for c in choices])


def _ranks(configs: Sequence[Config]) -> Floats:
    columns = []
    for values in ([c.cpus for c in configs], [c.share_pct for c in configs]):
        known = sorted(set(values))
        columns.append([known.index(v) / max(1, len(known) - 1) for v in values])
    return np.array(columns, dtype=np.float64).T


class AquatopePlanner(StaticPlanner):
    """Configurations fixed per workflow before the first request."""

    def __init__(
        self,
        market: Market,
        *,
        seed: int,
        initial: int = INITIAL,
        rounds: int = ROUNDS,
        trial_runs: int = TRIAL_RUNS,
        max_open: int = MAX_OPEN,
    ) -> None:
        super().__init__(market, max_open=max_open)
        self._seed = seed
        self._initial = initial
        self._rounds = rounds
        self._trial_runs = trial_runs
        self._plans: dict[tuple[str, int], dict[str, Config]] = {}

    def plan(self, graph: Graph) -> Mapping[str, Config]:
        """The result of the optimisation; remembered, because it takes seconds."""
        key = (graph.name, graph.slo_ns)
        if key not in self._plans:
            rng = np.random.default_rng([self._seed, zlib.crc32(graph.name.encode()), graph.slo_ns])
            box = BlackBox(graph, self.market, rng, runs=self._trial_runs)
            with one_thread():
                choice = self._optimise(box, graph.slo_ns, rng)
            chosen = zip(box.stages, box.configs, choice, strict=True)
            self._plans[key] = {stage.name: row[at] for stage, row, at in chosen}
        return self._plans[key]

    def _optimise(self, box: BlackBox, slo_ns: int, rng: np.random.Generator) -> Choice:
        tried = list(dict.fromkeys(box.random(self._initial)))
        cost_model: Surrogate | None = None
        late_model: Surrogate | None = None
        for _ in range(self._rounds):
            x, value, late = self._observed(box, tried, slo_ns)
            # Fitted to all of these and the anomalies at the end of the last round.
            cost_model = Surrogate(x, value, like=cost_model, fit=cost_model is None)
            late_model = Surrogate(x, late, like=late_model)
            tried.extend(self._propose(box, tried, value, late, cost_model, late_model, rng))
            x, value, late = self._observed(box, tried, slo_ns)
            cost_model = Surrogate(x, value, like=cost_model)
            tried = [c for c, odd in zip(tried, cost_model.anomalies(), strict=True) if not odd] or tried
        _, value, late = self._observed(box, tried, slo_ns)
        if np.any(late <= 0):
            return tried[int(np.argmax(np.where(late <= 0, value, -np.inf)))]
        return tried[int(np.argmin(late))]  # none is within the objective: the fastest seen

    def _observed(self, box: BlackBox, tried: Sequence[Choice], slo_ns: int) -> tuple[Floats, Floats, Floats]:
        """Features, value (the negative cost) and lateness (at most nought is feasible) of the runs so far."""
        runs = np.array([box.run(c) for c in tried])
        return box.features(tried), -runs[:, 1], runs[:, 0] / slo_ns - 1

    def _propose(
        self,
        box: BlackBox,
        tried: Sequence[Choice],
        value: Floats,
        late: Floats,
        cost_model: Surrogate,
        late_model: Surrogate,
        rng: np.random.Generator,
    ) -> list[Choice]:
        """The next to try, one after the other, each as if the ones before it had come out as predicted."""
        ranked = np.argsort(np.where(late <= 0, -value, np.inf), kind="stable")[:NEIGHBOURED]
        nearby = [n for at in ranked for n in box.neighbours(tried[int(at)])]
        candidates = [c for c in dict.fromkeys([*nearby, *box.random(CANDIDATES)]) if c not in set(tried)]
        known = box.features(tried)
        fresh: list[Choice] = []
        while candidates and len(fresh) < PER_ROUND:
            feasible = late_model.draws(known, DRAWS, rng) <= 0
            draws = cost_model.draws(known, DRAWS, rng)
            # Where no run counts as feasible, any would be an improvement on the worst.
            best = np.where(feasible, draws, draws.min(axis=1, keepdims=True)).max(axis=1)
            at_candidates = box.features(candidates)
            mean, std = cost_model.marginal(at_candidates)
            late_mean, late_std = late_model.marginal(at_candidates)
            gain = expected_gain(best, mean, std, normal_below(-late_mean / late_std))
            at = int(np.argmax(gain))
            fresh.append(candidates.pop(at))
            known = np.vstack([known, at_candidates[at]])
            value, late = np.append(value, mean[at]), np.append(late, late_mean[at])
            cost_model = Surrogate(known, value, like=cost_model, fit=False)
            late_model = Surrogate(known, late, like=late_model, fit=False)
        return fresh


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """Aquatope for the registry."""
    return rival_policy(AquatopePlanner(Market(predictor, spec.space), seed=spec.seed, max_open=spec.max_open))
