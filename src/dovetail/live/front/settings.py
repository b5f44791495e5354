"""What a live system is started with."""

from __future__ import annotations

from typing import Literal

import msgspec

from ...device.tokens import QuotaMode
from ...profile.table import Entry
from ...state import WorkerSpec
from ...units import MS
from ...workflow.graph import Graph

__all__ = ["Settings"]


class Settings(msgspec.Struct, frozen=True):
    """Workers, workflows, and how they are run."""

    target: str
    graphs: tuple[Graph, ...]
    workers: tuple[WorkerSpec, ...]
    entries: tuple[Entry, ...] = ()
    #: Cores that a batch is given under the policy; empty is all of a device.
    cpus: tuple[int, ...] = ()
    arena_bytes: int = 1 << 30
    #: A batch that has run for longer than this, and longer than 50 times what was expected, will never end.
    hang_ns: int = 30_000 * MS
    #: The budgets of devices hold for all that their processes have, and models are measured.
    strict: bool = False
    #: Whether models are run kernel by kernel: where a lower class could be in a higher one's way, always, or never.
    kernels: Literal["auto", "always", "never"] = "auto"
    #: File for the kernels that run; empty is none.
    kernel_log: str = ""
    #: One kernel of a lower class may start per this time, whatever is above it; 0: never.
    ageing_ns: int = 0
    #: Most items of one request at one stage. A controller's step for so many takes some 20 ms.
    max_fan_out: int = 1024
    #: Whether a quota is also a limit.
    quotas: QuotaMode = "conserving"
    #: Whether workers share one copy of each model's weights.
    shared_weights: bool = True
    #: Workers for models that there may be at the most, and those of them that wait, started, to be asked for.
    most: int = 0
    spares: int = 0
