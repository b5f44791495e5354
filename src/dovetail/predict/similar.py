"""What is said of a stage that was neither profiled nor run: from what its model has to compute, if that is known.

Rules of this file
- The work of a model is what one core of an ordinary processor would take for it: so much for each
  multiply-accumulate, which are counted in the model file (`StageSpec.macs`), and so much for a call.
- Where other models were profiled or seen on this kind of device, the guess is the work times the median of what
  these took for each nanosecond of theirs, at the same batch, cores and share. So the device, and how it takes to
  batches and cores, is that of the others. Whole numbers only, so that a replay elsewhere guesses the same.
- Where none was seen, a processor is taken to be the one that the constants were measured on. Of any other device
  nothing is known then, nor of a stage whose work is unknown, such as a Python function: that is a constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt
from typing import Final

from ..units import US
from ..workflow.graph import StageSpec
from .estimate import GUESSED_RUN_NS, GUESSED_SPREAD, SIMILAR_SPREAD, Estimate
from .running import MILLION
from .sizes import at_share, line

__all__ = ["CALL_NS", "PS_PER_MAC", "guessed_run", "pace", "work_ns"]

#: Picoseconds of one core per multiply-accumulate: nearest to the models of the examples on a quiet virtual machine
#: (AMD EPYC, onnxruntime 1.31), of which the middle half take 22 to 39 (docs/predict.md).
PS_PER_MAC: Final = 30
#: What a call takes however small the model is. [our choice]
CALL_NS: Final = 50 * US
_PS_PER_NS: Final = 1000
#: Kind of device that the constants are for, and its whole share.
_CPU: Final = "cpu"
_FULL_SHARE: Final = 100


def work_ns(stage: StageSpec) -> int:
    """What one item of the stage would take on one core; 0 if its work is unknown."""
    return CALL_NS + stage.macs * PS_PER_MAC // _PS_PER_NS if stage.macs else 0


def pace(took_ns: int, stage: StageSpec) -> int:
    """What a batch took over the work of one of its items, in millionths."""
    return took_ns * MILLION // max(1, work_ns(stage))


def guessed_run(
    stage: StageSpec, kind: str, items: int, cpus: int, share_pct: int, paces: Iterable[int] = ()
) -> Estimate:
    """A guess for a batch; `paces` are those of other models in such a batch, on this kind of device."""
    work = work_ns(stage)
    known = sorted(paces) if work else []
    if known:
        middle = isqrt(known[(len(known) - 1) // 2] * known[len(known) // 2])
        return Estimate(max(1, work * middle // MILLION), SIMILAR_SPREAD, "guess")
    if work and kind == _CPU:
        # Cores take to a batch as shares do: a tenth of its time does not depend on them.
        return Estimate(max(1, line(line(work, 1, items), max(1, cpus), 1)), GUESSED_SPREAD, "guess")
    return Estimate(at_share(line(GUESSED_RUN_NS, 1, items), _FULL_SHARE, share_pct), GUESSED_SPREAD, "guess")
