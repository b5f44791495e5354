"""The worker processes of one system: started, started again when they die, stopped. `joined` has another's beside.

The scaler may ask for one more, or for one less. Who was told to stop is not started again. One more may be there
already, as a spare (`spares`).

A worker that comes back is a new worker with a new number and a new arena. Whoever dies at every start is tried more
and more rarely, but for ever: the cause may be a full disk that somebody clears.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count

import msgspec

from ...profile.kernelrows import pack
from ...profile.kernels import Cut
from ...state import WorkerSpec
from ...units import SECOND, format_bytes
from ..kernels.cutting import Found, Wanted
from ..kernels.weight_files import WeightDirectory
from ..links.wire import (
    Done,
    FromWorker,
    Hello,
    Learned,
    Ready,
    Recut,
    Refused,
    Standing,
    WantsCut,
    Weighed,
    arena_of,
)
from .cutter import Cutter
from .isolation import Isolation
from .link import WorkerLink
from .memory import Memory
from .process import WorkerProcess, is_stopped
from .settings import Settings
from .share import FirstFront, JoinedFront
from .spares import Spares
from .stores import KernelStore

__all__ = ["Fleet"]

#: Wait before a worker that died is started again: at once the first time, then longer, never more than the last.
RESTART_SECONDS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
#: A worker that has answered a batch or lived this long was healthy, and the next wait starts from the beginning. So
#: was one that died of a batch: whoever sends what kills workers must not make others wait for the next.
HEALTHY_NS = 30 * SECOND
#: What a model that maps its weights may take more in kernels: 0.35 MB was seen. Less than the slack of a budget.
NOISE_BYTES = 1 << 20
#: Stuck workers for Python stages that have a substitute at once [our choice: each is a process of some 50 MB].
MOST_SUBSTITUTES = 4


class Fleet:
    """Workers by number. `on_lost` is called after a worker was taken out of `workers`."""

    def __init__(
        self,
        settings: Settings,
        origin_ns: int,
        on_message: Callable[[WorkerLink, FromWorker], None],
        on_lost: Callable[[WorkerLink, str], None],
        say: Callable[[str], None],
        kernels: KernelStore | None = None,
        share: FirstFront | JoinedFront | None = None,
    ) -> None:
        self.workers: dict[int, WorkerLink] = {}
        self._ingress = 0 if share is None else share.ingress
        self._share = share if isinstance(share, FirstFront) else None
        self.memory = Memory(settings.arena_bytes, self.workers, arena_of(self._ingress))
        #: Workers that died, by name: how often in a row, and why the last time.
        self.deaths: dict[str, tuple[int, str]] = {}
        #: Workers that said themselves that they can never start, by name.
        self.refusals: dict[str, str] = {}
        self._settings = settings
        self._origin_ns = origin_ns
        self._on_message = on_message
        self._on_lost = on_lost
        self._say = say
        #: What is known of kernels.
        self._kernels = kernels
        #: What workers with a strict budget have measured of their models, by kind of device.
        self.weighed: dict[str, list[Weighed]] = {}
        #: How models are cut, as found out here; and where that was written, by model.
        self.cuts: list[Cut] = []
        self._cut_files: dict[str, str] = {}
        #: Whether a worker owes an answer; whoever keeps the batches says so.
        self.busy: Callable[[int], bool] = lambda _: False
        #: The stage of the batch that a worker has owed for the longest; empty: it owes none.
        self.works_at: Callable[[int], str] = lambda _: ""
        #: Whether a worker is to go; whoever decides says so. It is not started again.
        self.closing: Callable[[int], bool] = lambda _: False
        #: Names of workers that are to be started again, and workers that are told to stop.
        self._coming: set[str] = set()
        self._ending: set[asyncio.Task[None]] = set()
        #: Stuck workers that have a substitute: they are not started again.
        self._substituted: set[int] = set()
        self._substitutes = 0
        #: Python stages that have processes of their own.
        self._isolation = Isolation(settings.graphs)
        self._started_ns: dict[int, int] = {}
        #: Number of the last worker, where no directory keeps it.
        self._last = arena_of(self._ingress)
        self._restarts: set[asyncio.TimerHandle] = set()
        self._stopping = False
        self._stages = {s.name: s for g in settings.graphs for s in g.stages}
        #: Finds out how models are best cut.
        self.cutter = Cutter(self._cut_found, say, writes=settings.strict)
        #: Where copies of weights are that workers share, if there are models.
        self._weights: WeightDirectory | None = None
        shares = settings.shared_weights and any(stage.kind == "onnx" for stage in self._stages.values())
        if shares and any(spec.enforcement == "cooperative" for spec in settings.workers):
            self._weights = WeightDirectory()
        self._loop = asyncio.get_running_loop()
        #: Those that wait to be the next.
        self.spares = Spares(settings.spares, self._stages.values(), self._next_spare, self._process, say)

    def start(self, specs: Sequence[WorkerSpec]) -> None:
        """Start a process for each."""
        for spec in specs:
            self._start(spec)
        self.spares.look()

    def grow(self, reason: str) -> None:
        """Start one more worker for models, like those that there are, under the next free name."""
        if self._stopping:
            return
        if (spare := self.spares.take()) is not None:
            worker, heard = spare
            self._say(f"starting worker {worker.spec.name}, which was there as a spare: {reason}")
            self.workers[worker.ident] = worker
            for message in heard:
                self._message(worker, message)
            return
        spec = self._next()
        self._say(f"starting worker {spec.name}: {reason}")
        self._start_or_try_again(spec)
        self.spares.look()

    def _next(self) -> WorkerSpec:
        """One more like those that there are, under the next free name."""
        like = next(spec for spec in self._settings.workers if not spec.on_host)
        there = (*self.workers.values(), *self.spares.workers.values())
        taken = {worker.spec.name for worker in there} | self._coming
        prefix = like.name.rpartition("-")[0]
        name = next(name for i in count() if (name := f"{prefix}-{i}") not in taken)
        return msgspec.structs.replace(like, name=name)

    def _next_spare(self) -> WorkerSpec | None:
        there = sum(not w.spec.on_host for w in self.workers.values()) + len(self.spares.workers) + len(self._coming)
        return None if self._stopping or there >= self._settings.most else self._next()

    def shrink(self, ident: int, reason: str) -> None:
        """Stop a worker that runs nothing, for good. What it has left in its arena can be read while it is needed."""
        worker = self.workers.pop(ident)
        del self._started_ns[ident]
        self.memory.lose(ident)
        task = self._loop.create_task(worker.stop())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        self._say(f"stopping worker {worker.spec.name} (pid {worker.pid}): {reason}")
        self.spares.look()

    def sweep(self) -> None:
        """Called now and then: nobody comes by himself here."""

    def _start(self, spec: WorkerSpec) -> None:
        worker = self._process(spec)
        self.workers[worker.ident] = worker

    def _process(self, spec: WorkerSpec) -> WorkerProcess:
        """A new process, which nobody knows yet."""
        settings, share = self._settings, self._share
        spec = self._isolation.shared(spec)
        if share is None:
            self._last += 1
        else:
            self._last = share.number()
        emulated = spec.enforcement == "emulated"
        known, cuts = self._kernels.known() if self._kernels is not None and not spec.on_host else ([], [])
        lowest: dict[str, int] = {}
        for graph in settings.graphs:
            for stage in graph.stages:
                lowest[stage.name] = max(lowest.get(stage.name, 1), graph.priority)
        hello = Hello(
            worker=self._last,
            spec=spec,
            target=settings.target if spec.on_host else "",
            module_path=sys.path,
            stages=list({s.name: s for g in settings.graphs for s in g.stages}.values()),
            entries=[e for e in settings.entries if e.kind == spec.kind] if emulated else [],
            cpus=settings.cpus or (spec.cores,),
            origin_ns=self._origin_ns,
            arena_bytes=settings.arena_bytes,
            listen=share.socket_of(spec.name, self._last) if share is not None and not spec.on_host else "",
            strict=settings.strict and not spec.on_host,
            weighed=self.weighed.get(spec.kind, []),
            kernels=settings.kernels,
            lowest=lowest,
            highest=min((graph.priority for graph in settings.graphs), default=1),
            kernel_log="" if spec.on_host else settings.kernel_log,
            known=known,
            cuts=(cuts := [*cuts, *self.cuts]),
            cut_files=[self._cut_files.get(cut.model, "") for cut in cuts],
            ageing_ns=settings.ageing_ns,
            ingress=self._ingress,
            quotas=settings.quotas,
            weights=self._weights_path if not spec.on_host else "",
        )
        self._started_ns[self._last] = time.monotonic_ns()
        return WorkerProcess(hello, self.memory.front, self._message, self._lost, self._say)

    def _message(self, worker: WorkerLink, message: FromWorker) -> None:
        if worker.ident not in self.workers and not isinstance(message, Learned):
            if (spare := self.spares.workers.get(worker.ident)) is not None:
                self.spares.heard(spare, message)
            return  # it is being stopped, or has not joined
        if type(message) is Done:  # nearly all are
            self._on_message(worker, message)
            return
        if isinstance(message, Refused):
            self.refusals[worker.spec.name] = message.detail
        elif isinstance(message, Ready) and message.weighed:
            self.weighed[worker.spec.kind] = message.weighed
        elif isinstance(message, Learned):
            if self._kernels is not None:
                self._kernels.take(message)
            return
        elif isinstance(message, WantsCut):
            self._want_cut(message)
            return
        elif isinstance(message, Standing):
            if (home := self.workers.get(message.to)) is not None:
                home.send(message)
            return
        self._on_message(worker, message)

    def _want_cut(self, message: WantsCut) -> None:
        """A worker would run a model kernel by kernel."""
        stage = self._stages[message.stage]
        known = self._kernels.known()[1] if self._kernels is not None else []
        before = next((cut for cut in known if cut.model == stage.model), None)
        dear = self._settings.kernels == "always"
        self.cutter.want(Wanted(stage, message.item, message.threads, dear, before, weights=self._weights_path))

    @property
    def _weights_path(self) -> str:
        return "" if self._weights is None else str(self._weights.path)

    def _cut_found(self, wanted: Wanted, found: Found) -> None:
        """Everybody cuts alike, also those that come later and the next server."""
        cut, stage = found.cut, wanted.stage
        self.cuts.append(cut)
        if self._kernels is not None:
            self._kernels.take(Learned([], [pack(cut)]))
        measured = [w for some in self.weighed.values() for w in some if w.weights == stage.weights]
        whole = min((w.nbytes for w in measured), default=0)
        if wanted.files and found.nbytes > whole + NOISE_BYTES:
            more = f"{format_bytes(found.nbytes)}, not {format_bytes(whole)}"
            self._say(f"stage {stage.name!r} stays whole: in kernels its model would take {more}")
            return
        self._cut_files[cut.model] = wanted.files
        for worker in self.workers.values():
            if not worker.spec.on_host and worker.arena is not None:
                worker.send(Recut([cut], [wanted.files]))
        self.spares.tell(Recut([cut], [wanted.files]))

    def _lost(self, worker: WorkerProcess, why: str) -> None:
        name = worker.spec.name
        if worker.ident in self.spares.workers:
            del self._started_ns[worker.ident]
            self.spares.lost(worker, why)
            return
        del self.workers[worker.ident]
        lived_ns = time.monotonic_ns() - self._started_ns.pop(worker.ident)
        healthy = worker.answered or lived_ns > HEALTHY_NS or self.busy(worker.ident)
        before = 0 if healthy else self.deaths.get(name, (0, ""))[0]
        self.deaths[name] = before + 1, why
        wait_s = RESTART_SECONDS[min(before, len(RESTART_SECONDS) - 1)]
        substituted = worker.ident in self._substituted
        self._substituted.discard(worker.ident)
        stage = self.works_at(worker.ident) if worker.spec.on_host and worker.at_fault else ""
        worker.replaced = not substituted and not self.closing(worker.ident)
        parted = bool(stage) and self._isolation.part(stage)
        if worker.replaced:
            self._start_later(worker.spec, wait_s)
        if parted:
            self._start_later(self._isolation.own(worker.spec, stage), 0.0)
        self._on_lost(worker, why)
        self.memory.lose(worker.ident)
        if self._share is not None:
            self._share.ended(name, worker.ident)
        # Talk comes last: nothing above may depend on it.
        again = f"; starting it again in {wait_s:g} s" if wait_s else "; starting it again"
        if substituted:
            again = "; its substitute stays"
        elif not worker.replaced:
            again = "; it was to be stopped"
        self._say(f"worker {name} (pid {worker.pid}) is lost: {why}{again}")
        if parted:
            self._say_parted(stage)

    def end_hung(self, ident: int, why: str, at_work: bool) -> None:
        """Kill a worker that hangs; `at_work`: at a batch, and not at a model that it brings."""
        worker = self.workers.get(ident)
        if worker is not None:
            worker.at_fault = at_work and not is_stopped(worker.pid)
            worker.kill(why)

    def substitute(self, ident: int, stage: str) -> None:
        """A worker for Python stages is stuck; others need not wait. It ends when its batch does, or is killed."""
        worker = self.workers.get(ident)
        if (
            worker is None
            or not worker.spec.on_host
            or ident in self._substituted
            or self._isolation.alone(worker.spec)
            or len(self._substituted) >= MOST_SUBSTITUTES
            or self._stopping
        ):
            return
        self._substitutes += 1
        name = f"{worker.spec.name.partition('+')[0]}+{self._substitutes}"
        parted = not is_stopped(worker.pid) and self._isolation.part(stage)
        if parted:
            self._start_or_try_again(self._isolation.own(worker.spec, stage))
        try:
            self._start(msgspec.structs.replace(worker.spec, name=name))
        except OSError as error:
            self._say(f"worker {name} could not be started: {error}")
            return
        self._substituted.add(ident)
        self._say(f"worker {worker.spec.name} is stuck in stage {stage!r}; {name} takes its place for the others")
        if parted:
            self._say_parted(stage)

    def _say_parted(self, stage: str) -> None:
        self._say(f"stage {stage!r} runs in a process of its own from now on, so that it is in nobody's way")

    def retire(self) -> None:
        """Stuck workers that have come to an end after all are not needed beside their substitutes."""
        for ident in [i for i in self._substituted if not self.busy(i)]:
            self.workers[ident].kill("its substitute took its place")

    def _start_later(self, spec: WorkerSpec, wait_s: float) -> None:
        def start() -> None:
            self._restarts.discard(handle)
            self._coming.discard(spec.name)
            self._start_or_try_again(spec)

        if not self._stopping:
            handle = self._loop.call_later(wait_s, start)
            self._restarts.add(handle)
            self._coming.add(spec.name)

    def _start_or_try_again(self, spec: WorkerSpec) -> None:
        try:
            self._start(spec)
        except OSError as error:
            self._say(f"worker {spec.name} could not be started: {error}; trying again")
            self._start_later(spec, RESTART_SECONDS[-1])

    async def stop(self) -> None:
        """End all workers; their memory is given back."""
        self._stopping = True
        for handle in self._restarts:
            handle.cancel()
        await self.cutter.close()
        await self.spares.stop()
        await asyncio.gather(*(w.stop() for w in self.workers.values()), *self._ending)
        if self._kernels is not None:
            await self._kernels.close()
        if self._weights is not None:
            self._weights.close()
        self.memory.close()
