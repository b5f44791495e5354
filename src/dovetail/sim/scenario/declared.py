"""Workflows without code: those of the catalogue, and those that a scenario writes out stage by stage."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ...errors import DovetailError
from ...profile import catalogue
from ...profile.curve import Curve
from ...profile.table import Entry, Point
from ...units import MS
from ...workflow.graph import Graph, Node, Source, StageSpec, chain
from .file import StageEntry, Times, WorkflowEntry
from .toml_source import TomlSource

__all__ = ["catalogue_graph", "inline_graph", "timed"]


def catalogue_graph(name: str) -> tuple[Graph, dict[str, Times]]:
    """A workflow of the catalogue, and the times of its steps on the host.

    A stage is named after its model, not after its place in the workflow, so that all who use a model share one copy
    of its weights and one queue. Steps on the host are named after their place.
    """
    found = catalogue.workflow(name)
    specs: dict[str, StageSpec] = {}
    times: dict[str, Times] = {}
    for stage in found.stages:
        if stage.model:
            specs[stage.name] = _model_stage(stage.model, stage.model)
        else:
            spec = specs[stage.name] = StageSpec(f"{name}/{stage.name}", "python", (1,))
            times[spec.name] = Times(batch=(1,), ms=(stage.host_ms,))
    places = [msgspec.structs.replace(spec, name=place) for place, spec in specs.items()]
    after = {stage.name: stage.after for stage in found.stages}
    graph = chain(name, found.slo_ns, places, after, out_bytes={s.name: s.out_bytes for s in found.stages})
    nodes = tuple(msgspec.structs.replace(node, stage=specs[node.name].name) for node in graph.nodes)
    return msgspec.structs.replace(graph, stages=tuple(dict.fromkeys(specs.values())), nodes=nodes), times


def _model_stage(name: str, model_name: str, batch: tuple[int, ...] = ()) -> StageSpec:
    model = catalogue.model(model_name)
    sizes = tuple(sorted(set(batch))) or model.curve(model.home).batches
    return StageSpec(name, "model", sizes, model=model_name, weights_bytes=model.weights_bytes)


def inline_graph(entry: WorkflowEntry, key: str, file: TomlSource) -> tuple[Graph, dict[str, Times]]:
    """A workflow that is written out in the scenario, and the times of its stages."""
    for field in ("name", "slo"):
        if not getattr(entry, field):
            raise file.error(key, f"a workflow that is written out needs a {field}")
    specs = []
    times: dict[str, Times] = {}
    for number, stage in enumerate(entry.stages):
        try:
            specs.append(_stage(stage))
        except DovetailError as error:
            raise file.error(f"{key}.stages[{number}].model", str(error)) from None
        except ValueError as error:
            raise file.error(f"{key}.stages[{number}]", str(error)) from None
        if stage.time is not None:
            times[stage.name] = stage.time
    stages = {stage.name: stage for stage in entry.stages}
    after: dict[str, tuple[str, ...]] | None = None
    if any(stage.after is not None or stage.when for stage in entry.stages):
        after = {
            s.name: tuple(dict.fromkeys([*(s.after or ()), *([s.when] if s.when else [])])) for s in entry.stages
        }
    assert entry.slo is not None
    try:
        graph = chain(entry.name, int(entry.slo), specs, after)
    except DovetailError as error:
        raise file.error(f"{key}.stages", str(error)) from None
    return msgspec.structs.replace(graph, nodes=_branched(graph, stages)), times


def _stage(stage: StageEntry) -> StageSpec:
    if bool(stage.model) == (stage.time is not None):
        raise ValueError(f"stage {stage.name!r} needs either a model or a time")
    if stage.weights and (stage.host or stage.model):
        whose = "runs on the host and has no weights" if stage.host else "has the weights of its model"
        raise ValueError(f"stage {stage.name!r} {whose}; leave weights out")
    if stage.host and stage.model:
        raise ValueError(f"stage {stage.name!r} runs on the host, so it has a time and no model")
    if stage.map and stage.when:
        raise ValueError(f"stage {stage.name!r} has both map and when; filter the list in a stage before it")
    if stage.model:
        return _model_stage(stage.name, stage.model, stage.batch)
    assert stage.time is not None
    sizes = tuple(sorted(set(stage.batch or stage.time.batch)))
    if stage.host:
        return StageSpec(stage.name, "python", sizes)
    return StageSpec(stage.name, "model", sizes, weights_bytes=int(stage.weights))


def _branched(graph: Graph, stages: Mapping[str, StageEntry]) -> tuple[Node, ...]:
    """The nodes with their conditions and maps. `chain` knows plain nodes only, so a condition is a source there."""
    index = {node.name: i for i, node in enumerate(graph.nodes)}
    nodes: list[Node] = []
    for node in graph.nodes:
        stage = stages[node.name]
        args, when = node.args, None
        if stage.when:
            when = Source(index[stage.when])
            data = tuple(s for s in args if s != when or stage.when in (stage.after or ()))
            args = data or (Source(-1),)
        if stage.map:
            domains = [_domain(nodes, s) for s in args]
            first = next((d for d in domains if d is not None), None)
            args = tuple(
                Source(s.node, each=d is not None and d == first) for s, d in zip(args, domains, strict=True)
            )
        nodes.append(msgspec.structs.replace(node, args=args, mapped=stage.map, when=when))
    return tuple(nodes)


def _domain(nodes: list[Node], source: Source) -> int | None:
    """The node whose list decides how many items a mapped source has; None for a source that is not mapped."""
    if source.node < 0 or not nodes[source.node].mapped:
        return None
    each = next((s for s in nodes[source.node].args if s.each), None)
    return source.node if each is None else _domain(nodes, each)


def timed(spec: StageSpec, kind: str, times: Times) -> Entry:
    """Times from the file. On part of a device they grow in proportion: nobody says that part would do."""
    if len(times.batch) != len(times.ms):
        raise ValueError(
            f"the time of stage {spec.name!r} has {len(times.batch)} batch sizes but {len(times.ms)} times"
        )
    means_ns = tuple(round(ms * MS) for ms in times.ms)
    curve = Curve(times.batch, means_ns, means_ns)
    if not spec.on_host:
        return Entry(spec.name, kind, curve=curve, source="scenario")
    points = tuple(Point(size, 1, ns, 0.0, 1) for size, ns in zip(times.batch, means_ns, strict=True))
    return Entry(spec.name, kind, points=points, source="scenario")
