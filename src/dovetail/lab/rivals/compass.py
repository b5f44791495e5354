"""Compass (first called Navigator) as its authors coded it, and HEFT as they compare it with.

Our own implementation after arXiv 2402.17652 and the authors' public code: their simulator (aliciayuting/
NavigatorSimulator) and the scheduler inside Cascade (aliciayuting/cascade, branches `navigator` and
`experiment_navigator_comparison`). The paper's body was not at hand.

Planning, when a request arrives at its ingress worker: nodes in order of upward rank, each on the worker where it
could start first. Adjustment, when an item's inputs are there: if its planned worker has too long a queue, the worker
with the least wait and fetch. Where simulator and Cascade differ there is a switch: of the router in `CompassForm`,
of the worker (whether a wait counts the task that runs, how memory is managed) in `place.tickets.Rules`, and whether
workflows share models is the graphs' to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from ...control import Policy
from ...place.rank import rank_order, sources_of, upward_ranks
from ...place.transfer import CASCADE, SIMULATOR, Delays, Links
from ...predict import Predictor
from ...state import CompiledGraph, Config, Item, Request, Worker
from ...state.worker import FULL_SHARE
from ...wiring import PolicySpec
from ...workflow.graph import StageSpec
from .routed import PlannedRouter, can_run, routed_policy

__all__ = ["CASCADE_FORM", "HEFT_FORM", "SIMULATOR_FORM", "CompassForm", "CompassRouter", "make", "make_heft"]

#: Free memory of a worker that does not say how much it has.
UNLIMITED_BYTES: Final = 1 << 62


class CompassForm(msgspec.Struct, frozen=True):
    """Which Compass. The defaults are Cascade's; [S] marks what the authors' simulator does instead."""

    links: Links = CASCADE
    #: A worker's wait counts. Off: all are taken to be idle (ablation, and HEFT). [both]
    load: bool = True
    #: Fetching a model counts. Off: it takes no time (`consider_gpu_model_locality`). [both]
    locality: bool = True
    #: The entry's input reaches another worker at now + its delay, so that among idle workers the ingress wins.
    #: [S: the delay is counted from time nought and so never matters; the first of the list wins]
    entry_from_now: bool = True
    #: Results go from device to device. Cascade counts the way between hosts only. [S: device to device]
    device_results: bool = False
    #: Inputs are copied to the device before a task runs: added to its planned end. [S: not]
    stage_inputs: bool = True
    #: A fetch planned for a worker makes its memory *less* full in later steps of the plan, because the simulator's
    #: "available memory" is the memory in use. [S]
    memory_slip: bool = False
    #: Adjustment at hand-over; off in the authors' scalability figure. [both have the switch]
    adjust: bool = True
    #: A planned worker is kept while its wait is at most this many run times (`RESCHEDULE_THREASHOLD`). [both]
    threshold: float = 1.5
    #: A join stays where it was planned, since its senders do not talk to each other. [both]
    pin_joins: bool = True
    #: Adjustment counts the way of the input to another worker. [S]
    adjust_counts_input: bool = False


#: Cascade's scheduler, for the comparison on five workers.
CASCADE_FORM: Final = CompassForm()
#: The authors' simulator as it made the scalability figure.
SIMULATOR_FORM: Final = CompassForm(
    links=SIMULATOR,
    entry_from_now=False,
    device_results=True,
    stage_inputs=False,
    memory_slip=True,
    adjust=False,
    adjust_counts_input=True,
)
#: HEFT as the authors compare with: the same plan without load and without models, and no adjustment. In Cascade's
#: form, since in the simulator's every entry task goes to the first worker.
HEFT_FORM: Final = CompassForm(load=False, locality=False, adjust=False)


class _Shape(msgspec.Struct, frozen=True):
    """What does not change about a workflow."""

    sources: list[tuple[int, ...]]
    in_bytes: list[int]
    #: Time that each node's result takes to another worker, in ranks and in plans.
    rank_move_ns: list[int]
    move_ns: list[int]
    fetch_ns: list[int]


class CompassRouter(PlannedRouter):
    """Compass for one ingress.

    `home` is the number of the worker that it runs beside, 0 if it is beside none. `in_bytes` says how large the
    input of a node is, by workflow and node name; otherwise it is the largest of what its sources hand on, and for an
    entry its own output, which is what Cascade's profiles come to.
    """

    def __init__(
        self,
        predictor: Predictor,
        form: CompassForm = CASCADE_FORM,
        *,
        home: int = 0,
        in_bytes: Mapping[tuple[str, str], int] | None = None,
    ) -> None:
        super().__init__()
        self.form = form
        self.home = home
        self._predictor = predictor
        self._delays = Delays(form.links)
        self._in_bytes = in_bytes or {}
        self._shapes: dict[str, _Shape] = {}
        self._orders: dict[tuple[str, tuple[int, ...]], list[int]] = {}

    def decide(self, request: Request, now_ns: int) -> dict[int, int]:
        """The planning phase. Ends, waits and memory are copies, changed as the plan grows."""
        form = self.form
        graph = request.graph
        shape = self.shape(graph)
        members = list(self.members.values())
        free_at_ns = [now_ns + self._wait_ns(w.id) for w in members]
        free_bytes = [self._free_bytes(w) for w in members]
        plan: dict[int, int] = {}
        ends: dict[int, tuple[int, int]] = {}
        for node in self._order(graph, shape, members):
            stage = graph.nodes[node].stage
            fetch_ns = shape.fetch_ns[node] if form.locality else 0
            weights = stage.weights
            best, best_ns, best_fetches = -1, 0, False
            inputs = [(*ends[s], shape.move_ns[s]) for s in shape.sources[node] if s in ends]
            entry_ns = now_ns
            if not shape.sources[node] and form.entry_from_now:
                entry_ns += self._delays.message_ns(shape.in_bytes[node])
            for position, worker in enumerate(members):
                if not can_run(worker, stage):
                    continue
                start_ns = free_at_ns[position]
                if not inputs and worker.id != self.home and entry_ns > start_ns:
                    start_ns = entry_ns
                for source_position, end_ns, move_ns in inputs:
                    arrive_ns = end_ns if source_position == position else end_ns + move_ns
                    if arrive_ns > start_ns:
                        start_ns = arrive_ns
                fetches = False
                if fetch_ns and not self._has(worker.id, weights):
                    fetches = True
                    # The second fetch stands for evicting something first.
                    start_ns += fetch_ns if stage.weights_bytes <= free_bytes[position] else 2 * fetch_ns
                if best < 0 or start_ns < best_ns:
                    best, best_ns, best_fetches = position, start_ns, fetches
            if best < 0:
                continue  # no member could run it; maybe one joins by the time it comes up
            end_ns = best_ns + self._run_ns(stage, members[best])
            if form.stage_inputs:
                end_ns += self._delays.result_ns(shape.in_bytes[node])
            free_at_ns[best] = end_ns
            ends[node] = best, end_ns
            plan[node] = members[best].id
            if best_fetches:
                self._reserve(free_bytes, best, members[best], stage)
        return plan

    def replace(self, item: Item, now_ns: int) -> int | None:
        """The worker where it could start first, by the planner's formula."""
        graph = item.request.graph
        able = self.able(graph.nodes[item.node].stage)
        return min(able, key=lambda w: self._least_wait_ns(w, item, input_counts=True)).id if able else None

    def move(self, item: Item, planned: int, now_ns: int) -> int:
        """The adjustment phase. Entries are sent as planned; so are joins, unless the form moves them."""
        form = self.form
        graph = item.request.graph
        sources = self.shape(graph).sources[item.node]
        if not form.adjust or not sources or (form.pin_joins and len(sources) > 1):
            return planned
        stage = graph.nodes[item.node].stage
        if self._wait_ns(planned) <= form.threshold * self._run_ns(stage, self.members[planned]):
            return planned
        counts = form.adjust_counts_input
        return min(self.able(stage), key=lambda w: self._least_wait_ns(w, item, input_counts=counts)).id

    def shape(self, graph: CompiledGraph) -> _Shape:
        """What is worked out once per workflow."""
        known = self._shapes.get(graph.name)
        if known is None:
            known = self._shapes[graph.name] = self._measure(graph)
        return known

    def _measure(self, graph: CompiledGraph) -> _Shape:
        delays = self._delays
        nodes = graph.graph.nodes
        sources = sources_of(graph.graph)
        in_bytes = []
        for node, before in zip(nodes, sources, strict=True):
            usual = max((nodes[s].out_bytes for s in before), default=node.out_bytes)
            in_bytes.append(self._in_bytes.get((graph.name, node.name), usual))
        between = [delays.result_ns(n.out_bytes) for n in nodes]
        return _Shape(
            sources,
            in_bytes,
            between,
            between if self.form.device_results else [delays.message_ns(n.out_bytes) for n in nodes],
            [delays.load_ns(n.stage.weights_bytes) for n in graph.nodes],
        )

    def _order(self, graph: CompiledGraph, shape: _Shape, members: list[Worker]) -> list[int]:
        """Nodes by rank, with the run times of the first member that could run each: all are taken to be alike."""
        run_ns = []
        for node in graph.nodes:
            able = next((w for w in members if can_run(w, node.stage)), None)
            run_ns.append(0 if able is None else self._run_ns(node.stage, able))
        key = graph.name, tuple(run_ns)
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = rank_order(upward_ranks(graph.graph, run_ns, shape.rank_move_ns))
        return order

    def _run_ns(self, stage: StageSpec, worker: Worker) -> int:
        # One task at a time on the whole device, which is how Compass's workers run.
        return self._predictor.run(stage, worker.spec.kind, 1, Config(1, worker.spec.cores or 1, FULL_SHARE)).mean_ns

    def _wait_ns(self, worker: int) -> int:
        row = self.rows.get(worker)
        return row.wait_ns if row is not None and self.form.load else 0

    def _has(self, worker: int, weights: str) -> bool:
        row = self.rows.get(worker)
        return row is not None and weights in row.resident

    def _free_bytes(self, worker: Worker) -> int:
        if not worker.spec.memory_bytes:
            return UNLIMITED_BYTES
        row = self.rows.get(worker.id)
        return worker.spec.memory_bytes if row is None else row.free_bytes

    def _reserve(self, free_bytes: list[int], position: int, worker: Worker, stage: StageSpec) -> None:
        """Note a planned fetch. The planner does not note that the model will be there: a second task pays again."""
        size = stage.weights_bytes
        if self.form.memory_slip:
            if worker.spec.memory_bytes - free_bytes[position] >= size:
                free_bytes[position] += size
        elif size <= free_bytes[position]:
            free_bytes[position] -= size

    def _least_wait_ns(self, worker: Worker, item: Item, *, input_counts: bool) -> int:
        """Wait and fetch on a worker, and the way of the input if that counts."""
        graph = item.request.graph
        stage = graph.nodes[item.node].stage
        shape = self.shape(graph)
        at_ns = self._wait_ns(worker.id)
        if input_counts and worker.id != (item.origin or self.home):
            at_ns += self._delays.message_ns(shape.in_bytes[item.node])
        fetch_ns = shape.fetch_ns[item.node] if self.form.locality else 0
        if fetch_ns and not self._has(worker.id, stage.weights):
            at_ns += fetch_ns if stage.weights_bytes <= self._free_bytes(worker) else 2 * fetch_ns
        return at_ns


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """Compass for the registry."""
    return routed_policy(spec, predictor, cores, home, lambda predictor: CompassRouter(predictor, home=home))


def make_heft(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """HEFT for the registry."""
    return routed_policy(
        spec, predictor, cores, home, lambda predictor: CompassRouter(predictor, HEFT_FORM, home=home)
    )
