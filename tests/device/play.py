"""A small device for the laws: it plays tasks against an arbiter and writes down what happened.

A task's next kernel is ready a gap after the one before was ready, or after the one that is waited for has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from dovetail.device import KernelArbiter
from dovetail.device.arbiter import (
    AlarmRang,
    KernelEvent,
    KernelFinished,
    KernelReady,
    SetAlarm,
    StartKernel,
    TaskBegan,
    TaskGone,
)
from dovetail.profile.kernels import KernelStats


class Script(NamedTuple):
    """A task: when it begins, its class, its kernels as (gap before, duration), and when it is killed, if at all."""

    begin_ns: int
    priority: int
    kernels: tuple[tuple[int, int], ...]
    share_pct: int = 100
    #: Kernels that may be ready before the one before has ended.
    ahead: int = 0
    killed_ns: int = -1
    client: str = ""
    #: Share of each kernel in turn, where they differ; the task then counts with the whole device.
    shares: tuple[int, ...] = ()
    #: Parts that its kernels may be run in.
    parts: int = 1

    def share_of(self, kernel: int) -> int:
        return self.shares[kernel % len(self.shares)] if self.shares else self.share_pct


class Happened(NamedTuple):
    """The life of a kernel, or of what was started of it at a time; -1 where it came to nothing."""

    task: int
    kernel: int
    priority: int
    ready_ns: int
    start_ns: int
    end_ns: int
    why: str


class Play:
    """Plays scripts; sequences are named by the task's number."""

    def __init__(self, scripts: Sequence[Script], arbiter: KernelArbiter) -> None:
        self.scripts = scripts
        self.arbiter = arbiter
        self.events: list[KernelEvent] = []
        self.actions: list[list[object]] = []
        self.ready: dict[tuple[int, int], int] = {}
        #: When each was started first, and why; and (start, why, end) of all its parts.
        self.started: dict[tuple[int, int], tuple[int, str]] = {}
        self.parts: dict[tuple[int, int], list[tuple[int, str, int]]] = {}
        self._left: dict[tuple[int, int], int] = {}
        self.ended: dict[tuple[int, int], int] = {}
        self.gone: dict[int, int] = {}
        self._heap: list[tuple[int, int, KernelEvent]] = []
        self._number = 0
        self._pending: set[int] = set()
        for task, script in enumerate(scripts):
            began = TaskBegan(script.begin_ns, task, script.priority, script.client, str(task), script.share_pct)
            self._push(began)
            if script.killed_ns >= 0:
                self._push(TaskGone(max(script.killed_ns, script.begin_ns), task))

    def go(self, most_events: int = 20_000) -> Play:
        while self._heap and len(self.events) < most_events:
            event = heapq.heappop(self._heap)[2]
            if isinstance(event, (KernelReady, KernelFinished)) and event.task in self.gone:
                continue
            if isinstance(event, TaskGone) and event.task in self.gone:
                continue
            self._take(event)
        return self

    def _take(self, event: KernelEvent) -> None:
        now = event.at_ns
        self.events.append(event)
        if isinstance(event, KernelReady):
            self.ready[event.task, event.kernel] = now
        elif isinstance(event, KernelFinished):
            if not self._left[event.task, event.kernel]:
                self.ended[event.task, event.kernel] = now
        elif isinstance(event, TaskGone):
            self.gone[event.task] = now
        actions = list(self.arbiter.step(event))
        self.actions.append(list(actions))
        self.arbiter.validate()  # type: ignore[attr-defined]
        if isinstance(event, KernelReady):
            self._pending.discard(event.task)
        if (
            isinstance(event, KernelFinished)
            and (event.task, len(self.scripts[event.task].kernels) - 1) in self.ended
        ):
            self._push(TaskGone(now, event.task))
        if isinstance(event, (TaskBegan, KernelReady, KernelFinished)):
            self._prepare(event.task, now)
        for action in actions:
            if isinstance(action, StartKernel):
                self._start(action, now)
            elif isinstance(action, SetAlarm):
                assert action.at_ns > now
                self._push(AlarmRang(action.at_ns))

    def _start(self, action: StartKernel, now: int) -> None:
        key, script = (action.task, action.kernel), self.scripts[action.task]
        left = self._left.setdefault(key, script.parts)
        parts = action.parts or left
        assert key in self.ready and 0 < parts <= left, "only what is ready starts, and once"
        assert all(end <= now for _, _, end in self.parts.get(key, ())), "one part at a time"
        assert action.task not in self.gone
        self._left[key] = left - parts
        self.started.setdefault(key, (now, action.why))
        takes_ns = script.kernels[action.kernel][1] * parts // script.parts + (parts < script.parts)
        self.parts.setdefault(key, []).append((now, action.why, now + takes_ns))
        self._push(KernelFinished(now + takes_ns, *key))

    def _prepare(self, task: int, now: int) -> None:
        """The task's next kernel is on its way, if its host is free and does not wait for a result."""
        script = self.scripts[task]
        launched = sum(1 for t, _ in self.ready if t == task)
        over = sum(1 for t, _ in self.ended if t == task)
        if task not in self._pending and launched < len(script.kernels) and launched <= over + script.ahead:
            self._pending.add(task)
            gap_ns = script.kernels[launched][0]
            share_pct = script.share_of(launched)
            self._push(KernelReady(now + gap_ns, task, launched, share_pct, script.priority, script.parts))

    def _push(self, event: KernelEvent) -> None:
        self._number += 1
        heapq.heappush(self._heap, (event.at_ns, self._number, event))

    def kernels(self) -> list[Happened]:
        """Every kernel that was ready, in the order in which they were; those that were run in parts part by part."""
        found = []
        for (task, kernel), ready_ns in self.ready.items():
            for start_ns, why, end_ns in self.parts.get((task, kernel), [(-1, "", -1)]):
                over_ns = end_ns if end_ns <= self.gone.get(task, 1 << 62) else -1
                found.append(Happened(task, kernel, self.scripts[task].priority, ready_ns, start_ns, over_ns, why))
                ready_ns = end_ns
        return found

    def used_pct(self, at_ns: int) -> int:
        """Share of the kernels that run just after a time."""
        return sum(
            self.scripts[t].share_of(k)
            for (t, k), parts in self.parts.items()
            for start, _, end in parts
            if start <= at_ns < min(end, self.gone.get(t, 1 << 62))
        )


