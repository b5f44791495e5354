"""The stages that every world of the contract runs, and how long they take where that is declared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests import onnx_models

from dovetail import onnx
from dovetail.profile.kernels import Cut
from dovetail.profile.table import Entry, Point
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

__all__ = ["DIVISIBLE", "HEAVY", "HEAVY_BYTES", "TIMES_NS", "WIDTH", "make_cuts", "make_entries", "make_stages"]

#: Numbers of one item, and so the count of its result.
WIDTH = onnx_models.WIDTH
#: Profile of the simulated and the emulated device: (batch, time).
TIMES_NS = {"quick": {1: 1 * MS, 8: 3 * MS}, "slow": {1: 10 * MS, 8: 25 * MS}, "long": {1: 100 * MS, 8: 250 * MS}}
#: Size of a heavy model's file, and stages that have one.
HEAVY_BYTES = 6_000_000
HEAVY = ("a", "b", "c")
#: Stages whose batches are several kernels in worlds that have any.
DIVISIBLE = ("slow", "long")
#: How many products of matrices `slow` and `long` are, and how large; and how many a kernel of theirs has.
_PRODUCTS = {"slow": 16, "long": 60}
_SIDES = {"slow": 256, "long": 320}
_PER_KERNEL = {"slow": 4, "long": 10}


def make_stages(directory: Path) -> dict[str, StageSpec]:
    """`quick` and `fragile` double their input at once; `slow` takes its time and `long` many times that.

    `a`, `b` and `c` double, too, and have large models; `again` has the model of `a`.
    """
    batch = (1, 2, 4, 8)
    made = [onnx(onnx_models.double(directory / f"{name}.onnx"), batch=batch) for name in ("quick", "fragile")]
    for name in DIVISIBLE:
        file = onnx_models.slow(directory / f"{name}.onnx", products=_PRODUCTS[name], side=_SIDES[name])
        made.append(onnx(file, batch=batch, like="resnet50"))
    for seed, name in enumerate(HEAVY):
        made.append(onnx(onnx_models.heavy(directory / f"{name}.onnx", HEAVY_BYTES, seed), batch=batch))
    made.append(onnx(directory / "a.onnx", name="again", batch=batch))
    return {stage.spec.name: stage.spec for stage in made}


def make_entries(kind: str, stages: Iterable[str]) -> list[Entry]:
    """What the simulated and the emulated device take their times from; a stage of no known time is quick."""
    return [
        Entry(
            stage,
            kind,
            points=tuple(Point(batch, 1, ns, 0.0, 1) for batch, ns in TIMES_NS.get(stage, TIMES_NS["quick"]).items()),
            load_ns=3 * MS,
        )
        for stage in stages
    ]


def make_cuts(stages: dict[str, StageSpec]) -> list[Cut]:
    """Where a real worker cuts models: given to it, so that it need not measure, and always the same."""
    cuts = []
    for name in DIVISIBLE:
        at = tuple(range(4, _PRODUCTS[name], _PER_KERNEL[name]))
        item = ((1, WIDTH),)
        cuts.append(Cut(stages[name].model, item, 1, (at,), ((0, item, tuple(range(1, len(at) + 2))),)))
    return cuts
