"""How a stage is really run: columns of arguments in, one value per item out.

This file and `torch_runner` are the only ones that run whole models. Workers, the profiler and `Workflow.local` all
come through here, so what is profiled is what is served; models that are cut into kernels have their own runners
(`live.kernels`). onnxruntime is imported when the first model is loaded, not before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any, Protocol, Self

import numpy as np

from ..errors import DeclarationError, DovetailError, ModelError
from .graph import StageSpec
from .stage import Stage
from .tensor import NUMPY_OF_ORT

__all__ = [
    "ModelRunner", "OnnxRunner", "PythonRunner", "Runner", "StageFailed", "make_model", "make_runner", "share_arena",
    "shrink_arena",
]  # fmt: skip

#: Columns: one list per argument, all of the batch's length.
Columns = Sequence[Sequence[Any]]
#: Numbers of items that are run at once, and their arrays, input by input.
Groups = list[tuple[list[int], list[list[np.ndarray[Any, Any]]]]]
#: Dimensions of an input with its batch axis; what is no number is free.
Dims = tuple[Any, ...]


#: An ONNX model of one number: y = x.
_IDENTITY = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a02"
    "0801620f0a0179120a0a08080112040a02080142040a001011"
)


class StageFailed(DovetailError):
    """A stage raised, or gave back something else than one value per item."""


class Runner(Protocol):
    """One stage, loaded and ready."""

    def run(self, columns: Columns) -> list[Any]:
        """One value per item, in order."""
        ...


class PythonRunner:
    """An ordinary function."""

    def __init__(self, stage: Stage) -> None:
        if stage.function is None:
            raise DeclarationError(f"stage {stage.name!r} has no Python function to run")
        self._spec = stage.spec
        self._function = stage.function
        self._loaded: tuple[Any, ...] = ()
        if stage.load is not None:
            try:
                self._loaded = (stage.load(),)
            except Exception as error:
                raise StageFailed(
                    f"stage {stage.name!r}: what it needs could not be loaded: {type(error).__name__}: {error}"
                ) from error

    def run(self, columns: Columns) -> list[Any]:
        """Call the function on the whole batch and check that it kept the contract."""
        size = len(columns[0])
        name = self._spec.name
        try:
            values = self._function(*self._loaded, *(list(c) for c in columns))
        except Exception as error:
            raise StageFailed(f"stage {name!r} raised {type(error).__name__}: {error}") from error
        if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
            raise StageFailed(
                f"stage {name!r} returned {type(values).__name__}; a stage returns a list with one value per item"
            )
        if len(values) != size:
            raise StageFailed(
                f"stage {name!r} was given {size} item(s) and returned a list of {len(values)}; a stage takes lists "
                f"and returns a list of the same length"
            )
        items = list(values)
        width = len(self._spec.outputs)
        if width:
            for value in items:
                if not isinstance(value, tuple | list) or len(value) != width:
                    raise StageFailed(
                        f"stage {name!r} declares {width} outputs {self._spec.outputs}, so each item of its list "
                        f"must be a tuple of {width} values"
                    )
        return items


class ModelRunner(ABC):
    """A model that takes a batch at once: items are stacked on its first axis, and its outputs cut apart again."""

    def __init__(
        self, spec: StageSpec, session: Any, inputs: Sequence[str], dtypes: Sequence[Any], dims: Sequence[Dims]
    ) -> None:
        self._spec = spec
        self._session = session
        self._inputs, self._dtypes, self._dims = inputs, dtypes, dims

    def shared(self, spec: StageSpec) -> Self:
        """The same session for another stage with the same weights."""
        other = copy(self)
        other._spec = spec
        return other

    def without_session(self) -> Self:
        """What is left of it for whoever runs the model otherwise: `inputs`, `groups` and `apart`."""
        other = copy(self)
        other._session = None
        return other

    @property
    def inputs(self) -> dict[str, Dims]:
        """Inputs in their order and their dimensions as declared; one that is no number is free."""
        return dict(zip(self._inputs, self._dims, strict=True))

    def run(self, columns: Columns) -> list[Any]:
        """Stack the items on the first axis, run, and cut the outputs apart again."""
        return self.run_groups(self.groups(columns), len(columns[0]))

    def run_groups(self, groups: Groups, size: int) -> list[Any]:
        """The same for `size` items that were put into groups before."""
        if len(groups) == 1:
            return self._run_stacked(groups[0][1], size)
        results: list[Any] = [None] * size
        for members, arrays in groups:
            for i, value in zip(members, self._run_stacked(arrays, len(members)), strict=True):
                results[i] = value
        return results

    def groups(self, columns: Columns) -> Groups:
        """Items that can be stacked, by their numbers, and their arrays; one group if all have the same shape."""
        everyone = list(range(len(columns[0])))
        arrays = [[self._item(value, position) for value in column] for position, column in enumerate(columns)]
        if self._spec.pad is not None:
            return [(everyone, [_padded(column, self._spec.pad) for column in arrays])]
        if len(everyone) == 1:
            return [(everyone, arrays)]
        shapes = [tuple([column[i].shape for column in arrays]) for i in everyone]
        if shapes.count(shapes[0]) == len(shapes):
            return [(everyone, arrays)]
        found = []
        for shape in dict.fromkeys(shapes):
            members = [i for i in everyone if shapes[i] == shape]
            found.append((members, [[column[i] for i in members] for column in arrays]))
        return found

    def _item(self, value: Any, position: int) -> np.ndarray[Any, Any]:
        array = np.asarray(value, dtype=self._dtypes[position])
        rank = len(self._dims[position]) - 1
        if array.ndim != rank:
            raise StageFailed(
                f"stage {self._spec.name!r}: input {self._inputs[position]!r} takes items of "
                f"{rank} dimension(s) (without the batch axis) but got shape {array.shape}"
            )
        return array

    def _run_stacked(self, arrays: list[list[np.ndarray[Any, Any]]], size: int) -> list[Any]:
        # A lone item is only given a new axis: no copy of what may lie in shared memory.
        feeds = {
            name: column[0][None] if size == 1 else np.stack(column)
            for name, column in zip(self._inputs, arrays, strict=True)
        }
        return self.apart(self._outputs(feeds), size)

    def apart(self, outputs: Sequence[Any], size: int) -> list[Any]:
        """One value per item of a run's outputs, which must have the batch as their first axis."""
        for output in outputs:
            if not hasattr(output, "shape") or output.ndim == 0 or output.shape[0] != size:
                shape = getattr(output, "shape", "no shape")
                raise StageFailed(
                    f"stage {self._spec.name!r}: {size} item(s) went in but an output has shape {shape}; the model's "
                    f"first axis must be the batch"
                )
        if len(outputs) == 1:
            return list(outputs[0])
        return [tuple(output[i] for output in outputs) for i in range(size)]

    @abstractmethod
    def _outputs(self, feeds: dict[str, np.ndarray[Any, Any]]) -> Sequence[Any]:
        """Run it on these inputs, which it must not change."""


