"""The live world: the real clock, worker processes, and the same Controller as the simulator's.

Rules of this file
- It decides nothing. Events are stamped with the time at which they are taken, handed to `Controller.step`, and the
  actions carried out. What it adds is the data: which block holds which value.
- Everything runs in one thread, that of the event loop, and nothing in it blocks.
- Every request that was taken gets its answer: a worker that hangs is killed, what waits for a stage that no worker
  can run is given up in the end, and should the controller itself break, everything open is answered first.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..control import (
    Action,
    BatchFailed,
    BatchFinished,
    Controller,
    Drained,
    DrainStarted,
    Event,
    EvictModel,
    LoadFailed,
    LoadModel,
    ModelEvicted,
    ModelLoaded,
    Reject,
    Reply,
    RequestArrived,
    RequestCancelled,
    RunBatch,
    SetTimer,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from ..control.ledger import Ledger
from ..control.log import LogWriter
from ..errors import DovetailError, Overloaded
from ..state import Request
from ..units import SECOND
from ..workflow.graph import Graph
from .codec import Ref
from .door import Door
from .fleet import Fleet, Settings
from .journal import Journal
from .kernelbook import KernelBook
from .process import WorkerProcess
from .stats import Statistics
from .values import LiveRequest
from .wire import Done, Evict, Evicted, Failed, FromWorker, Load, Loaded, LoadFailure, Loading, Ready, Run, State

__all__ = ["LiveSystem", "Result", "Settings"]

#: How often the log is flushed and batches are looked at that should have ended.
SWEEP_SECONDS = 0.5
#: How many times longer than expected a batch may run before its worker is taken to hang, if that is above the
#: floor of `Settings.hang_ns`. The first run of a stage that nobody profiled is expected to take 10 ms.
HANG_FACTOR = 50
#: For how long a stage may be without a worker before new requests for it are refused, and before those that wait
#: are given up. A worker that died is back within one or two seconds.
REFUSE_AFTER_NS = 5 * SECOND
GIVE_UP_AFTER_NS = 30 * SECOND
#: Objectives and deadlines beyond this mean the same: there is none. Every time of a log fits into 64 bits.
LONGEST_NS = 1 << 60


class Result(msgspec.Struct):
    """How a request ended. Outputs are views of shared memory: call `release` when they have been read."""

    outcome: str
    outputs: dict[str, Any]
    reason: str
    retry_after_ns: int
    latency_ns: int
    cost_usd: float
    release: Callable[[], None]


class _Running:
    """A batch that a worker was sent."""

    __slots__ = ("action", "counts", "readers", "since_ns")

    def __init__(self, action: RunBatch, since_ns: int) -> None:
        self.action = action
        self.since_ns = max(since_ns, action.earliest_ns)
        self.readers: list[LiveRequest] = []
        #: How many counts the worker has to report.
        self.counts = 0

    def fits(self, message: Done | Failed) -> bool:
        """Whether this can be its answer."""
        if isinstance(message, Failed):
            return True
        return len(message.results) == len(self.readers) and len(message.counts) == self.counts


class LiveSystem:
    """Workers, controller and the data between them."""

    def __init__(
        self,
        settings: Settings,
        controller: Controller,
        *,
        log: LogWriter | None = None,
        kernels: KernelBook | None = None,
        say: Callable[[str], None] = lambda _: None,
        observers: Sequence[Callable[[Event, list[Action]], None]] = (),
    ) -> None:
        self.settings = settings
        self.controller = controller
        self.ledger = Ledger([(g.name, g.slo_ns) for g in settings.graphs])
        self.statistics = Statistics(settings.graphs)
        self._origin_ns = time.monotonic_ns()
        self.fleet = Fleet(settings, self._origin_ns, self._on_message, self._on_lost, say, kernels)
        self.memory = self.fleet.memory
        #: Stage -> why it could not be loaded.
        self.load_errors: dict[str, str] = {}
        #: Done when the controller has broken: nothing can be promised any more.
        self.fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._graph_index = {g.name: i for i, g in enumerate(settings.graphs)}
        self._door = Door(len(settings.graphs), settings.workers, settings.arena_bytes)
        self._stages = sorted({s.name for g in settings.graphs for s in g.stages})
        self._journal = Journal(log, say)
        self._say = say
        self._observers = list(observers)
        self._requests: dict[int, LiveRequest] = {}
        #: Whom to tell the end of each open request.
        self._waiting: dict[int, Callable[[int, Result], None]] = {}
        #: Events that came while the actions of another were carried out.
        self._later: deque[tuple[Event, str]] = deque()
        self._posting = False
        self._running: dict[int, _Running] = {}
        #: Workers that keep queues: since when each model is being loaded, and when they last ended something.
        self._loading: dict[tuple[int, str], int] = {}
        self._progress_ns: dict[int, int] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        #: Since when some stage has had no worker; 0 is all are well.
        self._unready_since_ns = 1
        self._last_request = 0
        self._drained = asyncio.Event()
        self._changed = asyncio.Event()
        self._closing = False
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)

    # -- life ---------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Time since the start of the run."""
        return time.monotonic_ns() - self._origin_ns

    async def start(self, timeout_s: float = 60.0) -> None:
        """Start the workers and wait until every stage can run somewhere."""
        self.fleet.start(self.settings.workers)
        deadline = self._loop.time() + timeout_s
        kept = sum(spec.keeps_queue for spec in self.settings.workers)
        while not self.ready() or kept > sum(w.spec.keeps_queue for w in self.controller.workers.values()):
            self._changed.clear()
            why = [*self.load_errors.values(), *self.fleet.refusals.values()]
            why += [f"worker {name} dies at every start: {w}" for name, (n, w) in self.fleet.deaths.items() if n > 2]
            left = deadline - self._loop.time()
            if left <= 0:
                why.append(f"not ready after {timeout_s:g} s; stages without a worker: {', '.join(self._missing())}")
            if why:
                raise DovetailError("; ".join(sorted(set(why))))
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue

    def _missing(self, graph: Graph | None = None) -> list[str]:
        """Stages that no worker holds: of one workflow, or of all."""
        names = self._stages if graph is None else sorted(s.name for s in graph.stages)
        return [s for s in names if not self.controller.holders[s] and not self._kept(s)]

    def _kept(self, stage: str) -> bool:
        """Whether a worker is here that brings the stage's model itself."""
        kind = self.controller.stages[stage].kind
        specs = [w.spec for w in self.controller.workers.values() if w.spec.keeps_queue]
        return any(kind in spec.runs for spec in specs)

    def ready(self) -> bool:
        """Whether every stage is loaded on some worker."""
        return not self._unready_since_ns and not self._closing

    def _check_ready(self) -> None:
        """Called whenever a model or a worker came or went."""
        if not self._missing():
            self._unready_since_ns = 0
        elif not self._unready_since_ns:
            self._unready_since_ns = self.now_ns()
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
        for ident in list(self._requests):
            self._give_up(ident, reason)

    def _give_up(self, ident: int, reason: str) -> None:
        self._requests[ident].given_up = reason
        self._post(RequestCancelled(self.now_ns(), 0, ident))

    async def close(self) -> None:
        """Stop the workers. Requests that are still open get an answer, but no results."""
        self._closing = True
        self._sweeper.cancel()
        self.give_up("the server stopped before it was done")
        for handle in self._timers.values():
            handle.cancel()
        await self.fleet.stop()
        self._journal.close()
        self.fault.cancel()

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(
        self,
        workflow: str,
        inputs: Sequence[Ref | Any],
        done: Callable[[int, Result], None],
        *,
        priority: int = 0,
        objective_ns: int = 0,
        timeout_ns: int = 0,
        note: str = "",
        counts: tuple[int, ...] = (),
        on_free: Callable[[], None] = lambda: None,
    ) -> int:
        """Put a request to the controller; its number. `done` is told its end, once and perhaps before this returns.

        Inputs are blocks of the front's arena, or values that are copied there. `on_free` is called when no worker
        reads the inputs any more. Raises `Overloaded` if there is no memory for it, or no worker for its stages.
        """
        index = self._graph_index[workflow]
        graph = self.settings.graphs[index]
        self._check_workers(graph)
        refs, owned = self.memory.place(inputs)
        try:
            self._door.enter(index, priority or graph.priority)
        except Overloaded:
            self.memory.displace(owned)
            raise

        def freed() -> None:
            self.memory.displace(owned)
            on_free()

        self._last_request += 1
        ident = self._last_request
        self._requests[ident] = LiveRequest(refs, self.memory.free, freed)
        self._waiting[ident] = done
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
            ),
            note,
        )
        return ident

    def _check_workers(self, graph: Graph) -> None:
        if self._closing or self.fault.done():
            raise Overloaded("the server has stopped", 1000)
        since = self._unready_since_ns
        if since and self.now_ns() - since > REFUSE_AFTER_NS and (missing := self._missing(graph)):
            raise Overloaded(f"no worker runs {', '.join(missing)} now", 1000)
        if self.memory.full():
            raise Overloaded(f"the memory of worker {self.memory.full()} is full of results still in use", 1000)

    def cancel(self, ident: int) -> None:
        """The client gave up."""
        if ident in self._waiting:
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
                self._requests[event.request].state = self.controller.requests.get(event.request)
            # What keeps a device busy goes out first; answers and books can wait these microseconds.
            for action in actions:
                if type(action) is RunBatch:
                    self._run_batch(action)
            for action in actions:
                self._perform(action)
        except Exception as error:
            self._break(event, error)
            return
        self._journal.step(event, actions, note)
        for observe in self._observers:
            observe(event, actions)

    def _perform(self, action: Action) -> None:
        kind = type(action)
        if kind is Reply or kind is Reject:
            self._end(action)  # type: ignore[arg-type]
        elif isinstance(action, SetTimer):
            self._set_timer(action)
        elif isinstance(action, LoadModel):
            self.fleet.workers[action.worker].send(Load(action.stage, action.cause))
        elif isinstance(action, EvictModel):
            self.fleet.workers[action.worker].send(Evict(action.stage))
            self._check_ready()
        elif isinstance(action, Drained):
            self._drained.set()

    def _break(self, event: Event, error: Exception) -> None:
        """The controller failed, which must not happen: answer everybody, then let the server stop."""
        self._say(f"internal error at {event}: {type(error).__name__}: {error}")
        self.fault.set_exception(error)
        self.fault.exception()  # whoever awaits it gets it; nobody has to
        self._drained.set()
        waiting, self._waiting = self._waiting, {}
        for ident, done in waiting.items():
            request = self._requests[ident]
            request.hold()
            request.close()
            why = "internal error in the scheduler"
            self._tell(done, ident, Result("failed", {}, why, 0, 0, 0.0, _once(request.drop)))
        self._requests.clear()

    def _set_timer(self, action: SetTimer) -> None:
        delay_s = max(0, action.at_ns - self.now_ns()) / SECOND
        self._timers[action.timer] = self._loop.call_later(delay_s, self._timer, action)

    def _timer(self, action: SetTimer) -> None:
        now = self.now_ns()
        if now < action.at_ns:  # the loop's clock is a float and may be a hair early
            self._set_timer(action)
            return
        del self._timers[action.timer]
        self._post(TimerFired(now, action.cause, action.timer))

    def _run_batch(self, action: RunBatch) -> None:
        running = self._running[action.batch] = _Running(action, self.now_ns())
        columns: list[list[Any]] = []
        counted: list[tuple[int, ...]] = []
        for ident, node_index, index in action.items:
            request = self._requests[ident]
            request.hold()
            running.readers.append(request)
            assert request.state is not None
            compiled = request.state.graph.nodes[node_index]
            node = compiled.node
            if not columns:
                columns = [[] for _ in node.args]
            for column, source in zip(columns, node.args, strict=True):
                column.append(request.argument(node, source, index))
            counted.append(compiled.counted)
            running.counts += len(compiled.counted)
        worker = self.fleet.workers[action.worker]
        states = [request.state for request in running.readers] if worker.spec.preempts else []
        worker.send(
            Run(
                action.batch,
                action.cause,
                action.stage,
                action.cpus,
                action.share_pct,
                action.earliest_ns,
                action.latest_ns,
                columns,
                counted,
                self.memory.to_free(action.worker),
                action.order,
                action.expected_ns,
                action.accept_ns,
                *_urgency(action, states),
            )
        )

    def _end(self, action: Reply | Reject) -> None:
        """Answer a request."""
        now = self.now_ns()
        request = self._requests.pop(action.request)
        done = self._waiting.pop(action.request)
        timer = self._timers.pop(request.state.timer, None) if request.state is not None else None
        if timer is not None:
            timer.cancel()
        self._door.leave(action.graph, request.taken_bytes(self.memory.kinds))
        latency = now - action.arrived_ns
        result = Result(action.outcome, {}, "", 0, latency, action.cost_usd, _once(request.drop))
        if type(action) is Reply:
            try:
                result.outputs = request.results(self.memory.arenas)
            except Exception as error:  # what a worker wrote is not what the graph says
                result.outcome, result.reason = "failed", f"the result cannot be read: {error}"
        elif type(action) is Reject:
            result.reason, result.retry_after_ns = request.given_up or action.reason, action.retry_after_ns
        request.hold()
        request.close()
        self._tell(done, action.request, result)
        # Books after answers.
        self.ledger.add(action, now)
        self.statistics.answered(action, latency)

    def _tell(self, done: Callable[[int, Result], None], ident: int, result: Result) -> None:
        """Whatever is wrong with one answer must not touch the others."""
        try:
            done(ident, result)
        except Exception as error:
            result.release()
            self._say(f"the answer to request {ident} could not be given: {type(error).__name__}: {error}")

    # -- workers ------------------------------------------------------------------------------------------------

    def _on_message(self, worker: WorkerProcess, message: FromWorker) -> None:
        now = self.now_ns()
        if isinstance(message, Done | Failed):
            self._answered(worker, message, now)
        elif isinstance(message, State):
            self.statistics.state(worker.spec.name, message)
        elif isinstance(message, Evicted):
            reason = message.reason
            self._post(ModelEvicted(now, message.cause, worker.ident, message.weights, message.nbytes, reason))
        elif isinstance(message, Loading):
            self._loading[worker.ident, message.stage] = now
        elif isinstance(message, Loaded):
            self._load_ended(worker, message.stage, now)
            self.load_errors.pop(message.stage, None)
            self._post(ModelLoaded(now, message.cause, worker.ident, message.stage, message.nbytes))
            self._check_ready()
        elif isinstance(message, LoadFailure):
            self._load_ended(worker, message.stage, now)
            self.load_errors[message.stage] = message.detail
            self._say(message.detail)
            self._post(LoadFailed(now, message.cause, worker.ident, message.stage, message.detail))
            self._check_ready()
        elif isinstance(message, Ready):
            self.memory.join(worker)
            spec = worker.spec
            if message.usable_bytes:  # the rest of its budget is not for models
                spec = msgspec.structs.replace(spec, memory_bytes=message.usable_bytes)
            self._post(WorkerJoined(now, 0, worker.ident, spec))
            if worker.spec.keeps_queue:  # no model has to come first
                self._progress_ns[worker.ident] = now
                self._check_ready()
        self._changed.set()

    def _answered(self, worker: WorkerProcess, message: Done | Failed, now: int) -> None:
        """A batch has come back: results first, then what follows from them."""
        running = self._running.get(message.batch)
        if running is None or running.action.worker != worker.ident or not running.fits(message):
            worker.kill(f"its answer to batch {message.batch} does not fit what it was asked")
            return
        del self._running[message.batch]
        if worker.spec.keeps_queue or worker.spec.preempts:  # there others go first
            self._progress_ns[worker.ident] = now
        action, readers = running.action, running.readers
        if isinstance(message, Done):
            for (_, node, index), request, ref in zip(action.items, readers, message.results, strict=True):
                self.memory.keep(ref)
                request.values[node, index] = ref
            begin_ns, end_ns, busy_ns = message.begin_ns, message.end_ns, message.busy_ns
            self.statistics.batch(action, busy_ns or end_ns - begin_ns)
            self._post(BatchFinished(now, message.cause, message.batch, begin_ns, end_ns, message.counts, busy_ns))
        else:
            begin_ns, end_ns = message.begin_ns, message.end_ns
            reason, detail = message.reason, message.detail
            self._post(BatchFailed(now, message.cause, message.batch, begin_ns, end_ns, reason, detail))
        for request in readers:
            request.drop()

    def _load_ended(self, worker: WorkerProcess, stage: str, now: int) -> None:
        if worker.spec.keeps_queue:
            self._loading.pop((worker.ident, stage), None)
            self._progress_ns[worker.ident] = now

    def _on_lost(self, worker: WorkerProcess, why: str) -> None:
        """Batches that ran there may be run again elsewhere, but this reader of their inputs is gone."""
        for batch in [b for b, running in self._running.items() if running.action.worker == worker.ident]:
            for request in self._running.pop(batch).readers:
                request.drop()
        self._progress_ns.pop(worker.ident, None)
        for key in [key for key in self._loading if key[0] == worker.ident]:
            del self._loading[key]
        if worker.arena is not None:
            self._post(WorkerLost(self.now_ns(), 0, worker.ident, why))
        self._check_ready()

    def _sweep(self) -> None:
        """Twice a second: whatever is kept by nothing else."""
        self._sweeper = self._loop.call_later(SWEEP_SECONDS, self._sweep)
        now = self.now_ns()
        for running in list(self._running.values()):
            limit_ns = max(self.settings.hang_ns, HANG_FACTOR * running.action.expected_ns)
            worker = self.fleet.workers.get(running.action.worker)
            if (running.action.worker, running.action.stage) in self._loading:
                continue  # looked at below
            # In a worker's own queue a batch may wait as long as others get done there.
            since_ns = max(running.since_ns, self._progress_ns.get(running.action.worker, 0))
            if worker is not None and now - since_ns > limit_ns:
                stage, seconds = running.action.stage, limit_ns / SECOND
                worker.kill(f"stage {stage!r} did not answer within {seconds:g} s, so its worker was killed")
        for (ident, stage), since_ns in list(self._loading.items()):
            worker = self.fleet.workers.get(ident)
            if worker is not None and now - since_ns > self.settings.hang_ns:
                seconds = self.settings.hang_ns / SECOND
                worker.kill(
                    f"the model of stage {stage!r} was not loaded within {seconds:g} s, so its worker was killed"
                )
        since = self._unready_since_ns
        if since and now - since > GIVE_UP_AFTER_NS:
            for ident, request in list(self._requests.items()):
                if request.state is not None and (missing := self._missing(request.state.graph.graph)):
                    self._give_up(ident, f"no worker has run {', '.join(missing)} for {GIVE_UP_AFTER_NS // SECOND} s")
        self._journal.flush()


def _urgency(action: RunBatch, states: Sequence[Request | None]) -> tuple[int, int, bool]:
    """A batch's class, when the most urgent request of that should be answered, and whether a model of it follows.

    One follows if it waits only for this batch. What comes after a Python stage is too far away to be waited for.
    """
    ours = [(state, node) for state, (_, node, _) in zip(states, action.items, strict=False) if state is not None]
    if not ours:
        return 1, 0, False
    priority = min(state.priority for state, _ in ours)
    ours = [(state, node) for state, node in ours if state.priority == priority]
    objective_ns = min((state.objective_ns for state, _ in ours if state.objective_ns), default=0)

    def follows(state: Request, node: int) -> bool:
        nodes, compiled = state.graph.nodes, state.graph.nodes[node]
        ready = [j for j in compiled.whole_next if state.missing[j] <= 1 and not compiled.node.mapped]
        return any(not nodes[j].stage.on_host for j in (*ready, *compiled.each_next))

    return priority, objective_ns, any(follows(state, node) for state, node in ours)


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """A release that may be called again without harm."""
    done = False

    def release() -> None:
        nonlocal done
        if not done:
            done = True
            call()

    return release
