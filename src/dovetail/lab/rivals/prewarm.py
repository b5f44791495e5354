"""ESG's warm and cold starts: a function's container is loaded where it is first needed, kept for a while, and warmed
again before its next call is expected.

After section A.4 of the notes on ESG: the next invocation is predicted from the weighted mean of intervals
[recollection], the container is warmed on the function's home node, and kept alive for OpenWhisk's ten minutes
[recollection]. A cold start takes the stage's load time. In a steady load every node soon holds every model; this
file matters at the beginning, for rare functions, and after a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from ...predict import Predictor
from ...predict.running import Mean
from ...scale import Adjustment
from ...state import Cluster, Queue, Worker
from ...units import SECOND
from ...workflow.graph import StageSpec
from .unverified import KEEP_ALIVE_S

__all__ = ["Prewarmer", "home_of"]


def home_of(stage: str, workers: Sequence[Worker]) -> Worker:
    """OpenWhisk's home invoker: a hash of the function."""
    return workers[crc32(stage.encode()) % len(workers)]


class _Function:
    """What is known of the calls of one function."""

    __slots__ = ("interval", "last_ns")

    def __init__(self) -> None:
        self.interval = Mean()
        self.last_ns = -1

    def called(self, now_ns: int) -> None:
        if self.last_ns >= 0 and now_ns > self.last_ns:
            self.interval.add(now_ns - self.last_ns)
        self.last_ns = now_ns

    def next_ns(self) -> int | None:
        return self.last_ns + self.interval.value if self.interval.count else None


class Prewarmer:
    """Loads on demand, keeps alive, and warms ahead of the next expected call."""

    adjusts = True
    dry = False

    def manages(self, stage: StageSpec) -> bool:
        """Stages have no slices."""
        return False

    def __init__(self, predictor: Predictor, *, keep_alive_ns: int = KEEP_ALIVE_S * SECOND) -> None:
        self._predictor = predictor
        self._keep_alive_ns = keep_alive_ns
        self._functions: dict[str, _Function] = {}
        #: (worker, stage) -> when it was last used or loaded.
        self._used_ns: dict[tuple[int, str], int] = {}

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec]:
        """Nothing is warm at first."""
        return ()

    def called(self, stage: str, now_ns: int) -> None:
        """A call of a function has come."""
        self._functions.setdefault(stage, _Function()).called(now_ns)

    def used(self, worker: int, stage: str, now_ns: int) -> None:
        """A worker runs a function."""
        self._used_ns[worker, stage] = now_ns

    def adjust(self, cluster: Cluster, starved: Sequence[Queue], now_ns: int) -> Adjustment:
        """Cold starts for work that waits, warm-ups for calls that are expected, evictions of what is idle."""
        workers = list(cluster.workers.values())
        if not workers:
            return Adjustment()
        loads: list[tuple[int, str]] = []
        for queue in starved:
            if not any(queue.stage.weights in w.loading for w in workers):
                chosen = self._cold_start(queue.stage, workers)
                if chosen is not None:
                    loads.append((chosen.id, queue.stage.name))
        wakes: list[int] = []
        evictions = self._idle(cluster, now_ns, wakes)
        weights = {queue.stage.name: queue.stage.weights for queue in cluster.queues.values()}
        gone = {(ident, stage) for ident, stage, _ in evictions}
        for name, function in self._functions.items():
            expected_ns = function.next_ns()
            held = any((ident, name) not in gone for ident in cluster.holders[name]) or any(
                weights[name] in w.loading for w in workers
            )
            if expected_ns is None or held or any(stage == name for _, stage in loads):
                continue
            home = home_of(name, workers)
            begin_ns = expected_ns - self._load_ns(cluster, name, home)
            if begin_ns <= now_ns <= expected_ns:
                loads.append((home.id, name))
            elif begin_ns > now_ns:
                wakes.append(begin_ns)
        return Adjustment(tuple(loads), evictions, min(wakes, default=0))

    def _cold_start(self, stage: StageSpec, workers: Sequence[Worker]) -> Worker | None:
        """The home if it is cold there, else the cold worker with most room."""
        cold = [w for w in workers if stage.kind in w.spec.runs and stage.weights not in w.resident]
        if not cold:
            return None
        home = home_of(stage.name, workers)
        return home if home in cold else max(cold, key=lambda w: (w.free_pct, w.free_cpus, -w.id))

    def _load_ns(self, cluster: Cluster, name: str, worker: Worker) -> int:
        stage = next(queue.stage for queue in cluster.queues.values() if queue.stage.name == name)
        return self._predictor.load(stage.weights, stage.weights_bytes, worker.spec.kind).mean_ns

    def _idle(self, cluster: Cluster, now_ns: int, wakes: list[int]) -> tuple[tuple[int, str, str], ...]:
        """Models that nobody used for the whole keep-alive time; when to look again goes into `wakes`."""
        evictions = []
        for worker in cluster.workers.values():
            busy = {batch.queue.stage.name for batch in worker.running.values()}
            for name in [stage for stage, holders in cluster.holders.items() if worker.id in holders]:
                key = (worker.id, name)
                if name in busy or key not in self._used_ns:
                    self._used_ns[key] = now_ns
                until_ns = self._used_ns[key] + self._keep_alive_ns
                if until_ns <= now_ns:
                    del self._used_ns[key]
                    evictions.append((worker.id, name, "idle for its keep-alive time"))
                else:
                    wakes.append(until_ns)
        return tuple(evictions)
