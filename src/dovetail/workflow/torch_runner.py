"""A torch module that a function of the user's makes, run as a whole. torch is imported when the first one is loaded.

The function is ordinary code of the application, named by ``module:function``. Nothing is unpickled here.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..extras import need
from .graph import StageSpec
from .runners import ModelRunner, StageFailed
from .tensor import NUMPY_OF

__all__ = ["TorchRunner", "flat"]


class TorchRunner(ModelRunner):
    """A module on the processor, with a fixed number of threads."""

    def __init__(self, spec: StageSpec, threads: int = 1) -> None:
        need("torch", extra="torch", for_=f"stage {spec.name!r}")
        # Read when torch is imported. Threads that spin take others' cores: ten times as slow where those are busy.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        import torch

        where, _, name = spec.factory.partition(":")
        try:
            make = getattr(importlib.import_module(where), name)
            module = make(spec.path) if spec.path else make()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise ModelError(f"stage {spec.name!r}: {spec.factory} makes no model: {what}") from error
        if not isinstance(module, torch.nn.Module):
            kind = type(module).__name__
            raise ModelError(f"stage {spec.name!r}: {spec.factory} must return a torch.nn.Module, not {kind}")
        self._threads = threads
        names, dtypes = [p.name for p in spec.inputs], [NUMPY_OF[p.datatype] for p in spec.inputs]
        dims = [("batch", *(dim if dim > 0 else "any" for dim in p.shape)) for p in spec.inputs]
        super().__init__(spec, module.cpu().eval().requires_grad_(False), names, dtypes, dims)

    @property
    def module(self) -> Any:
        """The module itself; None `without_session`."""
        return self._session

    @property
    def dtypes(self) -> dict[str, Any]:
        """Element types of its inputs."""
        return dict(zip(self._inputs, self._dtypes, strict=True))

    def _outputs(self, feeds: dict[str, np.ndarray[Any, Any]]) -> Sequence[Any]:
        import torch

        torch.set_num_threads(self._threads)  # of the thread that calls
        # A view may lie in memory that others read, too, and a module may change its input in place.
        given = {n: torch.from_numpy(a if a.base is None else a.copy()) for n, a in feeds.items()}
        try:
            with torch.no_grad():
                outputs = [part.numpy() for part in flat(self._session(**given))]
        except Exception as error:
            raise StageFailed(f"stage {self._spec.name!r}: torch failed: {error}") from error
        return outputs

    def apart(self, outputs: Sequence[Any], size: int) -> list[Any]:
        """As of any model; its outputs must be as many as were declared."""
        wanted = len(self._spec.outputs) or 1
        if len(outputs) != wanted:
            name = self._spec.name
            raise StageFailed(f"stage {name!r} declares {wanted} output(s), but its module gives {len(outputs)}")
        return super().apart(outputs, size)


def flat(value: Any) -> list[Any]:
    """Tensors of a module's result, which may be a tuple, a list or a dict of them."""
    if isinstance(value, dict):
        value = list(value.values())
    return [part for v in value for part in flat(v)] if isinstance(value, list | tuple) else [value]
