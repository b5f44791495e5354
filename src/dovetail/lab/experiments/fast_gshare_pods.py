"""FaST-GShare's pods on a simulated device: what the authors measured, three numbers for each model, and the device.

What the tables show. A pod answers one request after the other. A request has a part on the host and a part on the
device. The part on the device takes `max(floor, work / share)`, which is the form of all our curves. A quota
stretches that part and nothing else: a cycle takes host + device / quota, over all shares and quotas. So nothing is
saved up while the host works. In our account that is a window that is short against a request (`WINDOW_PART`).

Rules of this file
- Three numbers by model (host, floor, work) are fitted on half of the cells, as on a chess-board. Errors are of the
  other half, and of the simulated device, not of the formula.
- Neighbours: one more number by model and share, what each pod that runs beside costs, fitted on 1, 5 and 9 replicas.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

import msgspec

from ...control import BatchFinished, RunBatch
from ...device import GapArbiter, GapSettings, TokenAccount, TokenSettings
from ...profile.curve import Curve
from ...profile.kernels import KernelStats
from ...profile.table import Entry, ProfileTable
from ...sim import SimDevice
from ...sim.fluid import Flow
from ...sim.sequences import Kernel, KernelSequence
from ...state import WorkerSpec
from ...state.run_batch import NEVER_NS
from ...units import SECOND
from ...workflow.graph import StageSpec

__all__ = [
    "Cells", "Pod", "Pods", "fit_beside", "fit_pod", "fitted_half", "read_cells", "read_replicas", "search",
    "simulated_per_s",
]  # fmt: skip

#: (share in per cent, quota) -> requests per second.
Cells = Mapping[tuple[int, float], float]

#: Kernels of a request, and the window of quotas as a part of the request's time on the device [our choice].
KERNELS, WINDOW_PART = 32, 16
#: Requests of each pod that are simulated, and those of them that count [our choice]; nothing is random here.
REQUESTS, COUNTED = 14, 10


class Pod(msgspec.Struct, frozen=True):
    """What a model takes: time on the host, and on the device by share."""

    host_ns: float
    floor_ns: float
    work_ns: float
    #: Each other pod that runs beside it makes its part on the device longer by this part.
    beside: float = 0.0

    def device_ns(self, share_pct: int) -> float:
        """Time of a request on the device, alone."""
        return max(self.floor_ns, self.work_ns * 100 / share_pct)

    def per_s(self, share_pct: int, quota: float) -> float:
        """Requests per second by the formula."""
        return SECOND / (self.host_ns + self.device_ns(share_pct) / quota)


class Pods(msgspec.Struct, frozen=True):
    """Equal pods on one device."""

    pod: Pod
    share_pct: int
    quota: float
    replicas: int = 1


def read_cells(path: Path) -> dict[tuple[int, float], float]:
    """A table of the authors' profiler."""
    found = {}
    for limits, per_s in _rows(path):
        found[int(limits["GPU_SM"]), float(limits["GPU_QUOTA"])] = per_s
    return found


def read_replicas(path: Path) -> dict[int, float]:
    """Requests per second by the number of replicas."""
    return {int(limits["replicas"]): per_s for limits, per_s in _rows(path)}


def _rows(path: Path) -> list[tuple[dict[str, str], float]]:
    with path.open(encoding="utf-8", newline="") as file:
        return [(json.loads(row["limitations"]), float(row["value"])) for row in csv.DictReader(file)]


def fitted_half(cells: Cells) -> tuple[dict[tuple[int, float], float], dict[tuple[int, float], float]]:
    """The cells that a model is fitted on, and the others: the colours of a chess-board."""
    shares, quotas = sorted({share for share, _ in cells}), sorted({quota for _, quota in cells})
    halves: tuple[dict[tuple[int, float], float], ...] = ({}, {})
    for (share, quota), per_s in sorted(cells.items()):
        halves[(shares.index(share) + quotas.index(quota)) % 2][share, quota] = per_s
    return halves[0], halves[1]


def fit_pod(cells: Cells) -> Pod:
    """The three numbers with the least squared relative error, by a search along each of them."""
    cycle_ns = SECOND / max(cells.values())

    def error(values: Sequence[float]) -> float:
        pod = Pod(*values)
        return sum(math.log(pod.per_s(*cell) / per_s) ** 2 for cell, per_s in cells.items())

    return Pod(*search(error, [0.3 * cycle_ns, 0.6 * cycle_ns, 0.05 * cycle_ns]))


