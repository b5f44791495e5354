"""An application whose stages give as much as they are told to: first number how many, second of what."""

from __future__ import annotations

import numpy as np

from dovetail import App, stage, tensor, workflow

ITEM = tensor("float32", 3)


@stage(batch=(1, 4, 16))
def increase(items):
    return [item + 1 for item in items]


@stage
def total(lists):
    return [np.full(3, len(items), np.float32) for items in lists]


@stage
def split(items):
    return [list(np.full((int(item[0]), 3), 1, np.float32)) for item in items]


@stage
def numbers(items):
    return [list(range(int(item[0]))) for item in items]


@stage
def array(items):
    return [np.zeros(int(item[0]), np.float32) for item in items]


@stage
def nested(items):
    return [{"mask": np.zeros(int(item[0]), np.uint8)} for item in items]


@workflow(slo="60s")
def each(rows: tensor("float32", -1, -1)):
    return total(increase.map(rows))


@workflow(slo="60s")
def one_by_one(rows: tensor("float32", -1, -1)) -> tensor("float32", -1, -1):
    return increase.map(rows)


@workflow(slo="60s")
def fan(x: ITEM):
    return total(increase.map(split(x)))


@workflow(slo="60s")
def tree(x: ITEM):
    return numbers(x)


@workflow(slo="60s")
def pixels(x: ITEM) -> tensor("float32", -1):
    return array(x)


@workflow(slo="60s")
def document(x: ITEM):
    return nested(x)


@workflow(slo="60s")
def words(texts: tensor("bytes", -1)):
    return total(texts)


app = App(each, one_by_one, fan, tree, pixels, document, words)
