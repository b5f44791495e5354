"""A workflow as plain data: what the planner reads, what the simulator runs, what a log holds.

Rules of this file: no callables, no models, no clock. Everything here survives a round trip through msgpack.

A node is one call of a stage. Its arguments are sources: an input of the workflow or the output of another
node. A mapped node runs once per element of a list; when its source is itself a mapped node over the same
list, element i waits only for element i (`Source.each`), so a fan-out flows through without a barrier. A
condition is a fan-out of nought or one, which is why both are told to the controller by one number, the count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import msgspec

from ..errors import DeclarationError

__all__ = ["WHOLE", "Graph", "Node", "Port", "Source", "StageSpec", "chain"]

#: `Source.output` of a source that takes a node's whole value rather than one of its several outputs.
WHOLE = -1


class Port(msgspec.Struct, frozen=True):
    """A named input or output of a workflow with its tensor type."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class StageSpec(msgspec.Struct, frozen=True):
    """One stage: what is run, and in which batch sizes."""

    name: str
    #: "onnx", "torch" and "python" run live; "model" is an entry of the catalogue and runs on simulated devices only.
    kind: str
    batch: tuple[int, ...] = (1,)
    #: Names of the outputs when there are several; empty for one.
    outputs: tuple[str, ...] = ()
    #: What the profile is keyed by: content hash of a model or of a function's source, or catalogue name.
    model: str = ""
    #: The ONNX file, or the file from which a torch module has its weights; empty for other kinds.
    path: str = ""
    #: Value that fills up items of unequal shape; None runs them in sub-batches of equal shape.
    pad: float | None = None
    weights_bytes: int = 0
    #: Catalogue model whose curve stands in for this stage on a simulated or emulated GPU.
    like: str = ""
    #: ``module:function`` that makes a torch module, and that module's inputs, items without their batch axis.
    factory: str = ""
    inputs: tuple[Port, ...] = ()
    #: Multiply-accumulates of one item, as counted in the model file; 0: unknown.
    macs: int = 0
    #: The slice of a device that it declares: per cent of the device, and of its time; 0: as the policy has it.
    share_pct: int = 0
    quota_pct: int = 0
    #: Who is charged for its time: a workflow that declares one quota for all its stages; empty: the stage itself.
    client: str = ""

    @property
    def sliced(self) -> bool:
        """Whether its batches wait for tokens at the device."""
        return self.quota_pct > 0

    @property
    def weights(self) -> str:
        """What its weights are kept by in a worker's memory: stages of one model share one copy."""
        return self.model or self.name

    @property
    def on_host(self) -> bool:
        """True for ordinary Python, which runs in host processes and needs no device."""
        return self.kind == "python"


class Source(msgspec.Struct, frozen=True):
    """Where an argument comes from: node index, or ``-1 - k`` for input k of the workflow."""

    node: int
    output: int = WHOLE
    #: Element i of a mapped node feeds element i here.
    each: bool = False


class Node(msgspec.Struct, frozen=True):
    """One call of a stage inside a workflow."""

    name: str
    stage: str
    args: tuple[Source, ...]
    mapped: bool = False
    #: Run only if this source counts above nought; otherwise the node's value is that of `otherwise`.
    when: Source | None = None
    otherwise: Source | None = None
    #: Bytes that one item hands on; only simulated transfers read it.
    out_bytes: int = 0

    def sources(self) -> Iterable[Source]:
        """Every source this node waits for."""
        yield from self.args
        if self.when is not None:
            yield self.when
        if self.otherwise is not None:
            yield self.otherwise

    def instead(self, output: int = WHOLE) -> Source | None:
        """Where this output comes from when the condition does not hold; None if from nowhere."""
        if self.otherwise is None or output == WHOLE:
            return self.otherwise
        return Source(self.otherwise.node, output)


