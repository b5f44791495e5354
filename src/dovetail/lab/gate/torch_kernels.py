"""A torch module as a sequence of kernels: its operators, by code generated from its trace.

Rules of this file
- The module is traced once (torch.fx); its code is written out again as a generator that yields after every kernel.
  To go on costs a fraction of a microsecond; an interpreter of the graph or a dispatch mode costs 15 to 38 µs per
  operator (measured). Generators are stepped by the device's loop, so tasks interleave without threads.
- Operators too short to be worth a gate go together with their neighbours, by lengths measured when it is traced.
- What torch.fx cannot trace (control flow that depends on values) is refused, with its reason.

Needs torch, the extra `torch`; nothing else in the package imports it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch.fx.passes.shape_prop import ShapeProp

import torch
from torch import fx

from ...errors import ModelError
from ...live.kernels.segment_run import Allocate, Shape, aligned
from ...profile.kernels import kernel_ids
from .source import Source

__all__ = ["TorchModel", "group", "trace"]

#: No kernel is made shorter on average: a boundary costs about 30 µs, and shall cost less than 5 %.
SHORTEST_NS = 800_000
PROFILED_RUNS = 7
_MARK = "dovetail_kernel_ends"


def dovetail_kernel_ends() -> None:
    """Stands in the graph where a kernel ends; the generated code yields there."""


class TorchModel:
    """A traced module, cut into kernels."""

    def __init__(self, module: fx.GraphModule, groups: Sequence[Sequence[fx.Node]]) -> None:
        self._module = module
        self._groups = groups
        self._code = _generator(module, [nodes[-1] for nodes in groups])
        self.inputs = [node.target for node in module.graph.nodes if node.op == "placeholder"]
        self.outputs = [f"output_{i}" for i in range(len(_results(module)))]

    def bind(self, shapes: Mapping[str, Shape], allocate: Allocate | None = None) -> TorchKernels:
        """Buffers for inputs of these shapes. Runs the model once on zeros, to know those of the outputs."""
        allocate = allocate or (lambda _name, shape, dtype: aligned(shape, dtype))
        given = []
        for name in self.inputs:
            if name not in shapes:
                raise ModelError(f"no shape was given for input {name!r}")
            buffer = allocate(name, tuple(shapes[name]), np.float32)
            buffer[...] = 0
            given.append(torch.from_numpy(buffer))
        seen = _shapes(self._module, given)
        found = [_tensors(v) for v in _flat(self._run_whole(given))]
        written = [
            torch.from_numpy(allocate(name, tuple(value.shape), value.numpy().dtype))
            for name, value in zip(self.outputs, found, strict=True)
        ]
        whats = [(_what(nodes), [seen[n] for n in _read_from_outside(nodes) if n in seen]) for nodes in self._groups]
        return TorchKernels(self._code, self._module, given, written, kernel_ids(whats))

    def _run_whole(self, given: Sequence[torch.Tensor]) -> Any:
        with torch.no_grad():
            return self._module(*given)


class TorchKernels:
    """A traced module with buffers for one shape."""

    def __init__(
        self,
        code: Callable[..., Iterator[None]],
        module: fx.GraphModule,
        given: list[torch.Tensor],
        written: list[torch.Tensor],
        idents: Sequence[str],
    ) -> None:
        self._code = code
        self._module = module
        self._given = given
        self._written = written
        self.idents = idents

    def begin(self) -> Sequence[Callable[[], object]]:
        """The kernels of one run: each steps the same generator."""
        # Of the calling thread, so here: the device's loop runs what it begins.
        torch.set_grad_enabled(False)
        torch.set_num_threads(1)
        step = self._code(self._module, self._deliver, *self._given).__next__
        return [step] * len(self.idents)

    def _deliver(self, value: Any) -> None:
        for written, result in zip(self._written, _flat(value), strict=True):
            written.copy_(result)


def trace(module: torch.nn.Module, shapes: Mapping[str, Shape], source: Source) -> TorchModel:
    """The module in kernels of about `source.target_ns`, or in about `source.segments` of equal length.

    Lengths are measured at `shapes`, of inputs by the names of `forward`'s parameters, all float32. No kernel is made
    shorter than `SHORTEST_NS` (or `source.shortest_ns`) on average.
    """
    try:
        traced = fx.symbolic_trace(module.eval())
    except Exception as error:
        raise ModelError(f"torch.fx cannot trace {type(module).__name__}: {error}") from error
    for parameter in traced.parameters():
        parameter.requires_grad_(False)
    names = [node.target for node in traced.graph.nodes if node.op == "placeholder"]
    if missing := [name for name in names if name not in shapes]:
        raise ModelError(f"no shape was given for input {missing[0]!r}")
    lengths_ns = _lengths(traced, [torch.zeros(shapes[name]) for name in names])
    total_ns = sum(lengths_ns.values())
    wanted_ns = source.target_ns or total_ns // max(1, source.segments)
    least_ns = max(wanted_ns, source.shortest_ns or SHORTEST_NS)
    return TorchModel(traced, group(lengths_ns, least_ns, source.longest_ns))


def group(lengths_ns: Mapping[Any, int], least_ns: int, longest_ns: int = 0) -> list[list[Any]]:
    """Neighbours together until they take `least_ns`; a short rest goes with the last. Nothing is split.

    What has taken half of that is left as it is if the next would make it longer than `longest_ns`.
    """
    groups: list[list[Any]] = []
    now: list[Any] = []
    so_far_ns = 0
    for node, length_ns in lengths_ns.items():
        if longest_ns and 2 * so_far_ns >= least_ns and so_far_ns + length_ns > longest_ns:
            groups.append(now)
            now, so_far_ns = [], 0
        now.append(node)
        so_far_ns += length_ns
        if so_far_ns >= least_ns:
            groups.append(now)
            now, so_far_ns = [], 0
    if now:
        if groups and 2 * so_far_ns < least_ns:
            groups[-1].extend(now)
        else:
            groups.append(now)
    return groups


def _operators(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if n.op in ("call_function", "call_module", "call_method", "get_attr")]


def _results(module: fx.GraphModule) -> list[Any]:
    return _flat(next(n for n in module.graph.nodes if n.op == "output").args[0])


def _flat(value: Any) -> list[Any]:
    return [part for v in value for part in _flat(v)] if isinstance(value, list | tuple) else [value]


def _tensors(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise ModelError(f"an output is {type(value).__name__}; outputs must be tensors")
    return value


def _generator(module: fx.GraphModule, ends: Sequence[fx.Node]) -> Callable[..., Iterator[None]]:
    """The module's code as a function (self, deliver, *inputs) that yields after each of these nodes.

    The last yield comes after the result was handed to `deliver`.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(module.graph, copies)
    for node in ends[:-1]:
        with graph.inserting_after(copies[node]):
            graph.call_function(dovetail_kernel_ends)
    graph.output(result)
    written = graph.python_code("self")
    lines = []
    for line in written.src.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if re.match(rf"\s+\w+ = \S*{_MARK}\(\)", line):
            lines.append(f"{indent}yield")
        elif found := re.match(r"\s+return (.*)", line):
            lines += [f"{indent}deliver({found[1]})", f"{indent}yield"]
        else:
            lines.append(line)
    source = re.sub(r"def forward\(self, ", "def forward(self, deliver, ", "\n".join(lines), count=1)
    source = re.sub(r"^(def forward\(.*\))\s*->.*:$", r"\1:", source, count=1, flags=re.MULTILINE)
    names: dict[str, Any] = dict(written.globals)
    exec(compile(source, "<kernels>", "exec"), names)
    if source.count("yield") < len(ends):
        raise ModelError("this version of torch.fx writes code of another form; torch 2.13 is what this was made for")
    generator: Callable[..., Iterator[None]] = names["forward"]
    return generator


