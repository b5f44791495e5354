"""An application to plan: a model and Python before it, alone and over a list."""

import tempfile
from pathlib import Path

from tests.onnx_models import slow

from dovetail import App, onnx, stage, tensor, workflow

work = onnx(slow(Path(tempfile.mkdtemp(), "work.onnx")), name="work", batch=(1, 4), like="resnet50")


@stage(batch=(1, 4))
def prepare(items):
    return items


@stage(batch=1)
def parts(items):
    return [[item] for item in items]


@workflow(slo="1s")
def chained(x: tensor("float32", 3)):
    return work(prepare(x))


@workflow(slo="1s")
def listed(x: tensor("float32", 3)):
    return {"all": work.map(parts(x))}


@workflow(slo="1s")
def forked(x: tensor("float32", 3)):
    return {"worked": work(prepare(x)), "prepared": prepare(x), "again": work(x)}


app = App(chained, listed, forked)
