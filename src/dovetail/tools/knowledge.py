"""What is known of how long stages take, where that is from, and whether objectives can be met at all.

Rules of this file
- `measured` is a profile made on this kind of device. `learned` is what was seen while serving. `assumed` is what
  somebody else has published or what a scenario says. All else is `unknown`: a guess is never shown as knowledge.
- The fastest time of a workflow is the mean time along its longest way, each stage in its fastest configuration,
  alone on its device. What may be left out (conditions, empty lists) and what is unknown counts as nothing, so nobody
  is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from ..plan.space import Space, configs_for
from ..predict import Estimator, Predictor
from ..predict.similar import work_ns
from ..profile import catalogue
from ..profile.table import Entry
from ..state import Config, WorkerSpec
from ..units import format_ns
from ..workflow.graph import Graph, StageSpec

__all__ = ["Basis", "Fastest", "Known", "fastest", "known_of", "longest_ns", "outlook"]

Basis = Literal["measured", "learned", "assumed", "unknown"]
#: How each basis is called where stages are counted.
_COUNTED: dict[Basis, str] = {
    "measured": "profiled",
    "learned": "learned while serving",
    "assumed": "from the catalogue or the scenario",
    "unknown": "not known yet",
}


class Known(msgspec.Struct, frozen=True):
    """Where a stage's time on a kind of device is from."""

    stage: str
    kind: str
    basis: Basis
    why: str


def known_of(stage: StageSpec, kind: str, predictor: Predictor) -> Known:
    """Where this predictor has the stage's time from."""
    entry = predictor.table.entry(stage.name, kind) if isinstance(predictor, Estimator) else None
    if entry is not None:
        return Known(stage.name, kind, *_of_entry(stage, entry))
    estimate = predictor.run(stage, kind, stage.batch[0], Config(stage.batch[0], 1, 100))
    if estimate.source == "learned":
        runs = predictor.state().runs
        seen = sum(run.count for run in runs if (run.stage, run.kind) == (stage.name, kind))
        return Known(stage.name, kind, "learned", f"seen {seen} times while serving")
    if estimate.source == "profile":
        return Known(stage.name, kind, "measured", "profile")
    if not work_ns(stage):
        return Known(stage.name, kind, "unknown", "nobody has measured it")
    others = predictor.similar(stage, kind) if isinstance(predictor, Estimator) else []
    by = f", by what {', '.join(others)} take" if others else ""
    why = f"nobody has measured it; its {stage.macs / 1e6:,.0f} million multiply-accumulates suggest about "
    return Known(stage.name, kind, "unknown", f"{why}{format_ns(estimate.mean_ns)}{by}")


def _of_entry(stage: StageSpec, entry: Entry) -> tuple[Basis, str]:
    if entry.source.startswith("measured"):
        return "measured", entry.source.removeprefix("measured ")
    if not entry.source.startswith("catalogue model"):
        return "assumed", entry.source or "given"
    name = stage.like or stage.model
    evidence = catalogue.model(name).evidence(entry.kind)
    stands_in = f"taken to be like {name}; " if stage.like else ""
    doubt = "" if evidence.verified else ", unverified"
    return "assumed", f"{stands_in}catalogue, {evidence.basis} from {evidence.source}{doubt}"


class Fastest(msgspec.Struct, frozen=True):
    """The least time that a workflow can take, and what that rests on."""

    workflow: str
    slo_ns: int
    mean_ns: int
    stages: tuple[Known, ...]
    #: Stages that every request goes through: the others count as nothing.
    needed: tuple[str, ...]

    @property
    def hopeless(self) -> bool:
        """Whether nobody can meet the objective, whatever is still unknown."""
        return self.mean_ns > self.slo_ns

    def __str__(self) -> str:
        bases: dict[Basis, list[str]] = {}
        for stage in self.stages:
            if stage.stage in self.needed:
                bases.setdefault(stage.basis, []).append(stage.stage)
        unknown = bases.pop("unknown", [])
        what = "its fastest plan takes" if not unknown else "the stages that are known take alone"
        figures = "; ".join(f"{_COUNTED[basis]}: {', '.join(names)}" for basis, names in bases.items())
        missing = f"; unknown: {', '.join(unknown)}" if unknown else ""
        return (
            f"nobody can meet the objective of {self.workflow!r}, {format_ns(self.slo_ns)}: {what} "
            f"{format_ns(self.mean_ns)} on average on idle devices ({figures}{missing})"
        )


def longest_ns(graph: Graph, node_ns: Callable[[int], float]) -> float:
    """The sum of these times along the longest way."""
    ends: list[float] = []
    for index, node in enumerate(graph.nodes):
        ends.append(node_ns(index) + max((ends[s.node] for s in node.sources() if s.node >= 0), default=0.0))
    return max(ends, default=0.0)


def fastest(graph: Graph, workers: Iterable[WorkerSpec], predictor: Predictor, space: Space | None = None) -> Fastest:
    """The least time of a workflow on such workers."""
    specs = list({(w.kind, w.cores): w for w in workers}.values())
    least_ns: dict[str, int] = {}
    known: dict[str, Known] = {}
    for stage in graph.stages:
        best: tuple[int, Known] | None = None
        for worker in (w for w in specs if stage.kind in w.runs):
            basis = known_of(stage, worker.kind, predictor)
            configs = configs_for(stage, worker, space or Space())
            times = [predictor.run(stage, worker.kind, c.batch, c).mean_ns for c in configs]
            # On some worker it is unknown: there it may be as fast as can be.
            found = (0 if basis.basis == "unknown" else min(times), basis)
            best = found if best is None or found[0] < best[0] else best
        if best is not None:
            least_ns[stage.name], known[stage.name] = best

    def node_ns(index: int) -> int:
        node = graph.nodes[index]
        return 0 if node.when is not None or node.mapped else least_ns.get(node.stage, 0)

    needed = tuple(node.stage for node in graph.nodes if node.when is None and not node.mapped)
    return Fastest(graph.name, graph.slo_ns, round(longest_ns(graph, node_ns)), tuple(known.values()), needed)


def outlook(
    graphs: Sequence[Graph], workers: Sequence[WorkerSpec], predictor: Predictor, space: Space | None = None
) -> list[str]:
    """For people, at the start: what is known of the stages' times, and which objectives nobody can meet."""
    found = [fastest(graph, workers, predictor, space) for graph in graphs]
    stages = {known.stage: known for one in found for known in one.stages}
    counted: dict[Basis, list[str]] = {}
    for known in stages.values():
        counted.setdefault(known.basis, []).append(known.stage)
    parts = [f"{len(counted[basis])} {word}" for basis, word in _COUNTED.items() if basis in counted]
    unknown = f" ({', '.join(counted['unknown'])})" if "unknown" in counted else ""
    lines = [f"how long stages take: of {len(stages)}, {', '.join(parts)}{unknown}"]
    return lines + [str(one) for one in found if one.hopeless]
