"""A real or emulated worker behind the contract's interface: a process with doorbells, on the machine's clock."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.contract.stages import WIDTH

from dovetail.control import BatchFailed, BatchFinished, Event, LoadFailed, ModelEvicted, ModelLoaded, RunBatch
from dovetail.live.front.joined import JoinedWorker
from dovetail.live.front.link import WorkerLink
from dovetail.live.front.process import WorkerProcess
from dovetail.live.kernels.segments import write_cut
from dovetail.live.links.wire import (
    Argument,
    Done,
    Evict,
    Evicted,
    Failed,
    Free,
    FromWorker,
    Hello,
    Load,
    Loaded,
    LoadFailure,
    Refused,
    Run,
    State,
    ToWorker,
    arena_of,
)
from dovetail.live.tensors.arena import Arena
from dovetail.live.tensors.codec import decode, encode
from dovetail.profile.kernels import Cut
from dovetail.record.kernels import KernelRecord, decode_records
from dovetail.workflow.graph import StageSpec

__all__ = ["PATIENCE_SECONDS", "ProcessWorld", "write_cuts"]

#: A dead worker should fail a test, not hang it.
PATIENCE_SECONDS = 60.0
#: An ingress that is not let in because it was here a moment ago asks again after so long.
ASK_AGAIN_SECONDS = 0.005


def write_cuts(stages: Mapping[str, StageSpec], cuts: Sequence[Cut], directory: Path) -> list[str]:
    """What was cut, in files: a worker with a strict budget only reads."""
    paths = {stage.model: Path(stage.path) for stage in stages.values()}
    files = []
    for number, cut in enumerate(cuts):
        file = directory / f"cut-{number}"
        file.mkdir()
        write_cut(paths[cut.model], cut.at, file)
        files.append(str(file))
    return files


class _Ingress:
    """One ingress: its link, its own arena, and what it has last heard of the worker's state."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.arena = Arena.create(arena_of(number), 16 << 20)
        self.link: WorkerLink
        self.state: State | None = None
        self.refused = ""
        #: Why the worker does not listen to it any more.
        self.lost = ""
        #: Blocks that hold the inputs of a batch until it is answered.
        self.inputs: dict[int, list[int]] = {}

    def close(self) -> None:
        if self.link.arena is not None:
            self.link.arena.close()
        self.arena.close()


