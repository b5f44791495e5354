"""Two workflows with quotas on models of some milliseconds."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests import onnx_models

from dovetail import App, onnx, tensor, workflow

ITEM = tensor("float32", 3)
_FOLDER = Path(tempfile.mkdtemp(prefix="dovetail-test-slices-"))
_MODEL = onnx_models.slow(_FOLDER / "slow.onnx", products=2, side=128)
large = onnx(_MODEL, name="large", batch=(1, 2), quota=75)
small = onnx(_MODEL, name="small", batch=(1, 2), quota=25)


@workflow(slo="60s")
def use_large(x: ITEM):
    return large(x)


@workflow(slo="60s")
def use_small(x: ITEM):
    return small(x)


app = App(use_large, use_small)