@cache
def _make_arena() -> None:
    import onnxruntime as ort

    kind = ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR
    ort.create_and_register_allocator(ort.OrtMemoryInfo("Cpu", kind, 0, ort.OrtMemType.DEFAULT), None)


def share_arena(options: Any) -> None:
    """Let a session have what it works in from the one arena of this process.

    With one each, every segment of a model begins in cold memory (5 to 20 %), and every whole model keeps what it
    once took: eight text detectors take 367 MB, with one arena 52 MB, and are as fast within 1 %.
    """
    _make_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")


@cache
def _nothing() -> tuple[Any, Any]:
    """A session that does nothing, in the arena of this process, and options that make the arena smaller after it."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 3
    share_arena(settings)
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return ort.InferenceSession(_IDENTITY, settings, providers=["CPUExecutionProvider"]), options


def shrink_arena() -> None:
    """Give back what the arena of this process does not use: 0.1 ms. The next batch clears its pages anew.

    onnxruntime does it at the end of a run only: so a model of nothing is run.
    """
    session, options = _nothing()
    session.run(None, {"x": np.zeros(1, np.float32)}, options)


class OnnxRunner(ModelRunner):
    """An ONNX Runtime session with a fixed number of threads.

    A `lean` one keeps nothing between two runs: what it used goes back to the heap, where others can have it.
    """

    def __init__(self, spec: StageSpec, threads: int = 1, *, lean: bool = False, optimised: str = "") -> None:
        """`optimised` is what onnxruntime wrote of the model before, which is run as it is; empty: read its file."""
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        if lean:
            options.enable_cpu_mem_arena = False
        else:
            share_arena(options)
        # Spinning threads would take the cores that other stages share.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        if optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            session = ort.InferenceSession(optimised or spec.path, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ModelError(f"stage {spec.name!r}: onnxruntime cannot load {spec.path}: {error}") from error
        inputs = session.get_inputs()
        dtypes = [NUMPY_OF_ORT.get(i.type) for i in inputs]
        super().__init__(spec, session, [i.name for i in inputs], dtypes, [tuple(i.shape) for i in inputs])

    def _outputs(self, feeds: dict[str, np.ndarray[Any, Any]]) -> Sequence[Any]:
        try:
            outputs: Sequence[Any] = self._session.run(None, feeds)
        except Exception as error:
            raise StageFailed(f"stage {self._spec.name!r}: onnxruntime failed: {error}") from error
        return outputs


def _padded(column: list[np.ndarray[Any, Any]], fill: float) -> list[np.ndarray[Any, Any]]:
    shapes = {a.shape for a in column}
    if len(shapes) == 1:
        return column
    if len({len(s) for s in shapes}) > 1:
        raise StageFailed(f"items of {sorted(shapes)} have different ranks and cannot be padded into one batch")
    largest = tuple(max(dims) for dims in zip(*shapes, strict=True))
    padded = []
    for array in column:
        whole = np.full(largest, fill, dtype=array.dtype)
        whole[tuple(slice(0, n) for n in array.shape)] = array
        padded.append(whole)
    return padded


def make_runner(stage: Stage, threads: int = 1) -> Runner:
    """The runner for a declared stage."""
    if stage.spec.kind == "python":
        return PythonRunner(stage)
    return make_model(stage.spec, threads)


def make_model(spec: StageSpec, threads: int = 1, *, lean: bool = False, optimised: str = "") -> ModelRunner:
    """The runner for a model; `lean` and `optimised` as in `OnnxRunner`."""
    if spec.kind == "torch":
        from .torch_runner import TorchRunner

        return TorchRunner(spec, threads)
    return OnnxRunner(spec, threads, lean=lean, optimised=optimised)