class ProcessWorld:
    """A worker process.

    `make_hello` is given the clock's origin, the socket for further ingresses, and the file for kernels that ran.
    """

    def __init__(self, make_hello: Callable[[int, str, str], Hello]) -> None:
        self.results: dict[tuple[int, int], list[Any]] = {}
        self._origin_ns = time.monotonic_ns()
        self._heard: deque[tuple[int, Event]] = deque()
        self._loop = asyncio.new_event_loop()
        self._news = asyncio.Event()
        self._scratch = Path(tempfile.mkdtemp(prefix="dovetail-contract-"))
        self._socket = self._scratch / "worker.sock"
        self._ingresses: dict[int, _Ingress] = {}
        self._kernel_log = self._scratch / "kernels.jsonl"
        self._kernel_log.touch()
        hello = make_hello(self._origin_ns, str(self._socket), str(self._kernel_log))

        async def start() -> None:
            first = self._ingresses[0] = _Ingress(0)
            first.link = WorkerProcess(hello, first.arena, self._on_message, self._on_lost)
            await self._until(lambda: first.link.arena is not None)

        self._loop.run_until_complete(start())

    def _on_lost(self, link: WorkerLink, why: str) -> None:
        ingress = self._of(link)
        if ingress is not None:
            assert ingress.number, f"the worker is lost: {why}"
            ingress.lost = why
        self._news.set()

    def _of(self, link: WorkerLink) -> _Ingress | None:
        return next((i for i in self._ingresses.values() if i.link is link), None)

    def _on_message(self, link: WorkerLink, message: FromWorker) -> None:
        self._news.set()
        ingress = self._of(link)
        if ingress is None:
            return
        if isinstance(message, Refused):
            ingress.refused = message.detail
        elif isinstance(message, State):
            ingress.state = message
        elif (event := self._event(ingress, message)) is not None:
            self._heard.append((ingress.number, event))

    def _event(self, ingress: _Ingress, message: FromWorker) -> Event | None:
        now, link, number = self.now_ns(), ingress.link, ingress.number
        if isinstance(message, Done):
            assert link.arena is not None
            arenas = {link.ident: link.arena}
            self.results[number, message.batch] = [np.array(decode(ref, arenas)) for ref in message.results]
            link.send(Free([ref.offset for ref in message.results]))
            self._let_go(ingress, message.batch)
            times = (message.begin_ns, message.end_ns)
            busy_ns = message.busy_ns
            return BatchFinished(now, message.cause, message.batch, *times, message.counts, busy_ns, number)
        if isinstance(message, Failed):
            self._let_go(ingress, message.batch)
            why = (message.begin_ns, message.end_ns, message.reason, message.detail)
            return BatchFailed(now, message.cause, message.batch, *why, number)
        if isinstance(message, Loaded):
            return ModelLoaded(now, message.cause, link.ident, message.stage, message.nbytes, message.load_ns)
        if isinstance(message, LoadFailure):
            return LoadFailed(now, message.cause, link.ident, message.stage, message.detail)
        if isinstance(message, Evicted):
            what = (message.weights, message.nbytes, message.reason)
            return ModelEvicted(now, message.cause, link.ident, *what)
        return None

    def _let_go(self, ingress: _Ingress, batch: int) -> None:
        for offset in ingress.inputs.pop(batch, ()):
            ingress.arena.free(offset)

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._origin_ns

    # -- what is asked ------------------------------------------------------------------------------------------

    def run(self, batch: RunBatch, value: Any = None) -> None:
        ingress = self._ingresses[batch.ingress]
        values = [np.full(WIDTH, i + 1, np.float32) if value is None else value for i in range(len(batch.items))]
        refs = [encode(v, ingress.arena) for v in values]
        ingress.inputs[batch.batch] = [ref.offset for ref in refs]
        ingress.link.send(Run(batch, [[Argument((ref,)) for ref in refs]], [(-1,)] * len(refs), []))

    def load(self, stage: str, ingress: int, *, keep: bool) -> None:
        self.send(Load(stage, 0, keep), ingress)

    def evict(self, stage: str, ingress: int) -> None:
        self.send(Evict(stage, 0, "a test says so"), ingress)

    def send(self, message: ToWorker, ingress: int) -> None:
        """Whatever it is, as this ingress."""
        self._ingresses[ingress].link.send(message)

    # -- other ingresses ----------------------------------------------------------------------------------------

    def join(self, ingress: int) -> Sequence[str]:
        async def join() -> Sequence[str]:
            comes = self._ingresses[ingress] = _Ingress(ingress)
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    comes.refused = ""
                    link = JoinedWorker(self._socket, ingress, comes.arena, self._on_message, self._on_lost)
                    comes.link = link
                    await self._until(lambda: comes.refused or comes.state is not None)
                    if not comes.refused:
                        assert comes.state is not None
                        return comes.state.row.resident
                    # It was here a moment ago, and the worker has not noticed, or has a batch of it left.
                    link.leave()
                    await asyncio.sleep(ASK_AGAIN_SECONDS)

        return self._loop.run_until_complete(join())

    def leave(self, ingress: int) -> None:
        gone = self._ingresses.pop(ingress)
        assert isinstance(gone.link, JoinedWorker)
        self._loop.call_soon(gone.link.leave)
        self._loop.run_until_complete(asyncio.sleep(0))
        gone.close()
        self._heard = deque(pair for pair in self._heard if pair[0] != ingress)

    def until_dropped(self, ingress: int) -> str:
        """Wait until the worker does not listen to an ingress any more, which is gone then; why."""
        self._loop.run_until_complete(self._until(lambda: self._ingresses[ingress].lost))
        gone = self._ingresses.pop(ingress)
        gone.close()
        self._heard = deque(pair for pair in self._heard if pair[0] != ingress)
        return gone.lost

    # -- what is heard ------------------------------------------------------------------------------------------

    async def _until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def next_event(self) -> tuple[int, Event]:
        self._loop.run_until_complete(self._until(lambda: self._heard))
        return self._heard.popleft()

    def kernels(self, last: int) -> list[KernelRecord]:
        """All kernels that ran, once that batch is among them: they are written when the worker has nothing to do."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while True:
            with self._kernel_log.open("rb") as lines:
                found = list(decode_records(lines))
            if any(record.task == last for record in found):
                return found
            assert time.monotonic() < give_up, f"batch {last} is not among the kernels that ran"
            time.sleep(0.01)

    def close(self) -> None:
        for number in [n for n in self._ingresses if n]:
            self.leave(number)
        first = self._ingresses[0]
        self._loop.run_until_complete(first.link.stop())
        first.close()
        self._loop.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
