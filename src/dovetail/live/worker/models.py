"""The models of a worker on this machine's cores: what they take, how they are loaded, and whether they are cut.

Rules of this file
- A model is loaded once for all stages with the same weights, and once for each number of threads that batches have.
  All of them, here and in other workers, map one copy of the weights (`weight_files`). Every worker counts it.
- It is cut into kernels where that is of use (`cut_wish`), and stays whole where it would cost more than a twentieth.
  How it was cut before is known from the store; else it is served whole until it is cut, beside what runs.
- With a strict budget bytes are measured: every model is loaded alone once and let go again. Part of the budget is
  for models; the rest is for what loads and batches take at their peak (`working_memory`). Nothing is cut here then,
  which would take several times the model: what was cut elsewhere is read from files, and takes less than the whole.
  A torch module is cut by its code alone, and needs no files.
- Called from any thread. What was evicted is freed before anything else is loaded, and the heap is given back.

There is no tier of host memory here: the operating system keeps the files it has read, and a copy of our own would be
the same bytes a second time.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ...profile.kernels import Cut
from ...state.worker import FULL_SHARE
from ...units import format_bytes
from ...workflow.app import App
from ...workflow.graph import StageSpec
from ...workflow.runners import Runner, make_runner, shrink_arena
from ..kernels.batch_run import EVERY, BatchRun, WholeRun, item_bytes
from ..kernels.cut_model import CutModel
from ..kernels.weight_files import WeightFiles
from ..links.wire import FromWorker, Hello, LoadFailure, Ready, Run, Weighed
from .budget import Budget
from .cut_wish import CutWish
from .executor import error_text
from .footprint import blocks_apart, one_heap, trim, weigh
from .working_memory import Use

__all__ = ["Models", "stage_failed"]

#: Shapes of batches whose kernels are remembered.
MOST_SHAPES = 1024
_NOTHING: AbstractContextManager[None] = nullcontext()


class Models:
    """Models and Python functions of one worker, by weights."""

    def __init__(self, hello: Hello, app: App | None) -> None:
        self._app = app
        self._strict = hello.strict
        self._kernels = hello.kernels
        quotas = {} if app is not None else {stage.name: stage.quota_pct for stage in hello.stages}
        #: Which are to be cut.
        self.wish = CutWish(hello.kernels, hello.lowest, hello.highest, quotas)
        self._cpus = hello.cpus if app is None else (1,)
        self.specs = {s.name: s for s in hello.stages}
        #: Weights -> the first stage that this worker can run on them.
        self.stages: dict[str, StageSpec] = {}
        for stage in hello.stages:
            if hello.spec.takes(stage.kind, stage.name):
                self.stages.setdefault(stage.weights, stage)
        #: Where models were cut before, here or in other processes, by model; and what the front was told of ours.
        self._cuts = {cut.model: cut for cut in hello.cuts}
        #: Where that was written, by model.
        self._cut_files = {cut.model: file for cut, file in zip(hello.cuts, hello.cut_files, strict=False)}
        self._told: dict[str, Cut] = {}
        #: Copies of weights that all workers share.
        self._files = WeightFiles(Path(hello.weights)) if hello.weights and app is None else None
        self._loaded: dict[str, dict[int, CutModel | Runner]] = {}
        self._making = threading.Lock()
        self._dropped: list[object] = []
        #: (stage, cores, shapes) -> name and identities of the kernels of such a batch, where that may be of use.
        self._kernels_of: dict[tuple[Any, ...], tuple[str, tuple[str, ...]]] = {}
        self._shapes: dict[str, set[tuple[tuple[int, ...], ...]]] = {}
        #: What the worker says before its introduction: models that it will not be able to run.
        self.first_words: list[FromWorker] = []
        self.measured = {w.weights: w for w in hello.weighed}
        #: All that the worker may have.
        self.budget_bytes = hello.spec.memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        #: What it is for, if it is strict.
        self.budget: Budget | None = None
        #: Weights of models that take too much of it in kernels.
        self._heavy: set[str] = set()
        if self._strict:
            one_heap()
            self._weigh()
            load_bytes = max((w.transient_bytes for w in self.measured.values()), default=0)
            sizes = [self.nbytes(weights) for weights in self.stages]
            self.budget = Budget(self.budget_bytes, sizes, load_bytes, shared=self._files is not None)
            self._check_sizes(self.budget)

    # -- what they take -----------------------------------------------------------------------------------------

    def nbytes(self, weights: str) -> int:
        """Bytes of a model: measured, or those of its file."""
        known = self.measured.get(weights)
        return self.stages[weights].weights_bytes if known is None else known.nbytes

    @property
    def usable_bytes(self) -> int:
        """What models may take of it at the beginning."""
        return self.budget_bytes if self.budget is None else self.budget.usable_bytes

    def introduce(self) -> Ready:
        """What the worker says when it is ready."""
        if not self._strict:
            return Ready(os.getpid())
        return Ready(os.getpid(), list(self.measured.values()), self.usable_bytes)

    def _weigh(self) -> None:
        """Measure what is not known. One of a kind goes before: the first also brings its library."""
        missing = [s for w, s in self.stages.items() if w not in self.measured]
        for stage in {s.kind: s for s in sorted(self.stages.values(), key=lambda s: -s.weights_bytes)}.values():
            self._weighed(stage)
        for stage in missing:
            weighed = self._weighed(stage)
            if weighed is not None:
                self.measured[stage.weights] = weighed
        gc.collect()
        gc.freeze()
        trim()

    def _weighed(self, stage: StageSpec) -> Weighed | None:
        try:
            mapped = 0 if self._files is None else self._files.nbytes(stage)
            kept, transient, load_ns = weigh(lambda: self._make_all(stage))
            return Weighed(stage.weights, kept + mapped, transient, load_ns)
        except ModelError as error:
            if not any(isinstance(m, LoadFailure) and m.stage == stage.name for m in self.first_words):
                self.first_words.append(LoadFailure(stage.name, error_text(error), 0))
            return None

    def _check_sizes(self, budget: Budget) -> None:
        """Say which models can never be loaded, and what it would take."""
        usable = budget.usable_bytes
        for weights, stage in self.stages.items():
            nbytes = self.nbytes(weights)
            if nbytes <= usable:
                continue
            least = budget.least_bytes(nbytes)
            detail = (
                f"the model of stage {stage.name!r} takes {format_bytes(nbytes)}, but of a budget of "
                f"{format_bytes(self.budget_bytes)} only {format_bytes(usable)} are for models. The rest is for "
                f"what loads and batches take at their peak, loads up to {format_bytes(budget.load_bytes)}. Give "
                f"it at least --memory {-(-least // 10**6)}MB"
            )
            self.first_words.append(LoadFailure(stage.name, detail, 0))

    def resized(self, stage: str = "", run: BatchRun | WholeRun | None = None) -> tuple[int, str] | None:
        """What models may take from now on, and why, if that has changed; `run` of a stage is about to begin."""
        if self.budget is None:
            return None
        if run is not None:
            return self.budget.expect(_way(stage, whole=len(run.kernels) == 1), run.together_bytes)
        if self._kernels == "auto" and self._app is None:
            self._heavy.update([s.weights for s in self.specs.values() if self._too_large(self.budget, s.name)])
        return self.budget.changed()

    @staticmethod
    def _too_large(budget: Budget, stage: str) -> bool:
        return budget.too_large(_way(stage, whole=True), _way(stage, whole=False))

    # -- loading ------------------------------------------------------------------------------------------------

    def load(self, weights: str) -> list[CutModel]:
        """Load a model; raises if that cannot be. What is still to be cut (`recut`) is returned."""
        stage, known = self.stages[weights], self.measured.get(weights)
        loads: AbstractContextManager[object] = nullcontext()
        if self.budget is not None:
            loads = self.budget.room.load(self.budget.load_bytes if known is None else known.transient_bytes)
        with loads, blocks_apart() if self._strict else nullcontext():
            made = self._make_all(stage)
        self._shapes[weights] = set()
        self._loaded[weights] = made
        if not self._strict:
            # A model lives as long as the process, most likely: keep the collector from walking it every time.
            gc.collect()
            gc.freeze()
            trim()  # what onnxruntime packed to compare it with the copy
        return self._to_be_cut(weights)

    def _to_be_cut(self, weights: str) -> list[CutModel]:
        if not self._wanted(weights):
            return []
        made = self._loaded.get(weights, {}).values()
        return [model for model in made if isinstance(model, CutModel) and model.uncut]

    def _make_all(self, stage: StageSpec) -> dict[int, CutModel | Runner]:
        return {cpus: self._make(stage, cpus) for cpus in self._cpus}

    def _make(self, stage: StageSpec, cpus: int) -> CutModel | Runner:
        if self._app is not None:
            return make_runner(self._app.stages[stage.name])
        cut, files = self._cuts.get(stage.model), self._cut_files.get(stage.model, "")
        copy = None if self._files is None else self._files.copy_of(stage)
        model = CutModel(stage, cut, threads=cpus, lean=self._strict, dear=self._kernels == "always", copy=copy)
        if not self._wanted(stage.weights) or model.wants is None:
            return model
        if self._strict:
            if cut is not None and (files or stage.kind == "torch"):
                model.cut_like(cut, files)
        elif cut is not None or self._kernels == "always":
            self._cut(model)
        return model

    def _wanted(self, weights: str) -> bool:
        """Whether it is to be cut."""
        return self.wish.wanted(
            [s.name for s in self.specs.values() if s.weights == weights], heavy=weights in self._heavy
        )

    def recut(self, cut: Cut, files: str) -> None:
        """Cut the models of which it was found out how."""
        self._cuts[cut.model] = cut
        self._cut_files[cut.model] = files
        for made in list(self._loaded.values()):
            for model in made.values():
                if not isinstance(model, CutModel) or model.spec.model != cut.model or model.ways[1]:
                    continue
                if model.spec.weights not in self._heavy and (
                    not self._strict or files or model.spec.kind == "torch"
                ):
                    # A strict worker weighs nothing here: what it reads takes less than the model that goes for it.
                    model.cut_like(cut, files)

    def _cut(self, model: CutModel) -> None:
        model.make_ready()
        if model.whole_because and self._kernels == "always":
            print(f"stage {model.spec.name!r} is one kernel: {model.whole_because}", file=sys.stderr, flush=True)
        if (cut := model.cut()) is not None:
            self._cuts.setdefault(cut.model, cut)

    def saw(self, stage: str, priority: int) -> list[CutModel]:
        """A batch of this class has come for a stage; models that are to be cut since."""
        if self._app is not None or not self.wish.saw(stage, priority):
            return []
        return [model for weights in list(self._loaded) for model in self._to_be_cut(weights)]

    def evict(self, weights: str) -> None:
        """It is not used any more, and goes before anything else is loaded (`free`)."""
        made = self._loaded.pop(weights, None)
        with self._making:
            self._dropped.append(made)

    def free(self) -> None:
        """Let go of what was evicted; whoever else wants to load waits for that."""
        with self._making:
            if self._dropped:
                self._dropped.clear()
                trim()

    def rest(self) -> None:
        """Nothing has come for a while: what batches worked in goes back to the machine."""
        if not self._strict and any(spec.kind == "onnx" for spec in self.stages.values()):
            shrink_arena()
            trim()

    # -- batches ------------------------------------------------------------------------------------------------

    def plan(self, message: Run, columns: Sequence[Sequence[Any]]) -> BatchRun | WholeRun:
        """The kernels of a batch whose model is loaded."""
        spec = self.specs[message.batch.stage]
        made = self._loaded[spec.weights]
        cpus = message.batch.cpus if self._app is None else 1
        model = made.get(cpus)
        if model is None:
            with self._making:
                model = made.get(cpus) or made.setdefault(cpus, self._make(self.stages[spec.weights], cpus))
        at_once = EVERY
        if self.budget is not None and self._app is None:
            if spec.weights in self._heavy and isinstance(model, CutModel) and model.ways[1]:
                model.stay_whole(model.whole(), "in kernels it takes memory that other models need")
            whole = not isinstance(model, CutModel) or not model.ways[1]
            at_once = self.budget.room.at_once(_way(spec.name, whole=whole), item_bytes(columns))
        if not isinstance(model, CutModel):
            return WholeRun(model, columns, at_once)
        run = model.plan(columns, spec, at_once)
        if run.name and self.asks(message, len(run.kernels)) and len(self._kernels_of) < MOST_SHAPES:
            self._kernels_of[_looks(message)] = run.name, tuple(run.idents)
        return run

    def asks(self, message: Run, kernels: int) -> bool:
        """Whether anybody asks for the kernels of a batch: others may start between or beside them, or before them.

        Nobody does of a whole batch of the highest class with the device to itself: nothing is learned of its kernel.
        """
        batch = message.batch
        alone = batch.priority <= self.wish.highest and batch.share_pct == FULL_SHARE
        return self.wish.several and (kernels > 1 or not alone)

    def expected(self, message: Run) -> tuple[str, tuple[str, ...]] | None:
        """What the kernels of a batch will be, as far as one that looks alike has shown."""
        found = self._kernels_of.get(_looks(message)) if self._kernels_of else None
        return found if found is not None and self.asks(message, len(found[1])) else None

    def at_work(self, message: Run, run: BatchRun | WholeRun, use: Use | None) -> AbstractContextManager[Use | None]:
        """While kernels of a batch run, with a strict budget: its memory is set aside and measured.

        `use` is what the batch was given before, if it was stopped.
        """
        if self.budget is None:
            return _NOTHING
        refs = [ref for column in message.columns for argument in column for ref in argument.refs]
        # onnxruntime plans its memory when it has seen the shapes once. Until then it asks for blocks one by one, and
        # the heap grows to up to twice of what is used at a time if they come from there.
        shapes, known = tuple([ref.shape for ref in refs]), self._shapes[self.specs[message.batch.stage].weights]
        seen = shapes in known
        known.add(shapes)
        way = _way(message.batch.stage, whole=len(run.kernels) == 1)
        room = self.budget.room.run(way, run.together_bytes, use)
        return _AtWork(room, apart=not seen)

    def unknown(self, message: Run, run: BatchRun | WholeRun) -> CutModel | None:
        """The model of a batch, if the shapes that it came with make it possible to cut it now."""
        if not self.wish.several or not isinstance(run, BatchRun):
            return None  # nothing is to be cut
        made = self._loaded.get(self.specs[message.batch.stage].weights, {})
        model = made.get(message.batch.cpus)
        if isinstance(model, CutModel) and self._wanted(model.spec.weights) and model.saw(run.shapes[0]):
            return model
        return None

    def news(self) -> list[Cut]:
        """How models are cut, as far as nobody was told."""
        found = []
        for made in list(self._loaded.values()):
            model = next(iter(made.values()))
            cut = model.cut() if isinstance(model, CutModel) else None
            if cut is not None and cut != self._told.get(cut.model):
                self._told[cut.model] = cut
                found.append(cut)
        return found


def _way(stage: str, *, whole: bool) -> str:
    """What memory is measured by: in kernels a model takes other memory than whole."""
    return f"{stage}, {'whole' if whole else 'kernels'}"


def _looks(message: Run) -> tuple[Any, ...]:
    """What batches with the same kernels have in common; seen without reading their values."""
    batch = message.batch
    shapes = [a.refs[0].shape if a.refs else () for column in message.columns for a in column]
    return (batch.stage, batch.cpus, *shapes)


class _AtWork:
    """The room of a batch, and blocks of their own while its shapes are new."""

    def __init__(self, room: AbstractContextManager[Use], *, apart: bool) -> None:
        self._room = room
        self._apart: AbstractContextManager[object] = blocks_apart() if apart else nullcontext()

    def __enter__(self) -> Use:
        self._use = self._room.__enter__()
        self._apart.__enter__()
        return self._use

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._apart.__exit__(kind, error, trace)
        self._use.stopped = self._use.stopped and error is None
        self._use.done = error is None and not self._use.stopped
        self._room.__exit__(None, None, None)


def stage_failed(stage: str, error: BaseException) -> str:
    """What is said of a batch that failed: the stage is named."""
    detail = error_text(error)
    return detail if stage in detail else f"stage {stage!r}: {detail}"