class Graph(msgspec.Struct, frozen=True):
    """A workflow: nodes in topological order, objective and priority (1 is the highest class)."""

    name: str
    slo_ns: int
    priority: int
    stages: tuple[StageSpec, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    #: Where each output comes from, in the order of `outputs`.
    results: tuple[Source, ...] = ()

    def stage_of(self, node: int) -> StageSpec:
        """The stage that node number `node` calls."""
        return next(s for s in self.stages if s.name == self.nodes[node].stage)

    def counted(self, node: int) -> tuple[int, ...]:
        """Outputs of `node` whose count the controller needs: lists that are mapped over, conditions."""
        return tuple(sorted({s.output for s in self._counted() if s.node == node}))

    def counted_inputs(self) -> tuple[int, ...]:
        """Inputs of the workflow whose count the controller needs, as indices into `inputs`."""
        return tuple(sorted({-1 - s.node for s in self._counted() if s.node < 0}))

    def lists(self) -> set[tuple[int, int]]:
        """Node and output (a node below zero is an input) of every list that some node is mapped over."""
        return {(s.node, s.output) for s in self._counted(conditions=False)}

    def _counted(self, *, conditions: bool = True) -> set[Source]:
        """Sources that decide how often some node runs, be it in place of a step that was skipped."""
        todo = [s for n in self.nodes for s in counted_sources(n) if conditions or s is not n.when]
        found: set[Source] = set()
        while todo:
            source = todo.pop()
            found.add(source)
            if source.node >= 0 and (instead := self.nodes[source.node].instead(source.output)) is not None:
                todo.append(instead)
        return found


def counted_sources(node: Node) -> Iterable[Source]:
    """Sources of `node` that decide how often it runs."""
    if node.mapped:
        yield from (s for s in node.args if not s.each)
    if node.when is not None:
        yield node.when


def chain(
    name: str,
    slo_ns: int,
    stages: Sequence[StageSpec],
    after: Mapping[str, Sequence[str]] | None = None,
    *,
    priority: int = 1,
    out_bytes: Mapping[str, int] | None = None,
) -> Graph:
    """A workflow from stages and who comes after whom; without `after`, one behind the other.

    This is how scenario files and the catalogue declare workflows that have no code. A cycle, an unknown or
    doubled name is refused and named.
    """
    names = [s.name for s in stages]
    if not names:
        raise DeclarationError(f"workflow {name!r} has no stages; give it at least one")
    doubled = sorted({n for n in names if names.count(n) > 1})
    if doubled:
        raise DeclarationError(f"workflow {name!r} has two stages named {doubled[0]!r}; give each its own name")
    if after is None:
        after = {b: [a] for a, b in pairwise(names)}
    before = {n: list(after.get(n, ())) for n in names}
    for stage_name, wanted in before.items():
        for source in wanted:
            if source not in before:
                raise DeclarationError(
                    f"stage {stage_name!r} of workflow {name!r} comes after {source!r}, which does not exist; "
                    f"stages are: {', '.join(names)}"
                )
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        path = " -> ".join(reversed(error.args[1]))
        raise DeclarationError(
            f"workflow {name!r} has a cycle: {path}; a stage can only use what was made before it, remove one edge"
        ) from None
    index = {n: i for i, n in enumerate(order)}
    sizes = out_bytes or {}
    nodes = tuple(
        Node(n, n, tuple(Source(index[s]) for s in before[n]) or (Source(-1),), out_bytes=sizes.get(n, 0))
        for n in order
    )
    used = {s.node for n in nodes for s in n.args}
    exits = [i for i in range(len(nodes)) if i not in used]
    return Graph(
        name=name,
        slo_ns=slo_ns,
        priority=priority,
        stages=tuple(stages),
        nodes=nodes,
        inputs=(Port("input", "BYTES", (1,)),),
        outputs=tuple(Port(nodes[i].name, "BYTES", (1,)) for i in exits),
        results=tuple(Source(i) for i in exits),
    )
