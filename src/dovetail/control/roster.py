"""Who is here, and which models they hold: workers that join and go, loads and evictions.

Rules of this file
- Every worker fetches what its batches need (`device`). Models that the scaler wants to stay are ordered to be there
  before any batch is sent, as far as all of them fit; where they do not, or the scaler wants none, the worker swaps:
  it is sent any batch and brings the model itself.
- Bytes of what was ordered are counted from the moment the load is asked for (promise 3). What else comes and goes in
  a worker's memory we only hear of. The scheduler hears of all of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..predict.progress import look_again
from ..state import Cluster, Worker
from ..state.slice import declared_slice
from ..workflow.graph import StageSpec
from .actions import EvictModel, LoadModel
from .events import LoadFailed, MemoryChanged, ModelEvicted, ModelLoaded, PeerStateReceived, WorkerJoined
from .launch import Launcher
from .policy import Policy
from .scaling import Scaling
from .step import Step

__all__ = ["Roster"]


class Roster:
    """Keeps the books of workers and of models."""

    def __init__(
        self, cluster: Cluster, stages: Mapping[str, StageSpec], policy: Policy, step: Step, launcher: Launcher
    ) -> None:
        self._cluster = cluster
        self._stages = stages
        self._scaler = policy.scaler
        self._scheduler = policy.scheduler
        self._predictor = policy.predictor
        self._step = step
        self._launcher = launcher
        #: Slices, and workers that the scaler asks for.
        self.scaling = Scaling(cluster, stages, policy, step, launcher)
        #: Weights -> stages that run on them.
        self._users: dict[str, list[str]] = {}
        for stage in stages.values():
            self._users.setdefault(stage.weights, []).append(stage.name)
        #: The timer at which the scaler is asked next; 0: none is set.
        self.scaler_timer = 0

    def joined(self, event: WorkerJoined) -> None:
        """A worker has come: it is given its models, or the work that waits for one like it."""
        if event.worker in self._cluster.workers:
            raise ValueError(f"worker {event.worker} joined twice")
        worker = Worker(event.worker, event.spec)
        self._cluster.join(worker)
        self.scaling.joined(worker)
        spec = worker.spec
        budget = spec.memory_bytes
        able = [s for s in self._stages.values() if spec.takes(s.kind, s.name)]
        able = [s for s in able if not budget or s.weights_bytes <= budget]
        wanted = self._scaler.residents(worker, able)
        if wanted is None or (budget and sum({s.weights: s.weights_bytes for s in wanted}.values()) > budget):
            worker.swaps = True
            for stage in able if wanted is None else wanted:
                self._hold(stage, worker)
            wanted = ()
            self._launcher.freed = True
        self._scheduler.joined(worker)
        for stage in wanted:
            self._order(worker, stage)

    def lost(self, ident: int, replaced: bool) -> Worker | None:
        """A worker has gone, with its models; what ran on it is still to be taken off. None if it is not known."""
        worker = self._cluster.leave(ident)
        if worker is None:
            return None
        self.scaling.lost(worker, replaced)
        if not worker.closing:
            self._scheduler.lost(worker)
        for stage, holders in self._cluster.holders.items():
            if ident in holders:
                self._cluster.let_go(stage, ident)
        return worker

    def _hold(self, stage: StageSpec, worker: Worker) -> None:
        """A worker runs this stage from now on; one that declares a quota has its slice there."""
        self._cluster.hold(stage.name, worker)
        pieces = self._cluster.declared.get(stage.name)
        if pieces is not None and worker.id not in pieces:
            pieces[worker.id] = declared_slice(stage, worker.id)

    def _order(self, worker: Worker, stage: StageSpec) -> None:
        """Have a stage's model loaded; of several stages with the same weights each is asked for, one is loaded."""
        if stage.weights not in worker.loading and stage.weights not in worker.resident:
            worker.loading[stage.weights] = stage.weights_bytes
            worker.resident_bytes += stage.weights_bytes
        self._step.out.append(LoadModel(self._step.number, worker.id, stage.name, True))

    def adjust(self) -> bool:
        """Ask the scaler, if work could not be placed or its time has come; whether queues are to be asked again."""
        step = self._step
        now = step.now_ns
        starved = [q for q in self._cluster.queues.values() if q.size and q.held_until_ns <= now]
        if not starved and self.scaler_timer and not self.scaling.closing:
            return False
        wanted = self._scaler.adjust(self._cluster, starved, now)
        for ident, name, reason in wanted.evictions:
            worker, weights = self._cluster.workers[ident], self._stages[name].weights
            in_use = any(batch.queue.stage.weights == weights for batch in worker.running.values())
            if weights in worker.resident and not in_use:
                worker.resident_bytes -= worker.resident.pop(weights)
                self._let_go(worker, weights)
                self._scheduler.holds(worker, weights, False, now)
                step.out.append(EvictModel(step.number, ident, name, reason))
        for ident, name in wanted.loads:
            worker, stage = self._cluster.workers[ident], self._stages[name]
            room = not worker.spec.memory_bytes or (
                worker.resident_bytes + stage.weights_bytes <= worker.spec.memory_bytes
            )
            here = stage.weights in worker.resident or stage.weights in worker.loading
            if room and worker.spec.takes(stage.kind, name) and not here:
                self._order(worker, stage)
        if wanted.next_ns > now and not self.scaler_timer:
            self.scaler_timer = step.set_timer(wanted.next_ns, None)
        return self.scaling.apply(wanted)

    def _let_go(self, worker: Worker, weights: str) -> None:
        for stage in self._users[weights]:
            if worker.id in self._cluster.holders[stage]:
                self._cluster.let_go(stage, worker.id)

    def model_loaded(self, event: ModelLoaded) -> None:
        """A model is there."""
        worker = self._cluster.workers.get(event.worker)
        if worker is None or worker.closing:
            return
        weights = self._stages[event.stage].weights
        if event.load_ns:
            self._predictor.observe_load(weights, worker.spec.kind, event.load_ns)
        if worker.swaps:
            self._heard(worker, weights, event.nbytes)
        elif weights in worker.loading or weights in worker.resident:
            if weights in worker.loading:
                worker.resident_bytes += event.nbytes - worker.loading.pop(weights)
                worker.resident[weights] = event.nbytes
            if worker.id not in self._cluster.holders[event.stage]:
                self._hold(self._stages[event.stage], worker)
                self._scheduler.holds(worker, weights, True, event.at_ns)
                self._launcher.freed = True

    def model_evicted(self, event: ModelEvicted) -> None:
        """A worker has let a model go; if we wanted that, the books know it."""
        worker = self._cluster.workers.get(event.worker)
        if worker is not None and worker.swaps and not worker.closing:
            self._heard(worker, event.weights, None)

    def memory_changed(self, event: MemoryChanged) -> None:
        """A worker has another amount of memory for models."""
        worker = self._cluster.workers.get(event.worker)
        if worker is not None and worker.swaps:
            worker.memory_bytes = event.nbytes
            self._launcher.freed = True

    def _heard(self, worker: Worker, weights: str, nbytes: int | None) -> None:
        """A worker said that a model has come, or (None) gone, by its own decision."""
        if nbytes is None:
            worker.resident.pop(weights, None)
        else:
            worker.resident[weights] = nbytes
            if worker.fetching:
                worker.fetched(weights, self._step.now_ns)
                if self._predictor.felt(worker.spec.kind):
                    look_again(self._predictor, worker, self._step.now_ns)
        self._scheduler.holds(worker, weights, nbytes is not None, self._step.now_ns)
        self._launcher.freed = True

    def peer_state_received(self, event: PeerStateReceived) -> None:
        """The state table has news."""
        self._scheduler.heard(event.rows, event.at_ns)

    def load_failed(self, event: LoadFailed) -> None:
        """A model will not be there."""
        worker = self._cluster.workers.get(event.worker)
        if worker is None or worker.closing:
            return
        weights = self._stages[event.stage].weights
        if worker.swaps:
            self._heard(worker, weights, None)
        elif weights in worker.loading:
            worker.resident_bytes -= worker.loading.pop(weights)
