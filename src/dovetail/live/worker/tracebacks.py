"""Where a stage has raised, for the server's log: the client is told what, the operator also where.

Rules of this file
- The same place is told once in a while, however often it raises.
- To tell neither raises nor waits: the front reads what workers print.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable

from ...units import SECOND

__all__ = ["MOST_PLACES", "Tracebacks"]

#: The same place is told again after this time [our choice].
AGAIN_NS = 10 * SECOND
#: Places that are remembered [our choice]; when there are more, all are forgotten.
MOST_PLACES = 256
#: Innermost frames that are told [our choice].
MOST_FRAMES = 20


class Tracebacks:
    """Tells where errors of stages come from."""

    def __init__(self, now_ns: Callable[[], int], tell: Callable[[str], None] | None = None) -> None:
        self._now_ns = now_ns
        self._tell = tell or _print
        #: (stage, type, file, line) -> when it was last told, and how often it was not since.
        self._told: dict[tuple[str, str, str, int], tuple[int, int]] = {}

    def raised(self, stage: str, error: BaseException) -> None:
        """A stage has raised."""
        with contextlib.suppress(Exception):  # whatever is wrong with it, the batch is answered all the same
            self._raised(stage, error)

    def _raised(self, stage: str, error: BaseException) -> None:
        cause = error.__cause__ or error
        frames = traceback.extract_tb(cause.__traceback__)
        last = frames[-1] if frames else None
        place = (stage, type(cause).__name__, last.filename if last else "", (last.lineno or 0) if last else 0)
        now_ns = self._now_ns()
        told_ns, left_out = self._told.get(place, (-AGAIN_NS, 0))
        if now_ns - told_ns < AGAIN_NS:
            self._told[place] = told_ns, left_out + 1
            return
        if len(self._told) >= MOST_PLACES:
            self._told.clear()
        self._told[place] = now_ns, 0
        more = f" ({left_out} times more before)" if left_out else ""
        lines = traceback.format_exception(cause, limit=-MOST_FRAMES)
        self._tell(f"stage {stage!r} raised{more}:\n{''.join(lines).rstrip()}\n")


def _print(text: str) -> None:
    sys.stderr.write(text.encode(errors="backslashreplace").decode())
    sys.stderr.flush()
