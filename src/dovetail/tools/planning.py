"""What Dovetail would choose for a workflow, before anything is served: configurations, frontier, neighbours.

Rules of this file
- Nothing is planned with a time that nobody knows. Such stages are named, with what to do, and there is no plan.
- An expected time is a mean. What most requests keep is a percentile, and is called so.
- The chosen plan is a point of the frontier, and its figures are those of that point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ..errors import DovetailError
from ..live.devices import parse_device
from ..plan.options import Option
from ..plan.space import Space
from ..plan.tables import WorkflowPlan
from ..predict import Estimator, EstimatorState
from ..profile import catalogue
from ..profile.machine import CPU, HOST, this_machine
from ..profile.record import FRESH, MISSING
from ..profile.store import ProfileStore
from ..profile.table import Entry, ProfileTable
from ..record.learned import judge_learned, known_state
from ..sim.scenario.declared import catalogue_graph, timed
from ..sim.scenario.file import Times
from ..state import Worker, WorkerSpec
from ..state.worker import FULL_SHARE
from ..units import MS, SECOND
from ..workflow.app import load_target
from ..workflow.graph import Graph, StageSpec
from .knowledge import Known, known_of, longest_ns

__all__ = ["Advice", "Plan", "Step", "Wanted", "advise", "draw", "find_workflow", "shown"]

#: Rows of the frontier that are shown, and up to how many times the objective.
SHOWN_POINTS = 12
SHOWN_BEYOND = 2


class Wanted(msgspec.Struct, frozen=True):
    """A workflow as the user names it."""

    target: str
    graph: Graph
    #: Stage on the host -> its times in the catalogue.
    times: dict[str, Times] = {}


class Step(msgspec.Struct, frozen=True):
    """The configuration of one stage."""

    node: str
    batch: int
    cpus: int
    share_pct: int
    #: Mean run time of a batch, and the mean wait of its items for it to fill.
    run_ms: float
    fill_ms: float
    #: Where the run time is from.
    basis: str


class Plan(msgspec.Struct, frozen=True):
    """One point of the frontier."""

    #: Mean time of the whole workflow.
    expected_ms: float
    #: What the planned part of requests (`Advice.percentile`) keeps.
    percentile_ms: float
    usd_per_1000: float
    steps: list[Step]


class Advice(msgspec.Struct, frozen=True):
    """What `dovetail plan` prints."""

    workflow: str
    device: str
    rate_per_s: float
    objective_ms: float
    percentile: float
    #: Whether the percentile is within the objective; None if nobody can tell.
    feasible: bool | None
    #: Stage by stage where its time is from, and of the unknown ones what to do.
    stages: list[Known]
    remedies: list[str]
    #: What is taken for granted.
    notes: list[str]
    chosen: Plan | None = None
    faster: Plan | None = None
    cheaper: Plan | None = None
    #: Devices that this rate keeps busy in the chosen configurations.
    devices: float = 0.0
    #: (percentile in ms, $ per 1,000 requests), fastest first; and which of them is the chosen plan.
    frontier: list[tuple[float, float]] = []
    chosen_at: int | None = None


def find_workflow(target: str) -> Wanted:
    """A workflow by ``module:attribute`` (the only one, or ``module:attribute/name``) or by its catalogue name."""
    if ":" not in target:
        return Wanted(target, *catalogue_graph(target))
    where, _, name = target.partition("/")
    app = load_target(where)
    if not name and len(app.workflows) == 1:
        return Wanted(where, app.graphs[0])
    if name in app.workflows:
        return Wanted(where, app.workflows[name].graph)
    raise DovetailError(f"say which workflow: {', '.join(f'{where}/{w}' for w in app.workflows)}")


def _is_cpu(device: str) -> bool:
    return device == CPU or device.startswith(f"{CPU}:")


def _entries(wanted: Wanted, device: str, store: ProfileStore | None) -> list[Entry]:
    """What is known beforehand: profiles of this machine, the catalogue, and what it says of steps on the host."""
    stages = wanted.graph.stages
    measured = [] if store is None else store.entries(stages, this_machine())
    found = {(e.stage, e.kind): e for e in measured}
    for name, times in wanted.times.items():
        spec = next(s for s in stages if s.name == name)
        entry = msgspec.structs.replace(timed(spec, HOST, times), source="catalogue's step on the host")
        found.setdefault((name, HOST), entry)
    for stage in () if _is_cpu(device) else stages:
        curve = None if stage.on_host else catalogue.modelled(stage, device)
        if curve is not None:
            found[stage.name, device] = curve
    return list(found.values())


def _learned(wanted: Wanted, store: ProfileStore | None) -> EstimatorState:
    """What servers have learned of these stages on this machine."""
    rows = [] if store is None else store.learned()
    return known_state(judge_learned(rows, this_machine(), wanted.graph.stages))


def _remedies(
    stages: Sequence[StageSpec], wanted: Wanted, device: str, store: ProfileStore | None, named: bool
) -> list[str]:
    """What to do about stages whose times are unknown."""
    found = []
    modelled = [s.name for s in stages if s.kind == "model"]
    if modelled:
        found.append(f"{', '.join(modelled)}: of the catalogue; choose one of its devices, such as --device a100")
    unlike = [s.name for s in stages if s.name not in modelled and not s.on_host and not _is_cpu(device)]
    if unlike:
        found.append(f"{', '.join(unlike)}: say which model of the catalogue it is like: onnx(..., like='resnet50')")
    rest = [s for s in stages if s.name not in (*modelled, *unlike)]
    if rest and store is not None:
        where = f" --store {store.path}" if named else ""
        found.append(f"measure {', '.join(s.name for s in rest)}: dovetail profile {wanted.target}{where}")
        found += [str(s) for s in store.status(rest, this_machine()) if s.state not in (FRESH, MISSING)]
    return found


def _notes(graph: Graph, stages: Sequence[Known], estimator: Estimator, fanout: int, device: str) -> list[str]:
    notes = [
        "least cost within the objective, as devices that are paid by use are planned (simulate); serve uses devices "
        "that are there anyway and runs as fast as can be"
    ]
    mapped = [node.name for node in graph.nodes if node.mapped]
    if mapped:
        notes.append(f"lists are taken to have {fanout} element(s): {', '.join(mapped)} (--fanout N)")
    sometimes = [node.name for node in graph.nodes if node.when is not None]
    if sometimes:
        notes.append(f"conditions are taken to hold: {', '.join(sometimes)}")
    steady = [e.stage for e in estimator.table.entries.values() if not e.spread]
    if steady:
        notes.append(f"no spread is known of these, so their times count as exact: {', '.join(steady)}")
    if not _is_cpu(device) and any(s.kind == HOST and s.basis in ("measured", "learned") for s in stages):
        notes.append("Python stages have the times of this machine's processor")
    return notes


def advise(
    wanted: Wanted,
    *,
    rate_per_s: float,
    device: str = "cpu",
    store: ProfileStore | None = None,
    named_store: bool = False,
    slo_ns: int = 0,
    percentile: float = 0.99,
    fanout: int = 1,
) -> Advice:
    """The cheapest plan in time at this rate, its neighbours, and the whole frontier."""
    graph = msgspec.structs.replace(wanted.graph, slo_ns=slo_ns) if slo_ns else wanted.graph
    cpu = _is_cpu(device)
    runnable = [s for s in graph.stages if s.on_host or cpu]
    specs, _, _ = parse_device(device if cpu else f"emulated:{device}", runnable, 1)
    estimator = Estimator(ProfileTable(_entries(wanted, device, store)), _learned(wanted, store), stages=graph.stages)
    kind = CPU if cpu else device
    stages = [known_of(s, HOST if s.on_host else kind, estimator) for s in graph.stages]
    unknown = {known.stage for known in stages if known.basis == "unknown"}
    head = Advice(
        workflow=graph.name,
        device=device,
        rate_per_s=rate_per_s,
        objective_ms=graph.slo_ns / MS,
        percentile=percentile,
        feasible=None,
        stages=stages,
        remedies=_remedies([s for s in graph.stages if s.name in unknown], wanted, device, store, named_store),
        notes=_notes(graph, stages, estimator, fanout, device),
    )
    if unknown:
        return head
    return _planned(head, graph, specs, estimator, fanout)


def _planned(head: Advice, graph: Graph, specs: Sequence[WorkerSpec], estimator: Estimator, fanout: int) -> Advice:
    workers = [Worker(i + 1, spec) for i, spec in enumerate(specs)]
    holders = {
        stage.name: {w.spec.kind: {w.id: w} for w in workers if stage.kind in w.spec.runs} for stage in graph.stages
    }
    device = head.device
    grid = catalogue.device(device).shares_pct if device in catalogue.devices() else ()
    space = Space(shares_pct=grid) if grid else Space()
    # The frontier goes on beyond the objective, so that the next cheaper plan is known even if it would be late.
    beyond = msgspec.structs.replace(graph, slo_ns=SHOWN_BEYOND * graph.slo_ns)
    plan = WorkflowPlan(beyond, estimator, space, head.percentile)
    for index, node in enumerate(graph.nodes):
        if node.mapped:
            plan.saw_size(index, fanout)
    interval_ns = round(SECOND / head.rate_per_s)
    plan.build(holders, {s.name: interval_ns for s in graph.stages})
    basis = {known.stage: known.basis for known in head.stages}
    kinds = {known.stage: known.kind for known in head.stages}
    points = _points(plan)
    frontier = [(time_ns / MS, _usd_per_1000(options)) for time_ns, options in points]
    objective_ms = graph.slo_ns / MS
    at = max((i for i, (ms, _) in enumerate(frontier) if ms <= objective_ms), default=0)

    def point(index: int) -> Plan:
        steps = [_step(graph, plan, i, option, interval_ns, basis) for i, option in enumerate(points[index][1])]
        expected_ms = longest_ns(graph, lambda i: steps[i].run_ms + steps[i].fill_ms)
        return Plan(expected_ms, frontier[index][0], frontier[index][1], steps)

    def neighbour(step: int) -> Plan | None:
        """The nearest point that is a different plan worth telling: at least 1 % in cost away."""
        index = at + step
        while 0 <= index < len(frontier):
            if abs(frontier[index][1] / frontier[at][1] - 1) >= 0.01:
                return point(index)
            index += step
        return None

    chosen = point(at)
    share_ns = 0.0
    for node, step in zip(graph.nodes, chosen.steps, strict=True):
        items = fanout if node.mapped else 1
        batches = -(-items // step.batch)  # of a list one after the other; filled up by other requests
        if kinds[node.stage] != HOST:
            share_ns += step.share_pct * step.run_ms * MS / batches * items / step.batch
    return msgspec.structs.replace(
        head,
        feasible=frontier[at][0] <= objective_ms,
        chosen=chosen,
        faster=neighbour(-1),
        cheaper=neighbour(1),
        devices=head.rate_per_s * share_ns / FULL_SHARE / SECOND,
        frontier=frontier,
        chosen_at=at,
    )


def _usd_per_1000(options: Sequence[Option]) -> float:
    return 1000 * sum(option.cost_usd for option in options)


def _points(plan: WorkflowPlan) -> list[tuple[int, Sequence[Option]]]:
    """Time and configurations of every plan that no other beats in both time and cost, fastest first.

    Inside a fork the table of the first node knows costs only nearly, so what counts is what each plan costs. The
    fastest plan is there even if it is late.
    """
    frontiers = plan.frontiers()
    found: list[tuple[int, Sequence[Option]]] = []
    for need_ns in frontiers.points(0)[0]:
        options = frontiers.plan(int(need_ns))
        if options is not None and (not found or _usd_per_1000(options) < _usd_per_1000(found[-1][1])):
            found.append((int(need_ns), options))
    return found


def _step(
    graph: Graph, plan: WorkflowPlan, index: int, option: Option, interval_ns: int, basis: Mapping[str, str]
) -> Step:
    node, config = graph.nodes[index], option.config
    run_ms = (option.mean_ns - plan.fill_ns[index, config.batch]) / MS
    # The first item of a batch waits for all others and the last for none. A list fills its batches by itself.
    fill_ms = 0.0 if node.mapped else interval_ns * (config.batch - 1) / 2 / MS
    return Step(node.name, config.batch, config.cpus, config.share_pct, run_ms, fill_ms, basis[node.stage])


def shown(advice: Advice) -> list[int]:
    """Which points of the frontier are shown: some, evenly over it, both ends and the chosen one included."""
    size = len(advice.frontier)
    count = min(SHOWN_POINTS, size)
    rows = {round(i * (size - 1) / max(1, count - 1)) for i in range(count)}
    return sorted(rows | ({advice.chosen_at} if advice.chosen_at is not None else set()))


def draw(advice: Advice, path: Path) -> None:
    """The frontier as a picture."""
    from matplotlib.figure import Figure

    from .plots import COLOURS, GREY

    if advice.chosen is None:
        raise DovetailError("there is no plan to draw; see what to do above")
    figure = Figure((6.4, 4.0), dpi=130, layout="constrained")
    axes = figure.subplots()
    xs, ys = zip(*advice.frontier, strict=True)
    axes.step(xs, ys, where="post", lw=1.5, color=COLOURS[0], label="cheapest plan within that time")
    axes.plot(advice.chosen.percentile_ms, advice.chosen.usd_per_1000, "o", ms=8, color=COLOURS[1], label="chosen")
    axes.axvline(advice.objective_ms, ls="--", lw=1, color=GREY, label="objective")
    axes.set(
        xlabel=f"latency that {advice.percentile:.0%} of requests keep, ms",
        ylabel="$ per 1,000 requests",
        title=f"{advice.workflow} on {advice.device} at {advice.rate_per_s:g}/s",
    )
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, metadata={"Software": None})
