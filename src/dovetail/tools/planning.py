"""What Dovetail would choose for a workflow, before anything is served: configurations, frontier, neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ..errors import DovetailError
from ..live.devices import parse_device
from ..plan.options import Option
from ..plan.space import Space
from ..plan.tables import WorkflowPlan
from ..predict import Estimator
from ..profile import catalogue
from ..profile.machine import this_machine
from ..profile.store import ProfileStore
from ..profile.table import Entry, ProfileTable
from ..sim.scenario.declared import catalogue_graph
from ..state import Worker, WorkerSpec
from ..state.worker import FULL_SHARE
from ..units import MS, SECOND
from ..workflow.app import load_target
from ..workflow.graph import Graph

__all__ = ["Advice", "Step", "advise", "draw", "find_workflow"]

#: Rows of the frontier that are shown, and up to how many times the objective.
SHOWN_POINTS = 12
SHOWN_BEYOND = 2


class Step(msgspec.Struct, frozen=True):
    """The configuration of one stage."""

    node: str
    batch: int
    cpus: int
    share_pct: int
    #: Run time of a batch, and the wait for it to fill.
    run_ms: float
    fill_ms: float


class Plan(msgspec.Struct, frozen=True):
    """One point of the frontier."""

    #: The percentile of the whole workflow's time that was planned for.
    latency_ms: float
    usd_per_1000: float
    steps: list[Step]


class Advice(msgspec.Struct, frozen=True):
    """What `dovetail plan` prints."""

    workflow: str
    device: str
    rate_per_s: float
    objective_ms: float
    percentile: float
    feasible: bool
    chosen: Plan
    faster: Plan | None
    cheaper: Plan | None
    #: Devices that this rate keeps busy in the chosen configurations.
    devices: float
    #: (latency in ms, $ per 1,000 requests), fastest first.
    frontier: list[tuple[float, float]]


def find_workflow(target: str) -> Graph:
    """A workflow by ``module:attribute`` (the only one, or ``module:attribute/name``) or by its catalogue name."""
    if ":" not in target:
        return catalogue_graph(target)[0]
    where, _, name = target.partition("/")
    app = load_target(where)
    if not name and len(app.workflows) == 1:
        return app.graphs[0]
    if name in app.workflows:
        return app.workflows[name].graph
    raise DovetailError(f"say which workflow: {', '.join(f'{where}/{w}' for w in app.workflows)}")


def _entries(graph: Graph, device: str, store: Path) -> tuple[list[Entry], list[WorkerSpec]]:
    """Profiles of all stages, and one worker of each kind to price them with."""
    cpu = device == "cpu" or device.startswith("cpu:")
    workers, _, _ = parse_device(
        device if cpu else f"emulated:{device}", [s for s in graph.stages if s.on_host or cpu], 1
    )
    kinds: dict[str, WorkerSpec] = {w.kind: w for w in workers}
    measured = ProfileStore(store).entries(graph.stages, this_machine()) if store.exists() else []
    found = {(e.stage, e.kind): e for e in measured}
    if not cpu:
        for stage in graph.stages:
            entry = None if stage.on_host else catalogue.modelled(stage, device)
            if entry is not None:
                found[stage.name, device] = entry
    missing = [s.name for s in graph.stages if not any(stage == s.name for stage, _ in found)]
    models = [s for s in missing if not next(x for x in graph.stages if x.name == s).on_host]
    if models:
        remedy = (
            f"measure them first: dovetail profile ... --store {store}"
            if cpu
            else "say which model of the catalogue each is like: onnx(..., like='resnet50')"
        )
        raise DovetailError(f"nobody knows how long {', '.join(models)} take(s) on {device}; {remedy}")
    return list(found.values()), list(kinds.values())


def advise(
    graph: Graph,
    *,
    rate_per_s: float,
    device: str = "cpu",
    store: Path = Path("profiles.sqlite"),
    slo_ns: int = 0,
    percentile: float = 0.99,
) -> Advice:
    """The cheapest plan in time at this rate, its neighbours, and the whole frontier."""
    if slo_ns:
        graph = msgspec.structs.replace(graph, slo_ns=slo_ns)
    entries, specs = _entries(graph, device, store)
    workers = [Worker(i + 1, spec) for i, spec in enumerate(specs)]
    holders: dict[str, Mapping[int, Worker]] = {
        stage.name: {w.id: w for w in workers if stage.kind in w.spec.runs} for stage in graph.stages
    }
    grid = catalogue.device(device).shares_pct if device in catalogue.devices() else ()
    space = Space(shares_pct=grid) if grid else Space()
    # The frontier goes on beyond the objective, so that the next cheaper plan is known even if it would be late.
    beyond = msgspec.structs.replace(graph, slo_ns=SHOWN_BEYOND * graph.slo_ns)
    plan = WorkflowPlan(beyond, Estimator(ProfileTable(entries)), space, percentile)
    interval_ns = round(SECOND / rate_per_s)
    plan.build(holders, {s.name: interval_ns for s in graph.stages})
    times, costs, _ = plan.frontiers().points(0)
    frontier = [(float(t) / MS, float(c) * 1000) for t, c in zip(times, costs, strict=True)]
    at = max((i for i, (ms, _) in enumerate(frontier) if ms <= graph.slo_ns / MS), default=0)
    feasible = frontier[at][0] <= graph.slo_ns / MS

    def point(index: int) -> Plan:
        options = plan.frontiers().plan(int(times[index])) or plan.fastest
        return Plan(frontier[index][0], frontier[index][1], _steps(graph, plan, options))

    def neighbour(step: int) -> Plan | None:
        """The nearest point that is a different plan worth telling: at least 1 % in cost away."""
        index = at + step
        while 0 <= index < len(frontier):
            if abs(frontier[index][1] / frontier[at][1] - 1) >= 0.01:
                return point(index)
            index += step
        return None

    chosen = point(at)
    share_ns = sum(
        s.share_pct * s.run_ms * MS / s.batch for s in chosen.steps if s.share_pct and not _on_host(graph, s)
    )
    return Advice(
        workflow=graph.name,
        device=device,
        rate_per_s=rate_per_s,
        objective_ms=graph.slo_ns / MS,
        percentile=percentile,
        feasible=feasible,
        chosen=chosen,
        faster=neighbour(-1),
        cheaper=neighbour(1),
        devices=rate_per_s * share_ns / FULL_SHARE / SECOND,
        frontier=frontier,
    )


def _on_host(graph: Graph, step: Step) -> bool:
    return next(graph.stage_of(i).on_host for i, n in enumerate(graph.nodes) if n.name == step.node)


def _steps(graph: Graph, plan: WorkflowPlan, options: Sequence[Option]) -> list[Step]:
    steps = []
    for index, (node, option) in enumerate(zip(graph.nodes, options, strict=True)):
        config = option.config
        fill_ns = plan.fill_ns[index, config.batch]
        run_ms = (option.mean_ns - fill_ns) / MS
        steps.append(Step(node.name, config.batch, config.cpus, config.share_pct, run_ms, fill_ns / MS))
    return steps


def shown(frontier: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Some of the points, evenly over the frontier, both ends included."""
    count = min(SHOWN_POINTS, len(frontier))
    if count < 2:
        return list(frontier)
    return [frontier[round(i * (len(frontier) - 1) / (count - 1))] for i in range(count)]


def draw(advice: Advice, path: Path) -> None:
    """The frontier as a picture."""
    from matplotlib.figure import Figure

    from .plots import COLOURS, GREY

    figure = Figure((6.4, 4.0), dpi=130, layout="constrained")
    axes = figure.subplots()
    xs, ys = zip(*advice.frontier, strict=True)
    axes.step(xs, ys, where="post", lw=1.5, color=COLOURS[0], label="cheapest plan within that time")
    axes.plot(advice.chosen.latency_ms, advice.chosen.usd_per_1000, "o", ms=8, color=COLOURS[1], label="chosen")
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
