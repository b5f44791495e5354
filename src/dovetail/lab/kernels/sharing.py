"""How a device is shared between clients, kernel by kernel: what drivers do, Orion's rule, and our arbiters.

A stream is a client's kernels in the order of launch; only the first of each can begin. Context switches cost nothing
here, which is kind to time slices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from ...device import KernelArbiter
from ...device.arbiter import (
    AlarmRang,
    KernelEvent,
    KernelFinished,
    KernelReady,
    SetAlarm,
    StartKernel,
    TaskBegan,
    TaskExpected,
    TaskGone,
)
from ...state.worker import FULL_SHARE
from ...units import MS, US
from .device import Job, KernelDevice, KernelRun, Sharing

__all__ = [
    "Arbitrated",
    "FifoQueue",
    "OrionRule",
    "Streams",
    "TimeSlices",
    "fifo",
    "orion",
    "priority",
    "slices",
    "streams",
]

#: Orion holds best-effort work back beyond this part of the high-priority task's latency (second-hand).
ORION_OUTSTANDING = 0.025
#: What it costs to run a kernel in parts: so much of its time, and this for each part. Assumed, not measured. That it
#: can be done is known from others (Tally, LithOS: grids cut into ranges of blocks).
PART_EXTRA, PART_NS = 0.05, 3 * US


class _Streams(ABC):
    """What the policies below have in common: streams by client."""

    device: KernelDevice

    def attach(self, device: KernelDevice) -> None:
        """The device to begin kernels on."""
        self.device = device
        self.streams: list[deque[KernelRun]] = [deque() for _ in device.clients]
        self.priorities = [c.priority for c in device.clients]

    def began(self, job: Job, now_ns: int) -> None:
        """Drivers do not know tasks."""
        return

    def gone(self, job: Job, now_ns: int) -> None:
        """Nor their ends."""
        return

    def expected(self, task: int, priority: int, expected_ns: int, now_ns: int) -> None:
        """Nor what comes next."""
        return

    def launched(self, run: KernelRun, now_ns: int) -> None:
        """Into its stream."""
        self.streams[run.job.client].append(run)
        self._serve(now_ns)

    def ended(self, run: KernelRun, now_ns: int) -> None:
        """Something else may begin."""
        self._serve(now_ns)

    @abstractmethod
    def _serve(self, now_ns: int) -> None:
        """Begin what may begin now."""


class FifoQueue(_Streams):
    """One queue for all, in the order of launch: clients of one context and one hardware queue."""

    def attach(self, device: KernelDevice) -> None:
        """The device to begin kernels on."""
        super().attach(device)
        self.streams = [deque()] * len(device.clients)

    def _serve(self, now_ns: int) -> None:
        if self.streams[0] and not self.device.running:
            self.device.begin(self.streams[0].popleft())


class TimeSlices(_Streams):
    """Each process in turn for a slice, kernels interrupted: what a driver does with processes that share a device.

    A process that has nothing to run gives its slice away. How long a slice is differs by device and is not
    documented: 2 ms is of the right order, unverified.
    """

    def __init__(self, slice_ns: int = 2 * MS) -> None:
        self._slice_ns = slice_ns
        self._owner = 0
        self._slice = 0
        self._paused: dict[int, KernelRun] = {}

    def _has_work(self, client: int) -> bool:
        return bool(self.streams[client]) or client in self._paused

    def _serve(self, now_ns: int) -> None:
        if self.device.running:
            return
        if not self._has_work(self._owner):
            count = len(self.streams)
            turn = [(self._owner + i) % count for i in range(1, count)]
            other = next((c for c in turn if self._has_work(c)), None)
            if other is None:
                return
            self._give(other, now_ns)
        run = self._paused.pop(self._owner, None) or self.streams[self._owner].popleft()
        self.device.begin(run)

    def _give(self, client: int, now_ns: int) -> None:
        self._owner = client
        self._slice += 1
        number = self._slice
        self.device.at(now_ns + self._slice_ns, lambda: self._expired(number))

    def _expired(self, number: int) -> None:
        if number != self._slice:
            return
        now_ns, count = self.device.now_ns, len(self.streams)
        turn = [(self._owner + i) % count for i in range(1, count)]
        other = next((c for c in turn if self._has_work(c)), None)
        if other is None:
            self._give(self._owner, now_ns)
            return
        for run in list(self.device.running):
            self.device.pause(run)
            self._paused[run.job.client] = run
        self._give(other, now_ns)
        self._serve(now_ns)


class Streams(_Streams):
    """Streams of one context, by priority or in turn; a kernel begins beside another if both fit on the device."""

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._turn = 0

    def _serve(self, now_ns: int) -> None:
        device = self.device
        while len(device.running) < 2:
            busy = {r.job.client for r in device.running}
            heads = [c for c, stream in enumerate(self.streams) if stream and c not in busy]
            used_pct = sum(r.share_pct for r in device.running)
            count = len(self.streams)
            heads.sort(key=lambda c: (self.priorities[c] if self._by_priority else 0, (c - self._turn) % count))
            for client in heads:
                if not device.running or used_pct + self.streams[client][0].share_pct <= 100:
                    self._turn = client + 1
                    device.begin(self.streams[client].popleft())
                    break
                if self._by_priority:
                    return
            else:
                return


class OrionRule(_Streams):
    """Orion: high-priority kernels begin when they fit; others if no high one is there, or beside it if they fit and
    are bound by the other resource; and never for more than a part of the high task's latency at a time.

    From the authors' description and code as summarised second-hand: unverified. One best-effort kernel is
    outstanding at a time here, which is kinder to the high-priority task than Orion is.
    """

    def __init__(self, latency_ns: int) -> None:
        self._limit_ns = latency_ns * ORION_OUTSTANDING

    def _serve(self, now_ns: int) -> None:
        device = self.device
        top = min(self.priorities)
        order = sorted(range(len(self.streams)), key=lambda c: self.priorities[c])
        for client in order:
            stream = self.streams[client]
            if not stream or len(device.running) > 1 or any(r.job.client == client for r in device.running):
                continue
            head = stream[0]
            used_pct = sum(r.share_pct for r in device.running)
            fits = used_pct + head.share_pct <= 100
            if self.priorities[client] == top:
                if device.running and not fits:
                    return
                device.begin(stream.popleft())
                continue
            high = [r for r in device.running if self.priorities[r.job.client] == top]
            high_waits = any(s and self.priorities[c] == top for c, s in enumerate(self.streams))
            if not device.running and not high_waits:
                device.begin(stream.popleft(), "fill")
            elif high and fits and len(device.running) == 1:
                other = {"compute": "memory", "memory": "compute"}.get(high[0].kind)
                if head.kind == other and head.duration_ns <= self._limit_ns:
                    device.begin(stream.popleft(), "beside")


class Arbitrated:
    """Kernels go through an arbiter; what it starts goes into its client's stream, and the device takes streams by
    class. With `shares` the arbiter is told what part of the device each kernel wants, and may let two run beside
    each other; without, every kernel has the device to itself.

    `gate_ns` passes between a start and the device's queue, `notice_ns` until the arbiter knows of an end. Measured:
    a driver interposer adds 0.1 to 0.2 µs to a launch; to wake a waiting process takes 2 to 7 µs.

    With `grain_ns` kernels may be run in equal parts of about that length, each launched with a part of the blocks. A
    part asks for the same share, and takes `part_extra` of its time and `part_ns` more.
    """

    def __init__(
        self,
        arbiter: KernelArbiter,
        *,
        gate_ns: int = 200,
        notice_ns: int = 2 * US,
        hints: bool = False,
        shares: bool = False,
        grain_ns: int = 0,
        part_extra: float = PART_EXTRA,
        part_ns: int = PART_NS,
    ) -> None:
        self._arbiter = arbiter
        self._hints = hints
        self._shares = shares
        self._gate_ns = gate_ns
        self._notice_ns = notice_ns
        self._grain_ns = grain_ns
        self._part_extra = part_extra
        self._part_ns = part_ns
        #: Kernel that was started in part -> parts of it that have not been started.
        self._parts: dict[tuple[int, int], int] = {}
        self._launched: dict[tuple[int, int], KernelRun] = {}

    def attach(self, device: KernelDevice) -> None:
        """The device to begin kernels on."""
        self._device = device
        self._streams: dict[int, deque[KernelRun]] = {
            client: deque() for client, _ in sorted(enumerate(device.clients), key=lambda c: c[1].priority)
        }

    def began(self, job: Job, now_ns: int) -> None:
        """Tell the arbiter."""
        name = self._device.clients[job.client].sequence.name
        self._step(TaskBegan(now_ns, job.ident, job.priority, client=str(job.client), sequence=name))

    def expected(self, task: int, priority: int, expected_ns: int, now_ns: int) -> None:
        """Tell the arbiter, if it is to know."""
        if self._hints and expected_ns > now_ns:
            self._step(TaskExpected(now_ns, task, priority, expected_ns))

    def launched(self, run: KernelRun, now_ns: int) -> None:
        """Ask the arbiter."""
        ident = run.job.ident
        share_pct = run.share_pct if self._shares else FULL_SHARE
        parts = self._parts_of(run)
        self._launched[ident, run.kernel] = run
        self._step(KernelReady(now_ns, ident, run.kernel, share_pct, parts=parts))

    def ended(self, run: KernelRun, now_ns: int) -> None:
        """What is in the device's queue goes on at once; the arbiter hears of it a little later."""
        self._serve()
        job, heard_ns = run.job.ident, now_ns + self._notice_ns
        self._tell(KernelFinished(heard_ns, job, run.kernel, run.begin_ns, now_ns))

    def gone(self, job: Job, now_ns: int) -> None:
        """The arbiter hears of it after the task's last kernel."""
        self._tell(TaskGone(now_ns + self._notice_ns, job.ident))

    def _tell(self, event: KernelEvent) -> None:
        if event.at_ns == self._device.now_ns:
            self._step(event)
        else:
            self._device.at(event.at_ns, lambda: self._step(event))

    def _step(self, event: KernelEvent) -> None:
        for action in self._arbiter.step(event):
            if type(action) is StartKernel:
                run = self._next_part(action)
                run.why = action.why
                self._device.at(event.at_ns + self._gate_ns, lambda run=run: self._enqueue(run))  # type: ignore[misc]
            elif type(action) is SetAlarm:
                alarm_ns = action.at_ns
                self._device.at(alarm_ns, lambda at=alarm_ns: self._step(AlarmRang(at)))  # type: ignore[misc]

    def _parts_of(self, run: KernelRun) -> int:
        if not self._grain_ns:
            return 1
        typical_ns = self._device.clients[run.job.client].sequence.kernels[run.kernel].duration_ns
        return max(1, typical_ns // self._grain_ns)

    def _next_part(self, start: StartKernel) -> KernelRun:
        """The kernel, prepared to run as much of it as is started."""
        key = (start.task, start.kernel)
        run = self._launched[key]
        parts = self._parts_of(run)
        left = self._parts.pop(key, parts)
        started = start.parts or left
        run.more = started < left
        if run.more:
            self._parts[key] = left - started
        else:
            del self._launched[key]
        if started < parts:
            run.begin_ns = -1
            run.left_ns = run.duration_ns * started / parts * (1 + self._part_extra) + self._part_ns
        return run

    def _enqueue(self, run: KernelRun) -> None:
        self._streams[run.job.client].append(run)
        self._serve()

    def _serve(self) -> None:
        """Begin what may: the first of the best class that has one waiting, beside another if both fit."""
        running = self._device.running
        for client, stream in self._streams.items():
            if not stream or any(r.job.client == client for r in running):
                continue
            if running and not (self._shares and running[0].share_pct + stream[0].share_pct <= FULL_SHARE):
                return
            run = stream.popleft()
            self._device.begin(run, run.why)
            if len(running) > 1:
                return


# Makers for the registry (`arbiters`); `latency_ns` is how long a task of the high class takes alone.


def fifo(latency_ns: int) -> Sharing:
    """One queue."""
    return FifoQueue()


def slices(latency_ns: int) -> Sharing:
    """Time slices."""
    return TimeSlices()


def streams(latency_ns: int) -> Sharing:
    """Streams that take turns."""
    return Streams(by_priority=False)


def priority(latency_ns: int) -> Sharing:
    """Streams by priority."""
    return Streams(by_priority=True)


def orion(latency_ns: int) -> Sharing:
    """Orion's rule."""
    return OrionRule(latency_ns)
