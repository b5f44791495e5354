"""When? What one device does next: which batch is on it, which model is in its memory, which kernel may start now.

Pure: `Device.step(event, now_ns) -> actions`, like the Controller, one level down. It is composed of small files: the
queue (`queue`), model memory (`cache`, `eviction`, `loading`), quotas (`account`, `tokens`, `usage`), and kernels
(`dispatch` and the arbiters). Its words are in `events`, those of arbiters in `arbiter`. docs/device.md tells the
whole story.
"""

from .account import Account, WindowQuota
from .arbiter import KernelArbiter
from .arbiter_tasks import ArbiterSettings
from .cache import ModelCache
from .gap import GapArbiter, GapSettings
from .machine import Device
from .priority import PriorityArbiter
from .rules import Rules
from .task import TaskState
from .times import DeviceTimes
from .tokens import TokenAccount, TokenSettings

__all__ = [
    "Account", "ArbiterSettings", "Device", "DeviceTimes", "GapArbiter", "GapSettings", "KernelArbiter", "ModelCache",
    "PriorityArbiter", "Rules", "TaskState", "TokenAccount", "TokenSettings", "WindowQuota",
]  # fmt: skip
