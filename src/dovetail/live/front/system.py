"""The live world: the real clock, worker processes, and the same Controller as the simulator's.

Rules of this file
- It decides nothing. Events are stamped with the time at which they are taken, handed to `Controller.step`, and the
  actions carried out. The data go with them: `batches` makes messages of values, `answers` makes results of them,
  `messages` makes events of what workers say.
- Everything runs in one thread, that of the event loop, and nothing in it blocks.
- Every request that was taken gets its answer: a worker that hangs is killed, what waits for a stage that no worker
  can run is given up in the end, and should the controller itself break, everything open is answered first. Who
  hangs is known to `watchdog`, what nobody can run to `readiness`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...control import (
    Action,
    Controller,
    Drained,
    DrainStarted,
    Event,
    EvictModel,
    LoadModel,
    Reject,
    Reply,
    RequestArrived,
    RequestCancelled,
    RequestRefused,
    RunBatch,
    SetSlice,
    SetTimer,
    StartWorker,
    StopWorker,
)
from ...errors import DovetailError, Overloaded
from ...record.ledger import Ledger
from ...record.log import LogWriter
from ...units import MS
from ..links.wire import Done, Evict, FromWorker, Load
from ..tensors.ref import Ref
from ..tensors.values import LiveRequest
from .answers import Answers, Result, Tell
from .batches import Batches
from .fleet import Fleet
from .joined import JoinedFleet
from .journal import Journal
from .link import WorkerLink
from .memory_admission import MemoryAdmission
from .messages import WorkerMessages
from .output import never_raises
from .readiness import Readiness
from .settings import Settings
from .share import FirstFront, JoinedFront
from .slices import Slices
from .statistics import Statistics
from .stores import KernelStore
from .tap import Tap
from .timers import Timers
from .watchdog import Watchdog

__all__ = ["LiveSystem", "Result", "Settings"]

#: How often the log is flushed and batches are looked at that should have ended.
SWEEP_SECONDS = 0.5
#: Objectives and deadlines beyond this mean the same: there is none. Every time of a log fits into 64 bits.
LONGEST_NS = 1 << 60


class LiveSystem:
    """Workers, controller and the data between them."""

    def __init__(
        self,
        settings: Settings,
        controller: Controller,
        *,
        log: LogWriter | None = None,
        kernels: KernelStore | None = None,
        share: FirstFront | JoinedFront | None = None,
        say: Callable[[str], None] = lambda _: None,
        observers: Sequence[Callable[[Event, list[Action]], None]] = (),
    ) -> None:
        say = never_raises(say)
        self.settings = settings
        self.controller = controller
        self.ledger = Ledger([(g.name, g.slo_ns) for g in settings.graphs])
        self._share = share
        self._origin_ns = time.monotonic_ns() if share is None else share.origin_ns
        self.statistics = Statistics(settings.graphs, time.time_ns() - self.now_ns())
        self.fleet: Fleet
        if isinstance(share, JoinedFront):
            self.fleet = JoinedFleet(settings, share, self._on_message, self._on_lost, say)
        else:
            self.fleet = Fleet(settings, self._origin_ns, self._on_message, self._on_lost, say, kernels, share)
        self.memory = self.fleet.memory
        self.answers = Answers(self.memory, say)
        self.batches = Batches(self.memory, settings.max_fan_out)
        self.fleet.busy, self.fleet.works_at = self.batches.busy, self.batches.works_at
        self.fleet.closing = lambda ident: ident in controller.workers and controller.workers[ident].closing
        self.watchdog = Watchdog(settings.hang_ns)
        #: Done when the controller has broken: nothing can be promised any more.
        self.fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._graph_index = {g.name: i for i, g in enumerate(settings.graphs)}
        self._admission = MemoryAdmission(len(settings.graphs), settings.workers, settings.arena_bytes)
        self._readiness = Readiness(settings.graphs, controller)
        self._journal = Journal(log, say)
        self._say = say
        self._observers = list(observers)
        #: Who watches.
        self.tap = Tap()
        #: Events that came while the actions of another were carried out.
        self._later: deque[tuple[Event, str]] = deque()
        self._posting = False
        self._timers = Timers(self.now_ns, self._post)
        self._drained = asyncio.Event()
        self._changed = asyncio.Event()
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self.messages = WorkerMessages(
            controller,
            self.memory,
            self.batches,
            self.watchdog,
            self.statistics,
            self.tap,
            now_ns=self.now_ns,
            post=self._post,
            check_ready=self._check_ready,
            say=say,
        )
        #: What clients with a quota have, and how to change it.
        self.slices = Slices(controller, self.fleet, self._post, self.now_ns, say)
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    # -- life ---------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Time since the start of the run."""
        return time.monotonic_ns() - self._origin_ns

    async def start(self, timeout_s: float = 60.0) -> None:
        """Start the workers and wait until every stage can run somewhere."""
        self.fleet.start(self.settings.workers)
        deadline = self._loop.time() + timeout_s
        while not self.ready() or len(self.controller.workers) < len(self.settings.workers):
            self._changed.clear()
            why = [*self.messages.load_errors.values(), *self.fleet.refusals.values()]
            why += [f"worker {name} dies at every start: {w}" for name, (n, w) in self.fleet.deaths.items() if n > 2]
            left = deadline - self._loop.time()
            if left <= 0:
                missing = ", ".join(self._readiness.missing())
                here = f"{len(self.controller.workers)} of {len(self.settings.workers)} workers are here"
                why.append(f"not ready after {timeout_s:g} s: {here}; stages without a worker: {missing}")
            if why:
                raise DovetailError("; ".join(sorted(set(why))))
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue

    def ready(self) -> bool:
        """Whether every stage is loaded on some worker."""
        return self._readiness.complete and not self._closing

    def _check_ready(self) -> None:
        """Called whenever a model or a worker came or went."""
        self._readiness.look(self.now_ns())
        self._changed.set()

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Take nothing new and wait until what was admitted is answered; False if time ran out first."""
        if not self.controller.draining:
            self._post(DrainStarted(self.now_ns(), 0))
        try:
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        except TimeoutError:
            return False
        return not self.fault.done()

    def give_up(self, reason: str) -> None:
        """Answer everything that is open, now, without results."""
        for ident in list(self.answers.requests):
            self._give_up(ident, reason)

    def _give_up(self, ident: int, reason: str) -> None:
        self.answers.requests[ident].given_up = reason
        self._post(RequestCancelled(self.now_ns(), 0, ident))

    async def close(self) -> None:
        """Stop the workers. Requests that are still open get an answer, but no results."""
        self._closing = True
        self._sweeper.cancel()
        self.give_up("the server stopped before it was done")
        self._timers.close()
        await self.fleet.stop()
        if self._share is not None:
            self._share.close()
        self._journal.close()
        self.fault.cancel()

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(
        self,
        workflow: str,
        inputs: Sequence[Ref | Any],
        done: Tell,
        *,
        priority: int = 0,
        objective_ns: int = 0,
        timeout_ns: int = 0,
        note: str = "",
        counts: tuple[int, ...] = (),
        sheddable: bool = True,
        on_free: Callable[[], None] = lambda: None,
    ) -> int:
        """Put a request to the controller; its number. `done` is told its end, once and perhaps before this returns.

        Inputs are blocks of the front's arena, or values that are copied there. `on_free` is called when no worker
        reads the inputs any more. Raises `Overloaded` if there is no memory for it, or no worker for its stages; the
        controller is told of that, too.
        """
        index = self._graph_index[workflow]
        graph = self.settings.graphs[index]
        if self._closing or self.fault.done():
            raise Overloaded("the server has stopped", 1000)
        try:
            if self._readiness.unready_since_ns or self.controller.draining:
                self._readiness.admit(graph, self.now_ns())
            refs, made = self._make_room(index, priority or graph.priority, inputs)
        except Overloaded as refusal:
            self.refuse(workflow, refusal, priority=priority, note=note)
            raise
        if made:
            on_free = partial(self.memory.displace, made, on_free)
        ident = self.answers.open(LiveRequest(refs, self.memory.free, on_free), done)
        now = self.now_ns()
        self._post(
            RequestArrived(
                now,
                0,
                ident,
                index,
                priority,
                now + min(objective_ns, LONGEST_NS) if objective_ns else 0,
                now + min(timeout_ns, LONGEST_NS) if timeout_ns else 0,
                counts,
                sheddable,
            ),
            note,
        )
        return ident

    def _make_room(self, workflow: int, priority: int, inputs: Sequence[Ref | Any]) -> tuple[list[Ref], list[Ref]]:
        """Memory for a request, or a refusal before any work is done: its inputs, and those that were made here."""
        if ident := self.memory.full(priority):
            raise Overloaded(f"the memory of worker {ident} is full of results still in use", 1000)
        refs, made = self.memory.place(inputs)
        try:
            self._admission.enter(workflow, priority)
        except Overloaded:
            self.memory.displace(made)
            raise
        return refs, made

    def refuse(self, workflow: str, refusal: Overloaded, *, priority: int = 0, note: str = "") -> None:
        """A request was turned away before it was submitted: books and log have it, and nothing of it is kept."""
        if self._closing or self.fault.done():
            return
        refusal.request = self.answers.number()
        index, retry_ns = self._graph_index[workflow], refusal.retry_after_ms * MS
        event = RequestRefused(self.now_ns(), 0, refusal.request, index, priority, str(refusal), retry_ns)
        self._post(event, note)

    def cancel(self, ident: int) -> None:
        """The client gave up."""
        if ident in self.answers.requests:
            self._post(RequestCancelled(self.now_ns(), 0, ident))

    # -- events and actions -------------------------------------------------------------------------------------

    def _post(self, event: Event, note: str = "") -> None:
        """Put one event to the controller and carry out what it says.

        Whoever is told an answer may have a next request at once, or go: that is taken when this step is through.
        """
        self._later.append((event, note))
        if self._posting:
            return
        self._posting = True
        try:
            while self._later:
                self._step(*self._later.popleft())
        finally:
            self._posting = False

    def _step(self, event: Event, note: str) -> None:
        if self.fault.done():
            return
        try:
            actions = self.controller.step(event)
            if type(event) is RequestArrived:
                # Batches of this very step read the state that the step made.
                state, closed = self.controller.requests.get(event.request), self.controller.closed
                if state is None and closed is not None and closed.id == event.request:
                    state = closed  # its lists are empty: there was nothing to run
                self.answers.requests[event.request].state = state
            # What keeps a device busy goes out first; answers and books can wait these microseconds.
            for action in actions:
                if type(action) is RunBatch:
                    message = self.batches.begin(action, self.answers.requests, event.at_ns)
                    self.fleet.workers[action.worker].send(message)
            for action in actions:
                if type(action) is Reply or type(action) is Reject:
                    self._end(action)
                elif type(action) is not RunBatch:
                    self._perform(action)
        except Exception as error:
            self._break(event, error)
            return
        self._journal.step(event, actions, note)
        if self.tap.step is not None:
            self.tap.step(event, actions, note)
        for observe in self._observers:
            observe(event, actions)

    def _perform(self, action: Action) -> None:
        if isinstance(action, SetTimer):
            self._timers.set(action)
        elif isinstance(action, LoadModel):
            self.fleet.workers[action.worker].send(Load(action.stage, action.cause, action.keep))
        elif isinstance(action, EvictModel):
            self.fleet.workers[action.worker].send(Evict(action.stage, action.cause, action.reason))
            self._check_ready()
        elif isinstance(action, SetSlice | StartWorker | StopWorker):
            self.slices.carry_out(action)
            if isinstance(action, StopWorker) and not action.dry:
                self.messages.forget(action.worker)
            self._check_ready()
        elif isinstance(action, Drained):
            self._drained.set()

    def _break(self, event: Event, error: Exception) -> None:
        """The controller failed, which must not happen: answer everybody, then let the server stop."""
        self._say(f"internal error at {event}: {type(error).__name__}: {error}")
        self.fault.set_exception(error)
        self.fault.exception()  # whoever awaits it gets it; nobody has to
        self._drained.set()
        self.answers.fail_all("internal error in the scheduler")

    def _end(self, action: Reply | Reject) -> None:
        """Answer a request."""
        now = self.now_ns()
        latency = now - action.arrived_ns
        request = self.answers.requests.get(action.request)
        if request is not None:  # else it was refused, and knows it
            if request.state is not None and request.state.timer:
                self._timers.cancel(request.state.timer)
            self._admission.leave(action.graph, request.taken_bytes(self.memory.kinds))
            self.answers.end(action, latency)
        self.ledger.add(action, now)  # books after answers
        self.statistics.answered(action, latency)

    # -- workers ------------------------------------------------------------------------------------------------

    def _on_message(self, worker: WorkerLink, message: FromWorker) -> None:
        self.messages.take(worker, message)
        if type(message) is not Done:  # whoever waits for that waits for the server to be ready
            self._changed.set()

    def _on_lost(self, worker: WorkerLink, why: str) -> None:
        self.messages.lost(worker, why)

    def _others_wait(self, stage: str) -> bool:
        """Whether another Python stage has work that nobody has begun."""
        return any(q.size and q.stage.on_host and q.stage.name != stage for q in self.controller.queues.values())

    def _sweep(self) -> None:
        """Twice a second: whatever is kept by nothing else."""
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        self.fleet.sweep()
        now = self.now_ns()
        for ident, stage in self.watchdog.stuck(self.batches.running.values(), now).items():
            if self._others_wait(stage):
                self.fleet.substitute(ident, stage)
        self.fleet.retire()
        for ident, why in self.watchdog.hung(self.batches.running.values(), now):
            self.fleet.end_hung(ident, why, at_work=not self.watchdog.loads(ident))
        for ident, request in list(self.answers.requests.items()):
            if request.state is not None and (why := self._readiness.hopeless(request.state.graph.graph, now)):
                self._give_up(ident, why)
        self._journal.flush()
