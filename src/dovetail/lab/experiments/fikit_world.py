"""The world of the experiment on kernels: pairs of models on one simulated device, shared in one of several ways.

A job is one pair with one way of sharing and one seed. Completion times are given as multiples of what the same
client needs alone on the device.
"""

from __future__ import annotations

import statistics
from functools import lru_cache
from pathlib import Path
from typing import cast

import msgspec

from ...arbiters import ARBITERS, find_arbiter, make_arbiter
from ...device import GapArbiter, GapSettings
from ...extras import load
from ...profile.kernels import KernelStats, Spread
from ...record.kernels import KernelRecord
from ...units import US
from ..kernels.device import ClientSpec, KernelDevice, Sharing, TaskResult
from ..kernels.hosts import AHEAD, HOSTS, Host, LaunchedSequence, launched
from ..kernels.recorded import recorded_sequence
from ..kernels.sharing import PART_EXTRA, PART_NS, Arbitrated, FifoQueue

__all__ = [
    "GRAIN_NS",
    "PAIRS",
    "POLICIES",
    "THINK",
    "Job",
    "Outcome",
    "alone_ns",
    "clients",
    "record",
    "simulate",
    "tasks",
]

#: High and low priority. Light beside heavy, heavy beside light, inference beside training.
PAIRS = (
    ("mobilenetv2", "resnet50"),
    ("mobilenetv2", "bert-large"),
    ("resnet50", "mobilenetv2"),
    ("resnet50", "bert-large"),
    ("resnet50", "resnet50-train"),
    ("resnet101", "transformer-xl"),
    ("resnet101", "efficientnet"),
    ("efficientnet", "resnet101"),
    ("efficientnet", "bert-large"),
    ("transformer-xl", "resnet50"),
    ("transformer-xl", "mobilenetv2-train"),
    ("bert-large", "resnet101"),
)
#: Way of sharing -> what it is.
POLICIES = {name: entry.summary for name, entry in ARBITERS.items()}
#: Runs of the measuring stage.
PROFILE_RUNS = 8
#: The high-priority client rests this many times as long as a task takes alone: it wants a quarter of the time.
THINK = 3.0
#: A run is cut when the high-priority tasks take this many times as long as alone.
LONGEST = 4
#: Added to the seed of the low client's sequence, so that a model beside itself is not its own mirror image.
LOW_SEED = 1000
#: Delay by fillers that the high-priority class may suffer. With 4 % the tuning seeds' median was at the goal (1.05).
BUDGET = 0.035
#: The same where kernels may be run in parts: what a filler causes is shorter, and the credit is seldom overdrawn.
PARTS_BUDGET = 0.045
#: Parts that kernels may be run in are about so long.
GRAIN_NS = 20 * US
#: Part of the gaps to come that a host which does not wait is trusted to catch up with.
CATCH_UP = 0.5
#: Kernels of a task that has its turn are launched this far ahead, so that the device's queue does not run dry.
LAUNCH_AHEAD = 2


class Job(msgspec.Struct, frozen=True):
    """One run."""

    #: Names of the catalogue's sequences, or files of measured ones (`recorded_sequence`).
    high: str
    low: str
    #: How the high client launches; the low one launches ahead.
    host: str
    policy: str
    seed: int
    #: Tasks of the high client.
    tasks: int
    #: Arrivals: high tasks come while a low one runs ("preemptive"), or both clients begin together ("together").
    mode: str = "preemptive"
    ageing_ns: int = 0
    #: The host's times, and the low client's kernels, are so many times as long.
    gap_scale: float = 1.0
    length_scale: float = 1.0
    #: What is believed of durations and gaps is wrong by these factors.
    duration_error: float = 1.0
    gap_error: float = 1.0
    learn: bool = True
    budget: float = -1.0
    #: How many times as long as a task takes alone the high client rests before each; 0: it never does.
    think: float = THINK
    #: The arbiter is told when the next high task begins.
    hints: bool = False
    #: Kernels may run beside each other under ours.
    beside: bool = True
    #: Kernels may be run in parts of this length, and that costs so many times what is assumed and believed of it.
    grain_ns: int = GRAIN_NS
    part_cost: float = 1.0


class Outcome(msgspec.Struct, frozen=True):
    """What came of it. Completion times are means; one that was cut short counts by how far it came."""

    #: Completion times, alone = 1.
    high: float
    low: float
    #: Standard deviation over mean of the low client's completion times.
    low_variation: float
    #: Time that the device was at work.
    busy: float
    #: Longest wait of a high kernel for others, and of a low one; and the longest that a low kernel typically takes.
    worst_wait_ns: int
    low_wait_ns: int
    longest_low_ns: int
    #: When all was done.
    end_ns: int
    #: Time on the device that the low client's kernels had, had each run alone, of all time. Other than completion
    #: times it does not depend on where in a long task a short run is cut.
    low_rate: float


def simulate(job: Job) -> Outcome:
    """Run one job."""
    device = _device(job, None)
    low = device.clients[1]
    later = [r.took_ns for r in device.results if r.client == 1]
    return Outcome(
        device.completion_ns(0) / alone_ns(job.high, job.host, job.gap_scale, 1.0, job.seed),
        device.completion_ns(1) / alone_ns(job.low, AHEAD.name, 1.0, job.length_scale, job.seed),
        statistics.pstdev(later) / statistics.fmean(later) if len(later) > 2 else 0.0,
        device.busy_ns / device.now_ns,
        device.worst_wait_ns[0],
        device.worst_wait_ns[1],
        max(k.duration_ns for k in low.sequence.kernels),
        device.now_ns,
        device.work_ns[1] / device.now_ns,
    )


