"""The walk of one request through its graph: which items become ready when another is done.

Rules of this file: it changes the request and nothing else, and knows neither queues' order nor workers. A node
opens when all its whole sources are done. A plain node then has one item; a mapped node has as many as its list;
a conditional node has one or none. A mapped node behind another over the same list opens item by item.
"""

from __future__ import annotations

from ..state import CompiledNode, Item, Request
from ..workflow.graph import Source

__all__ = ["FanOutMismatch", "arrive", "item_done"]


class FanOutMismatch(Exception):
    """Lists that a node is mapped over together have different lengths."""


def arrive(request: Request, counts: tuple[int, ...], now_ns: int) -> list[Item]:
    """Items that are ready when the request arrives."""
    graph = request.graph
    for position, count in zip(graph.input_counted, counts, strict=True):
        request.counts[-1 - position, -1] = count
    ready: list[Item] = []
    for node in graph.entries:
        if node.plain:
            ready.append(Item(request, node.index, 0, now_ns))
        else:
            _open(request, node, now_ns, ready)
    return ready


def item_done(item: Item, counts: tuple[int, ...], now_ns: int) -> list[Item]:
    """Items that become ready because `item` is done; `request.nodes_left` says whether anything is left."""
    request = item.request
    node = request.graph.nodes[item.node]
    ready: list[Item] = []
    if counts:
        for output, count in zip(node.counted, counts, strict=True):
            request.counts[node.index, output] = count
    if node.mapped:
        for follower in node.each_next:
            _element_done(request, request.graph.nodes[follower], item.index, now_ns, ready)
        request.left[node.index] -= 1
        if request.left[node.index]:
            return ready
    _node_done(request, node, now_ns, ready)
    return ready


def _node_done(request: Request, node: CompiledNode, now_ns: int, ready: list[Item]) -> None:
    """Open what waited for nothing else."""
    request.nodes_left -= 1
    missing = request.missing
    nodes = request.graph.nodes
    for index in node.whole_next:
        missing[index] -= 1
        if not missing[index]:
            follower = nodes[index]
            if follower.plain:
                ready.append(Item(request, index, 0, now_ns))
            else:
                _open(request, follower, now_ns, ready)


def _count(request: Request, source: Source) -> int:
    """Count of a source; a mapped node used as a whole list has as many elements as it has items."""
    if source.node < 0:
        return request.counts[source.node, source.output]
    node = request.graph.nodes[source.node].node
    if node.mapped:
        return request.sizes[source.node]
    count = request.counts.get((source.node, source.output))
    if count is not None:
        return count
    # The step was skipped by its condition: what counts is what took its place.
    instead = node.instead(source.output)
    return 0 if instead is None else _count(request, instead)


def _open(request: Request, node: CompiledNode, now_ns: int, ready: list[Item]) -> None:
    """All whole sources of a mapped or conditional node are done."""
    when = node.node.when
    if when is not None and not _count(request, when):
        _node_done(request, node, now_ns, ready)
        return
    if not node.node.mapped:
        ready.append(Item(request, node.index, 0, now_ns))
        return
    if not node.each_sources:
        _set_size(request, node, _count(request, node.node.args[0]))
    elif node.index not in request.sizes:
        return  # its list is not known yet; its elements come when it is
    _check_lists(request, node)
    size = request.sizes[node.index]
    if not size:
        _finish_empty(request, node, now_ns, ready)
    elif node.each_sources:
        pending = request.items_missing[node.index]
        ready.extend(Item(request, node.index, i, now_ns) for i in range(size) if not pending[i])
    else:
        ready.extend(Item(request, node.index, i, now_ns) for i in range(size))


def _check_lists(request: Request, node: CompiledNode) -> None:
    size = request.sizes[node.index]
    for source in node.node.args:
        if not source.each and _count(request, source) != size:
            raise FanOutMismatch(
                f"stage {node.node.stage!r} is mapped over lists of different lengths: {size} and "
                f"{_count(request, source)}"
            )


def _set_size(request: Request, node: CompiledNode, size: int) -> None:
    """Fix the number of items of a mapped node and of all that follow it element by element."""
    if node.index in request.sizes:
        return
    request.sizes[node.index] = request.left[node.index] = size
    if node.each_sources:
        request.items_missing[node.index] = [node.each_sources] * size
        if not request.missing[node.index]:
            _check_lists(request, node)
    for follower in node.each_next:
        _set_size(request, request.graph.nodes[follower], size)


def _finish_empty(request: Request, node: CompiledNode, now_ns: int, ready: list[Item]) -> None:
    """A mapped node over an empty list is done at once, and so are its element-wise followers that are open."""
    if request.left[node.index] < 0:
        return  # another element-wise source has finished it already
    request.left[node.index] = -1
    _node_done(request, node, now_ns, ready)
    for index in node.each_next:
        if not request.missing[index]:
            _finish_empty(request, request.graph.nodes[index], now_ns, ready)


def _element_done(request: Request, node: CompiledNode, index: int, now_ns: int, ready: list[Item]) -> None:
    pending = request.items_missing[node.index]
    pending[index] -= 1
    if not pending[index] and not request.missing[node.index]:
        ready.append(Item(request, node.index, index, now_ns))
