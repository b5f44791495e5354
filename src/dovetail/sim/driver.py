"""The simulator: a heap of what happens next, and a clock that jumps to it.

Entries are (time, order, sequence): at equal times workers come before arrivals and arrivals before timers, and the
sequence number makes every tie the same on every run. The same seed gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Protocol

from ..control import (
    Action,
    Controller,
    Event,
    RequestArrived,
    RunBatch,
    SetTimer,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from ..control.actions import EvictModel, LoadModel, Reject, Reply
from ..record.ledger import Ledger
from ..state import WorkerSpec

__all__ = ["Device", "Simulation"]

#: Order of simultaneous entries.
_WORKER, _ARRIVAL, _TIMER = 0, 1, 2

#: Called after every step with the event and its actions; tests, traces and logs hang here.
Observer = Callable[[Event, list[Action]], None]


class Device(Protocol):
    """A simulated worker, as whoever drives it sees it."""

    ident: int
    spec: WorkerSpec
    #: It was lost: nobody hears of it any more.
    gone: bool
    #: Time that it was at work, weighed by share.
    busy_pct_ns: int

    def take(self, action: Action, now_ns: int) -> list[Event]:
        """Carry out an action; what can be answered at once is returned."""
        ...

    def wake(self, payload: object, now_ns: int) -> list[Event]:
        """A time that this device asked for has come."""
        ...


class Simulation:
    """Runs a controller against simulated devices in virtual time."""

    def __init__(
        self,
        controller: Controller,
        ledger: Ledger,
        arrivals: Iterator[RequestArrived],
        observers: Sequence[Observer] = (),
    ) -> None:
        self.controller = controller
        self.ledger = ledger
        self.now_ns = 0
        #: Events that have been processed.
        self.steps = 0
        self.arrived = 0
        self._arrivals = arrivals
        self._observers = list(observers)
        self._heap: list[tuple[int, int, int, Device | None, object]] = []
        self._sequence = 0
        self._begun = False
        self._devices: dict[int, Device] = {}

    def schedule(self, at_ns: int, device: Device, payload: object) -> None:
        """Wake a device at a time."""
        self._sequence += 1
        heappush(self._heap, (at_ns, _WORKER, self._sequence, device, payload))

    def post(self, event: Event) -> None:
        """Something that will happen from outside at its own time: a worker joins or is lost, a drain begins."""
        self._sequence += 1
        heappush(self._heap, (event.at_ns, _WORKER, self._sequence, None, event))

    def join(self, device: Device, at_ns: int = 0) -> None:
        """Let a device take part from a time on."""
        self._devices[device.ident] = device
        self.post(WorkerJoined(at_ns, 0, device.ident, device.spec))

    def lose(self, ident: int, at_ns: int, detail: str = "it was switched off") -> None:
        """Let a device vanish at a time: what it was asked to do will never be answered."""
        self.post(WorkerLost(at_ns, 0, ident, detail))

    def run(self, until_ns: int | None = None) -> None:
        """Go on until nothing happens any more, or until a time."""
        heap = self._heap
        step = self.controller.step
        perform = self._perform
        observers = self._observers
        if not self._begun:
            self._begun = True
            self._next_arrival()
        while heap:
            if until_ns is not None and heap[0][0] > until_ns:
                break
            at_ns, order, _, device, payload = heappop(heap)
            self.now_ns = at_ns
            if device is not None:
                if device.gone:
                    continue
                events = device.wake(payload, at_ns)
            else:
                if order == _ARRIVAL:
                    self._next_arrival()
                elif type(payload) is WorkerLost:
                    self._devices.pop(payload.worker).gone = True
                events = [payload]  # type: ignore[list-item]
            for event in events:
                self.steps += 1
                actions = step(event)
                for observe in observers:
                    observe(event, actions)
                if actions:
                    perform(actions)

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self.arrived += 1
            self._sequence += 1
            heappush(self._heap, (arrival.at_ns, _ARRIVAL, self._sequence, None, arrival))

    def _perform(self, actions: list[Action]) -> None:
        now_ns = self.now_ns
        for action in actions:
            kind = type(action)
            if kind is RunBatch or kind is LoadModel or kind is EvictModel:
                device = self._devices.get(action.worker)  # type: ignore[union-attr]
                if device is not None:
                    for event in device.take(action, now_ns):
                        self.post(event)
            elif kind is Reply or kind is Reject:
                self.ledger.add(action, now_ns)  # type: ignore[arg-type]
            elif kind is SetTimer:
                self._sequence += 1
                timer = TimerFired(action.at_ns, action.cause, action.timer)  # type: ignore[union-attr]
                heappush(self._heap, (timer.at_ns, _TIMER, self._sequence, None, timer))
