"""Random workflows and options, and the slow but obvious answers that the planners are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from dovetail.plan.options import Option
from dovetail.state import Config

Successors = list[list[int]]


def chain(count: int) -> Successors:
    return [[i + 1] for i in range(count - 1)] + [[]]


def random_series_parallel(rng: np.random.Generator, nodes_max: int) -> Successors:
    """A random series-parallel order with several entries and exits, nested forks, and edges that skip."""
    edges: list[tuple[int, int]] = []
    count = 0

    def grow(room: int, depth: int) -> tuple[list[int], list[int], int]:
        """Entries, exits and size of a part of at most `room` nodes."""
        nonlocal count
        kind = "leaf" if room == 1 else rng.choice(["leaf", "series", "parallel"], p=[0.1, 0.5, 0.4])
        if kind == "leaf" or depth > 5:
            count += 1
            return [count - 1], [count - 1], 1
        first_room = int(rng.integers(1, room))
        a_in, a_out, a_size = grow(first_room, depth + 1)
        b_in, b_out, b_size = grow(room - first_room, depth + 1)
        if kind == "series":
            edges.extend((a, b) for a in a_out for b in b_in)
            return a_in, b_out, a_size + b_size
        return a_in + b_in, a_out + b_out, a_size + b_size

    grow(int(rng.integers(1, nodes_max + 1)), 0)
    successors: Successors = [[] for _ in range(count)]
    for a, b in edges:
        successors[a].append(b)
    return with_skips(rng, renumbered(rng, successors))


def renumbered(rng: np.random.Generator, successors: Successors) -> Successors:
    """The same graph with its nodes in another topological order."""
    waiting = [sum(node in row for row in successors) for node in range(len(successors))]
    ready = [node for node, n in enumerate(waiting) if n == 0]
    number: dict[int, int] = {}
    while ready:
        node = ready.pop(int(rng.integers(len(ready))))
        number[node] = len(number)
        for follower in successors[node]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    turned: Successors = [[] for _ in successors]
    for node, row in enumerate(successors):
        turned[number[node]] = sorted(number[follower] for follower in row)
    return turned


def with_skips(rng: np.random.Generator, successors: Successors) -> Successors:
    """Add a few edges from a node to something that comes after it anyway."""
    after: list[set[int]] = [set() for _ in successors]
    for node in range(len(successors) - 1, -1, -1):
        for follower in successors[node]:
            after[node] |= {follower} | after[follower]
    return [
        sorted({*row, *(f for f in sorted(after[node]) if rng.random() < 0.2)}) for node, row in enumerate(successors)
    ]


@st.composite
def dags(draw: st.DrawFn, nodes_max: int = 9) -> Successors:
    """Any graph at all: series-parallel or not, connected or not."""
    count = draw(st.integers(1, nodes_max))
    density = draw(st.sampled_from([1, 2, 4]))  # one edge in so many
    return [[j for j in range(i + 1, count) if draw(st.integers(1, density)) == 1] for i in range(count)]


@st.composite
def series_parallels(draw: st.DrawFn, nodes_max: int = 10) -> Successors:
    return random_series_parallel(np.random.default_rng(draw(st.integers(0, 2**32))), nodes_max)


def predecessors_of(successors: Sequence[Sequence[int]]) -> Successors:
    before: Successors = [[] for _ in successors]
    for node, row in enumerate(successors):
        for follower in row:
            before[follower].append(node)
    return before


def paths(successors: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Every way from an entry to an exit."""
    before = predecessors_of(successors)

    def onwards(path: list[int]) -> Iterator[list[int]]:
        if not successors[path[-1]]:
            yield path
        for follower in successors[path[-1]]:
            yield from onwards([*path, follower])

    for node in range(len(successors)):
        if not before[node]:
            yield from onwards([node])


def finish(
    successors: Sequence[Sequence[int]], times: npt.NDArray[np.float64] | npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """When everything is done, per row of `times` (one column per node)."""
    before = predecessors_of(successors)
    done = np.zeros_like(times, dtype=np.float64)
    for node in range(len(successors)):
        ready = done[:, before[node]].max(axis=1) if before[node] else 0
        done[:, node] = ready + times[:, node]
    return done.max(axis=1)


def option(time_ns: int, cost_usd: float, batch: int = 1, spread: float = 0.0) -> Option:
    return Option(Config(batch, 1, 100), time_ns, spread, cost_usd)


def random_options(
    rng: np.random.Generator, count: int, *, time_max: int = 1000, whole_costs: bool = False, spread: float = 0.0
) -> list[Option]:
    """Options of batch 1 to 8. Whole costs and short times make many ties, and sums that are exact."""
    rows: list[Option] = []
    for _ in range(count):
        cost = float(rng.integers(1, 8)) if whole_costs else float(rng.uniform(0.5, 4))
        wide = spread * rng.uniform(0.2, 1)
        rows.append(option(int(rng.integers(1, time_max)), cost, int(2 ** rng.integers(0, 4)), wide))
    return rows


class Everything:
    """All ways to choose one option per node, with time and cost of each."""

    def __init__(self, successors: Sequence[Sequence[int]], options: Sequence[Sequence[Option]]) -> None:
        sizes = [len(row) for row in options]
        self.options = options
        self.picks = np.indices(sizes).reshape(len(sizes), -1).T
        columns = range(len(sizes))
        self.times = np.stack([self._column(j, "mean_ns") for j in columns], axis=1)
        self.deviations = self.times * np.stack([self._column(j, "spread") for j in columns], axis=1)
        self.cost = np.sum([self._column(j, "cost_usd") for j in columns], axis=0)
        self.time = finish(successors, self.times)

    def _column(self, node: int, field: str) -> npt.NDArray[np.float64]:
        return np.array([getattr(o, field) for o in self.options[node]], np.float64)[self.picks[:, node]]

    def legal(self, node: int, batch_max: int) -> npt.NDArray[np.bool_]:
        """Which ways have at most that batch at the node."""
        return np.array([o.config.batch for o in self.options[node]])[self.picks[:, node]] <= batch_max

    def cheapest(self, budget_ns: float, time: npt.NDArray[np.float64] | None = None) -> float:
        """Least cost within a budget; infinite if nothing is in time."""
        in_time = (self.time if time is None else time) <= budget_ns
        return float(self.cost[in_time].min()) if in_time.any() else float("inf")

    def percentile(self, successors: Sequence[Sequence[int]], z: float) -> npt.NDArray[np.float64]:
        """Per way, Σm + z√Σv of its slowest path."""
        slowest = np.zeros(len(self.picks))
        for path in paths(successors):
            mean, variance = self.times[:, path].sum(axis=1), (self.deviations[:, path] ** 2).sum(axis=1)
            slowest = np.maximum(slowest, mean + z * np.sqrt(variance))
        return slowest
