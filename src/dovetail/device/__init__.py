"""When? What one device does next: which batch is on it, which model is in its memory, which kernel may start now.

Pure: `Device.step(event, now_ns) -> actions`, like the Controller, one level down. It is composed of small files: the
queue (`queue`), model memory (`cache`, `eviction`, `loading`), quotas (`account`), and kernels (`dispatch` and the
arbiters). docs/device.md tells the whole story.
"""

from .account import Account, Unlimited, WindowQuota
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
    KernelRevoked,
    KernelRunning,
    SetAlarm,
    StartKernel,
    TaskBegan,
    TaskExpected,
    TaskGone,
)
from .arbiter_tasks import ArbiterSettings
from .cache import ModelCache
from .fikit import FikitArbiter, FikitSettings
from .gap import GapArbiter, GapSettings
from .machine import Device
from .priority import PriorityArbiter
from .rules import AUTHORS_SIMULATOR, COMPASS, Rules
from .task import Task, TaskState
from .times import DeviceTimes

__all__ = [
    "AUTHORS_SIMULATOR",
    "COMPASS",
    "Account",
    "AlarmRang",
    "Arbiter",
    "ArbiterAction",
    "ArbiterEvent",
    "ArbiterSettings",
    "Device",
    "DeviceTimes",
    "FikitArbiter",
    "FikitSettings",
    "FirstComeArbiter",
    "GapArbiter",
    "GapSettings",
    "KernelArbiter",
    "KernelEvent",
    "KernelFinished",
    "KernelReady",
    "KernelRevoked",
    "KernelRunning",
    "ModelCache",
    "PriorityArbiter",
    "Rules",
    "SetAlarm",
    "StartKernel",
    "Task",
    "TaskBegan",
    "TaskExpected",
    "TaskGone",
    "TaskState",
    "Unlimited",
    "WindowQuota",
]