def _lengths(module: fx.GraphModule, given: Sequence[torch.Tensor]) -> dict[fx.Node, int]:
    """How long each operator takes (ns), the lower quartile of some runs: a busy neighbour makes them look longer."""
    nodes = _operators(module)
    code = _generator(module, nodes)
    runs = []
    with torch.no_grad():
        for _ in range(PROFILED_RUNS):
            stamps = [time.perf_counter_ns()]
            stamps.extend(time.perf_counter_ns() for _ in code(module, lambda _: None, *given))
            runs.append([b - a for a, b in pairwise(stamps)])
    return {
        node: sorted(column)[len(column) // 4] for node, column in zip(nodes, zip(*runs, strict=True), strict=True)
    }


def _shapes(module: fx.GraphModule, given: Sequence[torch.Tensor]) -> dict[fx.Node, Shape]:
    """Shape of every tensor at these inputs."""
    with torch.no_grad():
        ShapeProp(module).propagate(*given)
    metas = {node: node.meta.get("tensor_meta") for node in module.graph.nodes}
    return {node: tuple(meta.shape) for node, meta in metas.items() if hasattr(meta, "shape")}


def _read_from_outside(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    inside = set(nodes)
    return list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside))


def _what(nodes: Sequence[fx.Node]) -> str:
    first = nodes[0].target
    name = first if isinstance(first, str) else getattr(first, "__name__", "operator")
    return name if len(nodes) == 1 else f"{name}+{len(nodes) - 1}"
