"""Tracing: the workflow function is called once with handles, and every stage call becomes a node.

Rules of this file: a handle has no value, so whatever would need one (a test, a loop over a list, arithmetic) is
refused with the remedy, when the workflow is declared and not when the first request fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, NoReturn

import msgspec

from ..errors import DeclarationError
from ..units import parse_duration
from .graph import WHOLE, Graph, Node, Port, Source
from .stage import Stage, check_name, check_slice, with_slice
from .tensor import TensorSpec

__all__ = ["Guarded", "Handle", "Workflow", "call", "workflow"]

MAX_PRIORITY = 10


class _Trace:
    """What one run of a workflow function has declared so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.stages: dict[str, Stage] = {}
        self.active: list[str] = []


_current: ContextVar[_Trace | None] = ContextVar("dovetail_trace", default=None)


class Handle:
    """Stands for a value that a stage will make. It can only be handed on to stages and returned."""

    __slots__ = ("_label", "_outputs", "_source", "_trace")

    def __init__(self, trace: _Trace, source: Source, label: str, outputs: tuple[str, ...] = ()) -> None:
        self._trace = trace
        self._source = source
        self._label = label
        self._outputs = outputs

    def __getitem__(self, key: int | str) -> Handle:
        if not self._outputs:
            self._refuse("indexed", "put the indexing into a @stage, or declare the stage with outputs=(...)")
        try:
            index = self._outputs.index(key) if isinstance(key, str) else range(len(self._outputs))[key]
        except (ValueError, IndexError, TypeError):
            names = ", ".join(self._outputs)
            raise DeclarationError(f"{self._label} has no output {key!r}; its outputs are: {names}") from None
        return Handle(self._trace, Source(self._source.node, index), f"{self._label}[{key!r}]")

    def __iter__(self) -> Iterator[Handle]:
        if not self._outputs:
            self._refuse("looped over", "use stage.map(...) for its elements, or outputs=(...) for several outputs")
        return (self[i] for i in range(len(self._outputs)))

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise DeclarationError(
            f"{self._label} is {what} while workflow {self._trace.name!r} is being declared, but it has no value "
            f"yet; {remedy}"
        )

    def __bool__(self) -> NoReturn:
        self._refuse("tested", "use stage.when(condition, otherwise=...)(...) for a conditional step")

    def __len__(self) -> NoReturn:
        self._refuse("measured with len()", "do it inside a @stage")

    def _arithmetic(self, *_: object) -> NoReturn:
        self._refuse("computed with", "do arithmetic and comparisons inside a @stage")

    __add__ = __radd__ = __sub__ = __mul__ = __truediv__ = __lt__ = __gt__ = __le__ = __ge__ = _arithmetic

    def __repr__(self) -> str:
        return f"<{self._label}>"


class Guarded:
    """A stage with a condition, waiting for its arguments: the result of `stage.when(...)`."""

    def __init__(self, stage: Stage, condition: Any, otherwise: Any) -> None:
        self._stage, self._condition, self._otherwise = stage, condition, otherwise

    def __call__(self, *args: Any) -> Handle:
        return call(self._stage, args, when=self._condition, otherwise=self._otherwise)

    def map(self, *_: Any) -> NoReturn:
        """Refused: a condition guards a whole step."""
        raise DeclarationError(
            f"stage {self._stage.name!r}: when(...).map(...) is not supported; filter the list in a @stage first"
        )


def call(
    stage: Stage, args: tuple[Any, ...], *, mapped: bool = False, when: Any = None, otherwise: Any = None
) -> Handle:
    """Record one call of `stage` in the workflow that is being declared."""
    trace = _current.get()
    if trace is None:
        raise DeclarationError(
            f"stage {stage.name!r} is called outside a workflow; call it inside a @workflow function, "
            f"or run a whole workflow here with workflow.local(...)"
        )
    least, most = stage.arity
    if len(args) < least or (most is not None and len(args) > most):
        takes = str(least) if least == most else f"{least} to {most}" if most else f"at least {least}"
        raise DeclarationError(
            f"stage {stage.name!r} takes {takes} argument(s) but is called with {len(args)} in workflow "
            f"{trace.name!r}"
        )
    known = trace.stages.setdefault(stage.name, stage)
    if known is not stage:
        raise DeclarationError(
            f"two stages are named {stage.name!r} in workflow {trace.name!r}; give one another name with name=..."
        )
    sources = [_source(trace, stage, value) for value in args]
    if mapped:
        sources = _itemwise(trace, sources)
    node = Node(
        name=_unique(stage.name, trace.nodes),
        stage=stage.name,
        args=tuple(sources),
        mapped=mapped,
        when=None if when is None else _source(trace, stage, when),
        otherwise=None if otherwise is None else _source(trace, stage, otherwise),
    )
    if node.when is not None and trace.nodes and _is_mapped(trace, node.when):
        raise DeclarationError(
            f"stage {stage.name!r}: the condition of when(...) is a mapped list; join it to one value in a @stage"
        )
    if (
        stage.spec.outputs
        and isinstance(otherwise, Handle)
        and node.otherwise is not None
        and (otherwise._outputs != stage.spec.outputs or _is_mapped(trace, node.otherwise))
    ):
        raise DeclarationError(
            f"stage {stage.name!r} has the outputs {', '.join(stage.spec.outputs)}, but {otherwise!r} in "
            f"when(..., otherwise) has {', '.join(otherwise._outputs) or 'one only'}; both must have the same"
        )
    trace.nodes.append(node)
    # An output of a mapped stage is the list of that output of each element.
    return Handle(trace, Source(len(trace.nodes) - 1), f"the result of stage {stage.name!r}", stage.spec.outputs)


def _unique(name: str, nodes: list[Node]) -> str:
    used = sum(n.stage == name for n in nodes)
    return name if used == 0 else f"{name}#{used + 1}"


def _is_mapped(trace: _Trace, source: Source) -> bool:
    return source.node >= 0 and trace.nodes[source.node].mapped


def _source(trace: _Trace, stage: Stage, value: Any) -> Source:
    if not isinstance(value, Handle):
        raise DeclarationError(
            f"stage {stage.name!r} is given {value!r} in workflow {trace.name!r}; arguments must be inputs of the "
            f"workflow or results of stages (put constants inside the stage)"
        )
    if value._trace is not trace:
        raise DeclarationError(f"stage {stage.name!r} is given {value!r} of another workflow")
    return value._source


def _domain(nodes: list[Node], index: int) -> int:
    """The node whose list decides how many items the mapped node `index` has."""
    for source in nodes[index].args:
        if source.each:
            return _domain(nodes, source.node)
    return index


def _itemwise(trace: _Trace, sources: list[Source]) -> list[Source]:
    """Mark sources that are mapped over the same list as the first such source, element by element."""
    domains = [_domain(trace.nodes, s.node) if _is_mapped(trace, s) else None for s in sources]
    first = next((d for d in domains if d is not None), None)
    return [
        Source(s.node, s.output, each=True) if d is not None and d == first else s
        for s, d in zip(sources, domains, strict=True)
    ]


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
        trace = _Trace(own)
        handles = [Handle(trace, Source(-1 - k), f"input {p!r}") for k, p in enumerate(self._parameters)]
        if not handles:
            raise DeclarationError(f"workflow {own!r} has no input; give its function at least one parameter")
        token = _current.set(trace)
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
            _current.reset(token)
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
        trace = _current.get()
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


def _results(trace: _Trace, own: str, returned: Any) -> tuple[list[str], list[Source]]:
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
