"""What workers say, as events of the controller.

Other fronts may share a worker. Then its state is news: what it has to do is not only what this front has sent, and
that it works on something counts as life, though nothing of ours may have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from ...control import (
    BatchFailed,
    BatchFinished,
    Controller,
    Event,
    LoadFailed,
    ModelEvicted,
    ModelLoaded,
    PeerStateReceived,
    WorkerJoined,
    WorkerLost,
)
from ..links.wire import Done, Evicted, Failed, FromWorker, Kernels, Loaded, LoadFailure, Loading, Ready, State
from .batches import Batches
from .link import WorkerLink
from .memory import Memory
from .statistics import Statistics
from .tap import Tap
from .watchdog import Watchdog

__all__ = ["WorkerMessages"]


@dataclass
class WorkerMessages:
    """Takes messages, keeps the books that go with them, and posts what the controller has to know."""

    controller: Controller
    memory: Memory
    batches: Batches
    watchdog: Watchdog
    statistics: Statistics
    tap: Tap
    now_ns: Callable[[], int]
    post: Callable[[Event], None]
    check_ready: Callable[[], None]
    say: Callable[[str], None]
    #: Stage -> why it could not be loaded.
    load_errors: dict[str, str] = field(default_factory=dict)
    #: Worker -> how much it had begun when it last spoke of itself.
    _begun: dict[int, int] = field(default_factory=dict)

    def take(self, worker: WorkerLink, message: FromWorker) -> None:
        """One message of a worker."""
        now = self.now_ns()
        ident = worker.ident
        if type(message) is Done or type(message) is Failed:
            self._answered(worker, message, now)
        elif isinstance(message, State):
            self.statistics.state(worker.spec.name, message)
            if message.ingresses > 1:
                self._shared(ident, message, now)
        elif isinstance(message, Evicted):
            self.statistics.evicted(now, worker.spec.name, message)
            self.post(ModelEvicted(now, message.cause, ident, message.weights, message.nbytes, message.reason))
        elif isinstance(message, Kernels):
            self.tap.kernels(ident, message)
        elif isinstance(message, Loading):
            self.watchdog.load_began(ident, message.stage, now)
        elif isinstance(message, Loaded):
            self.watchdog.load_ended(ident, message.stage, now)
            self.load_errors.pop(message.stage, None)
            self.post(ModelLoaded(now, message.cause, ident, message.stage, message.nbytes, message.load_ns))
            self.check_ready()
        elif isinstance(message, LoadFailure):
            self.watchdog.load_ended(ident, message.stage, now)
            self.load_errors[message.stage] = message.detail
            self.say(message.detail)
            self.post(LoadFailed(now, message.cause, ident, message.stage, message.detail))
            self.check_ready()
        elif isinstance(message, Ready):
            self.memory.join(worker)
            spec = worker.spec
            if message.usable_bytes:  # the rest of its budget is not for models
                spec = msgspec.structs.replace(spec, memory_bytes=self._for_models(message))
            self.post(WorkerJoined(now, 0, ident, spec))
            self.tap.joined(worker)
            self.watchdog.answered(ident, now)
            self.check_ready()

    def _for_models(self, message: Ready) -> int:
        """What models may take, in bytes of their files, which the controller counts in.

        Models that do not fit all at once as they were measured must not look as if they did.
        """
        held = {w.weights: w.nbytes for w in message.weighed}
        if sum(held.values()) <= message.usable_bytes:
            return message.usable_bytes
        files = {s.weights: s.weights_bytes for s in self.controller.stages.values() if s.weights in held}
        return max(1, min(message.usable_bytes, sum(files.values()) - 1))

    def _shared(self, ident: int, state: State, now: int) -> None:
        """A worker that others use, too, has said how it is."""
        self.memory.heard(ident, state.arena_bytes)
        begun = state.hits + state.misses + state.loads
        if self._begun.get(ident) != begun:
            self._begun[ident] = begun
            self.watchdog.answered(ident, now)
        if self.controller.binds_at_once:  # else work waits here, and nobody would read it
            self.post(PeerStateReceived(now, 0, (state.row,)))

    def _answered(self, worker: WorkerLink, message: Done | Failed, now: int) -> None:
        """A batch has come back: results first, then what follows from them."""
        ended = self.batches.end(worker.ident, message)
        if ended is None:
            worker.kill(f"its answer to batch {message.batch} does not fit what it was asked")
            return
        running, message = ended
        self.watchdog.answered(worker.ident, now)
        batch, cause, ingress = message.batch, message.cause, self.controller.ingress
        begin_ns, end_ns = message.begin_ns, message.end_ns
        if type(message) is Done:
            busy_ns = message.busy_ns
            decided = self.controller.batches.get(batch)
            waited_ns = 0
            for item in decided.items if decided is not None else ():
                if begin_ns > item.queued_ns:
                    waited_ns += begin_ns - item.queued_ns
            self.statistics.batch(running.action, busy_ns or end_ns - begin_ns, waited_ns)
            self.post(BatchFinished(now, cause, batch, begin_ns, end_ns, message.counts, busy_ns, ingress))
        else:
            assert isinstance(message, Failed)
            reason, detail = message.reason, message.detail
            self.post(BatchFailed(now, cause, batch, begin_ns, end_ns, reason, detail, ingress))
        running.drop()

    def lost(self, worker: WorkerLink, why: str) -> None:
        """A worker is gone."""
        self.batches.lose(worker.ident)
        if worker.arena is not None:
            self.post(WorkerLost(self.now_ns(), 0, worker.ident, why, worker.at_fault, worker.replaced))
        self.forget(worker.ident)

    def forget(self, ident: int) -> None:
        """A worker is not heard of again."""
        self.watchdog.lost(ident)
        self._begun.pop(ident, None)
        self.check_ready()
