"""Long work in short steps: whoever drives it decides how much is done at a time.

    tables = finish(steps)          # all of it now
    next(steps)                     # or a bit of it, and the rest later

Rules of this file: a step is a few operations on arrays, some tens of microseconds; what has been begun and is not
finished is seen by nobody.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

__all__ = ["Steps", "finish"]

T = TypeVar("T")

#: Work that pauses between its steps, and its result.
Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Do all that is left of it."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