def stats_of(
    scripts: Sequence[Script], *, factor: float = 1.0, gap_factor: float | None = None, times: int = 5
) -> dict[str, KernelStats]:
    """What a profile of each task alone would hold, or one that is wrong by a factor."""
    found = {}
    for task, script in enumerate(scripts):
        stats = KernelStats.empty(str(task), [f"k{i}" for i in range(len(script.kernels))])
        stats.shares.update({i: script.share_of(i) for i in range(len(script.kernels))})
        for _ in range(times):
            for i, (gap, duration) in enumerate(script.kernels):
                stats.observe(i, round(duration * factor))
                stats.observe_gap(i - 1, round(gap * (factor if gap_factor is None else gap_factor)))
        found[stats.name] = stats
    return found


def scripts(
    *,
    shares: bool = False,
    mixed: bool = False,
    killed: bool = True,
    ahead: bool = False,
    classes: int = 3,
    parts: bool = False,
) -> st.SearchStrategy:
    """A few tasks whose kernels and gaps are of similar length, so that much depends on who goes first."""
    kernel = st.tuples(st.integers(0, 60), st.integers(1, 60))
    one = st.builds(
        Script,
        begin_ns=st.integers(0, 200),
        priority=st.integers(1, classes),
        kernels=st.lists(kernel, min_size=1, max_size=8).map(tuple),
        share_pct=st.sampled_from([20, 50, 60, 100]) if shares else st.just(100),
        ahead=st.integers(0, 3) if ahead else st.just(0),
        killed_ns=st.one_of(st.just(-1), st.integers(0, 400)) if killed else st.just(-1),
        shares=st.lists(st.sampled_from([20, 50, 60, 100]), min_size=1, max_size=5).map(tuple)
        if mixed
        else st.just(()),
        parts=st.sampled_from([1, 1, 3, 8]) if parts else st.just(1),
    )
    return st.lists(one, min_size=1, max_size=6)
