"""When? Which kernel may start now on one device: the Arbiter, one per device.

Pure: `step(event) -> actions`, like the Controller, one level down. Quotas, priorities and gap filling live here and
only here; the first-come policy is `FirstComeArbiter`.
"""

from .arbiter import Arbiter, FirstComeArbiter, KernelFinished, KernelReady, StartKernel, TaskGone

__all__ = ["Arbiter", "FirstComeArbiter", "KernelFinished", "KernelReady", "StartKernel", "TaskGone"]
