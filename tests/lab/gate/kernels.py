"""Kernels for tests of the gate. They do as their input says, so that a test decides what goes wrong, and when."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dovetail.lab.gate.client import GateClient
from dovetail.lab.gate.source import Source

KERNELS = 4
#: x = [what, at which kernel, seconds]
PLAIN, RAISE, SLEEP = 0.0, 1.0, 2.0
SHAPES = {"x": (3,)}
SCRIPTED = Source("kernels", "tests.lab.gate.kernels:Scripted")


class Scripted:
    """A "model" whose kernels count up its output and misbehave on demand."""

    inputs = ("x",)
    outputs = ("y",)

    def bind(self, shapes: Mapping[str, tuple[int, ...]], allocate: Callable[..., Any]) -> ScriptedKernels:
        return ScriptedKernels(allocate("x", shapes["x"], np.float32), allocate("y", (1,), np.float32))


class ScriptedKernels:
    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self._x, self._y = x, y
        self.idents = [f"count[1]#{i}" if i else "count[1]" for i in range(KERNELS)]

    def begin(self) -> Sequence[Callable[[], object]]:
        return [partial(self._kernel, i) for i in range(KERNELS)]

    def _kernel(self, position: int) -> None:
        what, where, seconds = self._x
        if what == RAISE and position == where:
            raise RuntimeError("as it was told")
        if what == SLEEP and (where < 0 or position == where):
            time.sleep(float(seconds))
        self._y[0] = position + 1 if position == 0 else self._y[0] + 1


class Broken:
    """A model that cannot be loaded."""

    def __init__(self) -> None:
        raise OSError("there is no such model")


def hold(fd: int) -> None:
    """A client that begins a task of the first class, runs one kernel of it and then does nothing."""
    client = GateClient(socket.socket(fileno=fd))
    program = client.open("holder", SCRIPTED, SHAPES)
    client.begin(program, priority=1, launch=1).wait()
    print("holding", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    hold(int(sys.argv[1]))
