"""Who is here, and which models they hold: workers that join and go, loads and evictions.

Rules of this file: bytes are counted from the moment a load is asked for (promise 3). A worker that keeps a queue
keeps its own memory as well: of that we only hear, and pass it on to the router.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..state import Cluster, Item, Worker
from ..workflow.graph import StageSpec
from .actions import EvictModel, LoadModel
from .events import LoadFailed, ModelEvicted, ModelLoaded, PeerStateReceived, WorkerJoined
from .launch import Launcher
from .policy import Policy
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
        self._router = policy.router
        self._observe_load = policy.predictor.observe_load
        self._step = step
        self._launcher = launcher
        #: The timer at which the scaler is asked next; 0: none is set.
        self.scaler_timer = 0

    def joined(self, event: WorkerJoined) -> None:
        """A worker has come: it is given its models, or the work that waits for one like it."""
        if event.worker in self._cluster.workers:
            raise ValueError(f"worker {event.worker} joined twice")
        worker = self._cluster.workers[event.worker] = Worker(event.worker, event.spec)
        if worker.spec.keeps_queue:
            if self._router is None:
                raise ValueError(f"worker {worker.spec.name} keeps a queue, but the policy has no router to fill it")
            self._router.joined(worker)
            for queue in self._cluster.queues.values():
                parked: list[Item] = []
                while queue.size and not queue.stage.on_host:
                    parked += queue.pop(queue.size)
                for item in parked:
                    self._launcher.send(item, queue)
            return
        self._launcher.looks_ahead = self._launcher.looks_ahead or worker.spec.preempts
        for stage in self._scaler.residents(worker, list(self._stages.values())):
            self._load(worker, stage)

    def lost(self, ident: int) -> Worker | None:
        """A worker has gone, with its models; what ran on it is still to be taken off. None if it is not known."""
        worker = self._cluster.workers.pop(ident, None)
        if worker is None:
            return None
        if worker.spec.keeps_queue and self._router is not None:
            self._router.lost(worker)
        else:
            for stage in worker.resident:
                self._cluster.let_go(stage, worker.id)
        return worker

    def _load(self, worker: Worker, stage: StageSpec) -> None:
        worker.loading[stage.name] = stage.weights_bytes
        worker.resident_bytes += stage.weights_bytes
        self._step.out.append(LoadModel(self._step.number, worker.id, stage.name))

    def adjust(self) -> None:
        """Ask the scaler, if work waits that could not be placed or its time has come."""
        step = self._step
        now = step.now_ns
        starved = [q for q in self._cluster.queues.values() if q.size and q.held_until_ns <= now]
        if not starved and self.scaler_timer:
            return
        wanted = self._scaler.adjust(self._cluster, starved, now)
        for ident, name, reason in wanted.evictions:
            worker = self._cluster.workers[ident]
            in_use = any(batch.queue.stage.name == name for batch in worker.running.values())
            if name in worker.resident and not in_use:
                worker.resident_bytes -= worker.resident.pop(name)
                self._cluster.let_go(name, ident)
                step.out.append(EvictModel(step.number, ident, name, reason))
        for ident, name in wanted.loads:
            worker, stage = self._cluster.workers[ident], self._stages[name]
            room = not worker.spec.memory_bytes or (
                worker.resident_bytes + stage.weights_bytes <= worker.spec.memory_bytes
            )
            if room and stage.kind in worker.spec.runs and name not in worker.resident and name not in worker.loading:
                self._load(worker, stage)
        if wanted.next_ns > now and not self.scaler_timer:
            self.scaler_timer = step.set_timer(wanted.next_ns, None)

    def model_loaded(self, event: ModelLoaded) -> None:
        """A model is there."""
        worker = self._cluster.workers.get(event.worker)
        if worker is not None and event.load_ns:
            self._observe_load(self._stages[event.stage].weights, worker.spec.kind, event.load_ns)
        if worker is not None and worker.spec.keeps_queue:
            self._holds(worker, self._stages[event.stage].weights, event.nbytes)
            return
        if worker is None or event.stage not in worker.loading:
            return
        worker.resident_bytes += event.nbytes - worker.loading.pop(event.stage)
        worker.resident[event.stage] = event.nbytes
        self._cluster.hold(event.stage, worker)
        self._launcher.freed = True

    def model_evicted(self, event: ModelEvicted) -> None:
        """A worker that keeps its own memory has let a model go."""
        worker = self._cluster.workers.get(event.worker)
        if worker is not None:
            self._holds(worker, event.weights, None)

    def _holds(self, worker: Worker, weights: str, nbytes: int | None) -> None:
        """A worker that keeps its own memory said that a model has come, or (None) gone."""
        assert self._router is not None
        if nbytes is None:
            worker.resident.pop(weights, None)
        else:
            worker.resident[weights] = nbytes
        self._router.holds(worker.id, weights, nbytes is not None, self._step.now_ns)

    def peer_state_received(self, event: PeerStateReceived) -> None:
        """The state table has news."""
        if self._router is not None:
            self._router.heard(event.rows, event.at_ns)

    def load_failed(self, event: LoadFailed) -> None:
        """A model will not be there."""
        worker = self._cluster.workers.get(event.worker)
        if worker is not None and worker.spec.keeps_queue:
            self._holds(worker, self._stages[event.stage].weights, None)
        elif worker is not None and event.stage in worker.loading:
            worker.resident_bytes -= worker.loading.pop(event.stage)
