"""A torch module as a sequence of kernels: its operators, by code generated from its trace.

Rules of this file
- The module is traced once (torch.fx); its code is written out again as a generator that yields after every kernel.
  To go on costs a fraction of a microsecond; an interpreter of the graph or a dispatch mode costs 15 to 38 µs per
  operator (measured). Whoever has the device steps the generator, so tasks interleave without threads.
- Operators too short to be worth a gate go together with their neighbours, by lengths measured when it is traced.
- What torch.fx cannot trace (control flow that depends on values) is refused, with its reason.

Needs torch, the extra `torch`; this file is imported when the first module is to be cut.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

import torch
from torch import fx

from ...errors import ModelError
from ...profile.kernels import kernel_ids
from ...workflow.torch_runner import flat
from .segment_run import Allocate, Array, Binding, Bound, Part, Segments, Shape, aligned
from .segments import SEGMENTS

__all__ = ["SHORTEST_NS", "TorchBinding", "TorchModel", "cut", "cut_again", "group"]

#: No kernel is made shorter on average: a boundary costs about 30 µs, and shall cost less than 5 %.
SHORTEST_NS = 800_000
PROFILED_RUNS = 7
_MARK = "dovetail_kernel_ends"


def dovetail_kernel_ends(*_read: Any) -> None:
    """Stands in the graph where a kernel ends; the generated code yields there what the next one reads."""


class TorchModel(Segments):
    """A traced module in kernels: to whoever runs it the same as an ONNX model that was cut."""

    def __init__(
        self,
        module: fx.GraphModule,
        groups: Sequence[Sequence[fx.Node]],
        dtypes: Mapping[str, Any] | None = None,
        threads: int = 1,
    ) -> None:
        """Inputs of which no type is given are float32."""
        self._module = module
        self._threads = threads
        self._dtypes = dtypes or {}
        self._code = _generator(module, groups)
        ends = list(accumulate(len(nodes) for nodes in groups))
        self.parts = [
            Part(end - len(nodes), end, (), (), _what(nodes), "") for end, nodes in zip(ends, groups, strict=True)
        ]
        self.inputs = [node.target for node in module.graph.nodes if node.op == "placeholder"]
        self.outputs = [f"output_{i}" for i in range(len(_results(module)))]

    def dtype(self, name: str) -> Any:
        """Element type of an input."""
        return self._dtypes.get(name, np.float32)

    def binding(self, shapes: Mapping[str, Shape], allocate: Allocate | None = None) -> TorchBinding:
        """Buffers for inputs of these shapes; those of outputs come with the first run."""
        if missing := [name for name in self.inputs if name not in shapes]:
            raise ModelError(f"no shape was given for input {missing[0]!r}")
        allocate = allocate or (lambda _name, shape, dtype: aligned(shape, dtype))
        given = {name: allocate(name, tuple(shapes[name]), self.dtype(name)) for name in self.inputs}
        return TorchBinding(
            partial(self._code, self._module), self.parts, given, self.outputs, allocate, self._threads
        )


class TorchBinding(Binding):
    """Buffers for one shape, and the kernels that run on them, each a step of one generator."""

    def __init__(
        self,
        code: Callable[..., Iterator[Sequence[Any]]],
        parts: Sequence[Part],
        given: dict[str, Array],
        outputs: Sequence[str],
        allocate: Allocate,
        threads: int,
    ) -> None:
        self._code = code
        self._parts = parts
        self._given = [torch.from_numpy(buffer) for buffer in given.values()]
        self._buffers = dict(given)
        self._outputs = outputs
        self._allocate = allocate
        self._threads = threads
        self._steps: Iterator[Sequence[Any]] | None = None
        #: Shapes that each kernel reads, as far as the first run has come.
        self._read: list[list[Shape]] = [[buffer.shape for buffer in given.values()]]
        self._kernels = [partial(self._run, position) for position in range(len(parts))]
        for buffer in given.values():
            buffer[...] = 0

    def begin(self) -> Sequence[Callable[[], object]]:
        """The kernels of one run; the first begins anew, however far the run before it came."""
        return self._kernels

    def _run(self, position: int) -> None:
        # Of the calling thread, and a batch that was interrupted may go on in another one.
        torch.set_grad_enabled(False)
        torch.set_num_threads(self._threads)
        if position == 0:
            self._steps = self._code(self._deliver, *self._given)
        assert self._steps is not None
        try:
            read = next(self._steps)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(f"kernel {position} of {len(self._parts)} cannot be run: {error}") from error
        if position + 1 == len(self._parts):
            self._steps = None
        elif len(self._read) == position + 1:
            self._read.append([tuple(value.shape) for value in read if isinstance(value, torch.Tensor)])

    def _deliver(self, value: Any) -> None:
        for name, result in zip(self._outputs, flat(value), strict=True):
            if not isinstance(result, torch.Tensor):
                raise ModelError(f"an output is {type(result).__name__}; outputs must be tensors")
            if name not in self._buffers:
                self._buffers[name] = self._allocate(name, tuple(result.shape), result.numpy().dtype)
            elif self._buffers[name].shape != tuple(result.shape):
                raise ModelError(f"the shape of output {name!r} depends on values")
            self._buffers[name][...] = result.numpy()

    def bound(self) -> Bound:
        """What was bound, after the last step."""
        idents = kernel_ids((part.what, shapes) for part, shapes in zip(self._parts, self._read, strict=True))
        return Bound(self._kernels, list(idents), self._buffers)


def cut(
    module: torch.nn.Module,
    several: Sequence[Mapping[str, Shape]],
    *,
    segments: int = SEGMENTS,
    target_ns: int = 0,
    shortest_ns: int = SHORTEST_NS,
    longest_ns: int = 0,
    dtypes: Mapping[str, Any] | None = None,
    threads: int = 1,
) -> list[TorchModel]:
    """The module cut for each of these shapes of its inputs by itself; all share the weights, and take any shape.

    It is cut into about so many kernels of equal length; with `target_ns` into those of that length, but not more.
    No kernel is made shorter than `shortest_ns` on average; `longest_ns` is as in `group`. Inputs are named as the
    parameters of `forward`; those of which no type is given are float32.
    """
    traced = _traced(module)
    made = []
    for shapes in several:
        lengths_ns = _lengths(traced, shapes, dtypes, threads)
        least_ns = max(target_ns, shortest_ns, -(-sum(lengths_ns.values()) // max(1, segments)))
        made.append(TorchModel(traced, group(lengths_ns, least_ns, longest_ns), dtypes, threads))
    return made


def cut_again(
    module: torch.nn.Module,
    several: Sequence[Sequence[int]],
    *,
    dtypes: Mapping[str, Any] | None = None,
    threads: int = 1,
) -> list[TorchModel]:
    """The module cut before these operators, once for each list of them; nothing is measured."""
    traced = _traced(module)
    nodes = _operators(traced)
    made = []
    for cuts in several:
        ends = [0, *cuts, len(nodes)]
        if any(a >= b for a, b in pairwise(ends)):
            raise ModelError("it was cut in other places than its trace has")
        groups = [nodes[first:end] for first, end in pairwise(ends)]
        made.append(TorchModel(traced, groups, dtypes, threads))
    return made


_tracing = threading.Lock()


class _Tracer(fx.Tracer):  # type: ignore[misc]
    """To trace, torch.fx changes all modules of the process. Those that run meanwhile in other threads are let be."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(self, m: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A module is called, perhaps by somebody else."""
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        """A module's attribute is read, perhaps by somebody else."""
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def _traced(module: torch.nn.Module) -> fx.GraphModule:
    try:
        with _tracing:
            traced = fx.GraphModule(module, _Tracer().trace(module.eval()))
    except Exception as error:
        raise ModelError(f"torch.fx cannot trace {type(module).__name__}: {error}") from error
    for parameter in traced.parameters():
        parameter.requires_grad_(False)
    return traced


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
    return flat(next(n for n in module.graph.nodes if n.op == "output").args[0])


