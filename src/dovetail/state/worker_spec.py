"""What workers say of themselves and what is decided of batches: records that logs and messages hold."""

from __future__ import annotations

import msgspec

from .run_batch import FULL_QUOTA

__all__ = ["Config", "WorkerRow", "WorkerSpec"]


class Config(msgspec.Struct, frozen=True, gc=False):
    """How a stage is run: largest batch, processor cores, share of the device and of its time in per cent."""

    batch: int
    cpus: int
    share_pct: int
    #: Part of the device's time.
    quota_pct: int = FULL_QUOTA
    #: Kind of device that it is meant for, where a stage can run on several; empty: any.
    kind: str = ""


class WorkerSpec(msgspec.Struct, frozen=True):
    """A worker as it introduces itself when it joins."""

    name: str
    #: What kind of device it is; profiles are kept by kind: "cpu", "host", "v100"...
    kind: str
    #: Kinds of stages it can run: "onnx", "torch", "python", "model".
    runs: tuple[str, ...]
    #: Processor cores that batches on it share; 0 if they are not counted.
    cores: int = 0
    memory_bytes: int = 0
    #: Price of the whole device; a batch pays for its share of it.
    usd_per_hour: float = 0.0
    #: What holds a share of this device: "none", "cooperative", "mps", "mig", "simulated".
    enforcement: str = "none"
    #: Price of one core beside the device; a batch pays for the cores it takes.
    usd_per_core_hour: float = 0.0
    #: It may stop a batch between two kernels: one of a higher class takes the device from a lower one.
    preempts: bool = False
    #: Stages that it is for; empty: all that it can run.
    stages: tuple[str, ...] = ()

    @property
    def on_host(self) -> bool:
        """Whether it runs ordinary Python instead of models."""
        return "python" in self.runs

    def takes(self, kind: str, stage: str) -> bool:
        """Whether it runs this stage, which is of this kind."""
        return kind in self.runs and (not self.stages or stage in self.stages)


class WorkerRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A worker at one moment: its row of the shared state table. It may be old when read; `at_ns` says how old."""

    worker: int
    at_ns: int
    #: Expected run times of everything it has taken and not finished, the one that runs counted whole.
    wait_ns: int
    #: When it expects to be done with all of that, loads included; `at_ns` if it is idle.
    free_at_ns: int
    #: Models that it holds or is loading, by `StageSpec.weights`.
    resident: tuple[str, ...]
    #: Memory for models that is not taken; what could be evicted is not counted.
    free_bytes: int
    #: Share that nothing runs in and nothing waits for; and when the next batch should end that runs, 0 if none does.
    free_pct: int = 0
    next_ns: int = 0
