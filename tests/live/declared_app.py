"""Workflows whose outputs are declared, and stages that give what the first number says."""

from __future__ import annotations

import numpy as np

from dovetail import App, stage, tensor, workflow

ITEM = tensor("float32", 3)
BOTH = {"first": ITEM, "second": ITEM}
KINDS = {
    0: lambda: np.ones(3, np.float32),
    1: lambda: np.ones(3, np.float64),
    2: lambda: np.ones(4, np.float32),
    3: lambda: np.ones((1, 3), np.float32),
    4: lambda: [1.0, 2.0, 3.0],
    5: lambda: 1.5,
    6: lambda: np.float32(1.5),
    7: lambda: 300,
    8: lambda: True,
    9: lambda: np.float64(1.5),
}


@stage
def give(items):
    return [KINDS[int(item[0])]() for item in items]


@stage(outputs=("first", "second"))
def give_two(items):
    return [(KINDS[int(item[0])](), KINDS[int(item[0])]()) for item in items]


@stage
def several(items):
    return [[item] * 3 for item in items]


@workflow(slo="60s")
def vector(x: ITEM) -> ITEM:
    return give(x)


@workflow(slo="60s")
def number(x: ITEM) -> tensor("float32", 1):
    return give(x)


@workflow(slo="60s")
def small(x: ITEM) -> tensor("uint8", 1):
    return give(x)


@workflow(slo="60s")
def undeclared(x: ITEM):
    return give(x)


@workflow(slo="60s")
def pair(x: ITEM) -> BOTH:
    first, second = give_two(x)
    return {"first": first, "second": second}


@workflow(slo="60s")
def mapped(x: ITEM) -> tensor("float32", -1, 3):
    return give.map(several(x))


app = App(vector, number, small, undeclared, pair, mapped)