def search(
    error: Callable[[Sequence[float]], float], values: list[float], *, first: float = 1.5, last: float = 1.0005
) -> list[float]:
    """The least error, by steps along each number that become smaller: factors from `first` down to `last`."""
    best, step = error(values), first
    while step > last:
        better = False
        for i in range(len(values)):
            for factor in (step, 1 / step):
                tried = [*values[:i], values[i] * factor, *values[i + 1 :]]
                if (found := error(tried)) < best:
                    values, best, better = tried, found, True
        if not better:
            step = math.sqrt(step)
    return values


def fit_beside(pod: Pod, share_pct: int, replicas: Mapping[int, float]) -> Pod:
    """What a neighbour costs, so that the simulated device yields what was measured with these replicas."""

    def error(values: Sequence[float]) -> float:
        tried = msgspec.structs.replace(pod, beside=values[0])
        return sum(
            math.log(simulated_per_s(Pods(tried, share_pct, 1.0, n)) / per_s) ** 2 for n, per_s in replicas.items()
        )

    low, high = 0.0, 1.0
    for _ in range(30):  # the error has one valley: the more neighbours cost, the less there is
        third = (high - low) / 3
        if error([low + third]) < error([high - third]):
            high -= third
        else:
            low += third
    return msgspec.structs.replace(pod, beside=(low + high) / 2)


class _Beside:
    """Everybody is slowed down by each of the others alike."""

    def __init__(self, extra: float) -> None:
        self._extra = extra

    def __call__(self, running: Sequence[Flow]) -> list[float]:
        return [1 / (1 + self._extra * (len(running) - 1))] * len(running)


def simulated_per_s(job: Pods) -> float:
    """Requests per second of equal pods on a simulated device, each with one request after the other."""
    pod, names = job.pod, [f"pod{n}" for n in range(job.replicas)]
    device_ns = round(pod.device_ns(job.share_pct))
    curve = Curve((1,), (max(1, round(pod.floor_ns)),), (max(1, round(pod.work_ns)),))
    stages = {name: StageSpec(name, "model", (1,)) for name in names}
    table = ProfileTable([Entry(name, "v100", curve=curve) for name in names])
    kernels = tuple(Kernel(f"k{i}", "compute", job.share_pct, device_ns // KERNELS) for i in range(KERNELS))
    sequences = {name: KernelSequence(name, kernels) for name in names} if job.quota < 1 else {}
    window_ns = max(1, device_ns // WINDOW_PART)
    account = TokenAccount(TokenSettings(window_ns=window_ns, token_ns=window_ns, least_ns=1, mode="strict"))
    stats: dict[str, KernelStats] = {}
    arbiter = GapArbiter(stats, GapSettings(order="slack"), account=account, learn=False)
    heap: list[tuple[int, int, object]] = []
    numbers, batches = count(), count(1)

    def schedule(at_ns: int, _device: object, payload: object) -> None:
        heappush(heap, (at_ns, next(numbers), payload))

    spec = WorkerSpec("device", "v100", ("model",))
    device = SimDevice(
        1, spec, stages, table, schedule, sequences=sequences, arbiter=arbiter, contention=_Beside(pod.beside)
    )
    owners: dict[int, str] = {}
    ended: dict[str, list[int]] = {name: [] for name in names}
    for name in names:
        schedule(0, None, name)
    while heap and any(len(times) < REQUESTS for times in ended.values()):
        now_ns, _, payload = heappop(heap)
        if isinstance(payload, str):
            number = next(batches)
            owners[number] = payload
            quota_pct = round(100 * job.quota)
            item = ((number, 0, 0),)
            events = device.take(
                RunBatch(0, number, 1, payload, item, 1, job.share_pct, now_ns, NEVER_NS, device_ns,
                         quota_pct=quota_pct),
                now_ns,
            )  # fmt: skip
        else:
            events = device.wake(payload, now_ns)
        for event in events:
            if isinstance(event, BatchFinished):
                owner = owners.pop(event.batch)
                ended[owner].append(now_ns)
                schedule(now_ns + round(pod.host_ns), None, owner)
    return sum((COUNTED - 1) * SECOND / (times[REQUESTS - 1] - times[REQUESTS - COUNTED]) for times in ended.values())
