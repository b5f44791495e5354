"""The work of open requests: how much of it goes before a newcomer.

Work is counted for two resources: devices (share times nanoseconds, each item at its cheapest) and host processes
(nanoseconds). Higher classes go first whatever their objectives are; inside a class the earlier objective goes first.

Rules of this file: integers only; objectives in steps, rounded down; memory is that of the open requests.
"""

from __future__ import annotations

from ..units import MS

__all__ = ["Backlog", "Work"]

#: Objectives are counted in steps of this, and so many steps are summed up in one.
STEP_NS = 5 * MS
WIDE = 64

#: Of devices, and of host processes.
Work = tuple[int, int]


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

    __slots__ = ("_classes", "_open")

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        #: Request -> class, step, work that is left.
        self._open: dict[int, list[int]] = {}

    def __contains__(self, request: int) -> bool:
        return request in self._open

    def add(self, request: int, priority: int, objective_ns: int, work: Work) -> None:
        """A request was admitted."""
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

    def on_devices(self) -> int:
        """All work of devices."""
        return sum([level.device for level in self._classes.values()])

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
