"""The arbiters of a gated device, by the names of the registry (`arbiters`), with what was measured on a processor.

None of them learns: what kernels and gaps take is learned by the device (`device.times`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ... import arbiters
from ...device import KernelArbiter
from ...profile.kernels import KernelStats
from ...units import MS, US
from .wire import GatePolicy

__all__ = ["make_arbiter"]

#: Gap filling on a processor, where a kernel takes ten times as long as on a GPU and the gate's code is cold after
#: each: what a filler costs beside its duration (measured: to start it, and from its end to the beginning of the
#: next), and credit for some kernels, so that one long wait does not keep the next gaps empty. Chosen on pairs that
#: are not among those reported.
OVERHEAD_NS = 60 * US
BURST_NS = 3 * MS
BUDGET = 0.02


def make_arbiter(policy: GatePolicy, stats: Mapping[str, KernelStats]) -> KernelArbiter:
    """The arbiter of that policy; `stats` is what the device knows of kernels, always as it is now."""
    return arbiters.make_arbiter(
        policy.name, stats, ageing_ns=policy.ageing_ns, budget=BUDGET, burst_ns=BURST_NS, overhead_ns=OVERHEAD_NS
    )
