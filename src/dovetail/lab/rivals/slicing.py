"""What the rivals that scale slices have in common, so that each file holds its own rules and nothing else.

Rules of this file
- A rival says which slices its stage should have. Where they go is the same for all (`scale.fitting`): on devices
  that are there, and one more is asked for when there is no room. A device without a slice for some time goes.
- Rates are counts over time, as the rival's own source has it. Whom to let in is the scheduler's business.
- They know one stage: that is what their sources have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence

import msgspec

from ...predict import Predictor
from ...scale import Adjustment, SliceWish
from ...scale.fitting import Wanted, fit
from ...scale.points import SHARES_PCT, ScalePoint, limits_ns, points_of
from ...state import Cluster, Config, Queue, Slice, Worker
from ...units import SECOND
from ...workflow.graph import Graph, StageSpec

__all__ = ["Pod", "SlicingRival"]


class Pod(msgspec.Struct, frozen=True):
    """A slice that should be; `slice` is the number of the one that it is made of, 0 for a new one."""

    point: ScalePoint
    quota_pct: int
    slice: int = 0

    @property
    def per_s(self) -> float:
        """What it yields."""
        return self.point.per_s * self.quota_pct / 100

    @property
    def rpr(self) -> float:
        """What it yields for each part of a device."""
        return self.point.rpr


class SlicingRival(ABC):
    """A scaler of one stage."""

    adjusts = True
    dry = False
    tick_ns = 1 * SECOND
    #: Rates are counted over this.
    window_ns = 10 * SECOND
    #: A device without a slice for so long goes [our choice: no source says].
    empty_ns = 15 * SECOND

    def __init__(
        self, predictor: Predictor, graph: Graph, *, most: int, part: float = 0.8, batches: Sequence[int] = ()
    ) -> None:
        self._predictor = predictor
        self._graph = graph
        self._part = part
        self._batches = tuple(batches)
        self._most = most
        (self.stage,) = graph.stages
        self.points: list[ScalePoint] = []
        self._counts: deque[tuple[int, int]] = deque()
        self._next_ns = 0
        self._empty: dict[int, int] = {}
        self._idle = 0

    def manages(self, stage: StageSpec) -> bool:
        """The one stage."""
        return True

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec] | None:
        """Everywhere."""
        return stages

    def adjust(self, cluster: Cluster, starved: Sequence[Queue], now_ns: int) -> Adjustment:
        """Once a tick, as long as there is anything to do."""
        if now_ns < self._next_ns or not self._ready(cluster):
            return Adjustment(next_ns=self._next_ns)
        queues = [q for q in cluster.queues.values() if q.stage.name == self.stage.name]
        arrived, waiting = sum(q.arrived for q in queues), sum(q.size for q in queues)
        self._counts.append((now_ns, arrived))
        while len(self._counts) > 2 and self._counts[1][0] <= now_ns - self.window_ns:
            self._counts.popleft()
        before, passed = self._counts[0][1], now_ns - self._counts[0][0]
        rate = (arrived - before) * SECOND / passed if passed > 0 else float(arrived)
        pieces = sorted((p for p in cluster.slices[self.stage.name].values() if not p.closing), key=lambda p: p.id)
        ongoing = waiting + sum(len(batch.items) for batch in cluster.batches.values())
        pods = self.decide([self._pod(piece) for piece in pieces], rate, ongoing, now_ns)
        adjustment = self._place(cluster, pieces, pods, now_ns)
        # A run ends when nothing is open: then nobody looks any more.
        self._idle = 0 if cluster.requests else self._idle + 1
        self._next_ns = now_ns + self.tick_ns if self._idle < 30 else 0
        return msgspec.structs.replace(adjustment, next_ns=self._next_ns)

    @abstractmethod
    def decide(self, pods: Sequence[Pod], rate_per_s: float, ongoing: int, now_ns: int) -> Sequence[Pod]:
        """The slices that there should be, of those that there are and new ones."""

    def _ready(self, cluster: Cluster) -> bool:
        device = next((w for w in cluster.workers.values() if not w.spec.on_host), None)
        if not self.points and device is not None:
            kind, stage = device.spec.kind, self.stage
            if self._batches:
                stage = msgspec.structs.replace(stage, batch=self._batches)
            alone = self._predictor.run(stage, kind, 1, Config(1, 1, 100)).mean_ns
            limit_ns = limits_ns([self._graph], {stage.name: alone}, self._part)[stage.name]
            self.points = points_of(stage, kind, 0, self._predictor, limit_ns, SHARES_PCT)
        return bool(self.points)

    def _pod(self, piece: Slice) -> Pod:
        point = next(p for p in self.points if (p.share_pct, p.batch) == (piece.share_pct, piece.batch))
        return Pod(point, piece.quota_pct, piece.id)

    def _place(self, cluster: Cluster, pieces: Sequence[Slice], pods: Sequence[Pod], now_ns: int) -> Adjustment:
        by_id = {piece.id: piece for piece in pieces}
        kept = {pod.slice for pod in pods if pod.slice}
        name = self.stage.name
        wishes = [SliceWish(name, p.worker, 0, 0, 0, "not needed", p.id) for p in pieces if p.id not in kept]
        wanted, points = [], {}
        for number, pod in enumerate(pods):
            piece = by_id.get(pod.slice)
            size = (0, 0) if piece is None else (piece.share_pct, piece.quota_pct)
            worker = 0 if piece is None else piece.worker
            want = Wanted(name, pod.point.share_pct, pod.quota_pct, pod.slice, worker, size)
            wanted.append(want)
            points[number] = pod.point
        batches = {(w.share_pct): pod.point.batch for w, pod in zip(wanted, pods, strict=True)}
        workers = [w.id for w in cluster.workers.values() if not w.closing and not w.spec.on_host]
        fitted = fit(wanted, workers)
        for want, worker in fitted.placed:
            size = (want.share_pct, want.quota_pct)
            if want.worker == worker and size == want.now:
                continue
            batch = batches[want.share_pct]
            if want.worker == worker:
                wishes.append(SliceWish(name, worker, *size, batch, "load", want.slice))
            else:
                wishes.append(SliceWish(name, worker, *size, batch, "load"))
                if want.slice:
                    wishes.append(SliceWish(name, want.worker, 0, 0, 0, "moved", want.slice))
        return Adjustment(
            slices=tuple(wishes),
            devices=min(self._most, len(workers) + fitted.more),
            reason="no device has room",
            drains=self._drains(cluster, workers, [worker for _, worker in fitted.placed], now_ns),
        )

    def _drains(
        self, cluster: Cluster, workers: Sequence[int], used: Sequence[int], now_ns: int
    ) -> tuple[tuple[int, str], ...]:
        there = {p.worker for p in cluster.slices[self.stage.name].values()} | set(used)
        empty = [w for w in workers if w not in there]
        self._empty = {w: self._empty.get(w, now_ns) for w in empty}
        due = [w for w in empty if now_ns - self._empty[w] >= self.empty_ns]
        return tuple((w, "it is empty") for w in due[: max(0, len(workers) - 1)])
