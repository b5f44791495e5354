"""The work of open requests: how much of it goes before a newcomer.

Work is counted for two resources: devices (share times nanoseconds, each item at its cheapest) and host processes
(nanoseconds). Higher classes go first whatever their objectives are; inside a class the earlier objective goes first.
Those of higher classes who come later go first, too: so it is known how much work each class has brought of late.

Rules of this file: integers only; objectives in steps, rounded down; memory is that of the open requests.
"""

from __future__ import annotations

from ..state.worker import FULL_SHARE
from ..units import MS, SECOND

__all__ = ["Backlog", "Work"]

#: Objectives are counted in steps of this, and so many steps are summed up in one.
STEP_NS = 5 * MS
WIDE = 64
#: Work of open requests over what of it was sent, at most. [our choice]
MOST_TO_COME_PCT = 800
#: "Of late" is this long, and what of the window before still lies within it. [our choice]
WINDOW_NS = 2 * SECOND
#: Higher classes that come later are taken to need no more of a second than this. [our choice]
MOST_OVERTAKING_NS = 900 * MS

#: Of devices, and of host processes.
Work = tuple[int, int]


class _Inflow:
    """The work that one class has brought of late: a sliding window of two counters."""

    __slots__ = ("began_ns", "now", "past")

    def __init__(self, now_ns: int) -> None:
        self.began_ns = now_ns
        self.now = (0, 0)
        self.past = (0, 0)

    def add(self, work: Work, now_ns: int) -> None:
        """A request was admitted."""
        self._turn(now_ns)
        self.now = self.now[0] + work[0], self.now[1] + work[1]

    def brings(self, length_ns: int, now_ns: int) -> Work:
        """What is to be expected in a time of this length."""
        self._turn(now_ns)
        old_ns = WINDOW_NS - (now_ns - self.began_ns)
        device, host = (
            (past * old_ns // WINDOW_NS + now) * length_ns // WINDOW_NS
            for past, now in zip(self.past, self.now, strict=True)
        )
        return device, host

    def _turn(self, now_ns: int) -> None:
        windows = (now_ns - self.began_ns) // WINDOW_NS
        if windows:
            self.began_ns += windows * WINDOW_NS
            self.past = self.now if windows == 1 else (0, 0)
            self.now = (0, 0)


class _Class:
    """Work of one class: all of it, and by objective."""

    __slots__ = ("device", "host", "steps", "wide")

    def __init__(self) -> None:
        self.device = 0
        self.host = 0
        #: Step of the objective -> work of devices and of host processes that is due by then.
        self.steps: dict[int, list[int]] = {}
        #: The same for many steps together.
        self.wide: dict[int, list[int]] = {}


class Backlog:
    """Work of open requests by class and objective."""

    __slots__ = ("_classes", "_inflows", "_open", "_sent", "_sent_work")

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._inflows: dict[int, _Inflow] = {}
        #: Request -> class, step, work that is left.
        self._open: dict[int, list[int]] = {}
        #: Batch that was sent and has not ended -> its work; and the sum.
        self._sent: dict[int, int] = {}
        self._sent_work = 0

    def __contains__(self, request: int) -> bool:
        return request in self._open

    def add(self, request: int, priority: int, objective_ns: int, work: Work, now_ns: int) -> None:
        """A request was admitted."""
        inflow = self._inflows.get(priority)
        if inflow is None:
            inflow = self._inflows[priority] = _Inflow(now_ns)
        inflow.add(work, now_ns)
        entry = self._open[request] = [priority, objective_ns // STEP_NS, 0, 0]
        if priority not in self._classes:
            self._classes[priority] = _Class()
        self._change(entry, work[0], work[1])

    def done(self, request: int, work: Work) -> None:
        """Some of its work is done."""
        entry = self._open.get(request)
        if entry is not None:
            device, host = work
            left_device, left_host = entry[2], entry[3]
            self._change(
                entry,
                -device if device < left_device else -left_device,
                -host if host < left_host else -left_host,
            )

    def remove(self, request: int) -> None:
        """The request has ended."""
        entry = self._open.pop(request, None)
        if entry is not None:
            self._change(entry, -entry[2], -entry[3])

    def _change(self, entry: list[int], device: int, host: int) -> None:
        if not device and not host:
            return
        entry[2] += device
        entry[3] += host
        level = self._classes[entry[0]]
        level.device += device
        level.host += host
        for steps, step in ((level.steps, entry[1]), (level.wide, entry[1] // WIDE)):
            due = steps.get(step)
            if due is None:
                steps[step] = [device, host]
                continue
            due[0] += device
            due[1] += host
            if not due[0] and not due[1]:
                del steps[step]

    def sent(self, batch: int, work: int) -> None:
        """A batch with so much work for a device was sent."""
        self._sent[batch] = work
        self._sent_work += work

    def returned(self, batch: int) -> None:
        """It is not at its worker any more."""
        self._sent_work -= self._sent.pop(batch, 0)

    def still_to_come_pct(self) -> int:
        """All work of the open requests, in per cent of what of it was sent; other ingresses are taken to be alike.

        What waits at workers is one stage of each request. Its later stages go before a newcomer, too.
        """
        if not self._sent_work:
            return 100
        on_devices = sum([level.device for level in self._classes.values()])
        return min(MOST_TO_COME_PCT, max(100, 100 * on_devices // self._sent_work))

    def wait_ns(self, objective_ns: int, priority: int, devices: int, hosts: int) -> int:
        """How long a newcomer of this class with this objective waits for the work that is open and goes first."""
        return _longest_ns(self.before(objective_ns, priority), devices, hosts)

    def overtaken_ns(self, priority: int, wait_ns: int, devices: int, hosts: int, now_ns: int) -> int:
        """The wait of who has to wait, with those of higher classes who will come until its end and go first."""
        device = host = 0
        for other, inflow in self._inflows.items():
            if other < priority:
                more = inflow.brings(SECOND, now_ns)
                device, host = device + more[0], host + more[1]
        taken_ns = min(MOST_OVERTAKING_NS, _longest_ns((device, host), devices, hosts))
        return wait_ns * SECOND // (SECOND - taken_ns)

    def before(self, objective_ns: int, priority: int) -> Work:
        """Work that goes before a newcomer of this class with this objective."""
        device = host = 0
        for other, level in self._classes.items():
            if other <= priority:
                device += level.device
                host += level.host
        own = self._classes.get(priority)
        if own is not None:
            last = objective_ns // STEP_NS
            for wide, due in own.wide.items():
                if wide > last // WIDE:
                    device -= due[0]
                    host -= due[1]
            # Of its own many, those after it: few objectives are open, or few steps are left.
            steps, end = own.steps, (last // WIDE + 1) * WIDE
            later = (
                [due for step, due in steps.items() if last < step < end]
                if len(steps) < WIDE
                else [steps[step] for step in range(last + 1, end) if step in steps]
            )
            for due in later:
                device -= due[0]
                host -= due[1]
        return device, host


def _longest_ns(work: Work, devices: int, hosts: int) -> int:
    """How long it takes all devices or all host processes, whichever is longer."""
    device, host = work
    return max(device // (devices * FULL_SHARE) if devices else 0, host // hosts if hosts else 0)
