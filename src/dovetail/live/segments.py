"""A model as a sequence of kernels: its optimised graph cut into segments, each a session of its own.

Rules of this file
- The graph is optimised whole and cut afterwards, so that nothing that onnxruntime fuses is torn apart. Segments then
  run as they are: a second optimisation would know neither fused operators nor their blocked layout.
- Segments hand tensors on in place: what one writes, the next reads from the same buffer, bound once per shape.
  Binding anew for every run costs 50 µs per segment, not 11 to 17.
- Weights lie in one file that all segments map: they share its pages with each other and with every other process.
  What onnxruntime repacks for a kernel (matrix products; not convolutions in blocked layout, whose weights the
  optimisation has already put in order) is a copy, in segments as in the whole model.
- One set of sessions serves all batch sizes; only buffers belong to a shape.

A tensor whose shape depends on values, not on shapes, cannot be bound once: `Segments.bind` then fails as a run does.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ..errors import ModelError
from ..profile.kernels import kernel_ids
from ..workflow.runners import _NUMPY_OF_ORT
from .arena import ALIGN_BYTES
from .onnxgraph import OnnxGraph, OnnxNode, read_graph, write_part

__all__ = ["Allocate", "Bound", "Segments", "choose_cuts", "cut"]

Shape = tuple[int, ...]
Array = np.ndarray[Any, Any]
#: (tensor, shape, element type) -> the memory for it.
Allocate = Callable[[str, Shape, Any], Array]

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
#: Weights from this size on lie in the shared file.
SHARED_BYTES = 1024
PROFILED_RUNS = 5

_ELEMENT_TYPE = {
    "tensor(float)": 1, "tensor(uint8)": 2, "tensor(int8)": 3, "tensor(uint16)": 4, "tensor(int16)": 5,
    "tensor(int32)": 6, "tensor(int64)": 7, "tensor(bool)": 9, "tensor(float16)": 10, "tensor(double)": 11,
    "tensor(uint32)": 12, "tensor(uint64)": 13,
}  # fmt: skip


class Part(msgspec.Struct, frozen=True):
    """One segment: which nodes, what it takes and gives, and its operators in short."""

    first: int
    last: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    what: str
    file: str


class Bound:
    """Segments with buffers for one shape, ready to run by one task at a time."""

    def __init__(self, kernels: list[Callable[[], None]], idents: list[str], buffers: dict[str, Array]) -> None:
        #: Call them in order, once each; each lets go of the interpreter lock while it computes.
        self.kernels: Sequence[Callable[[], object]] = kernels
        #: What each kernel is: operators, shapes and position. The same in every process and run.
        self.idents = idents
        self._buffers = buffers

    def begin(self) -> Sequence[Callable[[], object]]:
        """The kernels of one run."""
        return self.kernels

    def buffer(self, name: str) -> Array:
        """The memory of an input or an output (or of a tensor between segments, which others use after it)."""
        return self._buffers[name]


class Segments:
    """A cut model, loaded."""

    def __init__(self, directory: Path, parts: Sequence[Part], types: Mapping[str, str], outputs: list[str]) -> None:
        self.parts = parts
        self._types = types
        self._sessions = [_session(directory / part.file) for part in parts]
        made = {name for part in parts for name in part.outputs}
        #: What the caller fills before the first kernel and reads after the last.
        self.inputs = list(dict.fromkeys(name for part in parts for name in part.inputs if name not in made))
        self.outputs = outputs

    def dtype(self, name: str) -> Any:
        """Element type of a tensor."""
        return _NUMPY_OF_ORT[self._types[name]]

    def bind(self, shapes: Mapping[str, Shape], allocate: Allocate | None = None) -> Bound:
        """Buffers for inputs of these shapes. Runs the model once on zeros, to know the shapes of all else."""
        import onnxruntime as ort

        allocate = allocate or (lambda _name, shape, dtype: aligned(shape, dtype))
        if missing := [name for name in self.inputs if name not in shapes]:
            raise ModelError(f"no shape was given for input {missing[0]!r}")
        buffers: dict[str, Array] = {}
        values: dict[str, Any] = {}
        pool = _Pool(self.parts, {*self.inputs, *self.outputs})

        def keep(name: str, shape: Shape) -> None:
            between = name in pool
            buffers[name] = (pool.take if between else allocate)(name, shape, self.dtype(name))
            values[name] = ort.OrtValue.ortvalue_from_numpy(buffers[name])

        for name in self.inputs:
            keep(name, tuple(shapes[name]))
            buffers[name][...] = 0
        kernels: list[Callable[[], None]] = []
        for position, (part, session) in enumerate(zip(self.parts, self._sessions, strict=True)):
            try:
                feeds = {name: values[name] for name in part.inputs}
                found = session.run_with_ort_values(list(part.outputs), feeds)
            except Exception as error:
                raise ModelError(f"segment {position} of {len(self.parts)} cannot be run: {error}") from error
            binding = session.io_binding()
            for name in part.inputs:
                binding.bind_ortvalue_input(name, values[name])
            for name, value in zip(part.outputs, found, strict=True):
                keep(name, tuple(value.shape()))
                buffers[name][...] = value.numpy()
                binding.bind_ortvalue_output(name, values[name])
            pool.give_back(position)
            kernels.append(_kernel(session, binding))
        idents = kernel_ids((part.what, [buffers[n].shape for n in part.inputs]) for part in self.parts)
        return Bound(kernels, list(idents), buffers)


class _Pool:
    """Memory of tensors between segments: what no later one reads is used again, so that it stays in the cache."""

    def __init__(self, parts: Sequence[Part], kept: set[str]) -> None:
        self._last = {name: i for i, part in enumerate(parts) for name in part.inputs if name not in kept}
        self._free: list[Array] = []
        self._used: dict[str, Array] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._last

    def take(self, name: str, shape: Shape, dtype: Any) -> Array:
        """The smallest free block that is large enough, or a new one."""
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        fitting = [block for block in self._free if block.nbytes >= nbytes]
        block = min(fitting, key=lambda b: b.nbytes) if fitting else aligned((max(nbytes, 1),), np.uint8)
        self._free = [b for b in self._free if b is not block]
        self._used[name] = block
        array: Array = block[:nbytes].view(dtype).reshape(shape)
        return array

    def give_back(self, position: int) -> None:
        """The segment at `position` is bound: what it was the last to read is free for those after it."""
        for name in [n for n in self._used if self._last[n] == position]:
            self._free.append(self._used.pop(name))


def aligned(shape: Shape, dtype: Any) -> Array:
    """Memory that begins at a cache line: vector instructions are slower on what straddles two."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    block = np.empty(nbytes + ALIGN_BYTES, np.uint8)
    start = -block.ctypes.data % ALIGN_BYTES
    array: Array = block[start : start + nbytes].view(dtype).reshape(shape)
    return array


