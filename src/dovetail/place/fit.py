"""Which of some workers has room for a batch, now or soon: a look at each of them, for schedulers with few.

Rules of this file
- A worker with room now goes before one that is about to have it. Among the former, the caller says who is first:
  in order of joining (`first_fit`), or the one with the least share left over (`best_fit`): packing tightly keeps
  whole devices free for large configurations.
- Nobody is sent a batch that would wait there for longer than `bind_ns`; who will be free later is found all the
  same, so that the caller knows when to ask again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..state import NEVER_NS, Config, Worker

__all__ = ["ENDING", "HIGHER", "best_fit", "first_fit", "reason_of", "soonest", "taken_bytes"]

#: Reasons of batches that are sent before there is room for them.
ENDING: Final = "its worker is about to be free"
HIGHER: Final = "over a lower class"


def first_fit(workers: Iterable[Worker], config: Config) -> Worker | None:
    """The first worker that has room, in order of joining."""
    share_pct, cpus = config.share_pct, config.cpus
    for worker in workers:
        if worker.free_pct >= share_pct and worker.free_cpus >= cpus and not worker.line:
            return worker
    return None


def best_fit(workers: Iterable[Worker], config: Config) -> Worker | None:
    """The worker that has room and the least share left over, in order of joining among equals."""
    return min((w for w in workers if w.fits(config)), key=lambda w: w.free_pct, default=None)


def soonest(
    workers: Iterable[Worker], config: Config, priority: int, now_ns: int, bind_ns: int
) -> tuple[Worker, int] | None:
    """The worker that should have room first, and when: for those that are asked before there is any."""
    best: tuple[Worker, int] | None = None
    for worker in workers:
        at_ns = worker.room_at(config, priority, now_ns, bind_ns)
        if at_ns < NEVER_NS and (best is None or at_ns < best[1]):
            best = worker, at_ns
    return best


def reason_of(worker: Worker, config: Config, start_ns: int, now_ns: int) -> str:
    """Why a batch is sent to a worker: empty if there is room."""
    if worker.fits(config):
        return ""
    return HIGHER if start_ns <= now_ns and worker.spec.preempts else ENDING


def taken_bytes(worker: Worker) -> int:
    """Memory of a worker that models are in, or will be that are on their way."""
    resident = worker.resident
    coming = {
        b.queue.stage.weights: b.queue.stage.weights_bytes
        for b in worker.running.values()
        if b.queue.stage.weights not in resident
    }
    return sum(resident.values()) + sum(coming.values())
