"""Six real models, each a workflow of its own: what is served where interference is looked at live."""

from __future__ import annotations

from typing import Any

from ... import App, onnx, tensor, workflow
from .fikit_models import ONNX_MODELS

__all__ = ["MODELS", "app"]

MODELS = ("page_way", "text_detector", "line_way", "tiny_reader", "small_reader", "nudity")


def _flow(name: str) -> Any:
    model = ONNX_MODELS[name]
    stage = onnx(model.where(), name=name, batch=(1, 2, 4))

    def run(x: Any) -> Any:
        return stage(x)

    run.__annotations__["x"] = tensor("float32", *model.item)
    return workflow(slo="100ms", name=f"flow_{name}")(run)


app = App(*[_flow(name) for name in MODELS])
