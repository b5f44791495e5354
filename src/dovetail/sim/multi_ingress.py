"""Several ingress controllers and the workers they share, in virtual time.

Each controller is the one that `sim.driver` runs alone; here it sees the workers only through the state table. Rules:

1. A worker writes its row when something changes, but others can read it only from its next push on (every `push_ns`,
   each worker at its own phase). A controller reads the table before a decision, if `pull_ns` have passed since it
   last did. So what it knows is up to push + pull old. Its own worker's row is always fresh, as in Compass.
2. A batch reaches its worker when its inputs have: a value is where it was made, and moving it costs time. Whatever
   else controllers and workers say to each other takes `message_ns`.
3. That a model has come or gone a worker tells the controller on its own machine (the first, if there is none), in
   whose log it stands; the others read it in the table.
4. Host workers, which run ordinary Python, belong to one controller each and are in no table.

Entries of the heap are ordered as in `sim.driver`; the same seed gives the same bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush

import msgspec

from ..control import (
    Action,
    BatchFailed,
    BatchFinished,
    Controller,
    Event,
    LoadModel,
    PeerStateReceived,
    RequestArrived,
    RunBatch,
    SetTimer,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from ..control.actions import EvictModel, Reject, Reply
from ..place.transfer import Delays
from ..state import WorkerRow
from .device import SimDevice

__all__ = ["Observer", "Peers", "Staleness"]

_WORKER, _ARRIVAL, _TIMER = 0, 1, 2
#: Changes that are kept before those that every controller has read are dropped.
_CHANGES_KEPT = 1 << 16

#: Called after every step with the controller's number, the event and its actions.
Observer = Callable[[int, Event, list[Action]], None]


class Staleness(msgspec.Struct, frozen=True):
    """How old what controllers know of workers may be."""

    push_ns: int = 1_000_000
    pull_ns: int = 1_000_000


class _Sent(msgspec.Struct, eq=False):
    """A batch as its worker knows it (numbers are the driver's, since controllers count for themselves)."""

    ingress: int
    action: RunBatch


class _Delivery(msgspec.Struct, frozen=True):
    """An action on its way to a worker; devices wake themselves with payloads of their own."""

    action: RunBatch | LoadModel | EvictModel


class Peers:
    """Runs N controllers against the workers that they share."""

    def __init__(
        self,
        controllers: Sequence[Controller],
        arrivals: Iterator[tuple[int, RequestArrived]],
        delays: Delays,
        staleness: Staleness | None = None,
        *,
        message_ns: int = 2_000,
        input_bytes: Mapping[str, int] | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.controllers = list(controllers)
        self.now_ns = 0
        self.steps = 0
        self._arrivals = arrivals
        self._delays = delays
        self._staleness = staleness or Staleness()
        self._message_ns = message_ns
        #: Workflow -> bytes of its inputs.
        self._input_bytes = input_bytes or {}
        self._observers = list(observers)
        self._heap: list[tuple[int, int, int, int, object, object]] = []
        self._sequence = 0
        self._begun = False
        self._devices: dict[int, SimDevice] = {}
        #: Controller -> the worker on its own machine, if it has one.
        self._own: dict[int, int] = {}
        #: Worker -> the controller that hears of its models.
        self._told: dict[int, int] = {}
        self._sent: dict[int, _Sent] = {}
        self._last_sent = 0
        #: (controller, request) -> (node, index) -> worker that made the value.
        self._made: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        #: Of each worker, its rows by the time they were written; older than anybody may read are dropped.
        self._rows: dict[int, deque[WorkerRow]] = {}
        #: Workers in the order in which they changed, and how far each controller has read.
        self._changes: list[int] = []
        self._dropped = 0
        self._read = [0] * len(self.controllers)
        self._pulled_ns = [-self._staleness.pull_ns] * len(self.controllers)
        #: Per controller, workers whose last change had not been pushed when it read.
        self._unread: list[dict[int, None]] = [{} for _ in self.controllers]
        #: Per controller, worker -> time of the row it has.
        self._known: list[dict[int, int]] = [{} for _ in self.controllers]

    # -- building -----------------------------------------------------------------------------------------------

    def schedule(self, at_ns: int, device: object, payload: object) -> None:
        """Wake a device at a time."""
        self._push(at_ns, _WORKER, -1, device, payload)

    def join(self, device: SimDevice, own_of: int | None = None, at_ns: int = 0) -> None:
        """Let a device take part from a time on; `own_of` is the controller on the same machine."""
        self._devices[device.ident] = device
        self._rows[device.ident] = deque()
        self._told[device.ident] = own_of or 0
        if own_of is not None:
            self._own[own_of] = device.ident
        for ingress in range(len(self.controllers)):
            self._push(at_ns, _WORKER, ingress, None, WorkerJoined(at_ns, 0, device.ident, device.spec))

    def join_host(self, device: SimDevice, ingress: int, at_ns: int = 0) -> None:
        """Give a controller a host worker of its own."""
        self._devices[device.ident] = device
        self._told[device.ident] = ingress
        self._push(at_ns, _WORKER, ingress, None, WorkerJoined(at_ns, 0, device.ident, device.spec))

    def lose(self, ident: int, at_ns: int, detail: str = "it was switched off") -> None:
        """Let a device vanish at a time: what it was asked to do will never be answered."""
        for ingress in range(len(self.controllers)):
            self._push(at_ns, _WORKER, ingress, None, WorkerLost(at_ns, 0, ident, detail))

    # -- running ------------------------------------------------------------------------------------------------

    def run(self, until_ns: int | None = None) -> None:
        """Go on until nothing happens any more, or until a time."""
        heap = self._heap
        if not self._begun:
            self._begun = True
            self._next_arrival()
        while heap:
            if until_ns is not None and heap[0][0] > until_ns:
                break
            at_ns, order, _, ingress, device, payload = heappop(heap)
            self.now_ns = at_ns
            if device is not None:
                assert isinstance(device, SimDevice)
                if not device.gone:
                    self._report(device, self._act(device, payload))
                continue
            if order == _ARRIVAL:
                self._next_arrival()
            elif isinstance(payload, WorkerLost):
                gone = self._devices.pop(payload.worker, None)
                if gone is not None:
                    gone.gone = True
            self._step(ingress, payload)  # type: ignore[arg-type]

    def _act(self, device: SimDevice, payload: object) -> list[Event]:
        if type(payload) is _Delivery:
            return device.take(payload.action, self.now_ns)
        return device.wake(payload, self.now_ns)

    def _step(self, ingress: int, event: Event) -> None:
        """Let a controller decide, on what it can know now."""
        if type(event) is BatchFinished or type(event) is BatchFailed or type(event) is RequestArrived:
            rows = self._readable(ingress)
            if rows:
                self._take(ingress, PeerStateReceived(self.now_ns, 0, tuple(rows)))
        self._take(ingress, event)

    def _take(self, ingress: int, event: Event) -> None:
        self.steps += 1
        actions = self.controllers[ingress].step(event)
        for observe in self._observers:
            observe(ingress, event, actions)
        for action in actions:
            self._perform(ingress, action)

    def _perform(self, ingress: int, action: Action) -> None:
        now_ns = self.now_ns
        if type(action) is RunBatch:
            device = self._devices.get(action.worker)
            if device is None:
                return  # lost in this very moment: its controller will hear of it
            delay_ns = self._message_ns + self._inputs_ns(ingress, action)
            self._last_sent = number = self._last_sent + 1
            self._sent[number] = _Sent(ingress, action)
            taken = msgspec.structs.replace(action, batch=number)
            self._push(now_ns + delay_ns, _WORKER, -1, device, _Delivery(taken))
        elif type(action) is LoadModel or type(action) is EvictModel:
            device = self._devices.get(action.worker)
            if device is not None:
                self._push(now_ns + self._message_ns, _WORKER, -1, device, _Delivery(action))
        elif type(action) is SetTimer:
            self._push(action.at_ns, _TIMER, ingress, None, TimerFired(action.at_ns, action.cause, action.timer))
        elif type(action) is Reply or type(action) is Reject:
            self._made.pop((ingress, action.request), None)

    def _inputs_ns(self, ingress: int, action: RunBatch) -> int:
        """When all inputs of a batch are with its worker, from now on."""
        controller, delays = self.controllers[ingress], self._delays
        longest = 0
        for request, node, _index in action.items:
            graph = controller.requests[request].graph
            made = self._made.get((ingress, request), {})
            for source in graph.nodes[node].node.sources():
                if source.node < 0:
                    if self._own.get(ingress) != action.worker:
                        longest = max(longest, delays.message_ns(self._input_bytes.get(graph.name, 0)))
                    continue
                nbytes = graph.nodes[source.node].node.out_bytes
                for (made_by, _), worker in made.items():
                    if made_by == source.node and worker != action.worker:
                        longest = max(longest, delays.result_ns(nbytes))
        return longest

    def _report(self, device: SimDevice, events: Sequence[Event]) -> None:
        """Write the worker's row and pass on what it says, to whom it concerns."""
        if device.ident in self._rows:
            self._write(device)
        for event in events:
            if isinstance(event, BatchFinished | BatchFailed):
                sent = self._sent.pop(event.batch)
                ingress = sent.ingress
                if isinstance(event, BatchFinished):
                    for request, node, index in sent.action.items:
                        if request in self.controllers[ingress].requests:
                            made = self._made.setdefault((ingress, request), {})
                            made[node, index] = device.ident
                event = msgspec.structs.replace(event, batch=sent.action.batch)
            else:
                ingress = self._told[device.ident]
            at_ns = self.now_ns + (0 if self._own.get(ingress) == device.ident else self._message_ns)
            self._push(at_ns, _WORKER, ingress, None, msgspec.structs.replace(event, at_ns=at_ns))

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None:
            self._push(arrival[1].at_ns, _ARRIVAL, arrival[0], None, arrival[1])

    def _push(self, at_ns: int, order: int, ingress: int, device: object, payload: object) -> None:
        self._sequence += 1
        heappush(self._heap, (at_ns, order, self._sequence, ingress, device, payload))

    # -- the state table ----------------------------------------------------------------------------------------

    def _write(self, device: SimDevice) -> None:
        rows, ident = self._rows[device.ident], device.ident
        row = device.row(self.now_ns)
        if rows and rows[-1].at_ns == row.at_ns:
            rows.pop()
        rows.append(row)
        self._changes.append(ident)
        # Whoever reads from now on sees the last push or a later one.
        pushed_ns = self._pushed_ns(ident)
        while len(rows) > 1 and rows[1].at_ns <= pushed_ns:
            rows.popleft()
        if len(self._changes) > _CHANGES_KEPT:
            done = min(self._read) - self._dropped
            del self._changes[:done]
            self._dropped += done

    def _pushed_ns(self, ident: int) -> int:
        """When the worker last pushed its row."""
        push_ns = self._staleness.push_ns
        if not push_ns:
            return self.now_ns
        phase_ns = ident * push_ns // (len(self._rows) + 1) % push_ns
        return (self.now_ns - phase_ns) // push_ns * push_ns + phase_ns

    def _readable(self, ingress: int) -> list[WorkerRow]:
        """Rows that this controller has not seen, as they were at their last push."""
        known, own = self._known[ingress], self._own.get(ingress, 0)
        fresh: list[WorkerRow] = []
        if own in self._devices and self._rows[own] and known.get(own) != self._rows[own][-1].at_ns:
            fresh.append(self._rows[own][-1])
            known[own] = fresh[0].at_ns
        if self.now_ns - self._pulled_ns[ingress] < self._staleness.pull_ns:
            return fresh
        self._pulled_ns[ingress] = self.now_ns
        unread = self._unread[ingress]
        unread.update(dict.fromkeys(self._changes[self._read[ingress] - self._dropped :]))
        self._read[ingress] = self._dropped + len(self._changes)
        later: dict[int, None] = {}
        for ident in unread:
            if ident == own or ident not in self._devices:
                continue
            rows, pushed_ns = self._rows[ident], self._pushed_ns(ident)
            if rows[-1].at_ns > pushed_ns:
                later[ident] = None
            row = next((r for r in reversed(rows) if r.at_ns <= pushed_ns), None)
            if row is not None and known.get(ident, -1) < row.at_ns:
                known[ident] = row.at_ns
                fresh.append(row)
        self._unread[ingress] = later
        return fresh
