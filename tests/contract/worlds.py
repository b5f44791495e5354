"""The same worker in every set-up: simulated, emulated and live; with ample and with scarce memory; whole batches and
kernel by kernel; asked by the ingress that has started it and by another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Literal

import msgspec
import pytest
from tests.contract.sim_world import SimWorld, World
from tests.contract.stages import make_cuts, make_entries

from dovetail.state import WorkerSpec
from dovetail.workflow.graph import StageSpec

__all__ = ["SETUPS", "Setup", "make_world", "params"]

#: Memory that is scarce: two heavy models fit, three do not. Of its budget a real worker sets aside more than half.
SCARCE_BYTES = {"simulated": 16_000_000, "emulated": 16_000_000, "live": 40_000_000}


class Setup(msgspec.Struct, frozen=True):
    """What a worker is like."""

    kind: Literal["simulated", "emulated", "live"]
    #: What it may use for models, and for running them; 0 is not counted.
    memory_bytes: int
    #: Batches of some stages are several kernels.
    kernels: bool

    @property
    def scarce(self) -> bool:
        """Whether not all models fit at once."""
        return self.memory_bytes > 0

    def __str__(self) -> str:
        memory = "scarce" if self.scarce else "ample"
        return f"{self.kind}-{memory}-{'kernels' if self.kernels else 'whole'}"


SETUPS = tuple(
    Setup(kind, SCARCE_BYTES[kind] if scarce else 0, kernels)
    for kind, scarce, kernels in product(("simulated", "emulated", "live"), (False, True), (False, True))
)


def params(setups: Iterable[Setup] = SETUPS) -> list[object]:
    """These set-ups for `parametrize`; those with processes are marked."""
    return [
        pytest.param(setup, id=str(setup), marks=() if setup.kind == "simulated" else pytest.mark.cpu)
        for setup in setups
    ]


def make_world(setup: Setup, stages: dict[str, StageSpec]) -> World:
    """A fresh worker."""
    if setup.kind == "simulated":
        return SimWorld(stages, memory_bytes=setup.memory_bytes, kernels=setup.kernels)
    # Imported here: the contract of the simulated worker needs nothing of the live one.
    from tests.contract.process_world import ProcessWorld

    from dovetail.live.links.wire import Hello

    emulated = setup.kind == "emulated"
    spec = WorkerSpec(
        "gpu-0" if emulated else "cpu-0",
        "gpu" if emulated else "cpu",
        ("onnx",),
        0 if emulated else 2,
        setup.memory_bytes,
        0.0,
        "emulated" if emulated else "cooperative",
        preempts=setup.kernels,
    )

    def make_hello(origin_ns: int, listen: str, kernel_log: str) -> Hello:
        return Hello(
            1,
            spec,
            "",
            [],
            list(stages.values()),
            make_entries("gpu", stages) if emulated else [],
            (1,),
            origin_ns,
            64 << 20,
            listen=listen,
            strict=setup.scarce and not emulated,
            kernels="auto" if setup.kernels else "never",
            # Any stage may be asked for by a class as low as that, and another one by the highest.
            lowest=dict.fromkeys(stages, 4),
            highest=1,
            cuts=make_cuts(stages) if setup.kernels else [],
            kernel_log=kernel_log,
        )

    return ProcessWorld(make_hello)
