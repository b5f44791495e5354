"""Tracing: the workflow function is called once with handles (`handles`), and what it has called becomes a graph.

Rules of this file: what is wrong with a workflow is said when it is declared, with the remedy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..errors import DeclarationError
from ..units import parse_duration
from .graph import WHOLE, Graph, Node, Port, Source
from .handles import CURRENT, Handle, Trace
from .stage import check_name, check_slice, with_slice
from .tensor import TensorSpec

__all__ = ["Workflow", "workflow"]

MAX_PRIORITY = 10


class Workflow:
    """A declared workflow: its graph and the stages that it calls."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        slo: str,
        priority: int = 1,
        name: str | None = None,
        sample: Callable[[], Mapping[str, Any]] | None = None,
        share: int | None = None,
        quota: int | None = None,
    ) -> None:
        self.function = function
        self.sample = sample
        self._parameters = list(inspect.signature(function).parameters)
        own = check_name(name or function.__name__)
        slo_ns = parse_duration(slo, f"slo of workflow {own!r}")
        share_pct, quota_pct = check_slice(f"workflow {own!r}", share, quota)
        if not isinstance(priority, int) or isinstance(priority, bool) or not 1 <= priority <= MAX_PRIORITY:
            raise DeclarationError(
                f"workflow {own!r}: priority={priority!r} must be a whole number from 1 (highest) to {MAX_PRIORITY}"
            )
        trace = Trace(own)
        handles = [Handle(trace, Source(-1 - k), f"input {p!r}") for k, p in enumerate(self._parameters)]
        if not handles:
            raise DeclarationError(f"workflow {own!r} has no input; give its function at least one parameter")
        token = CURRENT.set(trace)
        try:
            trace.active.append(own)
            returned = function(*handles)
        except ValueError as error:
            if "to unpack" not in str(error):
                raise
            gives = "; ".join(
                f"{s.name!r} gives {', '.join(s.spec.outputs)}" for s in trace.stages.values() if s.spec.outputs
            )
            raise DeclarationError(
                f"workflow {own!r} unpacks a result into another number of names than it has outputs ({error}): "
                f"{gives or 'no stage here has several outputs; declare them with outputs=(...)'}"
            ) from None
        finally:
            CURRENT.reset(token)
        names, results = _results(trace, own, returned)
        nodes, results = _prune(trace.nodes, results)
        self.stages = {n.stage: trace.stages[n.stage] for n in nodes}
        hints = inspect.get_annotations(function, eval_str=True)
        self.graph = Graph(
            name=own,
            slo_ns=slo_ns,
            priority=priority,
            stages=tuple(with_slice(s.spec, own, share_pct, quota_pct) for s in self.stages.values()),
            nodes=tuple(nodes),
            inputs=tuple(
                self._input_port(own, p, -1 - k, hints.get(p), nodes) for k, p in enumerate(self._parameters)
            ),
            outputs=tuple(
                self._output_port(n, s, spec, nodes)
                for n, s, spec in zip(names, results, _declared(own, hints.get("return"), names), strict=True)
            ),
            results=tuple(results),
        )

    @property
    def name(self) -> str:
        """The workflow's name: what clients call the model."""
        return self.graph.name

    def _input_port(self, own: str, name: str, node: int, hint: Any, nodes: list[Node]) -> Port:
        if isinstance(hint, TensorSpec):
            return Port(name, hint.datatype, hint.shape)
        if hint is not None:
            raise DeclarationError(
                f"workflow {own!r}: input {name!r} is annotated with {hint!r}; use tensor('float32', -1, 3) or so"
            )
        for n in nodes:
            file = self.stages[n.stage].file
            if file is None:
                continue
            for position, source in enumerate(n.args):
                if source.node == node:
                    spec = list(file.inputs.values())[position]
                    shape = spec.shape if n.mapped else spec.shape[1:]
                    return Port(name, spec.datatype, (-1, *shape[1:]) if n.mapped else shape)
        raise DeclarationError(
            f"workflow {own!r}: the tensor type of input {name!r} is unknown; annotate it, for example "
            f"{name}: tensor('uint8', -1, -1, 3)"
        )

    def _output_port(self, name: str, source: Source, declared: TensorSpec | None, nodes: list[Node]) -> Port:
        if declared is not None:
            return Port(name, declared.datatype, declared.shape)
        if source.node >= 0:
            node = nodes[source.node]
            file = self.stages[node.stage].file
            if file is not None and (source.output != WHOLE or len(file.outputs) == 1):
                spec = list(file.outputs.values())[max(0, source.output)]
                return Port(name, spec.datatype, ((-1,) if node.mapped else ()) + spec.shape[1:])
        return Port(name, "BYTES", (-1,))

    def __call__(self, *args: Any) -> Any:
        """Inside another workflow: declare this one's steps there. Elsewhere use `local`."""
        trace = CURRENT.get()
        if trace is None:
            raise DeclarationError(
                f"workflow {self.name!r} is called directly; run it here with {self.name}.local(...), or serve it "
                f"with dovetail serve"
            )
        if self.name in trace.active:
            path = " -> ".join([*trace.active[trace.active.index(self.name) :], self.name])
            raise DeclarationError(f"workflow {self.name!r} is part of a cycle: {path}; a workflow cannot use itself")
        trace.active.append(self.name)
        try:
            return self.function(*args)
        finally:
            trace.active.pop()

    def local(self, *args: Any, **inputs: Any) -> dict[str, Any]:
        """Run the workflow once in this process, without batching or scheduling; the outputs by name."""
        from .local import run_local

        bound = inspect.signature(self.function).bind(*args, **inputs)
        return run_local(self, [bound.arguments[p] for p in self._parameters])

    def __repr__(self) -> str:
        return f"<workflow {self.name}: {' '.join(n.name for n in self.graph.nodes)}>"


