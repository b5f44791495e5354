"""Two real models on one gated device, under one policy after the other: what each mode does to both.

Rules of this file
- The high client rests before each of its tasks, and does host work of a declared length between its kernels (it
  sleeps, or runs Python); the low one runs back to back in a process of its own and launches whole inferences ahead,
  as programs do on a GPU: one runs, and the next is with the device already.
- Modes take turns in every round, in an order that moves by one from round to round, so that a busy neighbour meets
  all of them; what is compared is compared within a round.
- The device has a core to itself. If others took more of it than `FOREIGN` while a mode was measured, that is made
  again, so often at most; how often it was, and whether it was in vain, is part of the result.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection
from socket import socket
from typing import Any

import msgspec

from ...record.kernels import KernelRecord
from ...units import MS, SECOND, US
from .client import DeviceLost, Gate, GateClient, GatePolicy, GateProgram, TaskEnded
from .source import Source

__all__ = ["ALONE", "MODES", "PairRun", "Parts", "Side", "Window", "judged", "measure_pair"]

#: Mode -> how the device is arbitrated. Alone is the high task without the low one: one after the other, or as often
#: as in all other modes ("paced"), when device and host have slept between two of them.
MODES = {
    "alone": GatePolicy("tasks"),
    "alone, paced": GatePolicy("tasks"),
    "exclusive": GatePolicy("tasks", learn=True),
    "fifo": GatePolicy("fifo"),
    "slice": GatePolicy("slices"),
    "fikit": GatePolicy("fikit"),
    "fikit, ageing": GatePolicy("fikit", ageing_ns=10 * MS),
    "ours": GatePolicy("ours", learn=True),
    "ours, ageing": GatePolicy("ours", ageing_ns=10 * MS, learn=True),
}
#: Host work between two kernels.
Host = Callable[[], None]
#: Runs of each task alone, before anything is compared: the measurement stage.
PROFILED_RUNS = 12
#: The high client rests this many times as long as a task takes alone, as in the simulation (`fikit_world`): it wants
#: a quarter of the time.
REST = 3.0
#: Part of a measurement that the device's thread may have waited for its core.
FOREIGN = 0.02
MOST_REPEATS = 3
ALONE = ("alone", "alone, paced")
#: A packet is stamped just before it can be seen: so much later it must have been.
SEEN_NS = 20 * US
#: A high task that takes longer is measured fewer times, but not fewer than this.
LEAST_TASKS = 4


class Side(msgspec.Struct, frozen=True):
    """One of the two tasks."""

    name: str
    source: Source
    shapes: dict[str, tuple[int, ...]]


class Parts(msgspec.Struct, frozen=True):
    """Where the time of a high task goes: means over tasks, by the device's records."""

    #: From the launch of its first kernel to its beginning: what it found running.
    first_wait_ns: float = 0.0
    #: The same, of its other kernels together: fillers.
    waits_ns: float = 0.0
    kernels_ns: float = 0.0
    #: Between the end of a kernel and the launch of the next.
    host_ns: float = 0.0


class Window(msgspec.Struct, frozen=True):
    """One mode in one round."""

    mode: str
    #: Times from the beginning of each high task to its end, as its host sees them.
    high_ns: tuple[int, ...]
    #: Time of a low inference: the window by the inferences that it had room for, whole and broken.
    low_ns: float
    #: Longest time that a launch of the high task was in the device's socket and the kernel did not run.
    worst_wait_ns: int
    #: Kernels of the low task that began while such a launch was there.
    overtaken: int
    #: Longest kernel of the low task.
    longest_low_ns: int
    #: Part of the time that the device's thread waited for its core.
    foreign: float
    repeats: int
    parts: Parts = Parts()
    #: Parts of the time that kernels of either task ran.
    high_busy: float = 0.0
    low_busy: float = 0.0
    #: From when the host asked for a launch until it was in the device's socket: usually, and at most.
    on_its_way_ns: int = 0
    longest_on_its_way_ns: int = 0

    @property
    def jct_ns(self) -> float:
        """The median high task."""
        return statistics.median(self.high_ns)

    @property
    def low_bound_ns(self) -> float:
        """Time of a low inference if it had all of the device that the high task leaves, at once and for nothing."""
        return self.low_ns * self.low_busy / max(1e-9, 1 - self.high_busy)


