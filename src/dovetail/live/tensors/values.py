"""Where the values of open requests lie, and when their memory is given back.

The controller knows items by number; this file knows which block of which arena holds each. A request's blocks are
freed when it has been answered, the answer is written, and no batch that reads them is still running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...state import Request
from ...workflow.graph import WHOLE, Node, Source
from ..links.wire import Argument
from .arena import Arena
from .codec import decode
from .ref import Ref

__all__ = ["LiveRequest", "part"]


class LiveRequest:
    """The data side of one request."""

    __slots__ = ("_closed", "_free", "_on_free", "_users", "given_up", "inputs", "state", "values", "weight")

    def __init__(self, inputs: list[Ref], free: Callable[[Ref], None], on_free: Callable[[], None]) -> None:
        self.inputs = inputs
        #: (node, index) -> the item's value.
        self.values: dict[tuple[int, int], Ref] = {}
        #: The controller's view, read for sizes and conditions.
        self.state: Request | None = None
        #: Why it is not finished, if it was us who gave up and not its client.
        self.given_up = ""
        #: Values in those of its results that its client will read (`codec.weight_of`).
        self.weight = 0
        self._free = free
        self._on_free = on_free
        #: Running batches and unwritten answers that read its blocks.
        self._users = 0
        self._closed = False

    def hold(self) -> None:
        """Somebody reads its blocks."""
        self._users += 1

    def drop(self) -> None:
        """That reader is done."""
        self._users -= 1
        if self._closed and not self._users:
            self._free_all()

    def close(self) -> None:
        """The request has ended; free as soon as nobody reads."""
        self._closed = True
        if not self._users:
            self._free_all()

    def taken_bytes(self, kinds: Mapping[int, str]) -> dict[str, int]:
        """Bytes of its results so far, by kind of the worker that made them."""
        taken: dict[str, int] = {}
        for ref in self.values.values():
            kind = kinds[ref.arena]
            taken[kind] = taken.get(kind, 0) + ref.nbytes
        return taken

    def _free_all(self) -> None:
        for ref in self.values.values():
            self._free(ref)
        self.values.clear()
        self._on_free()

    # -- how arguments and results are made of values -----------------------------------------------------------

    def argument(self, node: Node, source: Source, index: int) -> Argument:
        """The argument of item `index` of `node` that comes from `source`."""
        if source.node < 0 and not node.mapped:  # an input, which most arguments are
            return Argument((self.inputs[-1 - source.node],), _path(source))
        if node.mapped and (source.node, index) in self.values and self._is_list(source):
            return Argument((self.values[source.node, index],), _path(source))
        refs, path, gather = self._locate(source)
        if not node.mapped:
            return Argument(refs, path, gather=gather)
        if gather:
            return Argument((refs[index],), path)
        return Argument(refs, path, element=index)

    def _is_list(self, source: Source) -> bool:
        """Whether each element of the source's list has a block of its own."""
        assert self.state is not None
        return self.state.graph.nodes[source.node].node.mapped

    def _locate(self, source: Source) -> tuple[tuple[Ref, ...], tuple[int, ...], bool]:
        """Blocks of a source, which part of their value, and whether they are the elements of a list.

        Of elements the part is that of each.
        """
        assert self.state is not None
        path = _path(source)
        if source.node < 0:
            return (self.inputs[-1 - source.node],), path, False
        node = self.state.graph.nodes[source.node].node
        if node.mapped:
            size = self.state.sizes[source.node]
            return tuple(self.values[source.node, i] for i in range(size)), path, True
        ref = self.values.get((source.node, 0))
        if ref is not None:
            return (ref,), path, False
        # The node was skipped by its condition: its value is that of `otherwise`.
        if node.otherwise is None:
            return (), (), False
        refs, other, gather = self._locate(node.otherwise)
        if gather and path and not other:
            return (refs[path[0]],), path[1:], False
        return refs, other + path, gather

    def results(self, arenas: Mapping[int, Arena]) -> dict[str, Any]:
        """The workflow's outputs by name, as views of the arenas."""
        assert self.state is not None
        graph = self.state.graph.graph
        named: dict[str, Any] = {}
        for port, source in zip(graph.outputs, graph.results, strict=True):
            refs, path, gather = self._locate(source)
            values = [part(decode(ref, arenas), path) for ref in refs]
            named[port.name] = values if gather else values[0] if values else None
        return named


def _path(source: Source) -> tuple[int, ...]:
    return () if source.output == WHOLE else (source.output,)


def part(value: Any, path: tuple[int, ...]) -> Any:
    """The output of a value, or an output of that, and so on."""
    for output in path:
        value = value[output]
    return value
