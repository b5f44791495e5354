"""Which configurations a stage may take on a kind of worker.

Rules of this file: on a processor the share is the cores (two of four are 50 %); on a GPU shares and cores are chosen
apart; ordinary Python takes the whole of its host process. A stage that declares a share has that share and no other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..state import Config, WorkerSpec
from ..state.worker import FULL_SHARE
from ..workflow.graph import StageSpec

__all__ = ["Space", "configs_for"]


class Space(msgspec.Struct, frozen=True):
    """Values that a planner may choose from on GPUs."""

    shares_pct: tuple[int, ...] = (10, 20, 30, 40, 50, 60, 70, 80, 90, 100)
    cpus: tuple[int, ...] = (1,)
    #: False leaves only batch 1, or only the whole device: the ablations.
    batching: bool = True
    sharing: bool = True


def configs_for(stage: StageSpec, worker: WorkerSpec, space: Space, kind: str = "") -> list[Config]:
    """All configurations of `stage` on such a worker, in a fixed order; `kind` says that they are for no other."""
    found = _configs_for(stage, worker, space)
    return [Config(c.batch, c.cpus, c.share_pct, c.quota_pct, kind) for c in found] if kind else found


def _configs_for(stage: StageSpec, worker: WorkerSpec, space: Space) -> list[Config]:
    batches: Sequence[int] = stage.batch if space.batching else (stage.batch[0],)
    if stage.share_pct and not stage.on_host:  # it has declared its share: as much of the cores, too
        cores = max(1, worker.cores * stage.share_pct // FULL_SHARE) if worker.cores else 1
        return [Config(b, cores, stage.share_pct) for b in batches]
    if stage.on_host:
        return [Config(b, 1, FULL_SHARE) for b in batches]
    if worker.kind == "cpu":
        cores = max(1, worker.cores)
        counts = [2**i for i in range(cores.bit_length())] if space.sharing else []
        return [Config(b, c, FULL_SHARE * c // cores) for b in batches for c in sorted({*counts, cores})]
    shares = space.shares_pct if space.sharing else (space.shares_pct[-1],)
    cpus = [c for c in space.cpus if not worker.cores or c <= worker.cores]
    return [Config(b, c, s) for b in batches for c in cpus for s in shares]