def _results(trace: Trace, own: str, returned: Any) -> tuple[list[str], list[Source]]:
    if isinstance(returned, Handle) and returned._outputs:
        values = dict(zip(returned._outputs, returned, strict=True))
    elif isinstance(returned, Handle):
        values = {"output": returned}
    elif isinstance(returned, Mapping):
        values = dict(returned)
    elif isinstance(returned, tuple | list):
        values = {f"output_{i}": v for i, v in enumerate(returned)}
    else:
        values = {}
    if not values or not all(isinstance(v, Handle) and isinstance(k, str) for k, v in values.items()):
        raise DeclarationError(
            f"workflow {own!r} returns {returned!r}; return the result of a stage, or a dict of names and results"
        )
    for value in values.values():
        if value._trace is not trace:
            raise DeclarationError(f"workflow {own!r} returns {value!r} of another workflow")
    return list(values), [v._source for v in values.values()]


def _declared(own: str, hint: Any, names: list[str]) -> list[TensorSpec | None]:
    if hint is None:
        return [None] * len(names)
    declared = {names[0]: hint} if isinstance(hint, TensorSpec) and len(names) == 1 else hint
    if not isinstance(declared, Mapping) or not all(isinstance(v, TensorSpec) for v in declared.values()):
        raise DeclarationError(
            f"workflow {own!r}: annotate the result with tensor(...), or with a dict of them for several outputs"
        )
    if set(declared) != set(names):
        raise DeclarationError(
            f"workflow {own!r} declares the outputs {sorted(declared)} but returns {sorted(names)}; they must agree"
        )
    return [declared[n] for n in names]


def _prune(nodes: list[Node], results: list[Source]) -> tuple[list[Node], list[Source]]:
    """Leave out nodes that no output depends on, so that every node that runs is worth its time."""
    needed: set[int] = set()
    todo = [s.node for s in results if s.node >= 0]
    while todo:
        index = todo.pop()
        if index not in needed:
            needed.add(index)
            todo.extend(s.node for s in nodes[index].sources() if s.node >= 0)
    kept = sorted(needed)
    new = {old: i for i, old in enumerate(kept)}

    def moved(s: Source) -> Source:
        return s if s.node < 0 else Source(new[s.node], s.output, s.each)

    pruned = [
        msgspec.structs.replace(
            n,
            args=tuple(moved(s) for s in n.args),
            when=None if n.when is None else moved(n.when),
            otherwise=None if n.otherwise is None else moved(n.otherwise),
        )
        for n in (nodes[i] for i in kept)
    ]
    return pruned, [moved(s) for s in results]


def workflow(
    *,
    slo: str,
    priority: int = 1,
    name: str | None = None,
    sample: Callable[[], Mapping[str, Any]] | None = None,
    share: int | None = None,
    quota: int | None = None,
) -> Callable[[Callable[..., Any]], Workflow]:
    """Make a workflow of a function that calls stages: ``@workflow(slo="300ms", priority=1)``.

    `slo` is the objective for the whole graph, end to end; `priority` the class of its requests (1 is the
    highest) unless a request says otherwise; `sample` makes example inputs, for profiling and for the demo. `share`
    and `quota` (per cent) are a slice that its models have together, but for those that declare their own.
    """

    def declare(function: Callable[..., Any]) -> Workflow:
        return Workflow(function, slo=slo, priority=priority, name=name, sample=sample, share=share, quota=quota)

    return declare
