"""A device simulated kernel by kernel, with the hosts that launch on it.

Clients run tasks one after the other; a task is a kernel sequence; its host launches kernel after kernel, as far
ahead as it may. What happens to a launched kernel is the sharing policy's business (`kernel_policies`): it begins
kernels, pauses them if the device can, and is told when they end. Kernels that run together slow each other down.

Virtual time in nanoseconds; a heap of (time, number, what); the same seed gives the same run.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from ...record.kernels import KernelRecord
from ...sim.contention import slowdown
from .hosts import LaunchedSequence

__all__ = ["ClientSpec", "Job", "KernelDevice", "KernelRun", "Sharing", "TaskResult", "rests"]

#: So many rests of a client without a number of tasks are spread evenly at a time.
EVERLASTING_RESTS = 16


class ClientSpec(msgspec.Struct, frozen=True):
    """Who runs what."""

    sequence: LaunchedSequence
    #: 1 is the highest class.
    priority: int
    #: How many tasks; 0: until all clients with a number are done.
    tasks: int = 0
    #: Time between the end of a task and the next, give or take half of it (`rests`).
    think_ns: int = 0
    begin_ns: int = 0


class TaskResult(msgspec.Struct, frozen=True):
    """A task that is done."""

    client: int
    begin_ns: int
    end_ns: int

    @property
    def took_ns(self) -> int:
        """Completion time."""
        return self.end_ns - self.begin_ns


class Job:
    """A task at work."""

    __slots__ = (
        "begin_ns",
        "client",
        "durations",
        "host",
        "ident",
        "last_ns",
        "launched",
        "over",
        "pending",
        "priority",
    )

    def __init__(self, ident: int, client: int, priority: int, begin_ns: int) -> None:
        self.ident = ident
        self.client = client
        self.priority = priority
        self.begin_ns = begin_ns
        self.durations: list[int] = []
        self.host: list[int] = []
        #: Kernels launched and kernels over.
        self.launched = 0
        self.over = 0
        #: When the last of them ended.
        self.last_ns = begin_ns
        #: A launch is under way.
        self.pending = False


class KernelRun:
    """A launched kernel."""

    __slots__ = (
        "begin_ns", "duration_ns", "job", "kernel", "kind", "launch_ns", "left_ns", "more", "share_pct", "why",
    )  # fmt: skip

    def __init__(self, job: Job, kernel: int, duration_ns: int, share_pct: int, kind: str, launch_ns: int) -> None:
        self.job = job
        self.kernel = kernel
        self.duration_ns = duration_ns
        self.share_pct = share_pct
        self.kind = kind
        self.launch_ns = launch_ns
        self.begin_ns = -1
        self.left_ns = float(duration_ns)
        self.why = "turn"
        #: What runs is a part of it that others follow.
        self.more = False


def rests(spec: ClientSpec, seed: int, client: int) -> Iterator[int]:
    """Times between the end of a client's task and the next: from half to half as much again of `think_ns`.

    They are spread evenly instead of being drawn, in an order that the seed decides on: so the rests of any number
    of tasks add up to what was asked for, and two seeds differ in the order and not in the load.
    """
    count = max(1, spec.tasks - 1) if spec.tasks else EVERLASTING_RESTS
    rng = random.Random(f"{seed}/{client}/rests")
    while True:
        spread = [round(spec.think_ns * (0.5 + (i + 0.5) / count)) for i in range(count)]
        rng.shuffle(spread)
        yield from spread


class Sharing(Protocol):
    """Decides which launched kernels run."""

    def attach(self, device: KernelDevice) -> None:
        """The device to begin kernels on."""
        ...

    def began(self, job: Job, now_ns: int) -> None:
        """A task has begun."""
        ...

    def launched(self, run: KernelRun, now_ns: int) -> None:
        """A kernel was launched."""
        ...

    def ended(self, run: KernelRun, now_ns: int) -> None:
        """A kernel has ended."""
        ...

    def gone(self, job: Job, now_ns: int) -> None:
        """A task is over."""
        ...

    def expected(self, task: int, priority: int, expected_ns: int, now_ns: int) -> None:
        """A task of this number will begin at that time."""
        ...


class KernelDevice:
    """The device, its clients and the clock."""

    def __init__(
        self,
        clients: Sequence[ClientSpec],
        sharing: Sharing,
        seed: int,
        *,
        record: Callable[[KernelRecord], None] | None = None,
    ) -> None:
        self.clients = tuple(clients)
        self.now_ns = 0
        self.running: list[KernelRun] = []
        self.results: list[TaskResult] = []
        #: Client -> task at work.
        self._open: dict[int, Job] = {}
        #: Client -> time on the device of its kernels that are over, had they run alone.
        self.work_ns = [0] * len(clients)
        #: Client -> longest wait of a launched kernel for others, its own task's kernels before it not counted.
        self.worst_wait_ns = [0] * len(clients)
        #: Time that at least one kernel ran.
        self.busy_ns = 0
        self._sharing = sharing
        self._record = record
        self._rngs = [random.Random(f"{seed}/{i}") for i in range(len(clients))]
        self._rests = [rests(spec, seed, i) for i, spec in enumerate(clients)]
        self._left = [c.tasks for c in clients]
        self._unfinished = sum(1 for c in clients if c.tasks)
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._jobs = 0
        self._changes = 0
        self._since_ns = 0
        self._rate = 1.0
        sharing.attach(self)

    # -- the clock ----------------------------------------------------------------------------------------------

    def run(self, until_ns: int = 1 << 62) -> None:
        """Until the clients with a number of tasks are done, or until a time."""
        for client, spec in enumerate(self.clients):
            self._expect(client, spec.begin_ns)
        while self._heap and self._unfinished and self._heap[0][0] <= until_ns:
            self.now_ns, _, what = heapq.heappop(self._heap)
            what()
        self._progress()

    def completion_ns(self, client: int) -> float:
        """Mean completion time of a client's tasks; one that is not done counts by how many of its kernels are."""
        took = [r.took_ns for r in self.results if r.client == client]
        spent_ns, done = sum(took), float(len(took))
        job = self._open.get(client)
        if job is not None:
            spent_ns += self.now_ns - job.begin_ns
            done += job.over / len(job.host)
        return spent_ns / done if done else float("inf")

    def at(self, at_ns: int, what: Callable[[], None]) -> None:
        """Do something at a time; what was asked for first is done first."""
        self._number += 1
        heapq.heappush(self._heap, (at_ns, self._number, what))

    # -- hosts --------------------------------------------------------------------------------------------------

    def _expect(self, client: int, begin_ns: int) -> None:
        self._jobs += 1
        ident = self._jobs
        self._sharing.expected(ident, self.clients[client].priority, begin_ns, self.now_ns)
        self.at(begin_ns, lambda: self._begin(client, ident))

    def _begin(self, client: int, ident: int) -> None:
        spec = self.clients[client]
        job = self._open[client] = Job(ident, client, spec.priority, self.now_ns)
        job.durations, job.host = spec.sequence.draw(self._rngs[client])
        self._sharing.began(job, self.now_ns)
        self._prepare(job)

    def _prepare(self, job: Job) -> None:
        """Begin the next launch if the host is free and may."""
        if job.pending or job.launched == len(job.host):
            return
        if job.launched <= job.over + self.clients[job.client].sequence.host.depth:
            job.pending = True
            self.at(self.now_ns + job.host[job.launched], lambda: self._launch(job))

    def _launch(self, job: Job) -> None:
        index = job.launched
        kernel = self.clients[job.client].sequence.kernels[index]
        job.pending = False
        job.launched += 1
        run = KernelRun(job, index, job.durations[index], kernel.share_pct, kernel.kind, self.now_ns)
        self._sharing.launched(run, self.now_ns)
        self._prepare(job)

    # -- kernels ------------------------------------------------------------------------------------------------

    def begin(self, run: KernelRun, why: str = "turn") -> None:
        """Let a kernel run, or go on."""
        self._progress()
        if run.begin_ns < 0:
            run.begin_ns = self.now_ns
            run.why = why
            job = run.job
            wait_ns = self.now_ns - max(run.launch_ns, job.last_ns)
            self.worst_wait_ns[job.client] = max(self.worst_wait_ns[job.client], wait_ns)
        self.running.append(run)
        self._changed()

    def pause(self, run: KernelRun) -> None:
        """Take a kernel off the device; `begin` lets it go on."""
        self._progress()
        self.running.remove(run)
        self._changed()

    def _progress(self) -> None:
        """Account for what ran since the last change."""
        passed_ns = self.now_ns - self._since_ns
        self._since_ns = self.now_ns
        if self.running and passed_ns:
            self.busy_ns += passed_ns
            for run in self.running:
                run.left_ns -= passed_ns * self._rate

    def _changed(self) -> None:
        """The set of running kernels is another: say when the next of them ends."""
        running = self.running
        self._changes += 1
        if not running:
            return
        if len(running) == 1:
            self._rate, first = 1.0, running[0]
        else:
            assert len(running) == 2, "two kernels at a time at most"
            one, other = running
            self._rate = 1 / slowdown(one.kind, one.share_pct, other.kind, other.share_pct)
            first = min(running, key=lambda r: r.left_ns)
        change = self._changes
        end_ns = self.now_ns + max(0, round(first.left_ns / self._rate))
        self.at(end_ns, lambda: self._end(first) if change == self._changes else None)

    def _end(self, run: KernelRun) -> None:
        self._progress()
        self.running.remove(run)
        self._changed()
        job, now_ns = run.job, self.now_ns
        job.last_ns = now_ns
        if self._record is not None:
            self._record(self._recorded(run))
        if run.more:
            self._sharing.ended(run, now_ns)
            return
        job.over += 1
        self.work_ns[job.client] += run.duration_ns
        self._sharing.ended(run, now_ns)
        if job.over == len(job.host):
            self._finish(job)
        else:
            self._prepare(job)

    def _finish(self, job: Job) -> None:
        client, now_ns = job.client, self.now_ns
        spec = self.clients[client]
        self.results.append(TaskResult(client, job.begin_ns, now_ns))
        del self._open[client]
        self._sharing.gone(job, now_ns)
        if spec.tasks:
            self._left[client] -= 1
            if not self._left[client]:
                self._unfinished -= 1
                return
        self._expect(client, now_ns + next(self._rests[client]))

    def _recorded(self, run: KernelRun) -> KernelRecord:
        job = run.job
        sequence = self.clients[job.client].sequence
        what = sequence.kernels[run.kernel].ident
        return KernelRecord(
            job.ident,
            sequence.name,
            run.kernel,
            job.priority,
            run.begin_ns,
            self.now_ns,
            run.launch_ns,
            what,
            run.why,
        )
