"""Loads in threads of their own, so that batches of other stages go on meanwhile; and who asked for them.

Rules of this file
- What was evicted is freed before the next model is loaded.
- A load that was said to begin is said to have ended, to the same ingress and by the same name: whoever waits for it
  may have a limit of time for that.
- Orders are all answered; of hints the last. Of a model that has come every ingress hears.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from queue import SimpleQueue

from ...state import RunBatch
from ..kernels.cut_model import CutModel
from ..links.wire import FromWorker, Load, Loaded, LoadFailure, Loading
from .executor import Answer, Work, error_text
from .models import Models, stage_failed

__all__ = ["Loaders"]

#: (ingress, stage, cause) of whoever is to hear of a load.
_Asker = tuple[int, str, int]


@dataclass
class Loaders:
    """Threads that load models, cut them, and let them go. Its books are kept under the executor's lock."""

    name: str
    threads: int
    models: Models
    answer: Answer
    now_ns: Callable[[], int]
    #: (weights, problem, how long it took): is told of the end of each load, under the lock.
    ended: Callable[[str, str, int], Work | None]
    #: Takes what can be done then.
    hand: Callable[[Work], None]
    #: Is told of models to be cut.
    want_cut: Callable[[list[CutModel]], None]
    #: Those that are here, always.
    ingresses: Set[int]
    lock: threading.Lock
    _jobs: SimpleQueue[Work] = field(default_factory=SimpleQueue)
    #: Loads that were asked for, until the model is there.
    _orders: dict[str, list[_Asker]] = field(default_factory=dict)
    _hints: dict[str, _Asker] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for _ in range(self.threads):
            threading.Thread(target=self._work, daemon=True).start()

    def put(self, work: Work) -> None:
        """Have something done that takes long."""
        self._jobs.put(work)

    def _work(self) -> None:
        while True:
            work = self._jobs.get()
            try:
                work()
            except Exception as error:  # a cut that fails, say: the model stays whole
                print(f"dovetail: worker {self.name}: {error_text(error)}", file=sys.stderr, flush=True)

    # -- under the lock -----------------------------------------------------------------------------------------

    def hinted(self, weights: str, ingress: int, message: Load) -> None:
        """An ingress expects that a model will be needed."""
        self._hints[weights] = (ingress, message.stage, message.cause)

    def ordered(self, weights: str, ingress: int, message: Load) -> None:
        """An ingress waits for a model."""
        self._orders.setdefault(weights, []).append((ingress, message.stage, message.cause))

    def hint(self, weights: str) -> tuple[int, int] | None:
        """Ingress and cause of a hint, until the model is there."""
        asked = self._hints.get(weights)
        return None if asked is None else (asked[0], asked[2])

    def begin(self, weights: str, batch: RunBatch | None) -> None:
        """A model is to be loaded: for an order, for the batch that needs it, or for a hint."""
        if weights in self._orders:
            asker = self._orders[weights][0]
        elif batch is not None:
            asker = (batch.ingress, batch.stage, batch.cause)
        else:
            asker = self._hints[weights]
        self._jobs.put(lambda: self._load(weights, asker))

    # -- in a thread of its own ---------------------------------------------------------------------------------

    def _load(self, weights: str, asker: _Asker) -> None:
        self.models.free()
        begin_ns = self.now_ns()
        ingress, stage, cause = asker
        self.answer(ingress, Loading(stage, cause))
        problem = ""
        try:
            self.want_cut(self.models.load(weights))
        except BaseException as error:  # whatever it is, the load must be answered
            problem = stage_failed(stage, error)
        took_ns = max(1, self.now_ns() - begin_ns)
        nbytes = self.models.nbytes(weights)
        with self.lock:
            self._hints.pop(weights, None)
            askers = self._orders.pop(weights, [])
            if asker not in askers:
                askers.append(asker)
            if not problem:
                # To whoever has not asked it is news, too, but none of its own steps has led to it.
                askers += [(other, stage, 0) for other in self.ingresses - {who for who, _, _ in askers}]
            for ingress, stage, cause in askers:
                answer: FromWorker = LoadFailure(stage, problem, cause)
                self.answer(ingress, answer if problem else Loaded(stage, nbytes, cause, took_ns))
            # Under the same lock: an order that comes now is answered above, or finds the model here.
            work = self.ended(weights, problem, took_ns)
        if work is not None:
            self.hand(work)
