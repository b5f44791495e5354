"""A model as a sequence of kernels: its optimised graph cut into segments, each a session of its own.

Rules of this file
- The graph is optimised whole and cut afterwards, so that nothing that onnxruntime fuses is torn apart. Segments then
  run as they are: a second optimisation would know neither fused operators nor their blocked layout.
- Weights lie in one file that all segments map (`optimised`), so that all together hold them once. With `copy` it is
  the file that the whole model and all other workers map, too.

How segments run is in `segment_run`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ...errors import ModelError
from ...workflow.tensor import NUMPY_OF_ORT, ONNX_OF_ORT
from .onnx_graph import OnnxGraph, OnnxNode, read_graph, write_part
from .optimised import GRAPH, write_optimised
from .segment_run import Part, Segments, Shape, Written, load_session

__all__ = ["SEGMENTS", "SHORTEST_NS", "choose_cuts", "cut", "cut_again", "overwritten", "read_cut", "write_cut"]

#: (length of each node, where there can be a cut, where there is one) -> where to cut.
Divide = Callable[[Sequence[int], Sequence[bool], Sequence[int]], list[int]]

#: Segments of a model unless told otherwise.
SEGMENTS = 8
#: No segment is made shorter on average: a boundary costs about 45 µs (14 in onnxruntime, the rest in the gate, whose
#: code is no longer in the cache after a kernel; measured), and shall cost less than 5 %.
SHORTEST_NS = 1_000_000
#: What a cut costs, in segments of mean length: so much per tensor that crosses it, for a buffer of its own, and
#: twice the time that it takes to write it to memory and read it again (5 GB/s), which a whole model may never do.
LIVE_PENALTY = 0.03
CROSSING_NS_PER_BYTE = 0.4
#: Of a large graph only so many places are looked at, the cheapest: the choice takes time by their square.
MOST_CUTS = 300
#: The operator whose last input is a sum that it adds to.
ADDS_IN_PLACE = "com.microsoft.nchwc:Conv"
PROFILED_RUNS = 5
#: What was written, beside the files of the segments.
INDEX = "cuts.msgpack"


def cut(
    model: Path,
    several: Sequence[Mapping[str, Shape]],
    *,
    segments: int = SEGMENTS,
    target_ns: int = 0,
    shortest_ns: int = SHORTEST_NS,
    divide: Divide | None = None,
    threads: int = 1,
    lean: bool = False,
    copy: Path | None = None,
) -> list[Segments]:
    """The model cut for each of these shapes of its inputs by itself; all share the weights, and take any shape.

    It is cut into about so many segments of equal length; with `target_ns` into those of that length, but not more.
    No segment is made shorter than `shortest_ns` on average, so a small model stays whole. `divide` may cut further.
    """
    with tempfile.TemporaryDirectory(prefix="dovetail-segments-") as name:
        # Once loaded, what is mapped stays mapped and the files are not needed any more.
        directory = Path(name)
        graph = _optimised(model, directory, copy)
        types = _tensor_types(graph, directory)
        made = []
        for shapes in several:
            lengths_ns, sizes = _measured(graph, directory, types, shapes, threads, lean)
            wanted = min(segments, round(sum(lengths_ns) / target_ns)) if target_ns else segments
            wanted = max(1, min(wanted, sum(lengths_ns) // max(1, shortest_ns)))
            mean_ns = max(1, sum(lengths_ns) / wanted)
            fees = [
                LIVE_PENALTY * len(names) + CROSSING_NS_PER_BYTE * sum(sizes[n] for n in names) / mean_ns
                if all(n in types for n in names)
                else None
                for names in _live(graph)
            ]
            cuts = choose_cuts(lengths_ns, fees, wanted)
            if divide is not None:
                cuts = divide(lengths_ns, [fee is not None for fee in fees], cuts)
            written = _write_segments(graph, directory, types, cuts)
            made.append(Segments(directory, written, threads, lean=lean))
        return made


def cut_again(
    model: Path,
    several: Sequence[Sequence[int]],
    *,
    threads: int = 1,
    lean: bool = False,
    copy: Path | None = None,
) -> list[Segments]:
    """The model cut before these nodes, once for each list of them; nothing is measured."""
    with tempfile.TemporaryDirectory(prefix="dovetail-segments-") as name:
        write_cut(model, several, Path(name), copy=copy)
        return read_cut(Path(name), threads=threads, lean=lean)


def write_cut(model: Path, several: Sequence[Sequence[int]], directory: Path, *, copy: Path | None = None) -> None:
    """The same into files, which may go when everybody has read them.

    To cut a model takes as much memory as to load it several times over. To read what was cut takes hardly any, and
    its weights are mapped, so that all who read them share them. A worker with a strict budget only reads.
    """
    graph = _optimised(model, directory, copy)
    types = _tensor_types(graph, directory)
    made = [_write_segments(graph, directory, types, cuts, f"cut-{i}-") for i, cuts in enumerate(several)]
    (directory / INDEX).write_bytes(msgspec.msgpack.encode(made))


def read_cut(directory: Path, *, threads: int = 1, lean: bool = False) -> list[Segments]:
    """What `write_cut` has written there."""
    try:
        made = msgspec.msgpack.decode((directory / INDEX).read_bytes(), type=list[Written])
    except (OSError, msgspec.DecodeError) as error:
        raise ModelError(f"no model was cut at {directory}: {error}") from error
    return [Segments(directory, written, threads, lean=lean) for written in made]


def _write_segments(
    graph: OnnxGraph, directory: Path, types: dict[str, str], cuts: Sequence[int], prefix: str = ""
) -> Written:
    """A file for each segment."""
    live = _live(graph)
    if cuts and cuts[-1] >= len(graph.nodes):
        raise ModelError(f"a graph of {len(graph.nodes)} nodes cannot be cut before node {cuts[-1]}")
    crossing = {name for at in cuts for name in live[at]}
    places = overwritten(graph)
    places = {name: place for name, place in places.items() if any(places.get(n) == place for n in crossing)}
    parts = []
    for number, (first, last) in enumerate(pairwise([0, *cuts, len(graph.nodes)])):
        part = _part(graph, types, first, last, f"{prefix}segment-{number}.onnx", live, places)
        inputs = {n: ONNX_OF_ORT[types[n]] for n in part.inputs}
        write_part(directory / part.file, graph, graph.nodes[first:last], inputs, part.outputs)
        parts.append(part)
    return Written(parts, types, list(graph.outputs), places)


def overwritten(graph: OnnxGraph) -> dict[str, str]:
    """Tensors that lie in one place, one after the other, each by the first of them.

    A convolution with a sum adds to what lies where its output goes, and copies the sum there first if that is
    elsewhere. In a whole model it seldom is; what crosses a cut would be copied on both sides of it (OpenNSFW, a
    ResNet: 5 to 8 %). Only a sum that nobody reads any more then: all others that read it are what the convolution
    waits for.
    """
    maker = {name: i for i, node in enumerate(graph.nodes) for name in node.writes}
    readers: dict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(graph.nodes):
        for name in node.reads:
            readers[name].append(i)
    places: dict[str, str] = {}
    for i, node in enumerate(graph.nodes):
        given = [name for name in node.reads if name not in graph.weights]
        if node.op != ADDS_IN_PLACE or len(given) != 2 or given[1] not in maker:
            continue
        found, total = node.writes[0], given[1]
        others = {reader for reader in readers[total] if reader != i}
        if {found, total}.isdisjoint(graph.outputs) and others <= _before(graph, maker, i, maker[total]):
            places[found] = places.setdefault(total, total)
    return places


def _before(graph: OnnxGraph, maker: Mapping[str, int], node: int, first: int) -> set[int]:
    """The nodes from `first` on that a node needs, directly or not."""
    needed: set[int] = set()
    todo = [node]
    while todo:
        makers = {maker[name] for name in graph.nodes[todo.pop()].reads if name in maker}
        new = {i for i in makers if i >= first} - needed
        needed |= new
        todo.extend(new)
    return needed


def choose_cuts(lengths: Sequence[int], fees: Sequence[float | None], segments: int) -> list[int]:
    """Where to cut: positions before nodes, such that segments are about equally long and little crosses.

    `fees[i]` is what a cut before node `i` costs, None where there can be none. Among all choices of as many segments
    or fewer it takes the one with the least sum of squared lengths (a mean length counting 1) and fees; squares make
    many equal segments better than few or unequal ones.
    """
    total = sum(lengths)
    possible = {i: fee for i in range(1, len(lengths)) if (fee := fees[i]) is not None}
    if segments < 2 or not possible or total <= 0:
        return []
    cheapest = sorted(possible, key=lambda i: (possible[i], i))[:MOST_CUTS]
    at = [0, *sorted(cheapest), len(lengths)]
    before = [0]
    for length in lengths:
        before.append(before[-1] + length)
    mean = total / segments
    ends = [before[i] / mean for i in at]
    paid = [0.0, *(possible[i] for i in at[1:-1]), 0.0]
    # best[j]: (cost of cutting everything before at[j], where the last cut before it was).
    best: list[tuple[float, int]] = [(0.0, -1)]
    history = []
    for _ in range(segments):
        longer = [(float("inf"), -1)] * len(at)
        for j in range(1, len(at)):
            end = ends[j]
            cost, which = min((best[i][0] + (end - ends[i]) ** 2, i) for i in range(min(j, len(best))))
            longer[j] = (cost + paid[j], which)
        history.append(longer)
        best = longer
        best[0] = (float("inf"), -1)
    count = min(range(segments), key=lambda n: history[n][-1][0])
    cuts, j = [], len(at) - 1
    for layer in reversed(history[: count + 1]):
        j = layer[j][1]
        cuts.append(at[j])
    return sorted(cuts)[1:]


def _optimised(model: Path, directory: Path, copy: Path | None = None) -> OnnxGraph:
    """The graph after all of onnxruntime's optimisations for this machine, its weights in a file beside it."""
    if copy is None:
        write_optimised(model, directory)
    else:
        for file in copy.iterdir():
            try:
                os.link(file, directory / file.name)  # the same pages, wherever they are mapped from
            except OSError:  # a file system without links
                shutil.copyfile(file, directory / file.name)
    return _without_the_dead(read_graph(directory / GRAPH))


