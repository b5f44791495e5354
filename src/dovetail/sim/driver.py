"""The simulator: a heap of what happens next, and a clock that jumps to it.

Rules of this file
- Entries are (time, order, sequence): at equal times workers come before arrivals and arrivals before timers, and the
  sequence number makes every tie the same on every run. The same seed gives the same bytes.
- One ingress and no network between it and its workers is the plain case: what a controller asks for is with the
  worker at once, and so is the answer. With a network there are N ingresses: what they and the workers say to each
  other takes its time, and what an ingress knows of workers is what it last read in their table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final

import msgspec

from ..control import (
    Action,
    BatchFailed,
    BatchFinished,
    Controller,
    Event,
    EvictModel,
    LoadModel,
    PeerStateReceived,
    Reject,
    Reply,
    RequestArrived,
    RunBatch,
    SetTimer,
    StartWorker,
    StopWorker,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from ..record.ledger import Ledger
from .device import SimDevice
from .network import Network

__all__ = ["IngressObserver", "Observer", "Simulation", "Spawn"]

#: Order of simultaneous entries.
_WORKER: Final = 0
_ARRIVAL: Final = 1
_TIMER: Final = 2

#: Called after every step with the event and its actions; tests, traces and logs hang here.
Observer = Callable[[Event, list[Action]], None]
#: The same, and first of all the number of the ingress whose step it was.
IngressObserver = Callable[[int, Event, list[Action]], None]


#: From the number of a device that is asked for to the device, and how long it takes to start.
Spawn = Callable[[int], tuple[SimDevice, int]]


class _Ingress:
    """A controller, and who watches it."""

    __slots__ = ("controller", "number", "observers")

    def __init__(self, controller: Controller, number: int, observers: list[Observer]) -> None:
        self.controller = controller
        self.number = number
        self.observers = observers


class _Delivery(msgspec.Struct, frozen=True, gc=False):
    """An action that has reached its worker; devices wake themselves with payloads of their own."""

    action: RunBatch | LoadModel | EvictModel


class Simulation:
    """Runs controllers against simulated devices in virtual time."""

    def __init__(
        self,
        controller: Controller,
        ledger: Ledger,
        arrivals: Iterator[RequestArrived],
        observers: Sequence[Observer] = (),
    ) -> None:
        """One ingress, whose workers are its own."""
        self.ledger = ledger
        self.now_ns = 0
        self.arrived = 0
        self.devices: dict[int, SimDevice] = {}
        #: Makes the device of that number and says how long it takes to start; None: no device can be added.
        self.spawn: Spawn | None = None
        self._arrivals: Iterator[tuple[int, RequestArrived] | RequestArrived] = arrivals
        self._network: Network | None = None
        self._ingresses = [_Ingress(controller, 0, list(observers))]
        #: (time, order, sequence, who it is for, what)
        self._heap: list[tuple[int, int, int, Any, Any]] = []
        self._sequence = 0
        self._last_device = 0
        self._begun = False

    @classmethod
    def linked(
        cls,
        controllers: Sequence[Controller],
        network: Network,
        ledger: Ledger,
        arrivals: Iterator[tuple[int, RequestArrived]],
        observers: Sequence[IngressObserver] = (),
    ) -> Simulation:
        """Several ingresses that share their workers; an arrival comes with the number of its ingress."""
        made = cls(controllers[0], ledger, iter(()))
        made._arrivals = arrivals
        made._network = network
        made._ingresses = [
            _Ingress(controller, number, [partial(observe, number) for observe in observers])
            for number, controller in enumerate(controllers)
        ]
        return made

    @property
    def controllers(self) -> list[Controller]:
        """The controllers of all ingresses."""
        return [ingress.controller for ingress in self._ingresses]

    @property
    def steps(self) -> int:
        """Events that have been processed."""
        return sum(ingress.controller.step_number for ingress in self._ingresses)

    @property
    def controller(self) -> Controller:
        """That of the first ingress, which is the only one in the plain case."""
        return self._ingresses[0].controller

    def observe(self, observer: Observer) -> None:
        """Let somebody else see every step of the first ingress, too."""
        self._ingresses[0].observers.append(observer)

    # -- building -----------------------------------------------------------------------------------------------

    def schedule(self, at_ns: int, device: Any, payload: object) -> None:
        """Wake a device, or what stands before one, at a time."""
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (at_ns, _WORKER, sequence, device, payload))

    def post(self, event: Event, ingress: int = 0) -> None:
        """Something that will happen from outside at its own time: a worker joins or is lost, a drain begins."""
        self._push(event.at_ns, _WORKER, self._ingresses[ingress], event)

    def join(self, device: SimDevice, at_ns: int = 0, *, own_of: int | None = None) -> None:
        """Let a device take part from a time on; `own_of` is the ingress on the same machine."""
        self._last_device = max(self._last_device, device.ident)
        self.devices[device.ident] = device
        if self._network is not None:
            self._network.join(device.ident, own_of)
        for ingress in self._ingresses:
            self.post(WorkerJoined(at_ns, 0, device.ident, device.spec), ingress.number)

    def join_host(self, device: SimDevice, ingress: int, at_ns: int = 0) -> None:
        """Give an ingress a host worker of its own."""
        self._last_device = max(self._last_device, device.ident)
        self.devices[device.ident] = device
        if self._network is not None:
            self._network.join_host(device.ident, ingress)
        self.post(WorkerJoined(at_ns, 0, device.ident, device.spec), ingress)

    def lose(self, ident: int, at_ns: int, detail: str = "it was switched off") -> None:
        """Let a device vanish at a time: what it was asked to do will never be answered."""
        for ingress in self._ingresses:
            self.post(WorkerLost(at_ns, 0, ident, detail), ingress.number)

    def _push(self, at_ns: int, order: int, target: _Ingress | SimDevice, payload: object) -> None:
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (at_ns, order, sequence, target, payload))

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            return
        self.arrived += 1
        number = 0
        if type(arrival) is tuple:
            number, arrival = arrival
        self._sequence = sequence = self._sequence + 1
        entry = (arrival.at_ns, _ARRIVAL, sequence, self._ingresses[number], arrival)  # type: ignore[union-attr]
        heappush(self._heap, entry)

    # -- running ------------------------------------------------------------------------------------------------

    def run(self, until_ns: int | None = None) -> None:
        """Go on until nothing happens any more, or until a time."""
        heap, network = self._heap, self._network
        plain = self._ingresses[0]
        controller, observers = plain.controller, plain.observers
        devices, ledger = self.devices, self.ledger
        if not self._begun:
            self._begun = True
            self._next_arrival()
        while heap:
            if until_ns is not None and heap[0][0] > until_ns:
                break
            at_ns, order, _, target, payload = heappop(heap)
            self.now_ns = at_ns
            if type(target) is _Ingress:
                if order == _ARRIVAL:
                    self._next_arrival()
                elif type(payload) is WorkerLost:
                    self._lost(payload.worker)
                if network is not None:
                    self._decide(target, payload, network)
                    continue
                events: Sequence[Event] = (payload,)
            elif target.gone:
                continue
            elif network is None:
                events = target.wake(payload, at_ns)
            else:
                self._report(target, payload, network)
                continue
            for event in events:
                actions = controller.step(event)
                for observe in observers:
                    observe(event, actions)
                for action in actions:
                    kind = type(action)
                    if kind is RunBatch:
                        device = devices.get(action.worker)  # type: ignore[union-attr]
                        if device is not None:
                            for answer in device.take(action, at_ns):
                                self.post(answer)
                    elif kind is Reply or kind is Reject:
                        ledger.add(action, at_ns)  # type: ignore[arg-type]
                    else:
                        self._perform(action)

    def _perform(self, action: Action) -> None:
        """The plain case: workers are asked at once."""
        if isinstance(action, SetTimer):
            self._set_timer(self._ingresses[0], action)
        elif isinstance(action, LoadModel | EvictModel) and (device := self.devices.get(action.worker)) is not None:
            for event in device.take(action, self.now_ns):
                self.post(event)
        elif isinstance(action, StartWorker) and not action.dry and self.spawn is not None:
            device, delay_ns = self.spawn(self._last_device + 1)
            self.join(device, self.now_ns + delay_ns)
        elif isinstance(action, StopWorker) and not action.dry:
            self._lost(action.worker)

    def _set_timer(self, ingress: _Ingress, action: SetTimer) -> None:
        self._push(action.at_ns, _TIMER, ingress, TimerFired(action.at_ns, action.cause, action.timer))

    def _lost(self, worker: int) -> None:
        device = self.devices.pop(worker, None)
        if device is not None:
            device.gone = True
            if self._network is not None:
                self._network.table.lose(worker)

    # -- over a network -----------------------------------------------------------------------------------------

    def _decide(self, ingress: _Ingress, event: Event, network: Network) -> None:
        """Let a controller decide, on what it can know now."""
        if type(event) is BatchFinished or type(event) is BatchFailed or type(event) is RequestArrived:
            rows = network.table.read(ingress.number, self.now_ns)
            if rows:
                self._step(ingress, PeerStateReceived(self.now_ns, 0, tuple(rows)), network)
        self._step(ingress, event, network)

    def _step(self, ingress: _Ingress, event: Event, network: Network) -> None:
        actions = ingress.controller.step(event)
        for observe in ingress.observers:
            observe(event, actions)
        for action in actions:
            self._send(ingress, action, network)

    def _send(self, ingress: _Ingress, action: Action, network: Network) -> None:
        """What a controller asks for is on its way."""
        if isinstance(action, RunBatch | LoadModel | EvictModel):
            device = self.devices.get(action.worker)
            if device is None:
                return  # lost in this very moment: its controller will hear of it
            delay_ns = network.message_ns
            if type(action) is RunBatch:
                delay_ns += network.inputs_ns(ingress.number, action)
            self._push(self.now_ns + delay_ns, _WORKER, device, _Delivery(action))
        elif isinstance(action, SetTimer):
            self._set_timer(ingress, action)
        elif isinstance(action, Reply | Reject):
            network.forget(ingress.number, action.request)
            self.ledger.add(action, self.now_ns)

    def _report(self, device: SimDevice, payload: Any, network: Network) -> None:
        """Something happens at a worker: it writes its row, and whom it concerns will hear of it."""
        now_ns = self.now_ns
        delivered = type(payload) is _Delivery
        events = device.take(payload.action, now_ns) if delivered else device.wake(payload, now_ns)
        if device.ident in network.table:
            network.table.write(device.row(now_ns))
        for event in events:
            ingress, delay_ns = network.heard(device.ident, event)
            at_ns = now_ns + delay_ns
            self._push(at_ns, _WORKER, self._ingresses[ingress], msgspec.structs.replace(event, at_ns=at_ns))
