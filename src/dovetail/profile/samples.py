"""What the profiler feeds each stage: the very items that reach it when the workflow runs on its sample.

A stage behind a detector sees crops of the sizes that the detector finds; no table of shapes says so, a run does. The
workflow runs once, in this process. Where there is no sample, random tensors stand in if every dimension is fixed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import gcd
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from ..errors import ProfileError
from ..workflow.app import App
from ..workflow.graph import Graph
from ..workflow.local import run_graph
from ..workflow.runners import Runner, StageFailed, make_runner
from ..workflow.stage import Stage
from ..workflow.tensor import NUMPY_OF, TensorSpec
from ..workflow.trace import Workflow

__all__ = ["Items", "collect", "inputs_of"]

#: Items kept of a stage: enough for a range of sizes, few enough that a cycle through them stays short.
MOST_ITEMS = 8
#: Random tensors are the same on every run.
SEED = 1

#: One item: a value per argument.
Row = tuple[Any, ...]


class Items(msgspec.Struct, frozen=True):
    """Example items of one stage."""

    rows: list[Row]

    @property
    def text(self) -> str:
        """Their types and shapes, such as ``float32[3,224,224]``; equal texts cost equal times."""
        return " | ".join(dict.fromkeys(", ".join(map(_describe, row)) for row in self.rows))

    def batches(self, size: int) -> list[list[list[Any]]]:
        """Columns of as many batches of `size` as it takes to use every item equally often.

        One will do when all items are alike.
        """
        count = len(self.rows)
        variants = 1 if " | " not in self.text else count // gcd(count, size)
        return [
            [list(column) for column in zip(*(self.rows[(v * size + i) % count] for i in range(size)), strict=True)]
            for v in range(variants)
        ]


def _describe(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{','.join(map(str, value.shape))}]"
    return f"{type(value).__name__}[{len(value)}]" if hasattr(value, "__len__") else type(value).__name__


def collect(app: App, stages: Collection[str]) -> tuple[dict[str, Items], dict[str, str]]:
    """Items by stage for at least `stages`; for each stage without any, why, and what to do about it."""
    rows: dict[str, list[Row]] = {}
    why_not: dict[str, str] = {}
    for workflow in app.workflows.values():
        if workflow.stages.keys().isdisjoint(stages):
            continue
        inputs, trouble = inputs_of(workflow)
        if inputs is None:
            why_not |= dict.fromkeys(workflow.stages, trouble)
        else:
            why_not |= _observe(workflow, inputs, rows)
    items = {name: Items(_alike(found)) for name, found in rows.items()}
    for name, stage in app.stages.items():
        if name not in items and (made := _from_file(stage)) is not None:
            items[name] = Items([made])
    return items, {name: why for name, why in why_not.items() if name not in items}


def _observe(workflow: Workflow, inputs: list[Any], rows: dict[str, list[Row]]) -> dict[str, str]:
    """Run the workflow and add the items that its stages are given; which stages were given none, and why.

    A step whose condition is false is fed with what it would have been given: the large model of a cascade needs a
    profile, too, also if the small one is sure of the sample.
    """
    graph = workflow.graph
    seen: dict[int, list[Row]] = {}
    running = -1

    def observe(node: int, columns: list[list[Any]]) -> None:
        nonlocal running
        running = node
        seen.setdefault(node, list(zip(*columns, strict=True)))

    runners: dict[str, Runner] = {name: make_runner(stage) for name, stage in workflow.stages.items()}
    try:
        run_graph(graph, runners, inputs, observe)
    except StageFailed as error:
        source, remedy = (
            ("sample", "correct the stage or the sample")
            if workflow.sample is not None
            else ("run on random tensors", "add sample=... to @workflow with inputs that the stages can take")
        )
        raise ProfileError(f"the {source} of workflow {workflow.name!r} failed: {error}; {remedy}") from error
    skipped = {i for i, node in enumerate(graph.nodes) if node.when is not None and i not in seen}
    if skipped:
        nodes = (structs.replace(n, when=None) if i in skipped else n for i, n in enumerate(graph.nodes))
        try:
            run_graph(structs.replace(graph, nodes=tuple(nodes)), runners, inputs, observe)
        except StageFailed:  # what the condition keeps from it is perhaps just what it cannot take
            if running in skipped:
                del seen[running]
    for index, found in seen.items():
        rows.setdefault(graph.nodes[index].stage, []).extend(found)
    return {
        node.stage: f"the sample of workflow {workflow.name!r} does not reach it: "
        f"its {'list is empty' if node.when is None else 'condition is false'}; give a sample that does"
        for index, node in enumerate(graph.nodes)
        if index not in seen
    }


def inputs_of(workflow: Workflow) -> tuple[list[Any] | None, str]:
    """Values for the workflow's inputs, or None and the reason."""
    graph = workflow.graph
    if workflow.sample is not None:
        return _sampled(graph, workflow.sample), ""
    made = [_random(TensorSpec(port.datatype, port.shape)) for port in graph.inputs]
    for port, value in zip(graph.inputs, made, strict=True):
        if value is None:
            return None, (
                f"workflow {graph.name!r} has no sample and its input {port.name!r} ({port.datatype} "
                f"{list(port.shape)}) cannot be made up; add sample=lambda: {{{port.name!r}: ...}} to its @workflow"
            )
    return made, ""


def _sampled(graph: Graph, sample: Any) -> list[Any]:
    try:
        given = sample()
    except Exception as error:
        raise ProfileError(
            f"the sample of workflow {graph.name!r} raised {type(error).__name__}: {error}; correct it"
        ) from error
    names = [port.name for port in graph.inputs]
    if not isinstance(given, Mapping) or set(given) != set(names):
        gave = sorted(given) if isinstance(given, Mapping) else type(given).__name__
        raise ProfileError(
            f"the sample of workflow {graph.name!r} gives {gave}; it must give a dict with the inputs {names}"
        )
    return [given[name] for name in names]


def _alike(rows: Sequence[Row]) -> list[Row]:
    """At most `MOST_ITEMS`, evenly from the list; only of the first one's number of arguments, as a batch has one."""
    same = [row for row in rows if len(row) == len(rows[0])]
    count = min(len(same), MOST_ITEMS)
    return [same[i * len(same) // count] for i in range(count)]


def _from_file(stage: Stage) -> Row | None:
    """One random item, if the model file fixes all its dimensions but the batch."""
    if stage.file is None:
        return None
    made = tuple(_random(TensorSpec(t.datatype, t.shape[1:])) for t in stage.file.inputs.values())
    return None if any(value is None for value in made) else made


def _random(tensor: TensorSpec) -> np.ndarray[Any, Any] | None:
    """A random tensor of this type, or None if it has no fixed size."""
    dtype = NUMPY_OF.get(tensor.datatype)
    if dtype is None or any(dim < 1 for dim in tensor.shape):
        return None
    rng = np.random.default_rng(SEED)
    if dtype.kind == "f":
        return rng.random(tensor.shape).astype(dtype)
    # Bytes are most often pixels; other whole numbers may be indices into a table whose length we do not know.
    return rng.integers(0, 256 if dtype == np.uint8 else 2, tensor.shape).astype(dtype)
