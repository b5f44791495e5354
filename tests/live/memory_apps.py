"""Applications with models of some megabytes each, for workers with little memory."""

from __future__ import annotations

import os
from pathlib import Path

from tests.live.apps import ITEM, SCRATCH
from tests.live.apps import slow as slow_model

from dovetail import App, onnx, workflow

HEAVY_BYTES = 6_000_000


def file_of(name: str) -> Path:
    """The model of stage `name`."""
    path = SCRATCH / f"heavy-{name}.onnx"
    if not path.exists():
        from tests import onnx_models

        making = path.with_suffix(f".{os.getpid()}")
        onnx_models.heavy(making, HEAVY_BYTES, ord(name)).rename(path)
    return path


a, b, c = (onnx(file_of(name), name=name, batch=(1, 2), like="resnet50") for name in "abc")
#: Another stage with the model of `a`.
a_again = onnx(file_of("a"), name="a_again", batch=(1, 2), like="resnet50")


@workflow(slo="1s")
def use_a(x: ITEM) -> ITEM:
    return a(x)


@workflow(slo="1s")
def use_b(x: ITEM) -> ITEM:
    return b(x)


@workflow(slo="1s")
def use_c(x: ITEM) -> ITEM:
    return c(x)


@workflow(slo="1s")
def use_a_twice(x: ITEM) -> ITEM:
    return a_again(a(x))


@workflow(slo="1s")
def use_slow(x: ITEM) -> ITEM:
    return slow_model(x)


app = App(use_a, use_b, use_c, use_a_twice, use_slow)
