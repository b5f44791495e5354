"""Who is kept apart: a batch that could begin beside others, and had better not.

Rules of this file
- A batch waits for a neighbour to end if it would itself end later beside it than after it: together they do less
  than one after the other.
- A batch waits if it would make somebody late who runs and would be in time, and who is of a higher class, or for
  whom the batch itself has time to wait. Times of those who run are taken with their margin.
- A higher class never waits for the sake of a lower one.
- A wait is a declared hold and ends when the neighbour should; where neighbours are not felt there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..place.company import Company, Together
from ..predict import Predictor
from ..state import Batch, Config, Queue, Worker
from ..units import US, format_ns
from .protocol import Hold

__all__ = ["Apart", "Verdict"]

#: A wait has to gain at least this part of the batch's time. [our choice]
_WORTH: Final = 0.02
#: Those who run are held to be in time if they are with this chance. [our choice]
_LEVEL: Final = 0.95
#: No margin is larger.
_UNLIKELY: Final = 3.0
#: No hold is shorter: it would only be asked again.
_LEAST_NS: Final = 50 * US

#: True: let it begin. False: it would be late there; a faster way may not be. Or a hold.
Verdict = bool | Hold


class Apart:
    """Decides whether a batch begins beside those who run."""

    __slots__ = ("_company", "_latest_ns")

    def __init__(self, predictor: Predictor, latest_ns: Callable[[Batch], int]) -> None:
        """`latest_ns` says when a batch has to end for its requests to be in time."""
        self._company = Company(predictor)
        self._latest_ns = latest_ns

    def judge(
        self, queue: Queue, config: Config, worker: Worker, end_by_ns: int, priority: int, now_ns: int
    ) -> Verdict:
        """Whether the next batch of a queue, which has to end by a time, should begin there now."""
        if not self._company.felt(worker):
            return True
        items = min(config.batch, queue.size)
        with_them = self._company.together(queue.stage, items, config, worker, now_ns)
        if not with_them.others:
            return True
        first = min(range(len(with_them.others)), key=lambda j: (with_them.before_ns[j], j))
        alone_after_ns = with_them.before_ns[first] + with_them.alone_ns
        if len(with_them.others) == 1 and alone_after_ns < with_them.own_ns - _WORTH * with_them.alone_ns:
            return _hold(
                with_them,
                first,
                now_ns,
                f"beside {_name(with_them, first)} it would end {format_ns(round(with_them.own_ns - alone_after_ns))}"
                f" later than after it",
            )
        spare_ns = end_by_ns - now_ns - with_them.alone_ns
        for j, other in enumerate(with_them.others):
            theirs = other.priority()
            if theirs > priority:
                continue
            before_ns, after_ns = with_them.before_ns[j], with_them.after_ns[j]
            left_ns = self._latest_ns(other) - now_ns
            if not before_ns <= left_ns < _UNLIKELY * after_ns:
                continue  # whatever its margin is
            margin = self._company.factor(with_them, j, _LEVEL)
            if not before_ns * margin <= left_ns < after_ns * margin:
                continue
            if theirs < priority or before_ns * margin <= spare_ns:
                return _hold(with_them, j, now_ns, f"it would make {_name(with_them, j)} late, which runs there")
        return now_ns + with_them.own_ns <= end_by_ns


def _hold(with_them: Together, j: int, now_ns: int, reason: str) -> Hold:
    return Hold(now_ns + max(_LEAST_NS, round(with_them.before_ns[j])), reason)


def _name(with_them: Together, j: int) -> str:
    return repr(with_them.others[j].queue.stage.name)
