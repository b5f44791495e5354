"""Applications for the tests of the live system; host workers import this file, too.

Items are float32 vectors of three numbers; what is to happen is in the first of them. Stages that wait do so for a
file, never for a time: `open_gate` makes it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dovetail import App, onnx, stage, tensor, workflow

#: Models and gates; the same in every process of a test run.
if "DOVETAIL_TEST_SCRATCH" not in os.environ:
    os.environ["DOVETAIL_TEST_SCRATCH"] = tempfile.mkdtemp(prefix="dovetail-tests-")
    atexit.register(shutil.rmtree, os.environ["DOVETAIL_TEST_SCRATCH"], ignore_errors=True)
SCRATCH = Path(os.environ["DOVETAIL_TEST_SCRATCH"])

POISON, SEVEN, QUITS, HANGS, HALF_A_LETTER, SPEECHLESS = 666.0, 7.0, 8.0, 5.0, 9.0, 10.0
ITEM = tensor("float32", 3)
BYTES = tensor("bytes", 1)


def _model(name: str) -> Path:
    path = SCRATCH / f"{name}.onnx"
    if not path.exists():
        from tests import onnx_models

        making = path.with_suffix(f".{os.getpid()}")
        getattr(onnx_models, name)(making).rename(path)
    return path


def gate(number: float) -> Path:
    return SCRATCH / f"gate-{number:g}"


def open_gate(number: float) -> None:
    gate(number).touch()


def wait_for_gate(number: float) -> None:
    """Number nought is always open; so is every gate once the tests are over."""
    while number and SCRATCH.exists() and not gate(number).exists():
        time.sleep(0.002)


double = onnx(_model("double"), name="double", batch=(1, 2, 4, 8), like="resnet50")
slow = onnx(_model("slow"), name="slow", batch=(1, 2), like="vgg19")


@stage(batch=(1, 2, 4, 8))
def wait_at_gate(items):
    """Each item waits until its gate is open."""
    for item in items:
        wait_for_gate(item[0])
    return items


@stage
def add(left, right):
    return [a + b for a, b in zip(left, right, strict=True)]


@stage(batch=(1, 4, 16))
def split(items):
    """As many items as the first number says: 1, 2, 3..."""
    return [[np.full(3, i + 1, np.float32) for i in range(int(item[0]))] for item in items]


@stage
def alone(items):
    return [[item] for item in items]


@stage(batch=(1, 4, 16))
def increase(items):
    return [item + 1 for item in items]


@stage
def total(lists):
    return [np.sum([np.zeros(3, np.float32), *items], axis=0) for items in lists]


@stage
def positive(items):
    return [bool(item[0] > 0) for item in items]


@stage(outputs=("low", "high"))
def bounds(items):
    return [(item - 1, item + 1) for item in items]


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@stage(batch=(1, 2, 4, 8))
def fragile(items):
    """Does to its worker what the first number says."""
    for item in items:
        if item[0] == POISON:
            os._exit(3)
        if item[0] == SEVEN:
            raise ValueError("seven is not allowed")
        if item[0] == QUITS:
            sys.exit("enough")
        if item[0] == HALF_A_LETTER:
            raise ValueError("\ud800")
        if item[0] == SPEECHLESS:
            raise Speechless
        while item[0] == HANGS:
            time.sleep(0.05)
    return items


@stage
def leaves_a_child(items):
    """Dies, and leaves a child behind that has its descriptors."""
    if os.fork():
        os._exit(4)
    wait_for_gate(99)
    os._exit(0)


@stage
def short(items):
    return items[1:]


@stage
def strange(items):
    return [object() for _ in items]


@stage(batch=(1, 2, 4, 8))
def blow_up(items):
    """A megabyte for each unit of the first number."""
    return [np.zeros(int(item[0]) << 20, np.uint8) for item in items]


@stage
def weigh(blocks):
    return [np.full(3, block.nbytes >> 20, np.float32) for block in blocks]


@workflow(slo="1s")
def plain(x: ITEM) -> ITEM:
    return double(x)


@workflow(slo="1s")
def heavy(x: ITEM) -> ITEM:
    return increase(slow(x))


@workflow(slo="1s")
def joined(x: ITEM, y: ITEM) -> ITEM:
    return add(double(x), increase(y))


@workflow(slo="1s")
def fan(x: ITEM) -> ITEM:
    return total(double.map(increase.map(split(x))))


@workflow(slo="1s")
def elements(x: ITEM):
    return double.map(split(x))


@workflow(slo="1s")
def maybe(x: ITEM) -> ITEM:
    return increase(double.when(positive(x), otherwise=x)(x))


@workflow(slo="1s")
def maybe_part(x: ITEM):
    low, high = bounds(x)
    return {"low": low, "chosen": double.when(positive(x), otherwise=high)(x), "plain": positive(x)}


@workflow(slo="1s")
def maybe_list(x: ITEM):
    """As many as the number says, or one."""
    return double.map(split.when(positive(x), otherwise=alone(x))(x))


@workflow(slo="1s", priority=2)
def gated(x: ITEM) -> ITEM:
    return wait_at_gate(x)


@workflow(slo="1s")
def breakable(x: ITEM) -> ITEM:
    return fragile(x)


@workflow(slo="1s")
def forked(x: ITEM):
    return leaves_a_child(x)


@workflow(slo="1s")
def too_short(x: ITEM):
    return short(x)


@workflow(slo="1s")
def too_strange(x: ITEM):
    return strange(x)


@workflow(slo="1s")
def big(x: ITEM) -> ITEM:
    return weigh(blow_up(x))


app = App(
    *(plain, heavy, joined, fan, elements, maybe, maybe_part, maybe_list, gated, breakable, big),
    *(forked, too_short, too_strange),
)
#: Without a device.
hosted = App(gated, breakable, big)
#: For emulated devices.
small = App(plain, heavy)