def record(job: Job) -> list[KernelRecord]:
    """What ran on the device in one job, kernel by kernel."""
    records: list[KernelRecord] = []
    _device(job, records)
    return records


def tasks(job: Job) -> list[TaskResult]:
    """Every task of one job that was done, of both clients."""
    return _device(job, None).results


def clients(job: Job) -> tuple[ClientSpec, ClientSpec]:
    """The high and the low client."""
    high = _sequence(job.high, job.host, job.gap_scale, 1.0, job.seed)
    low = _sequence(job.low, AHEAD.name, 1.0, job.length_scale, job.seed + LOW_SEED)
    high_alone_ns = alone_ns(job.high, job.host, job.gap_scale, 1.0, job.seed)
    if job.mode == "together":
        low_alone_ns = alone_ns(job.low, AHEAD.name, 1.0, job.length_scale, job.seed)
        low_tasks = max(1, round(job.tasks * high_alone_ns / low_alone_ns))
        return ClientSpec(high, 1, job.tasks), ClientSpec(low, 2, low_tasks)
    think_ns = round(job.think * high_alone_ns)
    # It rests before its first task, so that a run is as many times (rest, task) as there are tasks.
    return ClientSpec(high, 1, job.tasks, think_ns, think_ns), ClientSpec(low, 2)


def _device(job: Job, records: list[KernelRecord] | None) -> KernelDevice:
    high, low = clients(job)
    high_alone_ns = alone_ns(job.high, job.host, job.gap_scale, 1.0, job.seed)
    sharing = _sharing(job, high.sequence, low.sequence, high_alone_ns)
    device = KernelDevice([high, low], sharing, job.seed, record=None if records is None else records.append)
    device.run(round(LONGEST * job.tasks * high_alone_ns * (1 + max(job.think, THINK))))
    return device


def _sharing(job: Job, high: LaunchedSequence, low: LaunchedSequence, latency_ns: int) -> Sharing:
    entry = find_arbiter(job.policy)
    if entry.sharing:
        return cast(Sharing, load(entry.sharing)(latency_ns))
    stats = {
        high.name: _believed(_profile(high, job.seed), job),
        low.name: _believed(_profile(low, job.seed + LOW_SEED), job),
    }
    usual = PARTS_BUDGET if entry.in_parts else BUDGET
    gaps = entry.settings is GapSettings
    arbiter = make_arbiter(
        job.policy,
        stats,
        learn=gaps and job.learn,
        ahead=LAUNCH_AHEAD,
        by_class=True,
        ageing_ns=job.ageing_ns,
        budget=usual if job.budget < 0 else job.budget,
        catch_up=CATCH_UP,
    )
    if not gaps:
        return Arbitrated(arbiter)
    return Arbitrated(
        arbiter,
        hints=job.hints,
        shares=job.beside,
        grain_ns=job.grain_ns if entry.in_parts else 0,
        part_extra=job.part_cost * PART_EXTRA,
        part_ns=round(job.part_cost * PART_NS),
    )


@lru_cache(maxsize=256)
def _sequence(name: str, host: str, gap_scale: float, length_scale: float, seed: int) -> LaunchedSequence:
    launched_by: Host = HOSTS[host]
    if gap_scale != 1.0:
        launched_by = msgspec.structs.replace(launched_by, median_ns=round(launched_by.median_ns * gap_scale))
    if name.endswith(".csv"):
        made = recorded_sequence(Path(name), seed, launched_by)
    else:
        made = launched(name, seed, launched_by, scale=length_scale)
    return msgspec.structs.replace(made, name=f"{made.name}/{'low' if seed > LOW_SEED else 'high'}")


@lru_cache(maxsize=256)
def alone_ns(name: str, host: str, gap_scale: float, length_scale: float, seed: int) -> int:
    """Mean completion time of a client that has the device for itself, without a gate."""
    sequence = _sequence(name, host, gap_scale, length_scale, seed)
    device = KernelDevice([ClientSpec(sequence, 1, 6)], FifoQueue(), seed)
    device.run()
    return round(device.completion_ns(0))


@lru_cache(maxsize=64)
def _profile(sequence: LaunchedSequence, seed: int) -> KernelStats:
    """The measuring stage: the task alone on the device, some runs."""
    stats = KernelStats.empty(sequence.name, [kernel.ident for kernel in sequence.kernels])
    arbiter = GapArbiter({sequence.name: stats}, GapSettings(ahead=LAUNCH_AHEAD))
    KernelDevice([ClientSpec(sequence, 1, PROFILE_RUNS)], Arbitrated(arbiter, shares=True), seed + 7).run()
    return stats


def _believed(stats: KernelStats, job: Job) -> KernelStats:
    """A copy, for statistics change while running; wrong by the job's factors."""
    return msgspec.structs.replace(
        stats,
        durations=[_scaled(spread, job.duration_error) for spread in stats.durations],
        gaps=[_scaled(spread, job.gap_error) for spread in stats.gaps],
        shares=dict(stats.shares),
    )


def _scaled(spread: Spread, factor: float) -> Spread:
    made = Spread()
    if factor == 1.0:
        made.merge(spread)
        return made
    for q in range(spread.count):
        made.add(round(factor * spread.quantile_ns((q + 0.5) / spread.count)))
    return made
