"""The same worker several times: simulated, real on this machine's cores with whole batches and kernel by kernel, and
emulated, behind one small interface (`sim_world.World`); with memory that is scarce, and with memory that is not.

A world is asked as the controller asks a worker and answers with the controller's events. The simulated one has a
clock of its own; the others are processes behind a doorbell, and their clock is the machine's.
"""

from __future__ import annotations

import pytest
from tests.contract.sim_world import SimWorld, World, make_entries

from dovetail.profile.table import Entry
from dovetail.state import WorkerSpec
from dovetail.workflow.graph import StageSpec

SIMULATED = ("simulated", "simulated by kernel")
#: What models may take: two heavy ones fit, three do not. Of its budget a real worker sets aside more than half.
KEPT_BYTES = {**dict.fromkeys(SIMULATED, 16_000_000), "emulated": 16_000_000, "cpu": 40_000_000}
CPU, KERNELLED, EMULATED = (pytest.param(n, marks=pytest.mark.cpu) for n in ("cpu", "kernelled", "emulated"))


def make_world(name: str, stages: dict[str, StageSpec], memory_bytes: int = 0) -> World:
    """A fresh worker of that kind; with `memory_bytes` of memory, if that is to be counted."""
    if name in SIMULATED:
        return SimWorld(stages, memory_bytes=memory_bytes, kernels=name == "simulated by kernel")
    if name == "emulated":
        spec = WorkerSpec("gpu-0", "gpu", ("onnx",), 0, memory_bytes, 0.0, "emulated")
        return _process(stages, spec, make_entries("gpu", stages))
    by_kernel = name == "kernelled"
    cores = 1 if by_kernel else 2
    spec = WorkerSpec("cpu-0", "cpu", ("onnx",), cores, memory_bytes, 0.0, "cooperative", preempts=by_kernel)
    return _process(stages, spec, [])


def _process(stages: dict[str, StageSpec], spec: WorkerSpec, entries: list[Entry]) -> World:
    # Imported here: the contract of the simulated worker needs nothing of the live one.
    from tests.contract.process_world import ProcessWorld

    return ProcessWorld(stages, spec, entries)