def _generator(module: fx.GraphModule, groups: Sequence[Sequence[fx.Node]]) -> Callable[..., Iterator[Sequence[Any]]]:
    """The module's code as a function (self, deliver, *inputs) that yields after each of these groups of nodes.

    It yields what the next group reads. The last yield comes after the result was handed to `deliver`.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    result = graph.graph_copy(module.graph, copies)
    for nodes, after in pairwise(groups):
        with graph.inserting_after(copies[nodes[-1]]):
            graph.call_function(dovetail_kernel_ends, tuple(copies[n] for n in _read_from_outside(after)))
    graph.output(result)
    written = graph.python_code("self")
    lines = []
    for line in written.src.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        if found := re.match(rf"\s+\w+ = \S*{_MARK}\((.*?)\)", line):
            lines.append(f"{indent}yield [{found[1]}]")
        elif found := re.match(r"\s+return (.*)", line):
            lines += [f"{indent}deliver({found[1]})", f"{indent}yield []"]
        else:
            lines.append(line)
    source = re.sub(r"def forward\(self, ", "def forward(self, deliver, ", "\n".join(lines), count=1)
    source = re.sub(r"^(def forward\(.*\))\s*->.*:$", r"\1:", source, count=1, flags=re.MULTILINE)
    names: dict[str, Any] = dict(written.globals)
    exec(compile(source, "<kernels>", "exec"), names)
    if source.count("yield") < len(groups):
        raise ModelError("this version of torch.fx writes code of another form; torch 2.13 is what this was made for")
    generator: Callable[..., Iterator[Sequence[Any]]] = names["forward"]
    return generator


def _lengths(
    module: fx.GraphModule, shapes: Mapping[str, Shape], dtypes: Mapping[str, Any] | None = None, threads: int = 1
) -> dict[fx.Node, int]:
    """How long each operator takes (ns), the lower quartile of some runs: a busy neighbour makes them look longer."""
    nodes = _operators(module)
    binding = TorchModel(module, [[node] for node in nodes], dtypes, threads).binding(shapes)
    runs = []
    for _ in range(PROFILED_RUNS):
        stamps = [time.perf_counter_ns()]
        for kernel in binding.begin():
            kernel()
            stamps.append(time.perf_counter_ns())
        runs.append([b - a for a, b in pairwise(stamps)])
    return {
        node: sorted(column)[len(column) // 4] for node, column in zip(nodes, zip(*runs, strict=True), strict=True)
    }


def _read_from_outside(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    inside = set(nodes)
    return list(dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in inside))


def _what(nodes: Sequence[fx.Node]) -> str:
    first = nodes[0].target
    name = first if isinstance(first, str) else getattr(first, "__name__", "operator")
    return name if len(nodes) == 1 else f"{name}+{len(nodes) - 1}"
