"""Beside whom? What a batch would take on a worker that runs others, and what it would do to them.

Rules of this file
- All times are the predictor's, by the work integral over those who run there and the newcomer.
- Of workers with room the tightest is taken (`rooms`), unless its company is dearer than that of another by more than
  a few per cent of the batch: what the newcomer loses and what the others lose, each by its share of the device.
- Models that are on their way there are company, too.
- Where neighbours are not felt nothing is asked, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ..predict import Predictor
from ..predict.interference import Load, Piece, Work
from ..predict.progress import fetches_of, work_of
from ..state import Batch, Config, Worker
from ..workflow.graph import StageSpec

__all__ = ["Company", "Together"]

#: Company that is dearer by no more than this part of the batch's own work makes no difference. [our choice]
_INDIFFERENT: Final = 0.02


class Together(NamedTuple):
    """A newcomer beside those who run: how long it takes, and when they end without it and with it, from now on."""

    own_ns: float
    alone_ns: float
    others: list[Batch]
    before_ns: list[float]
    after_ns: list[float]
    #: All as the predictor knows them, the newcomer last.
    loads: list[Load]


class Company:
    """What those who share a device do to each other, for whoever places a batch."""

    __slots__ = ("_predictor",)

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def felt(self, worker: Worker) -> bool:
        """Whether somebody runs there, and that is known to cost something."""
        return bool(worker.running) and self._predictor.felt(worker.spec.kind)

    def together(self, stage: StageSpec, items: int, config: Config, worker: Worker, now_ns: int) -> Together:
        """A batch that begins there now, and those who run."""
        predictor, kind = self._predictor, worker.spec.kind
        others = [b for b in worker.running.values() if not (b.waits or b.fetches or b.sliced)]
        alone_ns = predictor.run(stage, kind, items, config).mean_ns
        works = [work_of(predictor, batch, now_ns) for batch in others]
        own = Work((Piece(predictor.load_of(stage, kind, items, config), alone_ns),))
        fetches = fetches_of(predictor, worker, now_ns)
        ends = predictor.ends_ns(kind, [*fetches, *works, own])[len(fetches) :]
        before = [float(max(0, b.begun_ns + b.expected_ns - now_ns)) for b in others]
        loads = [work.pieces[0].load for work in (*works, own)]
        return Together(ends[-1], alone_ns, others, before, ends[:-1], loads)

    def factor(self, with_them: Together, who: int, level: float) -> float:
        """How many times as long as predicted one of them takes at most, with this chance."""
        kind, loads = with_them.others[0].worker.spec.kind, with_them.loads
        return self._predictor.factor(kind, loads[who], loads[:who] + loads[who + 1 :], level)

    def best(self, stage: StageSpec, config: Config, workers: Sequence[Worker], now_ns: int) -> Worker:
        """The first of these workers whose company is as cheap as any."""
        if len(workers) == 1 or not any(self.felt(worker) for worker in workers):
            return workers[0]
        dear = [self._dear(stage, config, worker, now_ns) for worker in workers]
        least = min(dear)
        return next(w for w, cost in zip(workers, dear, strict=True) if cost <= least + _INDIFFERENT)

    def _dear(self, stage: StageSpec, config: Config, worker: Worker, now_ns: int) -> float:
        """What company costs, as a part of the batch's work: share times time that is lost, its own and others'."""
        if not self.felt(worker):
            return 0.0
        with_them = self.together(stage, config.batch, config, worker, now_ns)
        lost = config.share_pct * (with_them.own_ns - with_them.alone_ns)
        for batch, before_ns, after_ns in zip(with_them.others, with_them.before_ns, with_them.after_ns, strict=True):
            lost += batch.config.share_pct * max(0.0, after_ns - before_ns)
        return lost / max(1.0, config.share_pct * with_them.alone_ns)