def _kernel(session: Any, binding: Any) -> Callable[[], None]:
    run = session.run_with_iobinding

    def kernel() -> None:
        run(binding)

    return kernel


def cut(
    model: Path,
    shapes: Mapping[str, Shape],
    *,
    segments: int = SEGMENTS,
    target_ns: int | None = None,
    shortest_ns: int = SHORTEST_NS,
) -> Segments:
    """The model in about so many segments of equal length, or in segments of about `target_ns`.

    `shapes` are those of the inputs at which lengths are measured; the result takes any that the model takes. No
    segment is made shorter than `shortest_ns` on average, so a small model stays whole.
    """
    with tempfile.TemporaryDirectory(prefix="dovetail-segments-") as name:
        # Once loaded, what is mapped stays mapped and the files are not needed any more.
        directory = Path(name)
        graph = _optimised(model, directory)
        types, lengths_ns, sizes = _measured(graph, directory, shapes)
        wanted = segments if target_ns is None else max(1, round(sum(lengths_ns) / target_ns))
        wanted = max(1, min(wanted, sum(lengths_ns) // max(1, shortest_ns)))
        live = _live(graph)
        mean_ns = max(1, sum(lengths_ns) / wanted)
        fees = [
            LIVE_PENALTY * len(names) + CROSSING_NS_PER_BYTE * sum(sizes[n] for n in names) / mean_ns
            if all(n in types for n in names)
            else None
            for names in live
        ]
        cuts = choose_cuts(lengths_ns, fees, wanted)
        parts = []
        for number, (first, last) in enumerate(pairwise([0, *cuts, len(graph.nodes)])):
            parts.append(_part(graph, types, first, last, f"segment-{number}.onnx", live))
            inputs = {n: _ELEMENT_TYPE[types[n]] for n in parts[-1].inputs}
            write_part(directory / parts[-1].file, graph, graph.nodes[first:last], inputs, parts[-1].outputs)
        return Segments(directory, parts, types, list(graph.outputs))


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


@cache
def _share_arena() -> None:
    """One arena for all sessions of this process: with one each, every segment begins in cold memory (5 to 20 %)."""
    import onnxruntime as ort

    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    ort.create_and_register_allocator(ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT), None)


def _session(path: Path, **options: Any) -> Any:
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # A planned block of its own for every segment is colder than what the last one has just freed.
    settings.enable_mem_pattern = False
    _share_arena()
    settings.add_session_config_entry("session.use_env_allocators", "1")
    for name, value in options.items():
        setattr(settings, name, value)
    try:
        return ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"onnxruntime cannot load {path.name}: {error}") from error


