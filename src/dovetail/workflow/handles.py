"""What a workflow function is called with: handles that stand for values, and the calls that become nodes.

Rules of this file: a handle has no value, so whatever would need one (a test, a loop over a list, arithmetic) is
refused with the remedy, when the workflow is declared and not when the first request fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NoReturn

from ..errors import DeclarationError
from .graph import Node, Source
from .stage import Stage

__all__ = ["CURRENT", "Guarded", "Handle", "Trace", "call"]


class Trace:
    """What one run of a workflow function has declared so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.stages: dict[str, Stage] = {}
        self.active: list[str] = []


#: The workflow that is being declared here.
CURRENT: ContextVar[Trace | None] = ContextVar("dovetail_trace", default=None)


class Handle:
    """Stands for a value that a stage will make. It can only be handed on to stages and returned."""

    __slots__ = ("_label", "_outputs", "_source", "_trace")

    def __init__(self, trace: Trace, source: Source, label: str, outputs: tuple[str, ...] = ()) -> None:
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
    trace = CURRENT.get()
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


def _is_mapped(trace: Trace, source: Source) -> bool:
    return source.node >= 0 and trace.nodes[source.node].mapped


def _source(trace: Trace, stage: Stage, value: Any) -> Source:
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


def _itemwise(trace: Trace, sources: list[Source]) -> list[Source]:
    """Mark sources that are mapped over the same list as the first such source, element by element."""
    domains = [_domain(trace.nodes, s.node) if _is_mapped(trace, s) else None for s in sources]
    first = next((d for d in domains if d is not None), None)
    return [
        Source(s.node, s.output, each=True) if d is not None and d == first else s
        for s, d in zip(sources, domains, strict=True)
    ]
