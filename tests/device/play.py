"""A small device for the laws: it plays tasks against an arbiter and writes down what happened.

A task's next kernel is ready a gap after the one before was ready, or after the one that is waited for has ended.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from hypothesis import strategies as st

from dovetail.device import (
    AlarmRang,
    KernelArbiter,
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

    def share_of(self, kernel: int) -> int:
        return self.shares[kernel % len(self.shares)] if self.shares else self.share_pct


class Happened(NamedTuple):
    """A kernel's life; -1 where it came to nothing."""

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
        self.started: dict[tuple[int, int], tuple[int, str]] = {}
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
            self.ended[event.task, event.kernel] = now
        elif isinstance(event, TaskGone):
            self.gone[event.task] = now
        actions = list(self.arbiter.step(event))
        self.actions.append(list(actions))
        self.arbiter.validate()  # type: ignore[attr-defined]
        if isinstance(event, KernelReady):
            self._pending.discard(event.task)
        if isinstance(event, KernelFinished) and event.kernel + 1 == len(self.scripts[event.task].kernels):
            self._push(TaskGone(now, event.task))
        if isinstance(event, (TaskBegan, KernelReady, KernelFinished)):
            self._prepare(event.task, now)
        for action in actions:
            if isinstance(action, StartKernel):
                key = (action.task, action.kernel)
                assert key in self.ready and key not in self.started, "only what is ready starts, and once"
                assert action.task not in self.gone
                self.started[key] = (now, action.why)
                self._push(KernelFinished(now + self.scripts[action.task].kernels[action.kernel][1], *key))
            elif isinstance(action, SetAlarm):
                assert action.at_ns > now
                self._push(AlarmRang(action.at_ns))

    def _prepare(self, task: int, now: int) -> None:
        """The task's next kernel is on its way, if its host is free and does not wait for a result."""
        script = self.scripts[task]
        launched = sum(1 for t, _ in self.ready if t == task)
        over = sum(1 for t, _ in self.ended if t == task)
        if task not in self._pending and launched < len(script.kernels) and launched <= over + script.ahead:
            self._pending.add(task)
            gap_ns = script.kernels[launched][0]
            self._push(KernelReady(now + gap_ns, task, launched, script.share_of(launched), script.priority))

    def _push(self, event: KernelEvent) -> None:
        self._number += 1
        heapq.heappush(self._heap, (event.at_ns, self._number, event))

    def kernels(self) -> list[Happened]:
        """Every kernel that was ready, in the order in which they were."""
        found = []
        for (task, kernel), ready_ns in self.ready.items():
            start_ns, why = self.started.get((task, kernel), (-1, ""))
            end_ns = self.ended.get((task, kernel), -1)
            found.append(Happened(task, kernel, self.scripts[task].priority, ready_ns, start_ns, end_ns, why))
        return found

    def used_pct(self, at_ns: int) -> int:
        """Share of the kernels that run just after a time."""
        return sum(
            self.scripts[t].share_of(k)
            for (t, k), (start, _) in self.started.items()
            if start <= at_ns < min(self.ended.get((t, k), 1 << 62), self.gone.get(t, 1 << 62))
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
    *, shares: bool = False, mixed: bool = False, killed: bool = True, ahead: bool = False, classes: int = 3
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
    )
    return st.lists(one, min_size=1, max_size=6)
