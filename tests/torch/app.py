"""An application with a torch module; `lengthy` takes some 20 ms."""

from __future__ import annotations

from dovetail import App, tensor, torch_model, workflow

ITEM = tensor("float32", 3)
tower = torch_model("tests.torch.nets:tower", inputs={"x": ITEM}, outputs={"y": ITEM}, batch=(1, 2))


@workflow(slo="10s")
def lengthy(x):
    return tower(x)


app = App(lengthy)
