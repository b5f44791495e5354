"""The workers as one controller believes them, and who of them can do a task first.

Rules of this file: workers that are equal in everything but load and memory are one kind and share an index; a stage
is asked for at every kind that could run it, and the earliest end wins. Whatever changes a belief shows it to the
index in the same call, so that no answer is older than what is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

import msgspec

from ..predict import Predictor
from ..state import Config, Worker, WorkerRow, WorkerSpec
from ..state.worker import FULL_SHARE
from ..workflow.graph import StageSpec
from .belief import Belief
from .index import Candidate, Known, Need, WorkerIndex, start_at
from .outline import NodeOutline

__all__ = ["Choice", "KnownWorkers"]

#: Times its fetch that a model costs where another must be evicted for it. [Compass: 2]
_EVICT_FACTOR = 2
#: Shares by which workers are found; what needs more is sent to one that is free. [our choice]
PARTS_PCT = (20, 50)


class Choice(msgspec.Struct, frozen=True, gc=False):
    """A worker for a task: when it should start and end there, and what must be fetched first."""

    worker: int
    start_ns: int
    fetch_ns: int
    end_ns: int
    #: Its end, and what the fetch costs others.
    score_ns: int


class _Kind:
    """Workers that are equal in everything but load and memory."""

    __slots__ = ("index", "memory_bytes", "name", "parts", "spec")

    def __init__(self, spec: WorkerSpec) -> None:
        #: By when all of a worker is free; and, once they are asked for, by when a share of it is.
        self.index = WorkerIndex()
        self.parts: dict[int, WorkerIndex] = {}
        self.name = spec.kind
        self.spec = spec
        self.memory_bytes = spec.memory_bytes

    def indexes(self) -> list[WorkerIndex]:
        """All of them."""
        return [self.index, *self.parts.values()]


class KnownWorkers:
    """Beliefs and indexes."""

    def __init__(self, predictor: Predictor, *, overlap: bool, toll_pct: int, doubt_ns: int) -> None:
        self._predictor = predictor
        self._overlap = overlap
        self._toll_pct = toll_pct
        self._doubt_ns = doubt_ns
        self.workers: dict[int, Worker] = {}
        #: Cores of a device -> the whole of it.
        self._whole: dict[int, Config] = {}
        self.beliefs: dict[int, Belief] = {}
        self._kinds: dict[tuple[str, tuple[str, ...], int, tuple[str, ...]], _Kind] = {}
        self._kind_of: dict[int, _Kind] = {}
        #: Stage -> kinds that could run it.
        self._able: dict[str, tuple[_Kind, ...]] = {}
        #: Model -> bytes.
        self._sizes: dict[str, int] = {}
        #: Fetches asked for: (when to doubt, worker, model, when it was asked for).
        self._asked: deque[tuple[int, int, str, int]] = deque()

    # -- what is known ------------------------------------------------------------------------------------------

    def join(self, worker: Worker) -> bool:
        """It is idle and holds nothing, as far as is known. Returns whether it is the first of its kind."""
        spec = worker.spec
        key = spec.kind, spec.runs, spec.memory_bytes, spec.stages
        kind = self._kinds.get(key)
        new = kind is None
        if kind is None:
            kind = self._kinds[key] = _Kind(spec)
            kind.index.know(self._sizes.values())
            self._able.clear()
        self.workers[worker.id] = worker
        self._kind_of[worker.id] = kind
        self.beliefs[worker.id] = Belief(spec.memory_bytes)
        self.show(worker.id, 0)
        return new

    def lose(self, worker: int) -> None:
        """It is gone."""
        if self.workers.pop(worker, None) is not None:
            del self.beliefs[worker]
            for index in self._kind_of.pop(worker).indexes():
                index.drop(worker)

    def hear(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """Rows count from when they were written; what was done since is added."""
        for row in rows:
            belief = self.beliefs.get(row.worker)
            if belief is not None and belief.hear(row):
                self.show(row.worker, now_ns)

    def know(self, tasks: Sequence[NodeOutline]) -> None:
        """Models of these tasks will be asked for."""
        self._sizes.update((task.weights, task.weights_bytes) for task in tasks if task.weights)
        for kind in self._kinds.values():
            for index in kind.indexes():
                index.know(self._sizes.values())

    def ask(self, worker: int, task: NodeOutline, now_ns: int) -> None:
        """A worker was told to fetch; believe that it does until there is reason to doubt it."""
        self.beliefs[worker].change(task.weights, True, now_ns)
        self._asked.append((now_ns + task.fetch_ns + self._doubt_ns, worker, task.weights, now_ns))
        self.show(worker, now_ns)

    def doubt(self, now_ns: int) -> None:
        """Fetches that should be in some row by now and are not seem not to have been made."""
        asked = self._asked
        while asked and asked[0][0] <= now_ns:
            _, worker, weights, at_ns = asked.popleft()
            belief = self.beliefs.get(worker)
            if belief is not None and belief.doubt(weights, at_ns):
                self.show(worker, now_ns)

    def show(self, worker: int, now_ns: int) -> None:
        """Put what is believed of a worker into its index."""
        belief = self.beliefs[worker]
        resident, free_bytes = belief.memory(self._sizes)
        kind = self._kind_of[worker]
        kind.index.put(worker, belief.free_ns(now_ns), resident, free_bytes)
        for share_pct, index in kind.parts.items():
            index.put(worker, belief.room_ns(share_pct, now_ns), resident, free_bytes)

    def known(self, worker: int, config: Config | None = None, now_ns: int = 0) -> Known:
        """What its index says of a worker."""
        return self._index(self._kind_of[worker], config, now_ns).workers[worker]

    def _index(self, kind: _Kind, config: Config | None, now_ns: int) -> WorkerIndex:
        """Workers of a kind by when they have room for a configuration; None: for a whole device."""
        if config is None or config.share_pct > PARTS_PCT[-1]:
            return kind.index
        share_pct = next(pct for pct in PARTS_PCT if pct >= config.share_pct)
        part = kind.parts.get(share_pct)
        if part is None:
            part = kind.parts[share_pct] = WorkerIndex()
            part.know(self._sizes.values())
            for worker, known in kind.index.workers.items():
                part.put(worker, self.beliefs[worker].room_ns(share_pct, now_ns), known.resident, known.free_bytes)
        return part

    # -- answers ------------------------------------------------------------------------------------------------

    def run_ns(self, stage: StageSpec) -> int:
        """Expected run time on some worker that could run it; 0 if there is none."""
        for kind in self.able(stage):
            for worker in kind.index.workers:
                return self._run_ns(stage, worker)
        return 0

    def load_ns(self, stage: StageSpec) -> int:
        """Expected load time of its model on some worker that could run it."""
        kind = next((self.workers[w].spec.kind for k in self.able(stage) for w in k.index.workers), "")
        return self._predictor.load(stage.weights, stage.weights_bytes, kind).mean_ns

    def _run_ns(self, stage: StageSpec, worker: int, config: Config | None = None) -> int:
        """A routed item runs alone on the whole device, unless it is said in which configuration."""
        spec = self.workers[worker].spec
        if config is not None:
            return self._predictor.run(stage, spec.kind, config.batch, config).mean_ns
        whole = self._whole.get(spec.cores)
        if whole is None:
            whole = self._whole[spec.cores] = Config(1, spec.cores or 1, FULL_SHARE)
        return self._predictor.run(stage, spec.kind, 1, whole).mean_ns

    def able(self, stage: StageSpec) -> tuple[_Kind, ...]:
        """Kinds that could run a stage: it is of the right sort, and its weights fit into their memory."""
        found = self._able.get(stage.name)
        if found is None:
            found = self._able[stage.name] = tuple(
                kind
                for kind in self._kinds.values()
                if kind.spec.takes(stage.kind, stage.name)
                and (not kind.memory_bytes or stage.weights_bytes <= kind.memory_bytes)
            )
        return found

    def choose(
        self,
        task: NodeOutline,
        now_ns: int,
        arrive_ns: int,
        near: Mapping[int, int],
        spread: int,
        planned: Mapping[int, Known] | None = None,
        config: Config | None = None,
    ) -> Choice | None:
        """The worker on which the task ends first; `planned` are workers as a plan in the making has changed them."""
        need = self._need(task, now_ns, arrive_ns)
        best: Choice | None = None
        for kind in self.able(task.stage):
            if config is not None and config.kind and config.kind != kind.name:
                continue
            found = self._index(kind, config, now_ns).best(need, near, spread, planned or ())
            if planned:
                for worker, known in planned.items():
                    if self._kind_of[worker] is kind:
                        start = start_at(known, worker, need, near.get(worker, arrive_ns))
                        if found is None or start < found:
                            found = start
            if found is not None:
                choice = self._choice(task, found, config)
                if best is None or choice.score_ns < best.score_ns:
                    best = choice
        return best

    def at(self, worker: int, task: NodeOutline, now_ns: int, arrive_ns: int, config: Config | None = None) -> Choice:
        """The same for one worker."""
        need = self._need(task, now_ns, arrive_ns)
        return self._choice(task, start_at(self.known(worker, config, now_ns), worker, need, arrive_ns), config)

    def meant(self, worker: int, config: Config | None) -> bool:
        """Whether a worker is here, and of the kind that a configuration is meant for."""
        kind = self._kind_of.get(worker)
        return kind is not None and (config is None or config.kind in ("", kind.name))

    def someone(
        self, task: NodeOutline, spread: int, skip: Collection[int], config: Config | None = None
    ) -> int | None:
        """One of those that hold the task's model, busy or not; anybody, if it has none."""
        for kind in self.able(task.stage):
            if config is not None and config.kind and config.kind != kind.name:
                continue
            worker = kind.index.someone(task.weights, spread, skip)
            if worker is not None:
                return worker
        return None

    def room_for_copy(self, task: NodeOutline, taken: int, spares: int, now_ns: int, spread: int) -> int | None:
        """A free worker with room for a copy of the task's model, if fewer than `spares` holders stay free.

        `taken` of the free holders are about to be used.
        """
        kinds = self.able(task.stage)
        if sum(kind.index.idle_holders(task.weights, now_ns) for kind in kinds) - taken >= spares:
            return None
        for kind in kinds:
            worker = kind.index.idle_with_room(task.weights_bytes, now_ns, spread, task.weights)
            if worker is not None:
                return worker
        return None

    def _choice(self, task: NodeOutline, found: Candidate, config: Config | None = None) -> Choice:
        run_ns = self._run_ns(task.stage, found.worker, config)
        return Choice(found.worker, found.start_ns, found.fetch_ns, found.start_ns + run_ns, found.score_ns + run_ns)

    def _need(self, task: NodeOutline, now_ns: int, arrive_ns: int) -> Need:
        fetch_ns = task.fetch_ns
        return Need(
            now_ns,
            arrive_ns,
            task.weights,
            task.weights_bytes,
            fetch_ns,
            fetch_ns * _EVICT_FACTOR,
            fetch_ns * self._toll_pct // 100,
            now_ns if self._overlap else -1,
        )