def _without_the_dead(graph: OnnxGraph) -> OnnxGraph:
    """Without nodes that no output depends on: a segment of only such would give nothing."""
    wanted = set(graph.outputs)
    alive = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.writes):
            alive.append(node)
            wanted.update(node.reads)
    return msgspec.structs.replace(graph, nodes=tuple(reversed(alive)))


def _measured(
    graph: OnnxGraph,
    directory: Path,
    types: Mapping[str, str],
    shapes: Mapping[str, Shape],
    threads: int,
    lean: bool,
) -> tuple[list[int], dict[str, int]]:
    """How long each node takes (ns), and bytes of every tensor.

    Times are the lower quartile of some runs. Beside a busy neighbour the median is longer, and the model would be
    cut into more segments.
    """
    whole = directory / "alive.onnx"
    write_part(whole, graph, graph.nodes, dict.fromkeys(graph.inputs, 0), graph.outputs)
    session = load_session(
        whole,
        enable_profiling=True,
        profile_file_prefix=str(directory / "profile"),
        intra_op_num_threads=threads,
        lean=lean,
    )
    if missing := [name for name in graph.inputs if name not in shapes or name not in types]:
        raise ModelError(f"input {missing[0]!r} needs a shape and must be a tensor of numbers")
    feeds: dict[str, np.ndarray[Any, Any]] = {
        name: np.zeros(shapes[name], NUMPY_OF_ORT[types[name]]) for name in graph.inputs
    }
    try:
        for _ in range(PROFILED_RUNS):
            session.run(None, feeds)
    except Exception as error:
        raise ModelError(f"the model cannot be run at {dict(shapes)}: {error}") from error
    finally:
        report = session.end_profiling()
    with open(report, "rb") as file:
        events = json.load(file)
    os.remove(report)
    took: dict[int, list[int]] = defaultdict(list)
    sizes: dict[str, int] = defaultdict(int)
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
            continue
        number = int(event["args"]["node_index"])
        node = graph.nodes[number] if number < len(graph.nodes) else None
        # Nodes of graphs inside of nodes have numbers of their own.
        if node is not None and node.op.rpartition(":")[2] == event["args"]["op_name"]:
            took[number].append(1000 * int(event["dur"]))
            for name in node.writes:
                sizes[name] = int(event["args"]["output_size"]) // len(node.writes)
    return [sorted(took[i])[len(took[i]) // 4] if i in took else 0 for i in range(len(graph.nodes))], sizes


def _tensor_types(graph: OnnxGraph, directory: Path) -> dict[str, str]:
    """Type of every tensor of numbers."""
    probe = directory / "probe.onnx"
    outputs = dict.fromkeys(name for n in graph.nodes for name in n.writes)
    write_part(probe, graph, graph.nodes, dict.fromkeys(graph.inputs, 0), outputs)
    session = load_session(probe)
    found = {i.name: i.type for i in (*session.get_outputs(), *session.get_inputs())}
    return {name: kind for name, kind in found.items() if kind in ONNX_OF_ORT}


def _live(graph: OnnxGraph) -> list[frozenset[str]]:
    """For each position, the tensors made before it and read by a node at or after it."""
    last_read: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        for name in node.reads:
            last_read[name] = i
    live: list[frozenset[str]] = []
    now: set[str] = set()
    for i, node in enumerate(graph.nodes):
        live.append(frozenset(now))
        now.update(name for name in node.writes if last_read.get(name, -1) > i)
        now.difference_update([name for name in now if last_read[name] == i])
    return live


def _part(
    graph: OnnxGraph,
    types: Mapping[str, str],
    first: int,
    last: int,
    file: str,
    live: Sequence[frozenset[str]],
    places: Mapping[str, str],
) -> Part:
    nodes = graph.nodes[first:last]
    made = {name for node in nodes for name in node.writes}
    inputs = [name for name in dict.fromkeys(n for node in nodes for n in node.reads) if name not in made]
    # What shares its place is given whether or not anybody takes it: only so its place can be told.
    handed_on = {*(live[last] if last < len(live) else ()), *graph.outputs, *places}
    outputs = [name for name in (n for node in nodes for n in node.writes) if name in handed_on]
    if missing := [name for name in outputs if name not in types]:
        raise ModelError(f"output {missing[0]!r} is no tensor of numbers and cannot be handed on")
    given = tuple(name for name in inputs if name not in graph.weights)
    return Part(first, last, given, tuple(outputs), _what(nodes), file)


def _what(nodes: Sequence[OnnxNode]) -> str:
    """The operators of a segment: the most frequent by name, all in their order by a digest."""
    ops = [node.op.rpartition(":")[2] for node in nodes]
    op, count = Counter(ops).most_common(1)[0]
    return f"{op}*{count}of{len(ops)}.{hashlib.sha256(' '.join(ops).encode()).hexdigest()[:8]}"
