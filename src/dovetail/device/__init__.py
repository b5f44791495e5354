"""When? Which kernel may start now on one device: the Arbiter, one per device.

Pure: `step(event) -> actions`, like the Controller, one level down. Quotas, priorities and gap filling live here and
only here; the first-come policy is `FirstComeArbiter`, ours is `GapArbiter`. docs/kernels.md tells the whole story.
"""

from .account import Account, Unlimited
from .arbiter import (
    AlarmRang,
    Arbiter,
    ArbiterAction,
    ArbiterEvent,
    FirstComeArbiter,
    KernelArbiter,
    KernelEvent,
    KernelFinished,
    KernelReady,
    SetAlarm,
    StartKernel,
    TaskBegan,
    TaskExpected,
    TaskGone,
)
from .fikit import FikitArbiter, FikitSettings
from .gap import GapArbiter, GapSettings
from .priority import PriorityArbiter
from .tasks import ArbiterSettings

__all__ = [
    "Account",
    "AlarmRang",
    "Arbiter",
    "ArbiterAction",
    "ArbiterEvent",
    "ArbiterSettings",
    "FikitArbiter",
    "FikitSettings",
    "FirstComeArbiter",
    "GapArbiter",
    "GapSettings",
    "KernelArbiter",
    "KernelEvent",
    "KernelFinished",
    "KernelReady",
    "PriorityArbiter",
    "SetAlarm",
    "StartKernel",
    "TaskBegan",
    "TaskExpected",
    "TaskGone",
    "Unlimited",
]
