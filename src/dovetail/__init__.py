"""Dovetail: serve machine-learning inference workflows within their latency objectives on devices they share.

The same scheduler runs against a simulated cluster and against real workers; see `docs/` and `examples/`.
"""

from .errors import DovetailError
from .workflow import App, Stage, Workflow, onnx, packaged, stage, tensor, workflow

__all__ = ["App", "DovetailError", "Stage", "Workflow", "onnx", "packaged", "stage", "tensor", "workflow"]
__version__ = "0.1.0"
