"""Where a model is best cut, measured in a process of its own.

To find out takes seconds of a core, much memory for a while, and an interpreter that nobody waits for. So a worker
asks its front, the front starts this, and every worker is told what came out (`Recut`): they cut alike, and quickly.

Run as ``python -m dovetail.live.kernels.cutting``: a `Wanted` in msgpack on stdin, a `Cut` in msgpack on stdout, or
nothing if the model cannot be cut at all.
"""

from __future__ import annotations

import contextlib
import os
import sys

import msgspec

from ...profile.kernels import Cut
from ...workflow.graph import StageSpec
from .cut_model import CutModel
from .segment_run import Shape

__all__ = ["Wanted", "find_cut", "main"]

#: The nicest there is: whatever else wants a core goes first.
NICE = 19


class Wanted(msgspec.Struct, frozen=True):
    """A model that is to be cut, the shapes of one item with its batch axis, and the threads that run it."""

    stage: StageSpec
    item: tuple[Shape, ...]
    threads: int


def find_cut(wanted: Wanted) -> Cut | None:
    """How the model is cut, or that it stays whole (no places); None if it cannot be."""
    model = CutModel(wanted.stage, threads=wanted.threads, dear=False)
    model.wants = wanted.item
    model.make_ready()
    return model.cut()


def main() -> None:
    """Entry point of the process."""
    with contextlib.suppress(OSError):
        os.nice(NICE)
    cut = find_cut(msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Wanted))
    if cut is not None:
        sys.stdout.buffer.write(msgspec.msgpack.encode(cut))


if __name__ == "__main__":
    main()
