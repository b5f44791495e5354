"""The live world: the real clock, worker processes, and the same Controller as the simulator's.

Rules of this file: it decides nothing. Events are stamped with the time at which they are taken, handed to
`Controller.step`, and the actions carried out; what it adds is the data plane (which block holds which value) and the
life of worker processes. Everything runs in one thread, that of the event loop.
"""

from __future__ import annotations

import asyncio
import time
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
from ..profile.table import Entry
from ..state import WorkerSpec
from ..units import SECOND
from ..workflow.graph import Graph
from .arena import Arena, ArenaFull
from .codec import Ref, encode
from .process import WorkerProcess
from .stats import Statistics
from .values import LiveRequest
from .wire import Attach, Detach, Done, Evict, Failed, Free, FromWorker, Hello, Load, Loaded, LoadFailure, Ready, Run

__all__ = ["FRONT_ARENA", "LiveSystem", "Result", "Settings"]

#: Number of the front's own arena; workers count from 1.
FRONT_ARENA = 0
#: Wait before a worker that died is started again: at once the first time, then longer, never more than the last.
RESTART_SECONDS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
#: A worker that has run this long is healthy, and the next wait starts from the beginning.
HEALTHY_NS = 30 * SECOND


class Settings(msgspec.Struct, frozen=True):
    """What a live system is started with."""

    target: str
    graphs: tuple[Graph, ...]
    workers: tuple[WorkerSpec, ...]
    entries: tuple[Entry, ...] = ()
    arena_bytes: int = 1 << 30
    seed: int = 1


class Result(msgspec.Struct):
    """How a request ended. Outputs are views of shared memory: call `release` when they have been read."""

    outcome: str
    outputs: dict[str, Any]
    reason: str
    retry_after_ns: int
    latency_ns: int
    cost_usd: float
    release: Callable[[], None]


