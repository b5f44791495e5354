"""A device executor in the process of the test: what it answers is kept, and it is woken and worked by hand."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from dovetail import onnx
from dovetail.live.links.wire import Argument, Done, FromWorker, Hello, Load, Loaded, Run
from dovetail.live.tensors.arena import Arena
from dovetail.live.tensors.codec import encode
from dovetail.live.worker.device_executor import DeviceExecutor, _TellState
from dovetail.live.worker.executor import Values, Work
from dovetail.live.worker.learning import TELL_NS
from dovetail.profile.kernels import Cut
from dovetail.state import RunBatch, WorkerSpec
from dovetail.state.run_batch import NEVER_NS

__all__ = ["InProcess"]

PATIENCE_SECONDS = 60.0


class InProcess:
    """A worker with one stage, `long`, and `again` on the same weights; by default every model is cut."""

    def __init__(
        self,
        path: Path,
        arena: Arena,
        known: list[bytes] | None = None,
        cuts: list[Cut] | None = None,
        *,
        load: bool = True,
        **more: Any,
    ) -> None:
        self.stage = onnx(path, name="long", batch=(1, 2)).spec
        again = onnx(path, name="again", batch=(1, 2)).spec
        self.arena = arena
        #: (ingress, message)
        self.told: list[tuple[int, FromWorker]] = []
        self.wakes: list[tuple[int, object]] = []
        #: What was handed on, for a thread that has nothing to do.
        self.handed: list[Work] = []
        spec = WorkerSpec("cpu-0", "cpu", ("onnx",), 1, preempts=True)
        options = {"kernels": "always", "known": known or [], "cuts": cuts or []} | more
        hello = Hello(1, spec, "", [], [self.stage, again], [], (1,), 0, 1 << 20, **options)
        self.begun_ns = time.monotonic_ns()
        self.executor = DeviceExecutor(
            hello,
            None,
            Values({1: arena}, arena),
            lambda ingress, message: self.told.append((ingress, message)),
            lambda at_ns, payload: self.wakes.append((at_ns, payload)),
            time.monotonic_ns,
            self.handed.append,
        )
        if load:
            self.load()
            self.wait(Loaded)

    @property
    def answers(self) -> list[FromWorker]:
        return [message for _, message in self.told]

    def load(self, stage: str = "long", ingress: int = 0, cause: int = 0, *, keep: bool = True) -> None:
        self.executor.load(Load(stage, cause, keep=keep), ingress, time.monotonic_ns())

    def wait(self, kind: type[Any]) -> Any:
        """The first of these messages that nobody has waited for."""
        give_up = time.monotonic() + PATIENCE_SECONDS
        while not (found := [pair for pair in self.told if isinstance(pair[1], kind)]):
            assert time.monotonic() < give_up, f"no {kind.__name__} among {self.told}"
            time.sleep(0.002)
        self.told.remove(found[0])
        return found[0][1]

    def take(
        self, batch: int = 1, stage: str = "long", priority: int = 1, ingress: int = 0, **more: Any
    ) -> Work | None:
        """A batch of one item comes; what the thread that heard of it is to do."""
        ref = encode(np.ones(3, np.float32), self.arena)
        decided = RunBatch(
            1, batch, 1, stage, ((1, 0, 0),), 1, 100, 0, NEVER_NS, 0, priority=priority, ingress=ingress, **more
        )
        return self.executor.run(Run(decided, [[Argument((ref,))]], [()], []), time.monotonic_ns())

    def run(self, times: int = 1) -> None:
        """Batches, one after the other."""
        for _ in range(times):
            work = self.take()
            assert work is not None
            work()
            self.wait(Done)

    def tell(self) -> None:
        """As if a minute had passed: the wake that it asked for has come."""
        ((at_ns, payload),) = [wake for wake in self.wakes if not isinstance(wake[1], _TellState)]
        assert at_ns >= self.begun_ns + TELL_NS
        self.wakes.clear()
        assert self.executor.wake(payload, time.monotonic_ns()) is None
