"""One workflow's frontiers, made from run times and prices, and what is learned about the workflow while it runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isqrt

import msgspec

from ..predict import Predictor
from ..predict.running import MILLION
from ..state import Config, Worker, WorkerSpec
from ..state.worker import FULL_SHARE
from ..workflow.graph import Graph
from .chance import Chances, StageOptions
from .dominators import successors_of
from .drift import MOST_SPREAD, PlannedWith
from .frontier import Choice, Frontiers, build
from .options import Option, Prices, item_cost_usd
from .price import Ladder, funded, funded_price_usd, is_chain, weighed
from .quantile import z_value
from .series_parallel import decompose, path_count
from .space import Space, configs_for
from .stepwise import Steps, finish

__all__ = ["Holders", "Run", "WorkflowPlan"]

#: Stage -> kind of device -> workers of that kind that hold it, the first of which stands for all of them.
Holders = Mapping[str, Mapping[str, Mapping[int, Worker]]]

#: A request whose chance of being late is what the percentile leaves may cost this part more to be in time. From the
#: cheapest to the fastest share of a stage is 12 to 26 % in the profiles at hand. [our choice]
_FASTER = 0.2
#: Where the premium does not reach, at most so many times what the percentile leaves may be late. [our choice]
_MOST_LATE = 5
#: Configurations that are looked at in one step.
_AT_ONCE = 16
#: Where nobody pays for a device, what counts is how much of it is taken.
_UNPRICED = Prices(1.0, 0.0)
#: A lean option takes at most this much more of the device than the least.
_LEAN = 1.1


def _likely_fill_ns(interval_ns: int, batch: int) -> int:
    """Within this time the rest of a batch has come in more than nine cases of ten.

    The wait for n arrivals has mean n and deviation √n intervals (Poisson). A plan that counted on the mean would
    spend money early for batches that fail to form half of the time; measured, that made strict objectives dearer.
    """
    others = batch - 1
    return interval_ns * others + interval_ns * isqrt(others * 9) // 2


class Run(msgspec.Struct, frozen=True, gc=False):
    """A configuration of a stage: what a batch takes, and share times nanoseconds that an item takes of a device."""

    config: Config
    mean_ns: int
    work: int


class WorkflowPlan(PlannedWith):
    """Frontiers and their raw material."""

    def __init__(
        self, graph: Graph, predictor: Predictor, space: Space, percentile: float, premium: float | None = None
    ) -> None:
        super().__init__(graph, predictor)
        self._graph = graph
        self.slo_ns = graph.slo_ns
        self.stages = tuple(s.name for s in graph.stages)
        self._space = space
        self._percentile = percentile
        self._premium = premium
        self._successors = successors_of(graph)
        self._shape = decompose(self._successors)
        #: (node, batch) -> wait for such a batch to fill that the node's options contain.
        self.fill_ns: dict[tuple[int, int], int] = {}
        self.options: list[list[Option]] = []
        self._smallest: list[int] = []
        #: Frontiers by (lean, means) and chances by lean, made when they are first asked for; a successor makes
        #: those of its predecessor at once.
        self._frontiers: dict[tuple[bool, bool], Frontiers] = {}
        self._quickest_ns: dict[tuple[int, int], int] = {}
        self._chances: dict[bool, Ladder | None] = {}
        #: Options, without waits -> price of a late answer.
        self._prices_usd: dict[tuple[object, ...], float] = {}
        #: False if some stage was seen a few times only, however it was run: chances are not weighed then.
        self.known = True
        #: False if some stage was never seen: nothing is refused because of a guess. How far its times scatter does
        #: not matter for that, since admission learns a margin.
        self.familiar = True
        #: Stage by stage and kind by kind, what its options were made for, and how many of these there are if they
        #: differ; and `Cluster.moves` when that was last looked at.
        self._workers: list[list[tuple[WorkerSpec, int]]] = []
        #: Kinds of devices that the same stage may run on, at most.
        self.kinds = 1
        self.moves = -1
        #: The fastest option of each node.
        self.fastest: list[Option] = []
        #: Mean time of the whole: as fast as can be, and with lean options; the former from each node on, too.
        self.quick_ns = 0
        self.path_ns = 0
        self.quick_rest_ns: list[int] = []
        #: And behind each node.
        self.after_ns: list[int] = []
        #: Node by node, its configurations and what a batch takes in each.
        self.runs: list[list[Run]] = []
        #: Stage -> what an item takes at least: share times nanoseconds of a device, nanoseconds of a host process.
        self.least_work: dict[str, tuple[int, int]] = {}
        #: The same for a whole request.
        self.least_work_total = (0, 0)
        #: Node -> wait to be expected in the queues behind it.
        self.waits_behind_ns = [0] * len(graph.nodes)

    def build(self, holders: Holders, intervals_ns: Mapping[str, int]) -> None:
        """Make the frontiers for the workers that hold the stages now and for arrivals as they are now."""
        finish(self.make(holders, intervals_ns))

    def again(self, holders: Holders, intervals_ns: Mapping[str, int]) -> Steps[WorkflowPlan]:
        """The same workflow as it is now, with all tables that were asked of this one; this one stays as it is."""
        fresh = WorkflowPlan(self._graph, self._predictor, self._space, self._percentile, self._premium)
        fresh._sizes, fresh._prices_usd = self._sizes, self._prices_usd
        fresh.waits_behind_ns = self.waits_behind_ns
        yield from fresh.make(holders, intervals_ns)
        for lean in sorted(self._chances):
            fresh._chances[lean] = yield from fresh._weigh_all(lean)
        for lean, means in self._frontiers:
            fresh.frontiers(lean=lean, means=means)
            yield
        return fresh

    def make(self, holders: Holders, intervals_ns: Mapping[str, int]) -> Steps[None]:
        """The same in short steps."""
        self.begin(self._graph, intervals_ns)
        self._workers = self._leads(holders)
        self.kinds = max(len(kinds) for kinds in self._workers)
        self.known = self.familiar = True
        self.runs = []
        self.options = []
        for node in range(len(self._graph.nodes)):
            options = yield from self._node_options(node)
            self.options.append(options)
        self.begun()
        lean = [self._lean(row) for row in self.options]
        self._frontiers.clear()
        self._quickest_ns.clear()
        self._chances.clear()
        self._smallest = [min(o.config.batch for o in row) for row in self.options]
        self.fastest = [min(row, key=lambda o: (o.mean_ns, o.cost_usd)) for row in self.options]
        sizes = [self._planned_sizes.get(i, MILLION) for i in range(len(self._graph.nodes))]
        works = [self.least_work[n.stage] for n in self._graph.nodes]
        device, host = ([w[i] * size // MILLION for w, size in zip(works, sizes, strict=True)] for i in (0, 1))
        self.least_work_total = sum(device), sum(host)
        entries = set(range(len(self.options))) - {j for row in self._successors for j in row}
        self.quick_rest_ns = self._longest([self._mean_ns(i, self.options[i]) for i in range(len(self.options))])
        self.after_ns = [max((self.quick_rest_ns[j] for j in row), default=0) for row in self._successors]
        path_ns = self._longest([self._mean_ns(i, row) for i, row in enumerate(lean)])
        self.quick_ns = max(self.quick_rest_ns[i] for i in entries)
        self.path_ns = max(path_ns[i] for i in entries)
        yield

    def frontiers(self, *, lean: bool = False, means: bool = False) -> Frontiers:
        """Time against cost for every suffix: of all options or of lean ones, at the percentile or by mean times."""
        found = self._frontiers.get((lean, means))
        if found is None:
            z = 0.0
            if self._percentile > 0.5 and not means:
                spread = max(o.spread for row in self.options for o in row)
                z = z_value(self._percentile, spread=spread, paths=path_count(self._shape))
            found = self._frontiers[lean, means] = build(self._shape, self._rows(lean), self._graph.slo_ns, z=z)
        return found

    def chances(self, *, lean: bool = False, rung: int = 0) -> Chances | None:
        """What speed is worth, with all options or with lean ones; None where plans go by percentile alone.

        A higher rung is for a lower price of a late answer; the last one stands for all above it.
        """
        ladder = self._ladder(lean)
        return None if ladder is None else ladder.rungs[min(rung, len(ladder.rungs) - 1)]

    def budget_usd(self) -> float:
        """What a request may cost on average; 0 where that is not counted."""
        ladder = self._chances.get(False)
        return 0.0 if ladder is None else ladder.budget_usd

    def _ladder(self, lean: bool) -> Ladder | None:
        if lean not in self._chances:
            self._chances[lean] = finish(self._weigh_all(lean))
        return self._chances[lean]

    def _weigh_all(self, lean: bool) -> Steps[Ladder | None]:
        found = yield from self._weighed(self._rows(lean))
        if lean and found is not None and found.rungs[0].late > self._most_late:
            found = yield from self._weighed([self._lean_by_batch(row) for row in self.options])
            if found is not None and found.rungs[0].late > self._most_late:
                found = self._ladder(False)  # to be lean would be to be late
        return found

    def _rows(self, lean: bool) -> list[list[Option]]:
        return [self._lean(row) for row in self.options] if lean else self.options

    def _mean_ns(self, node: int, row: Sequence[Option]) -> int:
        """Mean time of a node as fast as can be, without waits for a batch to fill."""
        return min(o.mean_ns - self.fill_ns[node, o.config.batch] for o in row)

    def _longest(self, times_ns: Sequence[int]) -> list[int]:
        """From each node on, the sum of these times along the longest way."""
        rest_ns = [0] * len(times_ns)
        for node in range(len(times_ns) - 1, -1, -1):
            rest_ns[node] = times_ns[node] + max((rest_ns[j] for j in self._successors[node]), default=0)
        return rest_ns

    def made_for(self, holders: Holders) -> bool:
        """Whether the stages are held by workers like those that the frontiers were made for."""
        return self._leads(holders) == self._workers

    def _leads(self, holders: Holders) -> list[list[tuple[WorkerSpec, int]]]:
        """Stage by stage the first worker of each kind that holds it, whatever its name: options are for such."""
        leads = []
        for stage in self._graph.stages:
            kinds = holders[stage.name]
            firsts = [(next(iter(of_kind.values())).spec, len(of_kind)) for of_kind in kinds.values()]
            leads.append([(msgspec.structs.replace(s, name=""), n if len(kinds) > 1 else 1) for s, n in firsts])
        return leads

    def _node_options(self, index: int) -> Steps[list[Option]]:
        """The node's configurations and what they take, on every kind of device that can run it.

        A batch is there only when its items are, so the time of an option contains the wait for them: that keeps a
        plan from counting on batches at later stages that will never form. What is at hand does not wait, so
        whoever decides for a node gives that time back (`fill_ns`). A mapped node runs as many batches as its list
        needs, one after the other, and its own list fills them.
        """
        stage = self._graph.stage_of(index)
        leads = self._workers[self.stages.index(stage.name)]
        unpriced = not any(spec.usd_per_hour or spec.usd_per_core_hour for spec, _ in leads)
        self.runs.append([])
        rows: list[Option] = []
        leasts: list[tuple[int, int]] = []
        known = familiar = False
        for worker, count in leads:
            prices = _UNPRICED if unpriced else Prices(worker.usd_per_hour, worker.usd_per_core_hour)
            found = yield from self._kind_options(index, worker, prices, worker.kind if len(leads) > 1 else "")
            rows += found[0]
            leasts.append((found[1], count))
            known, familiar = known or found[2], familiar or found[3]
        self.known = self.known and known
        self.familiar = self.familiar and familiar
        least = _on_average(leasts)
        self.least_work[stage.name] = (0, least // FULL_SHARE) if stage.on_host else (least, 0)
        return rows

    def _kind_options(
        self, index: int, worker: WorkerSpec, prices: Prices, kind: str
    ) -> Steps[tuple[list[Option], int, bool, bool]]:
        """The same on one kind of device; the least work of an item there; whether times are known, and familiar."""
        stage = self._graph.stage_of(index)
        millionths = self._planned_sizes.get(index, MILLION)
        rows: list[Option] = []
        least: int | None = None
        known = familiar = False
        for number, config in enumerate(configs_for(stage, worker, self._space, kind)):
            if number % _AT_ONCE == 0:
                yield
            estimate = self._predictor.usual(stage, worker.kind, config.batch, config)
            mean_ns, spread = estimate.mean_ns, estimate.spread
            if estimate.source != "profile":
                self._learned[stage, worker.kind, config] = estimate
                known = known or spread <= MOST_SPREAD
                familiar = familiar or estimate.source == "learned"
                spread = min(spread, MOST_SPREAD)
            else:
                known = familiar = True
                self._profiled[stage, worker.kind, config] = estimate
            work = config.share_pct * mean_ns // config.batch
            least = work if least is None else min(least, work)
            self.runs[-1].append(Run(config, mean_ns, work))
            batches = max(1, -(-millionths // (config.batch * MILLION)))
            cost = item_cost_usd(config, mean_ns, prices) * millionths / MILLION
            fill_ns = 0
            if index not in self._sizes:
                fill_ns = _likely_fill_ns(self._intervals_ns[stage.name], config.batch)
            self.fill_ns[index, config.batch] = fill_ns
            spread = spread * mean_ns / (mean_ns + fill_ns)
            rows.append(Option(config, mean_ns * batches + fill_ns, spread, cost))
        return rows, least or 0, known, familiar

    def _lean(self, row: list[Option]) -> list[Option]:
        """Options that cost hardly more than the least on that kind of device, so that speed is not bought with what
        others need. In a crowd every device is needed, also a kind that costs more."""
        limits_usd: dict[str, float] = {}
        for option in row:
            kind = option.config.kind
            limits_usd[kind] = min(limits_usd.get(kind, option.cost_usd), option.cost_usd)
        return [o for o in row if o.cost_usd <= limits_usd[o.config.kind] * _LEAN]

    def _lean_by_batch(self, row: list[Option]) -> list[Option]:
        """The same for each batch size by itself: where there is no time for large batches to fill."""
        batches = sorted({o.config.batch for o in row})
        return [o for b in batches for o in self._lean([p for p in row if p.config.batch == b])]

    @property
    def _most_late(self) -> float:
        """Part of requests that may be late to save cost."""
        return min(0.5, _MOST_LATE * (1 - self._percentile))

    def _weighed(self, rows: list[list[Option]]) -> Steps[Ladder | None]:
        """Tables that weigh the chance of being in time against cost, for known times and prices."""
        if self._premium is None or self._percentile <= 0.5 or not self.known:
            return None
        if not any(option.cost_usd for row in rows for option in row):
            return None
        stages = [
            StageOptions(row, {b: self.fill_ns[node, b] for b in sorted({o.config.batch for o in row})})
            for node, row in enumerate(rows)
        ]
        late, most_late = _FASTER / (1 - self._percentile), self._most_late
        if not is_chain(self._successors):
            return (
                yield from funded(
                    stages, self._successors, self.slo_ns, late=late, premium=self._premium, most_late=most_late
                )
            )
        # The price does not depend on arrivals, which change far more often than profiles and prices.
        key = tuple(
            (o.config, o.mean_ns - self.fill_ns[i, o.config.batch], o.spread, o.cost_usd)
            for i, r in enumerate(rows)
            for o in r
        )
        if key not in self._prices_usd:
            if len(self._prices_usd) > 7:
                self._prices_usd.clear()  # fan-outs that change make new keys all the time
            self._prices_usd[key] = yield from funded_price_usd(
                stages, self._successors, self.slo_ns, late=late, premium=self._premium, most_late=most_late
            )
        price_usd = self._prices_usd[key]
        tables = weighed(
            stages, self._successors, self.slo_ns, price_usd, late=late, premium=self._premium, most_late=most_late
        )
        return Ladder(((yield from tables),))

    def choose(
        self, node: int, left_ns: int, batch: int, *, lean: bool = False, means: bool = False
    ) -> Choice | None:
        """The cheapest choice with just this batch at the node, whose items are at hand; None if none is in time.

        `lean` leaves out what buys speed with capacity; `means` is for whom the percentile cannot be had.
        """
        fill_ns = self.fill_ns.get((node, batch))
        if fill_ns is None:
            return None
        choice = self.frontiers(lean=lean, means=means).choose(node, left_ns + fill_ns, batch)
        return choice if choice.slack_ns >= 0 and choice.option.config.batch == batch else None

    def elsewhere(self, node: int, left_ns: int, size: int, without: Collection[str]) -> list[Option]:
        """The cheapest option on each other kind of device, if it is in time on average."""
        found: dict[str, Option] = {}
        for option in sorted(self.options[node], key=lambda o: o.cost_usd) if self.kinds > 1 else ():
            config = option.config
            alone_ns = option.mean_ns - self.fill_ns[node, config.batch]
            if config.batch <= size and config.kind not in without and alone_ns + self.after_ns[node] <= left_ns:
                found.setdefault(config.kind, option)
        return list(found.values())

    def quickest_ns(self, node: int, batch: int) -> int:
        """Mean time of the fastest configuration with just this batch; 0 if there is none."""
        found = self._quickest_ns.get((node, batch))
        if found is None:
            found = min((r.mean_ns for r in self.runs[node] if r.config.batch == batch), default=0)
            self._quickest_ns[node, batch] = found
        return found

    def cheapest(self, node: int, batch_max: int) -> Option:
        """What costs least however long it takes, for work that is late already."""
        return min(
            (o for o in self.options[node] if o.config.batch <= max(batch_max, self._smallest[node])),
            key=lambda o: (o.cost_usd, o.mean_ns),
        )

    def set_waits(self, waits_ns: Mapping[str, int]) -> None:
        """Sum up, along the longest way, what queues behind each node are known to take."""
        for node in range(len(self._successors) - 1, -1, -1):
            self.waits_behind_ns[node] = max(
                (
                    waits_ns.get(self._graph.nodes[j].stage, 0) + self.waits_behind_ns[j]
                    for j in self._successors[node]
                ),
                default=0,
            )


def _on_average(leasts: Sequence[tuple[int, int]]) -> int:
    """Work of an item on all devices together: so much on each of so many of a kind, which do as many as they can."""
    if len(leasts) == 1:
        return leasts[0][0]
    rate = sum(count / max(1, work) for work, count in leasts)
    return round(sum(count for _, count in leasts) / rate)
