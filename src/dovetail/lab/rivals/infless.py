"""INFless (ASPLOS '22): instances of single functions with non-uniform batches, chosen by resource efficiency.

Source of the rules: the authors' public code, TankLabTJU/INFless, faas-netes: gpu/controller/estimator.go (limits,
rates, enumeration), gpu/controller/scheduler.go (CRE, order of batches), gpu/aside/dispatcher.go and
handlers/deploy.go (rates, when to add and to remove). docs/rivals.md says what was adapted and why.

- A function gets SLO_f. A batch of one may run for SLO_f; a larger one for SLO_f / 2: the other half is for filling.
- An instance of batch b and time t serves between r_min = b / (SLO_f - t) and r_max = b / t requests per second, and
  a batch is closed SLO_f - t after its first item came.
- Batch sizes are tried from the largest. Of the first size that has a configuration with r_min at most the uncovered
  rate and room on some worker, the one with the highest CRE is taken: (r_max / best throughput per resource) / (part
  of the worker that would be left over). And again, until the rate is covered.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...control import Policy
from ...predict import Predictor
from ...state import Config, Queue, WorkerSpec
from ...state.worker import FULL_SHARE, UNCOUNTED_CPUS
from ...units import SECOND
from ...wiring import PolicySpec
from ...workflow.graph import Graph, StageSpec
from .common import MAX_OPEN, Market, queue_key, rival_policy, slo_shares
from .instances import Instance, InstancePlanner

__all__ = ["INFlessPlanner", "Sizing", "cre", "make", "sizings"]

#: Weights of resources: GFLOPS of a processor core and of a per cent of a device. [estimator.go]
CORE_WEIGHT = 64.0
SHARE_WEIGHT = 142.0
#: The largest share of a device that the code enumerates, and the step between numbers of cores. [estimator.go]
MAX_SHARE_PCT = 50
CPU_STEP = 2
#: Uncovered part of the rate that makes it scale up. [handlers/deploy.go]
OVERFLOW = 0.03
#: Position between summed r_min and r_max below which instances are spare. [dispatcher.go, PodLoadRate]
LOAD_RATE = 0.8
#: Rates are read every second [dispatcher.go]; an instance goes when spare at three checks ten seconds apart
#: [handlers/deploy.go].
TICK_NS = 1 * SECOND
IDLE_TICKS = 30
#: Weight of the last second in the mean rate: the code takes the last second's as it is. Smoothing was tried and
#: costs it hits, because a noisy rate leaves it with instances to spare.
RATE_WEIGHT = 1.0


class Sizing(msgspec.Struct, frozen=True):
    """A configuration that meets its time limit, and what an instance of it can do."""

    config: Config
    time_ns: int
    max_rps: float
    min_rps: float
    timeout_ns: int


def sizings(stage: StageSpec, slo_ns: int, market: Market) -> dict[int, list[Sizing]]:
    """Batch -> configurations within the limit, largest batch first; if there are none, the fastest of the smallest.

    The original logs an error and starts nothing for an objective that it cannot meet.
    """
    found: dict[int, list[Sizing]] = {}
    fastest: Sizing | None = None
    sizes = sorted({c.batch for c in market.configs(stage)}, reverse=True)
    for batch in sizes:
        limit_ns = slo_ns if batch == 1 else slo_ns // 2
        for config in _enumerated(stage, batch, market):
            time_ns = market.time_ns(stage, config)
            rest_ns = slo_ns - time_ns
            # A batch of one does not wait to fill, so any rate is enough; the code's 1 per second is its resolution.
            min_rps = 0.0 if batch == 1 else batch * SECOND / max(1, rest_ns)
            timeout_ns = 0 if batch == 1 else max(0, rest_ns)
            offer = Sizing(config, time_ns, batch * SECOND / time_ns, min_rps, timeout_ns)
            if time_ns <= limit_ns:
                found.setdefault(batch, []).append(offer)
            elif batch == sizes[-1] and (fastest is None or time_ns < fastest.time_ns):
                fastest = offer
    if not found and fastest is not None:
        found[fastest.config.batch] = [fastest]
    return found


def _enumerated(stage: StageSpec, batch: int, market: Market) -> list[Config]:
    """Cores go down from the batch (two for one) in steps of two, shares up to half a device: those that exist."""
    known = [c for c in market.configs(stage) if c.batch == batch]
    cpus = {c.cpus for c in known} & set(range(max(CPU_STEP, batch), 0, -CPU_STEP))
    chosen = [c for c in known if c.share_pct <= MAX_SHARE_PCT and c.cpus in cpus]
    # A space without such values (a device with one core, say) is taken as it is.
    return chosen or known


def cre(offer: Sizing, best_efficiency: float, worker: WorkerSpec, free_pct: int, free_cpus: int) -> float:
    """Resource efficiency of an instance on a worker with so much left: large for fast ones that leave few scraps."""
    cores = worker.cores
    # The code adds a thousandth of each resource, so that a worker filled to the brim is not a division by nought.
    cpus_left = free_cpus - offer.config.cpus + 0.001 * cores if cores else 0.0
    share_left = free_pct - offer.config.share_pct + 0.001 * FULL_SHARE
    left = CORE_WEIGHT * cpus_left + SHARE_WEIGHT * share_left
    return (offer.max_rps / best_efficiency) / (left / (CORE_WEIGHT * cores + SHARE_WEIGHT * FULL_SHARE))


class INFlessPlanner(InstancePlanner):
    """Covers each function's measured rate with instances."""

    def __init__(
        self, market: Market, *, tick_ns: int = TICK_NS, rate_weight: float = RATE_WEIGHT, max_open: int = MAX_OPEN
    ) -> None:
        super().__init__(market, tick_ns=tick_ns, rate_weight=rate_weight, max_open=max_open)
        self.sizings: dict[str, dict[int, list[Sizing]]] = {}
        self._best_efficiency: dict[str, float] = {}
        self._spare_ticks: dict[str, int] = {}

    def prepare(self, graph: Graph) -> None:
        """What each function may be run in."""
        shares = slo_shares(graph, self.market)
        for stage in graph.stages:
            key = queue_key(graph, stage.name)
            found = self.sizings[key] = sizings(stage, shares[stage.name], self.market)
            self._best_efficiency[key] = max(
                o.max_rps / (CORE_WEIGHT * o.config.cpus + SHARE_WEIGHT * o.config.share_pct)
                for row in found.values()
                for o in row
            )

    def spare(self, queue: Queue) -> Sequence[Config]:
        """As the pre-warmed instance would run: the smallest batch, the fastest first, at last the minimum."""
        row = self.sizings[queue.key][min(self.sizings[queue.key])]
        return [*(o.config for o in sorted(row, key=lambda o: o.time_ns)), self.market.least(queue.stage)]

    def rescale(self, queue: Queue, rps: float) -> None:
        """Cover what is not covered, or let go of what has been spare for long enough."""
        key = queue.key
        have = self.fleet.of(key)
        uncovered = rps - sum(i.max_rps for i in have)
        if uncovered > OVERFLOW * rps or not have:
            self._spare_ticks[key] = 0
            while uncovered > 0:
                instance = self._best(queue, uncovered)
                if instance is None:
                    return  # the cluster is full: the rest waits
                self.fleet.add(key, instance)
                uncovered -= instance.max_rps
            return
        surplus = _surplus(have, rps)
        self._spare_ticks[key] = self._spare_ticks.get(key, 0) + 1 if surplus else 0
        if self._spare_ticks[key] >= IDLE_TICKS:
            self._spare_ticks[key] = 0
            for instance in surplus:
                self.fleet.remove(key, instance)

    def _best(self, queue: Queue, uncovered_rps: float) -> Instance | None:
        """The instance with the highest CRE, of the largest batch that can be placed and filled."""
        held = self.fleet.by_worker()
        for row in self.sizings[queue.key].values():
            best: tuple[float, Instance] | None = None
            for worker in self.cluster.holders[queue.stage.name].values():
                free_pct = FULL_SHARE - sum(i.config.share_pct for i in held[worker.id])
                free_cpus = (worker.spec.cores or UNCOUNTED_CPUS) - sum(i.config.cpus for i in held[worker.id])
                for o in row:
                    if o.min_rps > uncovered_rps or o.config.share_pct > free_pct or o.config.cpus > free_cpus:
                        continue
                    value = cre(o, self._best_efficiency[queue.key], worker.spec, free_pct, free_cpus)
                    if best is None or value > best[0]:
                        best = (value, Instance(worker.id, o.config, o.max_rps, o.min_rps, o.timeout_ns))
            if best is not None:
                return best[1]
        return None


def _surplus(have: Sequence[Instance], rps: float) -> list[Instance]:
    """Instances that can go, newest first, such that the others still cover the rate and are well loaded by it."""
    kept, gone = list(have), []
    for instance in reversed(have):
        max_rps, min_rps = sum(i.max_rps for i in kept), sum(i.min_rps for i in kept)
        if len(kept) == 1 or rps >= LOAD_RATE * (max_rps - min_rps) + min_rps:
            break
        if max_rps - instance.max_rps >= rps:
            kept.remove(instance)
            gone.append(instance)
    return gone


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """INFless for the registry."""
    return rival_policy(INFlessPlanner(Market(predictor, spec.space), max_open=spec.max_open))
