"""A worker that keeps a queue and its own memory for models, on this machine's cores.

Rules of this file
- The desk (`place.desk`, the one that simulated workers have) stands where the arbiter of other workers stands: it is
  told of batches that came and that ended, and says which start. So batches run as in `cpu`, in the same lanes.
- Loaders are threads of their own. A model is loaded once however many batches want it, and once for all stages with
  the same weights.
- Bytes are measured. Before it introduces itself a worker loads every model alone and lets it go again. Part of the
  budget is for models; the rest, the reserve, is for what loads and batches take at their peak (`room`).
- What was evicted is freed before anything else is loaded, and the heap is given back.

There is no tier of host memory here: the operating system keeps the files it has read, and a copy of our own would be
the same bytes a second time.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue

import msgspec

from ...device import ArbiterEvent, KernelFinished, KernelReady, StartKernel
from ...errors import DovetailError, ModelError
from ...place.cache import ModelCache, names_of
from ...place.desk import Desk
from ...place.tickets import DeskAction, Evict, Refuse, Rules, Start
from ...place.tickets import Load as Fetch
from ...units import MS, format_bytes
from ...workflow.graph import StageSpec
from ...workflow.runners import OnnxRunner, Runner
from ..links.wire import (
    Done,
    Evicted,
    Failed,
    FromWorker,
    Hello,
    Load,
    Loaded,
    LoadFailure,
    Loading,
    Ready,
    Run,
    State,
    Weighed,
)
from .cpu import CpuExecutor, told
from .executor import Answer, Values, WakeAt, Work
from .footprint import anonymous_bytes, blocks_apart, one_heap, trim, weigh
from .working_memory import Room

__all__ = ["KeptExecutor"]

#: A batch that may start at any time has a window beyond this.
_NEVER_NS = 1 << 61
#: Half of the budget is set aside, so that a batch of which nothing is known yet finds room.
RUNS_PART = 2
#: What is left free: for buffers of the interpreter and stacks of threads, and for holes in the heap, of which there
#: are more in a larger one. With 3 MB of 80 MB one worker of eight was seen 1.6 MB above its budget.
SLACK_BYTES, SLACK_PART = 2 << 20, 20
#: How often its state goes out while there is work; it goes whenever there is none.
STATE_NS = 100 * MS


class _Job(msgspec.Struct, frozen=True):
    """A model that is to be loaded, and the action that led to it."""

    weights: str
    stage: str
    cause: int


class KeptExecutor(CpuExecutor):
    """Runs models in lanes as its desk says, and loads and evicts them."""

    def __init__(
        self,
        hello: Hello,
        values: Values,
        answer: Answer,
        wake_at: WakeAt,
        now_ns: Callable[[], int],
        hand: Callable[[Work], None],
        rules: Rules | None = None,
    ) -> None:
        one_heap()
        rules = rules or Rules()
        self._threads = max(1, hello.spec.cores)
        self._weights: dict[str, StageSpec] = {}
        for stage in hello.stages:
            if stage.kind in hello.spec.runs:
                self._weights.setdefault(stage.weights, stage)
        self._budget_bytes = hello.spec.memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        #: What the worker says before its introduction: models that it will not be able to run.
        self.first_words: list[FromWorker] = []
        self._slack_bytes = SLACK_BYTES + self._budget_bytes // SLACK_PART
        self._measured = {w.weights: w for w in hello.weighed}
        self._weigh()
        self._load_bytes = max((w.transient_bytes for w in self._measured.values()), default=0)
        self._reserve_bytes = self._first_reserve()
        self._room = Room(anonymous_bytes() + self._budget_bytes - self._slack_bytes, self._reserve_bytes)
        reserve = min(self._budget_bytes, self._reserve_bytes + self._slack_bytes)
        names = names_of(self._weights.values())
        cache = ModelCache(
            self._budget_bytes, reserve_bytes=reserve, host_bytes=0, eviction=rules.eviction, names=names
        )
        self._desk = Desk(hello.worker, cache, self._load_time_ns, rules)
        self._check_sizes()
        self._models: dict[str, OnnxRunner] = {}
        #: Shapes that each model has run with since it was loaded.
        self._shapes: dict[str, set[tuple[tuple[int, ...], ...]]] = {}
        #: Models that are to go before anything else is loaded.
        self._dropped: list[OnnxRunner] = []
        self._dropping = threading.Lock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._hints: dict[str, Load] = {}
        self._hits = self._misses = self._loads_done = self._evictions = 0
        self._state_ns = -STATE_NS
        super().__init__(hello, None, values, answer, wake_at, now_ns, hand)
        for _ in range(rules.loads - 1):
            threading.Thread(target=self._loader, daemon=True).start()
        self._arbiter = self
        # Whatever it can run it takes; what that needs is its own business.
        self._loaded = {s.name for s in hello.stages if s.weights in self._weights}
        self._runners = {name: {} for name in self._loaded}

    # -- what models take ---------------------------------------------------------------------------------------

    def _weigh(self) -> None:
        """Measure what is not known. One goes before: the first session of a process also brings the library."""
        missing = [s for w, s in self._weights.items() if w not in self._measured]
        by_size = sorted(self._weights.values(), key=lambda s: s.weights_bytes)
        for stage in by_size[:1]:
            self._try(stage)
        for stage in missing:
            found: list[tuple[int, int, int]] = []
            self._try(stage, lambda load: found.append(weigh(load)))  # noqa: B023 - called at once
            for nbytes, transient_bytes, load_ns in found:
                self._measured[stage.weights] = Weighed(stage.weights, nbytes, transient_bytes, load_ns)
        gc.collect()
        gc.freeze()
        trim()

    def _try(self, stage: StageSpec, how: Callable[[Callable[[], object]], object] = lambda load: load()) -> None:
        try:
            how(partial(OnnxRunner, stage, self._threads, lean=True))
        except ModelError as error:
            if not any(isinstance(m, LoadFailure) and m.stage == stage.name for m in self.first_words):
                self.first_words.append(LoadFailure(stage.name, told(error), 0))

    def _first_reserve(self) -> int:
        """Enough for the heaviest load or a batch; for both at once only if all models fit beside that."""
        runs = self._budget_bytes // RUNS_PART
        ample = self._budget_bytes - sum(map(self._nbytes, self._weights)) - self._slack_bytes
        return max(self._load_bytes, runs, min(self._load_bytes + runs, ample))

    def _check_sizes(self) -> None:
        """Say which models can never be loaded, and what it would take."""
        usable = self._desk.cache.usable_bytes
        for weights, stage in self._weights.items():
            nbytes = self._nbytes(weights)
            if nbytes <= usable:
                continue
            least = max(nbytes + self._load_bytes, nbytes * RUNS_PART // (RUNS_PART - 1)) + 2 * self._slack_bytes
            self.first_words.append(
                LoadFailure(
                    stage.name,
                    f"the model of stage {stage.name!r} takes {format_bytes(nbytes)}, but of a budget of "
                    f"{format_bytes(self._budget_bytes)} only {format_bytes(usable)} are for models. The rest is for "
                    f"what loads and batches take at their peak, loads up to {format_bytes(self._load_bytes)}. Give "
                    f"it at least --memory {-(-least // 10**6)}MB",
                    0,
                )
            )

    def introduce(self) -> Ready:
        """What it says when it is ready."""
        return Ready(os.getpid(), list(self._measured.values()), self._desk.cache.usable_bytes)

    def _nbytes(self, weights: str) -> int:
        known = self._measured.get(weights)
        return self._weights[weights].weights_bytes if known is None else known.nbytes

    def _load_time_ns(self, weights: str, tier: str) -> int:
        known = self._measured.get(weights)
        return 100 * MS if known is None else known.load_ns

    # -- what the worker is asked -------------------------------------------------------------------------------

    def load(self, message: Load, now_ns: int) -> None:
        """The model is going to be needed. Answered when that leads to a load, or if it can never be held."""
        spec = self._specs[message.stage]
        nbytes = self._nbytes(spec.weights)
        if problem := self._desk.cache.too_large(spec.weights, nbytes):
            self._answer(LoadFailure(message.stage, problem, message.cause))
            return
        with self._arbiter_lock:
            self._hints[spec.weights] = message
            self._hand_on(self._carry(self._desk.hint(spec.weights, nbytes, now_ns), message.cause, now_ns))

    def evict(self, stage: str) -> None:
        """Let a stage's model go if nothing runs on it or waits for it."""
        now_ns = self._now_ns()
        with self._arbiter_lock:
            answers = self._desk.drop(self._specs[stage].weights, "the controller wants it gone", now_ns)
            self._hand_on(self._carry(answers, 0, now_ns))

    def step(self, event: ArbiterEvent) -> list[StartKernel]:
        """In the arbiter's place, and under its lock: a batch has come or has ended."""
        now_ns = event.at_ns
        if isinstance(event, KernelReady):
            message = self._waiting[event.task].message
            weights = self._specs[message.stage].weights
            answers = self._desk.take(
                message.batch,
                weights,
                self._nbytes(weights),
                message.share_pct,
                message.order,
                message.expected_ns,
                0,
                message.latest_ns if message.latest_ns < _NEVER_NS else 0,
                now_ns,
                message.accept_ns,
            )
            return self._carry(answers, message.cause, now_ns)
        assert isinstance(event, KernelFinished)
        answers = self._desk.ended(event.task, now_ns)
        return self._carry([*answers, *self._make_room(now_ns)], 0, now_ns)

    def _make_room(self, now_ns: int) -> list[DeskAction]:
        """Batches may have turned out to take more than was set aside: models get what is left."""
        room, cache = self._room, self._desk.cache
        if room.reserve_bytes > self._reserve_bytes:
            self._reserve_bytes = room.reserve_bytes
            least = max(map(self._nbytes, self._weights), default=0)
            left = self._budget_bytes - self._reserve_bytes - self._slack_bytes
            if left < least:
                enough = least + self._reserve_bytes + self._slack_bytes
                print(
                    f"dovetail: batches take up to {format_bytes(self._reserve_bytes)} beside their models; with the "
                    f"largest model that is more than the budget of {format_bytes(self._budget_bytes)}, which may be "
                    f"passed. Give it at least --memory {-(-enough // 10**6)}MB",
                    file=sys.stderr,
                    flush=True,
                )
            cache.usable_bytes = min(cache.usable_bytes, max(left, least))
        answers: list[DeskAction] = []
        if cache.used_bytes > cache.usable_bytes:
            reason = f"batches take up to {format_bytes(self._reserve_bytes)} beside their models"
            for weights in cache.listed("resident"):
                if cache.used_bytes > cache.usable_bytes:
                    answers += self._desk.drop(weights, reason, now_ns)
        return answers

    # -- what the desk says -------------------------------------------------------------------------------------

    def _carry(self, answers: Iterable[DeskAction], cause: int, now_ns: int) -> list[StartKernel]:
        """Do what the desk says; which batches start is for the caller. `cause` is of what it was told."""
        starts: list[StartKernel] = []
        for answer in answers:
            if isinstance(answer, Start):
                starts.append(StartKernel(answer.batch, 0))
                self._hits += answer.hit
                self._misses += not answer.hit
            elif isinstance(answer, Fetch):
                self._begin_load(answer)
            elif isinstance(answer, Evict):
                self._evict(answer, cause)
            elif isinstance(answer, Refuse):
                message = self._waiting.pop(answer.batch).message
                self._answer(Failed(message.batch, message.cause, now_ns, now_ns, answer.reason, answer.detail))
        idle = not self._waiting and not self._busy and not starts
        if idle or now_ns - self._state_ns >= STATE_NS:
            self._answer(self.state(now_ns))
        return starts

    def state(self, now_ns: int) -> State:
        """What it says of itself."""
        self._state_ns = now_ns
        desk = self._desk
        return State(
            desk.row(now_ns),
            self._hits,
            self._misses,
            self._loads_done,
            self._evictions,
            desk.cache.used_bytes,
            desk.cache.usable_bytes,
        )

    def _begin_load(self, fetch: Fetch) -> None:
        task = self._waiting.get(fetch.batch)
        asked = self._hints[fetch.weights] if task is None else task.message
        self._answer(Loading(asked.stage, asked.cause))
        self._jobs.put(_Job(fetch.weights, asked.stage, asked.cause))

    def _evict(self, evict: Evict, cause: int) -> None:
        self._evictions += 1
        with self._dropping:
            self._dropped.append(self._models.pop(evict.weights))
        self._jobs.put(None)
        if evict.batch in self._waiting:
            cause = self._waiting[evict.batch].message.cause
        elif evict.newcomer in self._hints:
            cause = self._hints[evict.newcomer].cause
        self._answer(Evicted(evict.weights, evict.nbytes, evict.reason, cause))

    def _hand_on(self, starts: Sequence[StartKernel]) -> None:
        """Find threads for batches that may start, where the caller is none of the lanes."""
        task = self._start(list(starts))
        if task is not None:
            self._hand(partial(self._lane, task))

    # -- loaders ------------------------------------------------------------------------------------------------

    def _loader(self) -> None:
        while True:
            job = self._jobs.get()
            self._free()
            if job is not None:
                self._load(job)

    def _free(self) -> None:
        """Let go of what was evicted; whoever else wants to load waits for that."""
        with self._dropping:
            if self._dropped:
                self._dropped.clear()
                trim()

    def _load(self, job: _Job) -> None:
        weights, known = job.weights, self._measured.get(job.weights)
        begin_ns = time.monotonic_ns()
        try:
            with self._room.load(self._load_bytes if known is None else known.transient_bytes), blocks_apart():
                runner = OnnxRunner(self._weights[weights], self._threads, lean=True)
        except BaseException as error:  # whatever it is, the load must be answered
            detail = told(error) if isinstance(error, DovetailError) else f"stage {job.stage!r}: {told(error)}"
            self._answer(LoadFailure(job.stage, detail, job.cause))
            self._load_ended(weights, detail)
            return
        self._models[weights], self._shapes[weights] = runner, set()
        if known is not None:
            load_ns = (known.load_ns + time.monotonic_ns() - begin_ns) // 2  # how fast it was lately counts more
            self._measured[weights] = Weighed(weights, known.nbytes, known.transient_bytes, load_ns)
        self._answer(Loaded(job.stage, self._nbytes(weights), job.cause))
        self._load_ended(weights, "")

    def _load_ended(self, weights: str, problem: str) -> None:
        now_ns = self._now_ns()
        with self._arbiter_lock:
            self._hints.pop(weights, None)
            if problem:
                answers = self._desk.load_failed(weights, problem, now_ns)
            else:
                self._loads_done += 1
                answers = self._desk.loaded(weights, now_ns)
            self._hand_on(self._carry(answers, 0, now_ns))

    # -- lanes --------------------------------------------------------------------------------------------------

    def _runner(self, stage: str, cpus: int, runners: dict[int, Runner]) -> Runner:
        """The model, which the desk keeps here while the batch runs."""
        spec = self._specs[stage]
        return self._models[spec.weights].shared(spec)

    def _carry_out(self, message: Run, runners: dict[int, Runner]) -> FromWorker:
        refs = [ref for column in message.columns for argument in column for ref in argument.refs]
        # onnxruntime plans its memory when it has seen the shapes once. Until then it asks for blocks one by one, and
        # the heap grows to up to twice of what is used at a time if they come from there.
        shapes, known = tuple([ref.shape for ref in refs]), self._shapes[self._specs[message.stage].weights]
        seen = shapes in known
        with (
            self._room.run(message.stage, sum(ref.nbytes for ref in refs)) as use,
            nullcontext() if seen else blocks_apart(),
        ):
            answer = super()._carry_out(message, runners)
            use.done = isinstance(answer, Done)
        known.add(shapes)
        return answer