class PairRun(msgspec.Struct, frozen=True):
    """All windows of a pair: one dict by mode for each round."""

    high: str
    low: str
    gap_ns: int
    high_kernels: int
    low_kernels: int
    rounds: list[dict[str, Window]]
    #: What ran in the last window of "ours", for a timeline.
    records: list[KernelRecord]


def measure_pair(
    high: Side,
    low: Side,
    gap_ns: int,
    *,
    rounds: int,
    seconds: float,
    work: bool = False,
    modes: Sequence[str] = tuple(MODES),
    watch: Callable[[float], None] = lambda _done: None,
    note: Callable[[str, Sequence[KernelRecord]], None] = lambda _mode, _records: None,
) -> PairRun:
    """Every mode in every round, about so many seconds each. With `work` the host runs Python in gaps.

    `note` is told the kernels of every window.
    """
    device, hosts = _cores()
    host: Host = partial(_work, gap_ns) if work else partial(time.sleep, gap_ns / SECOND)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, hosts)
    try:
        with (
            Gate(GatePolicy("tasks", learn=True), core=device) as gate,
            _low(gate, low) as ask,
            GateClient(gate.connect()) as client,
        ):
            program = client.open(high.name, high.source, high.shapes)
            for _ in range(PROFILED_RUNS):
                _run_high(client, program, host)
            ask("profile")
            gate.report()
            kernels = len(program.kernels), len(gate.stats[low.name].kernels)
            run = _Run(gate, client, program, ask, host, round(seconds * SECOND), note)
            windows = [run.round(number, modes, rounds, watch) for number in range(rounds)]
            return PairRun(high.name, low.name, gap_ns, *kernels, windows, run.records)
    finally:
        os.sched_setaffinity(0, before)


class _Run:
    """The rounds of one pair."""

    def __init__(
        self,
        gate: Gate,
        client: GateClient,
        program: GateProgram,
        ask: Callable[[str], Any],
        host: Host,
        window_ns: int,
        note: Callable[[str, Sequence[KernelRecord]], None],
    ) -> None:
        self._note = note
        self._gate = gate
        self._client = client
        self._program = program
        self._ask = ask
        self._host = host
        self._window_ns = window_ns
        self._rest_ns = 0
        self.records: list[KernelRecord] = []

    def round(
        self, number: int, modes: Sequence[str], rounds: int, watch: Callable[[float], None]
    ) -> dict[str, Window]:
        """Every mode once; alone comes first, because the rest follows from it."""
        others = [m for m in modes if m != "alone"]
        turn = number % max(1, len(others))
        found: dict[str, Window] = {}
        for mode in ("alone", *others[turn:], *others[:turn]):
            for repeats in range(MOST_REPEATS + 1):
                found[mode] = self._window(mode, repeats)
                if found[mode].foreign <= FOREIGN:
                    break
            watch((number + len(found) / (len(others) + 1)) / rounds)
        return found

    def _window(self, mode: str, repeats: int) -> Window:
        gate, paced = self._gate, mode != "alone"
        gate.set_policy(MODES[mode])
        if mode not in ALONE:
            self._ask("start")
            time.sleep(0.02)
        gate.report()
        delay_ns = gate.run_delay_ns()
        began_ns = time.monotonic_ns()
        high_ns: list[int] = []
        while len(high_ns) < LEAST_TASKS or time.monotonic_ns() < began_ns + self._window_ns:
            if paced:
                time.sleep(self._rest_ns / SECOND)
            high_ns.append(_run_high(self._client, self._program, self._host))
        ended_ns = time.monotonic_ns()
        if not paced:
            self._rest_ns = round(REST * statistics.median(high_ns))
        if mode not in ALONE:
            self._ask("stop")
        foreign = (gate.run_delay_ns() - delay_ns) / (ended_ns - began_ns)
        records = gate.report()
        self._note(mode, records)
        if mode == "ours":
            self.records = records
        return judged(mode, records, tuple(high_ns), began_ns, ended_ns, foreign, repeats)


