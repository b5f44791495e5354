"""Where a model is best cut, measured in a process of its own.

To find out takes seconds of a core, much memory for a while, and an interpreter that nobody waits for. So a worker
asks its front, the front starts this, and every worker is told what came out (`Recut`): they cut alike, and quickly,
or only read what was cut (`segments.write_cut`).

Run as ``python -m dovetail.live.kernels.cutting``: a `Wanted` in msgpack on stdin, a `Found` in msgpack on stdout, or
nothing if the model cannot be cut at all.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import msgspec

from ...errors import ModelError
from ...profile.kernels import Cut
from ...workflow.graph import StageSpec
from ..worker.footprint import one_heap, weigh
from .cut_model import CutModel
from .optimised import mapped_bytes
from .segment_run import Shape
from .segments import read_cut, write_cut
from .weight_files import WeightFiles

__all__ = ["Found", "Wanted", "find_cut", "main"]

#: The nicest there is: whatever else wants a core goes first.
NICE = 19


class Wanted(msgspec.Struct, frozen=True):
    """A model that is to be cut, the shapes of one item with its batch axis, and the threads that run it."""

    stage: StageSpec
    item: tuple[Shape, ...]
    threads: int
    #: Whatever it costs.
    dear: bool = False
    #: How it was cut before, if that is known: then nothing is measured.
    before: Cut | None = None
    #: Directory to which it is written for workers that only read; empty: they cut it themselves.
    files: str = ""
    #: Directory of the copies of weights that all workers share; empty: there is none.
    weights: str = ""

    @property
    def known(self) -> bool:
        """Whether it only has to be written, which takes no time to speak of."""
        return bool(self.files) and self.before is not None and self.before.item == self.item


class Found(msgspec.Struct, frozen=True):
    """How a model is cut, or that it stays whole (no places); and what a worker has in memory that reads it."""

    cut: Cut
    nbytes: int = 0


def find_cut(wanted: Wanted) -> Found | None:
    """How the model is cut; None if it cannot be."""
    if wanted.known and wanted.before is not None:
        try:
            return _written(wanted, wanted.before)
        except ModelError:  # another graph, or not what was kept
            pass
    model = CutModel(wanted.stage, threads=wanted.threads, dear=wanted.dear, copy=_copy(wanted))
    model.wants = wanted.item
    model.make_ready()
    cut = model.cut()
    return None if cut is None else _written(wanted, cut)


def _written(wanted: Wanted, cut: Cut) -> Found:
    if not wanted.files or not cut.at or wanted.stage.kind == "torch":
        return Found(cut)
    files = Path(wanted.files)
    write_cut(Path(wanted.stage.path), cut.at, files, copy=_copy(wanted))
    nbytes, _, _ = weigh(lambda: read_cut(files, threads=wanted.threads, lean=True))
    return Found(cut, nbytes + mapped_bytes(files))


def _copy(wanted: Wanted) -> Path | None:
    return WeightFiles(Path(wanted.weights)).copy_of(wanted.stage) if wanted.weights else None


def main() -> None:
    """Entry point of the process."""
    one_heap()
    wanted = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Wanted)
    if not wanted.known:
        with contextlib.suppress(OSError):
            os.nice(NICE)
    found = find_cut(wanted)
    if found is not None:
        sys.stdout.buffer.write(msgspec.msgpack.encode(found))


if __name__ == "__main__":
    main()
