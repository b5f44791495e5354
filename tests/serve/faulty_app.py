"""A workflow that does all that stages should not do, and one beside it that works."""

from __future__ import annotations

import ctypes
import os
import sys
import time

import numpy as np

from dovetail import App, stage, tensor, workflow

KINDS = ("works", "raises", "hangs", "exits", "crashes", "forks", "garbage", "leaks", "prints", "surrogate")
_kept: list[bytes] = []


@stage
def steady(values):
    return [v + 1 for v in values]


@stage(batch=(1, 2, 4))
def misbehave(values):
    for value in values:
        kind = KINDS[int(value[0])]
        if kind == "raises":
            raise ValueError("as it was told")
        if kind == "surrogate":
            raise ValueError("\ud800")
        if kind == "hangs":
            time.sleep(3600)
        if kind == "exits":
            os._exit(3)
        if kind == "crashes":
            ctypes.string_at(0)
        if kind == "forks" and os.fork() == 0:
            time.sleep(1)
            os._exit(0)
        if kind == "garbage":
            return [object() for _ in values]
        if kind == "leaks":
            _kept.append(bytes(8 << 20))
        if kind == "prints":
            sys.stdout.write("x" * 99 + "\n" * 20_000)
    return [np.float32(v) for v in values]


@workflow(slo="20s", priority=1)
def good(x: tensor("float32", 1)) -> tensor("float32", 1):
    return steady(x)


@workflow(slo="20s", priority=2)
def bad(x: tensor("float32", 1)) -> tensor("float32", 1):
    return misbehave(x)


app = App(good, bad)
