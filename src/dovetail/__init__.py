"""Dovetail: serve machine-learning inference workflows within their latency objectives on devices they share.

The same scheduler runs against a simulated cluster and against real workers; see `docs/` and `examples/`.
"""

from .errors import DovetailError
from .version import __version__ as __version__
from .workflow.app import App
from .workflow.packaged import packaged
from .workflow.stage import Stage, onnx, stage
from .workflow.tensor import tensor
from .workflow.torch_stage import torch_model
from .workflow.trace import Workflow, workflow

__all__ = [
    "App",
    "DovetailError",
    "Stage",
    "Workflow",
    "onnx",
    "packaged",
    "stage",
    "tensor",
    "torch_model",
    "workflow",
]
