"""What a user declares: stages, how they are joined into a workflow, its objective and its priority.

Declaring is separate from running. A workflow function is called once, with handles in place of values, and
leaves a `Graph`: plain data that the planner reads, the simulator runs without any model, and a log can hold.
"""

from .app import App, load_target
from .graph import Graph, Node, Port, Source, StageSpec
from .packaged import packaged
from .stage import Stage, onnx, stage
from .tensor import TensorSpec, tensor
from .trace import Workflow, workflow

__all__ = [
    "App",
    "Graph",
    "Node",
    "Port",
    "Source",
    "Stage",
    "StageSpec",
    "TensorSpec",
    "Workflow",
    "load_target",
    "onnx",
    "packaged",
    "stage",
    "tensor",
    "workflow",
]