def _optimised(model: Path, directory: Path) -> OnnxGraph:
    """The graph after all of onnxruntime's optimisations for this machine, its weights in a file beside it."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    settings.optimized_model_filepath = str(directory / "whole.onnx")
    prefix = "session.optimized_model_external_initializers"
    settings.add_session_config_entry(f"{prefix}_file_name", "weights.bin")
    settings.add_session_config_entry(f"{prefix}_min_size_in_bytes", str(SHARED_BYTES))
    try:
        ort.InferenceSession(str(model), settings, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(f"onnxruntime cannot load {model}: {error}") from error
    return read_graph(directory / "whole.onnx")


def _measured(
    graph: OnnxGraph, directory: Path, shapes: Mapping[str, Shape]
) -> tuple[dict[str, str], list[int], dict[str, int]]:
    """Type of every tensor, how long each node takes (ns, the median of some runs), and bytes of every tensor."""
    probe = directory / "probe.onnx"
    declared = dict.fromkeys(graph.inputs, 0)
    write_part(probe, graph, graph.nodes, declared, dict.fromkeys(name for n in graph.nodes for name in n.writes))
    types = {i.name: i.type for i in _session(probe).get_outputs()}
    session = _session(
        directory / "whole.onnx", enable_profiling=True, profile_file_prefix=str(directory / "profile")
    )
    types |= {i.name: i.type for i in session.get_inputs()}
    types = {name: kind for name, kind in types.items() if kind in _ELEMENT_TYPE}
    if missing := [name for name in graph.inputs if name not in shapes or name not in types]:
        raise ModelError(f"input {missing[0]!r} needs a shape and must be a tensor of numbers")
    feeds: dict[str, Array] = {name: np.zeros(shapes[name], _NUMPY_OF_ORT[types[name]]) for name in graph.inputs}
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
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            number = int(event["args"]["node_index"])
            took[number].append(1000 * int(event["dur"]))
            written = graph.nodes[number].writes
            for name in written:
                sizes[name] = int(event["args"]["output_size"]) // len(written)
    return types, [sorted(took[i])[len(took[i]) // 2] if i in took else 0 for i in range(len(graph.nodes))], sizes


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
    graph: OnnxGraph, types: Mapping[str, str], first: int, last: int, file: str, live: Sequence[frozenset[str]]
) -> Part:
    nodes = graph.nodes[first:last]
    made = {name for node in nodes for name in node.writes}
    inputs = [name for name in dict.fromkeys(n for node in nodes for n in node.reads) if name not in made]
    handed_on = live[last] if last < len(live) else frozenset()
    outputs = [
        name for name in (n for node in nodes for n in node.writes) if name in handed_on or name in graph.outputs
    ]
    if missing := [name for name in outputs if name not in types]:
        raise ModelError(f"output {missing[0]!r} is no tensor of numbers and cannot be handed on")
    given = tuple(name for name in inputs if name not in graph.weights)
    return Part(first, last, given, tuple(outputs), _what(nodes), file)


def _what(nodes: Sequence[OnnxNode]) -> str:
    """The operators of a segment: the most frequent by name, all in their order by a digest."""
    ops = [node.op.rpartition(":")[2] for node in nodes]
    op, count = Counter(ops).most_common(1)[0]
    return f"{op}*{count}of{len(ops)}.{hashlib.sha256(' '.join(ops).encode()).hexdigest()[:8]}"
