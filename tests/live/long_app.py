"""An application with one model of many kernels; workers import this file, too."""

from __future__ import annotations

import os
from pathlib import Path

from tests import onnx_models
from tests.live.apps import ITEM, SCRATCH

from dovetail import App, onnx, workflow


def _long() -> Path:
    path = SCRATCH / "long.onnx"
    if not path.exists():
        onnx_models.slow(path.with_suffix(f".{os.getpid()}"), products=20, side=512).rename(path)
    return path


long = onnx(_long(), name="long", batch=(1, 2))


@workflow(slo="1s")
def lengthy(x: ITEM) -> ITEM:
    return long(x)


app = App(lengthy)
