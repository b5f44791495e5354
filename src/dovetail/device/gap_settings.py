"""Settings of the arbiter that fills gaps (`gap`)."""

from __future__ import annotations

from ..units import MS, US
from .arbiter_tasks import ArbiterSettings

__all__ = ["GapSettings"]


class GapSettings(ArbiterSettings, frozen=True, kw_only=True):
    """Our knobs."""

    #: Delay by fillers that a class may suffer, as a part of the time that it has tasks on the device.
    budget: float = 0.03
    #: Credit that is kept at most.
    burst_ns: int = MS // 2
    #: Quantile of a filler's duration that is reckoned with.
    quantile: float = 0.5
    #: What a filler costs beside its duration: to start it, and to notice its end.
    overhead_ns: int = 2 * US
    #: A gap that could not be filled is looked at again after this time, then after half as long again, and so on.
    again_ns: int = 50 * US
    #: How long after its time an expected task is still waited for.
    grace_ns: int = 200 * US
    #: How much longer a kernel takes that another runs beside, where both fit and nobody learns it (`KernelPairs`):
    #: median of 1,500 partitioned pairs that iGniter's authors measured on a V100.
    beside: float = 0.09
    #: Part of its usual gaps to come by which a task that launches ahead is trusted to catch up with delay. 0: what
    #: it has caught up with is given back, and nothing is counted on before.
    catch_up: float = 0.0
    #: A part of a kernel is reckoned to take so much of its time, and this, more than it would within the whole.
    part_extra: float = 0.05
    part_ns: int = 3 * US
    #: Work that a part has to bring for the delay that it is expected to cause, at least.
    price: float = 3.0
