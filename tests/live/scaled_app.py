"""One model that takes some tens of milliseconds, so that a few clients are too much for one worker."""

from __future__ import annotations

import os

from tests import onnx_models
from tests.live.apps import ITEM, SCRATCH

from dovetail import onnx, workflow

_PATH = SCRATCH / "long.onnx"
if not _PATH.exists():
    onnx_models.slow(_PATH.with_suffix(f".{os.getpid()}"), products=32).rename(_PATH)

long = onnx(_PATH, name="long", batch=(1,), like="resnet50")


@workflow(slo="2s")
def one(x: ITEM) -> ITEM:
    return long(x)
