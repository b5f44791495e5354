"""Running totals for the statistics extension: how often each workflow and stage ran, and for how long.

Rules of this file, from what Triton's own clients expect (perf_analyzer refuses all else)
- Of one workflow, `queue` and the three `compute` parts count the same requests: those that were answered with
  results. Of one batch size the three parts count the same batches.
- `last_inference` is milliseconds since 1970.
- What Triton has no word for is under `dovetail_`: outcomes by class, and the memory of workers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from ...control import Reject, Reply, RunBatch
from ...state import OUTCOMES
from ...workflow.graph import Graph
from ..links.wire import Evicted, State

__all__ = ["Statistics"]

#: A prediction holds if a batch takes no longer than its mean and so many standard deviations: of 100 batches whose
#: times scatter like a bell, 98 do.
DEVIATIONS = 2.0
#: Evictions that are remembered, for who wants to know why.
MOST_EVICTIONS = 50


class StageCounts:
    """What is counted of the batches of one stage."""

    __slots__ = ("device_ns", "error", "expected_ns", "held", "items", "predicted", "waited_ns")

    def __init__(self) -> None:
        #: Time of its batches, each multiplied by its share of the device.
        self.device_ns = 0.0
        #: Batches whose time was predicted; how long they were to take; the sum of how far they were off, relative to
        #: the prediction; and how many took no longer than predicted with some room.
        self.predicted = 0
        self.expected_ns = 0
        self.error = 0.0
        self.held = 0
        #: Items, and how long they waited for their batch to begin.
        self.items = 0
        self.waited_ns = 0


class Statistics:
    """Counts in the layout of Triton's statistics extension, without growing with the run."""

    def __init__(self, graphs: Sequence[Graph], started_unix_ns: int = 0) -> None:
        """`started_unix_ns` is the wall clock at time 0."""
        self._started_unix_ns = started_unix_ns
        #: Workflow -> class -> outcome -> how often.
        self._outcomes: dict[str, dict[int, dict[str, int]]] = {g.name: {} for g in graphs}
        self._names = [g.name for g in graphs]
        self._stages = {g.name: sorted({n.stage for n in g.nodes}) for g in graphs}
        self._answered: dict[str, Counter[str]] = {g.name: Counter() for g in graphs}
        self._latency_ns: dict[str, Counter[str]] = {g.name: Counter() for g in graphs}
        self._last_ms = dict.fromkeys(self._names, 0)
        #: Stage -> batch size -> (batches, time)
        self._batches: dict[str, dict[int, list[int]]] = {}
        self.stages: dict[str, StageCounts] = {}
        #: Workers that keep their own memory, by name: their last word, and the sums of their predecessors.
        self._states: dict[str, State] = {}
        self._before: dict[str, Counter[str]] = {}
        #: (when, worker, what): the last of them.
        self.evictions: deque[tuple[int, str, Evicted]] = deque(maxlen=MOST_EVICTIONS)

    def batch(self, action: RunBatch, duration_ns: int, waited_ns: int = 0) -> None:
        """A batch was run; its items have waited for so long, together."""
        counts = self.stages.get(action.stage)
        if counts is None:
            counts = self.stages[action.stage] = StageCounts()
        counts.device_ns += duration_ns * action.share_pct / 100
        items = len(action.items)
        counts.items += items
        counts.waited_ns += waited_ns
        if expected_ns := action.expected_ns:
            counts.predicted += 1
            counts.expected_ns += expected_ns
            counts.error += abs(duration_ns - expected_ns) / expected_ns
            counts.held += duration_ns <= expected_ns * (1 + DEVIATIONS * action.spread)
        sizes = self._batches.get(action.stage)
        if sizes is None:
            sizes = self._batches[action.stage] = {}
        entry = sizes.get(items)
        if entry is None:
            entry = sizes[items] = [0, 0]
        entry[0] += 1
        entry[1] += duration_ns

    def state(self, worker: str, state: State) -> None:
        """A worker that keeps its own memory has said how it is. Its counts start again when it does."""
        known = self._states.get(worker)
        if known is not None and known.row.worker != state.row.worker:
            self._before[worker].update(_counts(known))
        self._before.setdefault(worker, Counter())
        self._states[worker] = state

    def evicted(self, now_ns: int, worker: str, told: Evicted) -> None:
        """A worker has let a model go."""
        self.evictions.append((now_ns, worker, told))

    def memory(self) -> dict[str, dict[str, int]]:
        """Of each worker that keeps its own memory: how models were found there, and how much they take now."""
        return {
            name: {
                **{key: self._before[name][key] + count for key, count in _counts(state).items()},
                "held_bytes": state.held_bytes,
                "usable_bytes": state.usable_bytes,
            }
            for name, state in self._states.items()
        }

    def answered(self, action: Reply | Reject, latency_ns: int) -> None:
        """A request has ended."""
        name = self._names[action.graph]
        kind = "success" if type(action) is Reply else "fail"
        self._answered[name][kind] += 1
        self._latency_ns[name][kind] += latency_ns
        self._last_ms[name] = (self._started_unix_ns + action.arrived_ns + latency_ns) // 1_000_000
        row = self._outcomes[name].get(action.priority)
        if row is None:
            row = self._outcomes[name][action.priority] = dict.fromkeys(OUTCOMES, 0)
        row[action.outcome] += 1

    def batches(self) -> dict[str, dict[int, tuple[int, int]]]:
        """Of each stage that has run: size of a batch -> how many, and how long they took together."""
        return {
            stage: {size: (count, ns) for size, (count, ns) in sizes.items()}
            for stage, sizes in sorted(self._batches.items())
        }

    def model_stats(self, workflow: str) -> dict[str, Any]:
        """One entry of `model_stats`. A workflow's executions are the batches of its stages."""
        answered, latency = self._answered[workflow], self._latency_ns[workflow]
        sizes: Counter[int] = Counter()
        times: Counter[int] = Counter()
        for stage in self._stages[workflow]:
            for size, (count, ns) in self._batches.get(stage, {}).items():
                sizes[size] += count
                times[size] += ns
        compute = sum(times.values())
        nothing = {"count": 0, "ns": 0}
        answers = answered["success"]
        # Models serve all workflows, so these are the same in every entry.
        memory = {"dovetail_memory": self.memory()} if self._states else {}
        classes = {str(c): dict(row) for c, row in sorted(self._outcomes[workflow].items())}
        return {
            **memory,
            "dovetail_outcomes": classes,
            "name": workflow,
            "version": "1",
            "last_inference": self._last_ms[workflow],
            "inference_count": answered["success"],
            "execution_count": sum(sizes.values()),
            "inference_stats": {
                "success": {"count": answered["success"], "ns": latency["success"]},
                "fail": {"count": answered["fail"], "ns": latency["fail"]},
                "queue": {"count": answers, "ns": max(0, latency["success"] - compute)},
                "compute_input": {"count": answers, "ns": 0},
                "compute_infer": {"count": answers, "ns": compute},
                "compute_output": {"count": answers, "ns": 0},
                "cache_hit": dict(nothing),
                "cache_miss": dict(nothing),
            },
            "batch_stats": [
                {
                    "batch_size": size,
                    "compute_input": {"count": sizes[size], "ns": 0},
                    "compute_infer": {"count": sizes[size], "ns": times[size]},
                    "compute_output": {"count": sizes[size], "ns": 0},
                }
                for size in sorted(sizes)
            ],
        }


def _counts(state: State) -> dict[str, int]:
    return {"hits": state.hits, "misses": state.misses, "loads": state.loads, "evictions": state.evictions}
