"""What the scaler wants, carried out: slices are opened, resized and closed, and workers come and go.

Rules of this file
- Nothing is lost. A slice that is to go takes nothing new and is gone when its batch has ended. A worker that is to
  go is sent nothing new, and is told to stop when it runs nothing. A slice is moved by opening it elsewhere first.
- A resize counts from the next batch on, which tells its device (`RunBatch.share_pct`, `quota_pct`, `client`).
- Every change is an action with the scaler's reason, so that the log has it and `dovetail explain` can tell it.
- With `dry` the same is said and nothing is done: the books of slices are kept, and no batch runs in one.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..scale import Adjustment, SliceWish
from ..state import Cluster, Slice, Worker
from ..workflow.graph import StageSpec
from .actions import SetSlice, StartWorker, StopWorker
from .launch import Launcher
from .policy import Policy
from .step import Step

__all__ = ["Scaling"]


class Scaling:
    """The books of slices, and of workers that were asked for or are on their way out."""

    def __init__(
        self, cluster: Cluster, stages: Mapping[str, StageSpec], policy: Policy, step: Step, launcher: Launcher
    ) -> None:
        self._cluster = cluster
        self._scheduler = policy.scheduler
        self._step = step
        self._launcher = launcher
        self._dry = policy.scaler.dry
        managed = [name for name, stage in stages.items() if policy.scaler.manages(stage)]
        cluster.slices = {name: {} for name in managed}
        cluster.declared = {name: {} for name, stage in stages.items() if stage.sliced and name not in cluster.slices}
        cluster.sliced = frozenset([*cluster.declared, *(() if self._dry else managed)])
        self._last_slice = 0
        #: Workers that are closing, and why.
        self._closing: dict[int, str] = {}
        #: With `dry`: what was last said about workers.
        self._advised = 0

    def apply(self, wanted: Adjustment) -> bool:
        """Do what can be done of it now; whether a queue should be asked again."""
        changed = False
        for wish in wanted.slices:
            changed |= self._set(wish)
        if wanted.devices is not None:
            self._start(wanted.devices, wanted.reason)
        for ident, reason in wanted.drains:
            changed |= self._drain(ident, reason)
        self._end()
        return changed

    # -- slices -------------------------------------------------------------------------------------------------

    def _set(self, wish: SliceWish) -> bool:
        pieces = self._cluster.slices[wish.stage]
        piece = pieces.get(wish.slice)
        worker = self._cluster.workers.get(wish.worker)
        if piece is None:
            if worker is None or worker.closing or not wish.quota_pct:
                return False
            self._last_slice += 1
            size = (wish.share_pct, wish.quota_pct, wish.batch)
            piece = Slice(self._last_slice, wish.stage, wish.worker, *size, wish.limits)
            piece.idle_ns = self._step.now_ns
            pieces[piece.id] = piece
        elif wish.quota_pct:
            piece.share_pct, piece.quota_pct, piece.batch = wish.share_pct, wish.quota_pct, wish.batch
            piece.closing = False
        else:
            piece.closing = True
        self._tell(piece, wish.reason)
        self._launcher.freed = True
        return bool(wish.quota_pct)

    def _tell(self, piece: Slice, reason: str) -> None:
        size = (0, 0) if piece.closing else (piece.share_pct, piece.quota_pct)
        number = self._step.number
        batch = 0 if piece.closing else piece.batch
        self._step.out.append(SetSlice(number, piece.worker, piece.stage, piece.id, *size, batch, reason, self._dry))

    # -- workers ------------------------------------------------------------------------------------------------

    def _start(self, devices: int, reason: str) -> None:
        cluster = self._cluster
        have = sum(not w.closing and not w.spec.on_host for w in cluster.workers.values()) + cluster.starting
        if self._dry:
            if devices > have and devices != self._advised:
                self._step.out.append(StartWorker(self._step.number, reason, True))
            self._advised = devices
            return
        for _ in range(devices - have):
            cluster.starting += 1
            self._step.out.append(StartWorker(self._step.number, reason))

    def _drain(self, ident: int, reason: str) -> bool:
        """Send nothing more to a worker; whether a stage that was to run there may run elsewhere now."""
        worker = self._cluster.workers.get(ident)
        if worker is None or worker.closing:
            return False
        if self._dry:
            self._step.out.append(StopWorker(self._step.number, ident, reason, True))
            return False
        worker.closing = True
        self._closing[ident] = reason
        self._scheduler.lost(worker)
        for stage, holders in self._cluster.holders.items():
            if ident in holders:
                self._cluster.let_go(stage, ident)
        for pieces in self._cluster.slices.values():
            for piece in pieces.values():
                if piece.worker == ident and not piece.closing:
                    piece.closing = True
                    self._tell(piece, reason)
        homes = self._cluster.homes
        moved = [stage for stage, home in homes.items() if home == ident]
        for stage in moved:
            del homes[stage]
            self._launcher.freed = True
        return bool(moved)

    def _end(self) -> None:
        """What is closing and idle is gone."""
        for pieces in self._cluster.slices.values():
            for piece in [p for p in pieces.values() if p.closing and not p.running]:
                del pieces[piece.id]
        for ident in [i for i in self._closing if not self._cluster.workers[i].running]:
            self._cluster.leave(ident)
            reason = self._closing.pop(ident)
            self._step.out.append(StopWorker(self._step.number, ident, reason))

    @property
    def closing(self) -> bool:
        """Whether something is on its way out."""
        return bool(self._closing)

    def joined(self, worker: Worker) -> None:
        """A worker has come, perhaps one that was asked for."""
        if not worker.spec.on_host and self._cluster.starting:
            self._cluster.starting -= 1

    def lost(self, worker: Worker, replaced: bool) -> None:
        """A worker is gone, with its slices; what ran in them is tried again elsewhere."""
        ident = worker.id
        self._closing.pop(ident, None)
        if replaced and not worker.spec.on_host:
            self._cluster.starting += 1
        for pieces in self._cluster.slices.values():
            for piece in [p for p in pieces.values() if p.worker == ident]:
                del pieces[piece.id]