class LiveSystem:
    """Workers, controller and the data between them."""

    def __init__(
        self,
        settings: Settings,
        controller: Controller,
        *,
        log: LogWriter | None = None,
        say: Callable[[str], None] = lambda _: None,
        observers: Sequence[Callable[[Event, list[Action]], None]] = (),
    ) -> None:
        self.settings = settings
        self.controller = controller
        self.ledger = Ledger([(g.name, g.slo_ns) for g in settings.graphs])
        self.statistics = Statistics(settings.graphs)
        self.workers: dict[int, WorkerProcess] = {}
        #: Workers whose start failed or who died, by name: how often in a row.
        self.deaths: dict[str, int] = {}
        self.arenas: dict[int, Arena] = {FRONT_ARENA: Arena.create(FRONT_ARENA, settings.arena_bytes)}
        self.front = self.arenas[FRONT_ARENA]
        self.load_errors: dict[str, str] = {}
        self._graph_index = {g.name: i for i, g in enumerate(settings.graphs)}
        self._specs = {s.name: s for g in settings.graphs for s in g.stages}
        self._log = log
        self._say = say
        self._observers = list(observers)
        self._origin_ns = time.monotonic_ns()
        self._started_at: dict[int, int] = {}
        self._requests: dict[int, LiveRequest] = {}
        self._futures: dict[int, asyncio.Future[Result]] = {}
        self._running: dict[int, tuple[RunBatch, list[LiveRequest]]] = {}
        #: Blocks in use per arena, so that a dead worker's arena can be let go.
        self._blocks: dict[int, int] = {}
        self._to_free: dict[int, list[int]] = {}
        self._last_request = 0
        self._last_worker = 0
        self._restarts: set[asyncio.TimerHandle] = set()
        self._drained = asyncio.Event()
        self._changed = asyncio.Event()
        self._closing = False
        self._loop = asyncio.get_running_loop()

    # -- life ---------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        """Time since the start of the run."""
        return time.monotonic_ns() - self._origin_ns

    async def start(self, timeout_s: float = 60.0) -> None:
        """Start the workers and wait until every stage can run somewhere."""
        for spec in self.settings.workers:
            self._start_worker(spec)
        deadline = self._loop.time() + timeout_s
        while not self.ready():
            if self.load_errors:
                raise DovetailError("; ".join(sorted(set(self.load_errors.values()))))
            dead = [name for name, count in self.deaths.items() if count >= 3]
            left = deadline - self._loop.time()
            if dead or left <= 0:
                missing = ", ".join(sorted(s for s in self._specs if not self.controller.holders[s]))
                why = (
                    f"worker {dead[0]} dies at every start (see above)"
                    if dead
                    else f"not ready after {timeout_s:.0f} s"
                )
                raise DovetailError(f"{why}; stages without a worker: {missing}")
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), min(left, 0.5))
            except TimeoutError:
                continue

    def ready(self) -> bool:
        """Whether every stage is loaded on some worker."""
        return not self._closing and all(self.controller.holders[s] for s in self._specs)

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Take nothing new and wait until what was admitted is answered; False if time ran out first."""
        if not self.controller.draining:
            self._post(DrainStarted(self.now_ns(), 0))
        try:
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Stop the workers. Requests that are still open are failed: they get an answer."""
        self._closing = True
        for handle in self._restarts:
            handle.cancel()
        for ident in list(self._futures):
            self._post(RequestCancelled(self.now_ns(), 0, ident))
        await asyncio.gather(*(w.stop() for w in self.workers.values()))
        if self._log is not None:
            self._log.close()
        for arena in self.arenas.values():
            arena.close()

    def _start_worker(self, spec: WorkerSpec) -> None:
        self._last_worker += 1
        emulated = spec.enforcement == "emulated"
        hello = Hello(
            worker=self._last_worker,
            spec=spec,
            target=self.settings.target if "python" in spec.runs else "",
            stages=list(self._specs.values()),
            entries=[e for e in self.settings.entries if e.kind == spec.kind] if emulated else [],
            origin_ns=self._origin_ns,
            arena_bytes=self.settings.arena_bytes,
            seed=self.settings.seed,
        )
        self._started_at[self._last_worker] = self.now_ns()
        self.workers[self._last_worker] = WorkerProcess(hello, self.front, self._on_message, self._on_lost)

    def _on_lost(self, worker: WorkerProcess, why: str) -> None:
        spec = worker.spec
        del self.workers[worker.ident]
        if self._closing:
            return
        lived = self.now_ns() - self._started_at.pop(worker.ident)
        deaths = 0 if lived > HEALTHY_NS else self.deaths.get(spec.name, 0)
        self.deaths[spec.name] = deaths + 1
        wait = RESTART_SECONDS[min(deaths, len(RESTART_SECONDS) - 1)]
        self._say(f"worker {spec.name} (pid {worker.pid}) is lost: {why}; starting it again in {wait:g} s")
        # Batches that ran there: their requests may be retried elsewhere, but this reader is gone.
        for batch, (action, readers) in list(self._running.items()):
            if action.worker == worker.ident:
                del self._running[batch]
                for reader in readers:
                    reader.drop()
        if worker.arena is not None:
            self._post(WorkerLost(self.now_ns(), 0, worker.ident, why))
            self._release_arena(worker.ident)
        handle: asyncio.TimerHandle

        def restart() -> None:
            self._restarts.discard(handle)
            if not self._closing:
                self._start_worker(spec)

        handle = self._loop.call_later(wait, restart)
        self._restarts.add(handle)
        self._changed.set()

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(
        self,
        workflow: str,
        inputs: Sequence[Ref | Any],
        *,
        priority: int = 0,
        objective_ns: int = 0,
        timeout_ns: int = 0,
        note: str = "",
        counts: tuple[int, ...] = (),
        on_free: Callable[[], None] = lambda: None,
    ) -> tuple[int, asyncio.Future[Result]]:
        """Put a request to the controller; its number and the future of its end.

        Inputs are blocks of the front's arena, or values that are copied there. `on_free` is called when no worker
        reads the inputs any more.
        """
        refs: list[Ref] = []
        owned: list[Ref] = []
        try:
            for value in inputs:
                if isinstance(value, Ref):
                    refs.append(value)
                else:
                    ref = encode(value, self.front)
                    refs.append(ref)
                    owned.append(ref)
        except ArenaFull as error:
            for ref in owned:
                self.front.free(ref.offset)
            raise Overloaded(str(error), retry_after_ms=1000) from error
        except DovetailError:
            for ref in owned:
                self.front.free(ref.offset)
            raise

        def freed() -> None:
            for ref in owned:
                self.front.free(ref.offset)
            on_free()

        self._last_request += 1
        ident = self._last_request
        request = LiveRequest(note, refs, self._free, freed)
        future: asyncio.Future[Result] = self._loop.create_future()
        self._requests[ident] = request
        self._futures[ident] = future
        now = self.now_ns()
        self._post(
            RequestArrived(
                now,
                0,
                ident,
                self._graph_index[workflow],
                priority,
                now + objective_ns if objective_ns else 0,
                now + timeout_ns if timeout_ns else 0,
                counts,
            ),
            note,
        )
        return ident, future

    def cancel(self, ident: int) -> None:
        """The client gave up."""
        if ident in self._futures:
            self._post(RequestCancelled(self.now_ns(), 0, ident))

    # -- events and actions -------------------------------------------------------------------------------------

    def _post(self, event: Event, note: str = "") -> None:
        actions = self.controller.step(event)
        if self._log is not None:
            self._log.step(event, actions, note)
        for observe in self._observers:
            observe(event, actions)
        if isinstance(event, RequestArrived):
            # Batches of this very step read the state that the step made.
            self._requests[event.request].state = self.controller.requests.get(event.request)
        for action in actions:
            kind = type(action)
            if kind is RunBatch:
                self._run_batch(action)  # type: ignore[arg-type]
            elif kind is Reply or kind is Reject:
                self._end(action)  # type: ignore[arg-type]
            elif isinstance(action, SetTimer):
                delay = max(0, action.at_ns - self.now_ns()) / SECOND
                self._loop.call_later(delay, self._timer, action)
            elif isinstance(action, LoadModel):
                self.workers[action.worker].send(Load(action.stage, action.cause))
            elif isinstance(action, EvictModel):
                self.workers[action.worker].send(Evict(action.stage))
            elif isinstance(action, Drained):
                self._drained.set()
        if self._to_free:
            self._send_frees()

    def _timer(self, action: SetTimer) -> None:
        if not self._closing:
            # The loop's clock is coarser than ours; never fire before the time that was asked for.
            self._post(TimerFired(max(self.now_ns(), action.at_ns), action.cause, action.timer))

    def _run_batch(self, action: RunBatch) -> None:
        readers: list[LiveRequest] = []
        columns: list[list[Any]] = []
        counted: list[tuple[int, ...]] = []
        for ident, node_index, index in action.items:
            request = self._requests[ident]
            request.hold()
            readers.append(request)
            assert request.state is not None
            compiled = request.state.graph.nodes[node_index]
            node = compiled.node
            if not columns:
                columns = [[] for _ in node.args]
            for column, source in zip(columns, node.args, strict=True):
                column.append(request.argument(node, source, index))
            counted.append(compiled.counted)
        self._running[action.batch] = (action, readers)
        self.workers[action.worker].send(
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
            )
        )

    def _on_message(self, worker: WorkerProcess, message: FromWorker) -> None:
        now = self.now_ns()
        if isinstance(message, Done):
            self._batch_done(worker, message, now)
        elif isinstance(message, Failed):
            self._unhold(message.batch)
            self._post(
                BatchFailed(
                    now,
                    message.cause,
                    message.batch,
                    message.begin_ns,
                    message.end_ns,
                    message.reason,
                    message.detail,
                )
            )
        elif isinstance(message, Loaded):
            self.load_errors.pop(message.stage, None)
            self._post(ModelLoaded(now, message.cause, worker.ident, message.stage, message.nbytes))
            self._changed.set()
        elif isinstance(message, LoadFailure):
            self.load_errors[message.stage] = message.detail
            self._say(message.detail)
            self._post(LoadFailed(now, message.cause, worker.ident, message.stage, message.detail))
            self._changed.set()
        elif isinstance(message, Ready):
            assert worker.arena is not None
            for other in self.workers.values():
                if other is not worker and other.arena is not None:
                    other.send(Attach(worker.ident), [worker.arena.fd])
                    worker.send(Attach(other.ident), [other.arena.fd])
            # Values that a lost worker left behind are still inputs of open requests.
            for ident, arena in self.arenas.items():
                if ident != FRONT_ARENA and ident not in self.workers:
                    worker.send(Attach(ident), [arena.fd])
            self.arenas[worker.ident] = worker.arena
            self._blocks[worker.ident] = 0
            self._post(WorkerJoined(now, 0, worker.ident, worker.spec))

    def _batch_done(self, worker: WorkerProcess, message: Done, now: int) -> None:
        entry = self._running.get(message.batch)
        assert entry is not None, "a worker answered a batch twice"
        action, readers = entry
        self._blocks[worker.ident] += len(message.results)
        for (_, node, index), request, ref in zip(action.items, readers, message.results, strict=True):
            request.keep((node, index), ref)
        self.statistics.batch(action, message.end_ns - message.begin_ns)
        self._post(BatchFinished(now, message.cause, message.batch, message.begin_ns, message.end_ns, message.counts))
        self._unhold(message.batch)

    def _unhold(self, batch: int) -> None:
        _, readers = self._running.pop(batch)
        for request in readers:
            request.drop()

    def _end(self, action: Reply | Reject) -> None:
        now = self.now_ns()
        request = self._requests.pop(action.request)
        future = self._futures.pop(action.request)
        self.ledger.add(action, now)
        latency = now - action.arrived_ns
        self.statistics.answered(action, latency)
        outputs: dict[str, Any] = {}
        reason, retry = "", 0
        if isinstance(action, Reply):
            outputs = request.results(self.arenas)
        else:
            reason, retry = action.reason, action.retry_after_ns
        request.hold()
        request.close()
        result = Result(action.outcome, outputs, reason, retry, latency, action.cost_usd, _once(request.drop))
        if future.cancelled():
            result.release()
        else:
            future.set_result(result)

    # -- memory -------------------------------------------------------------------------------------------------

    def _free(self, ref: Ref) -> None:
        if not self._to_free:
            self._loop.call_soon(self._send_frees)
        self._to_free.setdefault(ref.arena, []).append(ref.offset)

    def _send_frees(self) -> None:
        """Tell owners which blocks are free, many at a time."""
        pending, self._to_free = self._to_free, {}
        for ident, offsets in pending.items():
            self._blocks[ident] -= len(offsets)
            worker = self.workers.get(ident)
            if worker is not None:
                worker.send(Free(offsets))
            else:
                self._release_arena(ident)

    def _release_arena(self, ident: int) -> None:
        """Let go of a lost worker's arena once nothing in it is of use."""
        if self._blocks.get(ident, 0) == 0 and ident in self.arenas and ident not in self.workers:
            for worker in self.workers.values():
                if worker.arena is not None:
                    worker.send(Detach(ident))
            self.arenas.pop(ident).close()
            self._blocks.pop(ident, None)


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """A release that may be called again without harm."""
    done = False

    def release() -> None:
        nonlocal done
        if not done:
            done = True
            call()

    return release
