"""A real or emulated worker behind the contract's interface: a process with a doorbell, on the machine's clock."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

import numpy as np
from tests.contract.sim_world import WIDTH

from dovetail.control import BatchFailed, BatchFinished, Event, LoadFailed, ModelEvicted, ModelLoaded
from dovetail.control.actions import NEVER_NS
from dovetail.live.front.process import WorkerProcess
from dovetail.live.links.wire import (
    Argument,
    Done,
    Evict,
    Evicted,
    Failed,
    Free,
    FromWorker,
    Hello,
    Learned,
    Load,
    Loaded,
    LoadFailure,
    Loading,
    Ready,
    Run,
    State,
)
from dovetail.live.tensors.arena import Arena
from dovetail.live.tensors.codec import Ref, decode, encode
from dovetail.profile.table import Entry
from dovetail.state import WorkerSpec
from dovetail.workflow.graph import StageSpec

#: A dead worker should fail a test, not hang it.
PATIENCE_SECONDS = 60.0


class ProcessWorld:
    """A worker process behind a real doorbell."""

    def __init__(self, stages: dict[str, StageSpec], spec: WorkerSpec, entries: list[Entry]) -> None:
        self.results: dict[int, list[Any]] = {}
        self._origin_ns = time.monotonic_ns()
        self._events: deque[Event] = deque()
        self._loop = asyncio.new_event_loop()
        self._front = Arena.create(0, 16 << 20)
        hello = Hello(1, spec, "", [], list(stages.values()), entries, (1,), self._origin_ns, 64 << 20)
        self._loop.run_until_complete(self._start(hello))

    async def _start(self, hello: Hello) -> None:
        self._heard = asyncio.Event()
        self._worker = WorkerProcess(hello, self._front, self._on_message, self._on_lost)
        while self._worker.arena is None:
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), PATIENCE_SECONDS)

    def _on_lost(self, worker: WorkerProcess, why: str) -> None:
        raise AssertionError(f"the worker is lost: {why}")

    def _on_message(self, worker: WorkerProcess, message: FromWorker) -> None:
        self._heard.set()
        now = self.now_ns()
        if isinstance(message, Done):
            assert worker.arena is not None
            arenas = {worker.ident: worker.arena}
            self.results[message.batch] = [np.array(decode(ref, arenas)) for ref in message.results]
            worker.send(Free([ref.offset for ref in message.results]))
            self._events.append(
                BatchFinished(now, message.cause, message.batch, message.begin_ns, message.end_ns, message.counts)
            )
        elif isinstance(message, Failed):
            self._events.append(
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
            self._events.append(ModelLoaded(now, message.cause, worker.ident, message.stage, message.nbytes))
        elif isinstance(message, LoadFailure):
            self._events.append(LoadFailed(now, message.cause, worker.ident, message.stage, message.detail))
        elif isinstance(message, Evicted):
            weights, nbytes, reason = message.weights, message.nbytes, message.reason
            self._events.append(ModelEvicted(now, message.cause, worker.ident, weights, nbytes, reason))
        else:
            assert isinstance(message, Ready | Loading | State | Learned)

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._origin_ns

    def load(self, stage: str, *, keep: bool = True) -> None:
        self._worker.send(Load(stage, 0))

    def evict(self, stage: str) -> None:
        self._worker.send(Evict(stage))

    def run(
        self,
        batch: int,
        stage: str = "quick",
        *,
        items: int = 1,
        share_pct: int = 100,
        earliest_ns: int = 0,
        latest_ns: int = NEVER_NS,
        value: Any = None,
        order: int = 0,
        priority: int = 1,
        objective_ns: int = 0,
        ingress: int = 0,
    ) -> None:
        values = [np.full(WIDTH, i + 1, np.float32) if value is None else value for i in range(items)]
        refs: list[Ref] = [encode(v, self._front) for v in values]
        columns = [[Argument((ref,)) for ref in refs]]
        counted = [(-1,)] * items
        window = (earliest_ns, latest_ns)
        message = Run(batch, batch, stage, 1, share_pct, *window, columns, counted, free=[], order=order)
        message.priority, message.objective_ns = priority, objective_ns
        self._worker.send(message)

    def next_event(self) -> Event:
        return self._loop.run_until_complete(self._next())

    async def _next(self) -> Event:
        while not self._events:
            self._heard.clear()
            await asyncio.wait_for(self._heard.wait(), PATIENCE_SECONDS)
        return self._events.popleft()

    def close(self) -> None:
        self._loop.run_until_complete(self._worker.stop())
        if self._worker.arena is not None:
            self._worker.arena.close()
        self._front.close()
        self._loop.close()
