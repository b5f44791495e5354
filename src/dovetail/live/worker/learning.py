"""What a worker has learned of kernels, and what it would like to know: told to the front that has started it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable

from ...errors import ProfileError
from ...predict import Estimator
from ...profile.kernelrows import pack, unpack_stats
from ...profile.kernels import Cut, KernelStats
from ...units import SECOND
from ..kernels.cut_model import CutModel
from ..links.wire import FromWorker, Learned, WantsCut
from .models import Models

__all__ = ["TELL_NS", "Learning", "unpacked"]

#: How often the front is told, and of how many sequences at most.
TELL_NS = 60 * SECOND
MOST_TOLD = 64
#: How long the end of the process may wait for a step that is under way.
CLOSE_SECONDS = 0.2


class Learning:
    """What the front has not been told yet. `lock` guards the predictor."""

    def __init__(
        self, predictor: Estimator, models: Models, lock: threading.Lock, tell: Callable[[FromWorker], None]
    ) -> None:
        self._predictor = predictor
        self._models = models
        self._lock = lock
        self._tell = tell
        #: Models of which the front was asked how to cut them.
        self._asked: set[str] = set()

    def tell(self) -> None:
        """Tell what is new, as far as it fits into one message."""
        with self._lock:
            news, cuts = self._predictor.news(MOST_TOLD), self._models.news()
        if news or cuts:
            self._tell(_packed(news, cuts))

    def close(self) -> None:
        """Tell all of it, unless somebody holds the lock for good."""
        while self._lock.acquire(timeout=CLOSE_SECONDS):
            news, cuts = self._predictor.news(MOST_TOLD), self._models.news()
            self._lock.release()
            if not news and not cuts:
                return
            self._tell(_packed(news, cuts))

    def want_cut(self, models: Iterable[CutModel]) -> None:
        """Have it found out how models are best cut."""
        for model in models:
            if model.wants is not None and model.spec.model not in self._asked:
                self._asked.add(model.spec.model)
                self._tell(WantsCut(model.spec.name, model.wants, model.threads))


def _packed(kernels: list[KernelStats], cuts: list[Cut]) -> Learned:
    return Learned([pack(stats) for stats in kernels], [pack(cut) for cut in cuts])


def unpacked(rows: Iterable[bytes]) -> list[KernelStats]:
    """What is known of kernels; what cannot be read is not."""
    found = []
    for row in rows:
        try:
            found.append(unpack_stats(row))
        except ProfileError as error:
            print(f"passed over: {error}", file=sys.stderr, flush=True)
    return found
