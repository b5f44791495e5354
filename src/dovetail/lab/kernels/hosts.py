"""The host that launches the kernels of a sequence: it fills or starves the device's queue.

A host is how long it takes to launch each kernel, and how many it may launch before the first of them has ended.
"""

from __future__ import annotations

import math
import random

import msgspec

from ...profile.catalogue.kernels import sequence
from ...sim.sequences import KernelSequence, make_kernels
from ...units import US

__all__ = ["AHEAD", "HOSTS", "HOST_BOUND", "SYNC", "Host", "LaunchedSequence", "host_ns", "launched"]


class Host(msgspec.Struct, frozen=True):
    """How a task's kernels are launched."""

    name: str
    #: Kernels that may be launched beyond the one that has last ended. 0: each is waited for.
    depth: int
    #: Share of launches that take `quick_ns`; the others are log-normal with this median and deviation.
    quick: float
    quick_ns: int
    median_ns: int
    sigma: float
    #: Deviation of ln(time) from run to run. Assumed.
    scatter: float = 0.2


#: Launches are ahead of the device: a launch call takes 5 to 10 µs (Kineto), CUDA queues about 1,000 of them.
AHEAD = Host("ahead", depth=1024, quick=1.0, quick_ns=5 * US, median_ns=5 * US, sigma=0.0)
#: The host is slower than the device, as in eager mode with small batches: a third to a half of the gaps are short,
#: the median of all is 20 to 105 µs (Kineto traces of a V100 and an A100). It does not wait for results.
HOST_BOUND = Host("host", depth=1024, quick=0.35, quick_ns=4 * US, median_ns=60 * US, sigma=0.9)
#: The same, and each result is waited for before the next launch: the most that a device can be made to wait.
SYNC = msgspec.structs.replace(HOST_BOUND, name="sync", depth=0)
HOSTS = {host.name: host for host in (AHEAD, HOST_BOUND, SYNC)}


class LaunchedSequence(KernelSequence, frozen=True):
    """The kernels of a task, and the host that launches them. A run scatters around the typical times."""

    host: Host
    #: Time of the host to launch each, from the launch before or from the result that is waited for.
    host_ns: tuple[int, ...]
    #: Deviation of ln(duration) from run to run. Assumed: GPU kernels repeat well.
    scatter: float = 0.03

    @property
    def work_ns(self) -> int:
        """Time on the device."""
        return sum(kernel.duration_ns for kernel in self.kernels)

    def draw(self, rng: random.Random) -> tuple[list[int], list[int]]:
        """Durations and host times of one run."""
        gauss, exp = rng.gauss, math.exp
        durations = [max(1, round(k.duration_ns * exp(gauss(0.0, self.scatter)))) for k in self.kernels]
        host = [round(ns * exp(gauss(0.0, self.host.scatter))) for ns in self.host_ns]
        return durations, host


def launched(name: str, seed: int, host: Host = HOST_BOUND, *, scale: float = 1.0) -> LaunchedSequence:
    """A sequence as the catalogue describes it, launched by this host; `scale` makes kernels longer or shorter."""
    entry = sequence(name)
    rng = random.Random(f"{entry.name}/{seed}")
    kernels = make_kernels(entry, rng, scale)
    return LaunchedSequence(entry.name, kernels, host, tuple(host_ns(host, rng) for _ in kernels))


def host_ns(host: Host, rng: random.Random) -> int:
    """How long the host typically takes to launch a kernel."""
    if rng.random() < host.quick:
        return host.quick_ns
    return round(host.median_ns * math.exp(rng.gauss(0.0, host.sigma)))
