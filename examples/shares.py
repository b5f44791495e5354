"""Models that share a device by quotas: `dovetail verify-shares examples.shares:two` (or `four`, or `classes`).

Each workflow is one real model on random numbers. What it sees does not matter here. How much of the device's time it
has does.
"""

from dovetail import App, onnx, tensor, workflow
from examples import weights

PICTURE, LINE, PAGE = tensor("float32", 3, 224, 224), tensor("float32", 3, 48, 320), tensor("float32", 3, 640, 640)


def _model(path, name, quota, item, priority=1):
    """One model as a workflow of its own, with a quota."""
    stage = onnx(path, name=f"{name}_{quota}", batch=(1, 2), quota=quota)

    def run(x):
        return stage(x)

    run.__annotations__["x"] = item
    return workflow(slo="1s", name=f"flow_{name}_{quota}", priority=priority)(run)


two = App(
    _model(weights.page_way(), "page_way", 75, PICTURE),
    _model(weights.tiny_reader(), "read", 25, LINE),
)

four = App(
    _model(weights.page_way(), "page_way", 50, PICTURE),
    _model(weights.tiny_reader(), "read", 25, LINE),
    _model(weights.small_reader(), "read_carefully", 15, LINE),
    _model(weights.text_detector(), "detect", 10, PICTURE),
)

#: A high class that asks now and then beside two low ones that always have work.
classes = App(
    _model(weights.text_detector(), "detect", 40, PAGE),
    _model(weights.page_way(), "page_way", 45, PICTURE, priority=2),
    _model(weights.small_reader(), "read_carefully", 15, LINE, priority=2),
)
