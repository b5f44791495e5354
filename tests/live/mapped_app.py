"""Mapped stages with several outputs, used in every way: element by element, as lists, and as results."""

from __future__ import annotations

import numpy as np

from dovetail import App, stage, tensor, workflow

ITEM = tensor("float32", 3)


@stage(batch=(1, 4, 16))
def split(items):
    return [[np.full(3, i + 1, np.float32) for i in range(int(item[0]))] for item in items]


@stage(batch=(1, 2, 4), outputs=("low", "high"))
def bounds(items):
    return [(item - 1, item * 10) for item in items]


@stage(batch=(1, 2, 4))
def difference(left, right):
    return [a - b for a, b in zip(left, right, strict=True)]


@stage
def total(lists):
    return [np.sum([np.zeros(3, np.float32), *items], axis=0) for items in lists]


@workflow(slo="60s")
def each(x: ITEM):
    low, high = bounds.map(split(x))
    return {"low": total(low), "differences": difference.map(high, low)}


@workflow(slo="60s")
def shown(x: ITEM):
    return bounds.map(split(x))


app = App(each, shown)
