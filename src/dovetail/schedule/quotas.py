"""What a quota makes of a request's time: the wait behind its own client's work.

Rules of this file
- Work of a client with a quota waits for its client's tokens, whatever else is free. It has its quota of each worker
  that has the model. Where quotas are no limits, it has what those leave who have no work: its quota as a part of the
  quotas of all clients that have work now.
- A kernel is never interrupted, so that the quota does not stretch what runs: it is paid for afterwards. Where a
  quota is a limit, whoever comes next waits for that, too.
- Items of its own class and of higher ones go first.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..state import Cluster, CompiledGraph
from ..state.run_batch import FULL_QUOTA
from ..state.worker import FULL_SHARE
from ..workflow.graph import StageSpec

__all__ = ["quota_wait_ns"]


def _client(stage: StageSpec) -> str:
    return stage.client or stage.name


def _run_ns(stage: StageSpec, works: Mapping[str, tuple[int, int]]) -> int:
    """What an item takes on the stage's share."""
    return works.get(stage.name, (0, 0))[0] // (stage.share_pct or FULL_SHARE)


def quota_wait_ns(
    cluster: Cluster, graph: CompiledGraph, works: Mapping[str, tuple[int, int]], priority: int, *, limits: bool
) -> int:
    """How long the work of its clients that goes first takes, the longest of them; 0 if it has no quota.

    `works` is what an item of each stage takes of a device, in per cent of it times nanoseconds.
    """
    own = {_client(node.stage) for node in graph.nodes if node.stage.sliced}
    if not own:
        return 0
    busy: dict[str, int] = {}
    ahead_ns: dict[str, int] = dict.fromkeys(own, 0)
    for queue in cluster.queues.values():
        stage = queue.stage
        if not stage.sliced:
            continue
        holders = cluster.holders[stage.name].values()
        running = sum(
            len(batch.items) for worker in holders for batch in worker.running.values() if batch.queue is queue
        )
        client = _client(stage)
        if running or queue.size:
            busy[client] = stage.quota_pct
        if client in own and holders:
            first = running + queue.up_to_class(priority)
            first += bool(limits and first)  # what ended last may have to be paid for still
            ahead_ns[client] += first * _run_ns(stage, works) // len(holders)
    quotas = {_client(node.stage): node.stage.quota_pct for node in graph.nodes if node.stage.sliced}
    total_pct = FULL_QUOTA if limits else sum({**busy, **quotas}.values())
    return max(ahead_ns[client] * max(total_pct, quota_pct) // quota_pct for client, quota_pct in quotas.items())