def judged(
    mode: str,
    records: Sequence[KernelRecord],
    high_ns: tuple[int, ...],
    began_ns: int,
    ended_ns: int,
    foreign: float,
    repeats: int,
) -> Window:
    """What a mode did, by the kernels that ran from `began_ns` to `ended_ns`."""
    high = [r for r in records if r.priority == 1]
    low = [r for r in records if r.priority > 1 and began_ns <= r.begin_ns < ended_ns]
    kernels = 1 + max((r.kernel for r in low), default=0)
    waits_ns = [r.begin_ns - r.ready_ns for r in high]
    low_begins_ns = sorted(r.begin_ns for r in low)
    overtaken = sum(_between(low_begins_ns, r.ready_ns + SEEN_NS, r.begin_ns) for r in high)
    passed_ns = ended_ns - began_ns
    # One kernel more than it had: a task that is never let in has no time, but a bound of it.
    low_ns = passed_ns * kernels / max(1, len(low)) if mode not in ALONE else 0.0
    longest_ns = max((r.end_ns - r.begin_ns for r in low), default=0)
    ways_ns = [r.ready_ns - r.sent_ns for r in high if r.sent_ns >= 0] or [0]
    return Window(
        mode,
        high_ns,
        low_ns,
        max(waits_ns),
        overtaken,
        longest_ns,
        foreign,
        repeats,
        _parts(high),
        _busy_ns(high) / passed_ns,
        _busy_ns(low) / passed_ns,
        round(statistics.median(ways_ns)),
        max(ways_ns),
    )


def _parts(high: Sequence[KernelRecord]) -> Parts:
    tasks: dict[int, list[KernelRecord]] = {}
    for record in high:
        tasks.setdefault(record.task, []).append(record)
    first_ns = sum(own[0].begin_ns - own[0].ready_ns for own in tasks.values())
    waits_ns = sum(r.begin_ns - r.ready_ns for own in tasks.values() for r in own[1:])
    host_ns = sum(b.ready_ns - a.end_ns for own in tasks.values() for a, b in pairwise(own))
    return Parts(*(ns / len(tasks) for ns in (first_ns, waits_ns, _busy_ns(high), host_ns)))


def _busy_ns(records: Sequence[KernelRecord]) -> int:
    return sum(r.end_ns - r.begin_ns for r in records)


def _between(sorted_ns: Sequence[int], after_ns: int, before_ns: int) -> int:
    return sum(after_ns < at_ns < before_ns for at_ns in sorted_ns)


def _work(gap_ns: int) -> None:
    """Python at work for so long."""
    until_ns = time.monotonic_ns() + gap_ns
    while time.monotonic_ns() < until_ns:
        pass


def _run_high(client: GateClient, program: GateProgram, host: Host) -> int:
    """One high task with host work between its kernels; the time it took (ns)."""
    began_ns = time.monotonic_ns()
    task = client.begin(program, priority=1, launch=1)
    for _ in range(1, len(program.kernels)):
        task.wait()
        host()
        task.launch()
    task.wait()
    return time.monotonic_ns() - began_ns


@contextmanager
def _low(gate: Gate, low: Side) -> Iterator[Callable[[str], Any]]:
    """The low task's process; the function asks it to profile itself, to start and to stop."""
    ours, theirs = get_context("spawn").Pipe()
    line = gate.connect()
    process = get_context("spawn").Process(target=_low_process, args=(theirs, line, low), daemon=True)
    process.start()
    theirs.close()

    def ask(what: str) -> Any:
        ours.send(what)
        answer = ours.recv()
        if isinstance(answer, str) and answer.startswith("failed"):
            raise DeviceLost(answer)
        return answer

    try:
        ask("open")
        line.close()  # it has its own by now, and the device shall notice if it dies
        yield ask
    finally:
        ours.close()
        process.join(5)
        process.kill()


def _low_process(orders: Connection, line: socket, low: Side) -> None:
    with GateClient(line) as client:
        try:
            program = client.open(low.name, low.source, low.shapes)
        except Exception as error:
            orders.recv()
            orders.send(f"failed: {error}")
            return
        while True:
            try:
                order = orders.recv()
            except EOFError:
                return
            if order == "profile":
                for _ in range(PROFILED_RUNS):
                    client.run(program, priority=2)
            orders.send("done")
            if order == "start":
                with suppress(TaskEnded):
                    _run_on(client, program, orders)


def _run_on(client: GateClient, program: GateProgram, orders: Connection) -> None:
    """Inferences one after the other until there is an order, the next of them always launched ahead."""
    kernels = len(program.kernels)
    task = client.begin(program, priority=2, launch=kernels)
    while not orders.poll():
        then = client.begin(program, priority=2, launch=kernels, after=task)
        task.wait()
        task = then
    task.wait()


def _cores() -> tuple[int, set[int]]:
    """The device's core, and the others; the same one if there is no other."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1], set(cores[:-1] or cores)
