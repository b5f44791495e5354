"""What is speed worth in a workflow with forks? The tables of `chance`, for graphs of any shape.

A node of a chain knows all that is to come from the time that is left. A node of a graph does not: a join begins when
the last of its sources ends, and the others are decided by themselves. Here they are taken to be on plan:

    W(left when this ends) = E[cost of all that follows + price if late], the others ending as they usually do
    V(left) = min over configurations of  cost + E[ W(left − time) ]

How the others usually end follows from the tables themselves: a request that comes with all its time is followed
through the graph, and the tables are made again with what was found, a few times.

Rules of this file
- At first nobody else is taken to be late, so every way counts as the longest one. `ROUNDS` is how often that is
  corrected.
- Up to the node that every way passes (the immediate post-dominator) all ways are followed side by side, each given
  the same end of this node; behind it, its own table says all. Sources of a join count as independent of each other
  where they are not, which never makes a request look earlier: times of ways that share nodes are associated
  (`quantile`).
- The others are taken to be in time so far: where they are not, nothing that this node does matters. Without that,
  all would give up because all the others do.
- A branch that ends before others gains nothing by speed, and the tables see that. One that others wait for pays.
- In a chain the tables are those of `chance` but for the length of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from .chance import Chances, Chosen, Floats, Law
from .dominators import immediate_post_dominators
from .stepwise import Steps

__all__ = ["ROUNDS", "GraphChances", "steps_for"]

#: How often the usual ends of the others are corrected. Once was too few: one graph that was tuned on became 0.8 %
#: dearer. More than twice was not tried with these settings. [our choice]
ROUNDS = 2
#: Steps in which the time left is counted: fewer than in chains, since all ways are followed from each of them.
_STEPS, _STEPS_OF_MANY, _MANY = 256, 128, 12

#: Multiplications up to which one thread makes a product [OpenBLAS, interface/gemm.c: 4 × 65,536], and rows of it
#: that are made at once at most.
_ONE_THREAD, _ROWS = 4 * 65_536, 32


def steps_for(nodes: int) -> int:
    """Steps for a graph of so many nodes."""
    return _STEPS if nodes <= _MANY else _STEPS_OF_MANY


class GraphChances(Chances):
    """The tables of one graph for one price of being late."""

    def __init__(
        self,
        successors: Sequence[Sequence[int]],
        laws: Sequence[Mapping[int, Sequence[Law]]],
        fills: Sequence[Mapping[int, int]],
        step_ns: int,
        late_usd: float,
        *,
        like: GraphChances | None = None,
        rounds: int = ROUNDS,
    ) -> None:
        """`like` are tables of the same graph for another price: the others end as they do there, to begin with."""
        self._begin(steps_for(len(laws)), step_ns, late_usd)
        self._laws, self._fills = laws, fills
        count = len(laws)
        self._after = [list(row) for row in successors]
        self._before: list[list[int]] = [[] for _ in range(count + 1)]
        for node, followers in enumerate(successors):
            for follower in followers or (count,):
                self._before[follower].append(node)
        self._joins = immediate_post_dominators(successors)[:count]
        #: Per node P(left >= place) at its end, if the request came with all its time and has some left then.
        self._usual: list[Floats] = like._usual if like is not None else [np.ones(self._steps + 1)] * count
        self._rounds = rounds if like is not None else rounds + 1

    def make(self) -> Steps[GraphChances]:
        """Make the tables, round by round."""
        count = len(self._laws)
        value, late = self._at_end()
        for _ in range(self._rounds):
            self._values: list[Floats] = [value] * (count + 1)
            self._lates: list[Floats] = [late] * (count + 1)
            self._moves: list[Floats] = [value] * count
            self._costs: list[Floats] = [value] * count
            for node in range(count - 1, -1, -1):
                yield from self._tabulate(node, self._laws[node], self._fills[node])
            yield from self._follow()
        return self

    def _tabulate(self, node: int, laws: Mapping[int, Sequence[Law]], fills: Mapping[int, int]) -> Steps[None]:
        """Decide the node for every time left, and remember what that makes of the time and of the cost."""
        value, late = yield from self._follows(node)
        self._values[node], self._lates[node], chosen = yield from self._decide(node, laws, fills, value, late)
        yield from self._remember(node, chosen)

    def _remember(self, node: int, chosen: Sequence[Chosen]) -> Steps[None]:
        places = self._steps + 1
        moves, costs = np.zeros((places, places)), np.zeros(places)
        for law, fill, rows in chosen:
            costs[rows] = law.cost_usd
            law.spread_out(moves, rows, fill)
            yield
        self._moves[node], self._costs[node] = moves, costs

    def follow(self, chosen: Sequence[Sequence[tuple[Law, Sequence[int]]]]) -> Steps[None]:
        """Instead of `make`: somebody else has decided, node by node, in which places each law is taken."""
        value, late = self._at_end()
        self._lates = [late] * (len(chosen) + 1)
        self._moves, self._costs = [value] * len(chosen), [value] * len(chosen)
        for node, laws in enumerate(chosen):
            yield from self._remember(node, [(law, 0, np.array(rows, np.int64)) for law, rows in laws])
        yield from self._follow()

    def _follows(self, node: int) -> Steps[tuple[Floats, Floats]]:
        """By time left at the node's end: expected cost of all that follows, being late included; chance of that."""
        join = self._joins[node]
        if self._before[join] == [node]:
            return self._values[join], self._lates[join]
        places = self._steps + 1
        #: Node -> P(left >= place at its end) for each time left at the end of `node`.
        ends: dict[int, Floats] = {node: np.tri(places)}
        cost = np.zeros(places)
        for other in self._between(node, join):
            begins = _exactly(self._tail(other, ends))
            cost = cost + _mean(begins, self._costs[other])
            yield
            product = yield from _times(begins, self._moves[other])
            ends[other] = _at_least(product)
        begins = _exactly(self._tail(join, ends))
        return cost + _mean(begins, self._values[join]), _mean(begins, self._lates[join])

    def _between(self, node: int, join: int) -> list[int]:
        """Nodes on the ways from one to the other, without both, in order."""
        found: set[int] = set()
        stack = [node]
        while stack:
            for follower in self._after[stack.pop()]:
                if follower != join and follower not in found:
                    found.add(follower)
                    stack.append(follower)
        return sorted(found)

    def _tail(self, node: int, ends: Mapping[int, Floats]) -> Floats:
        """P(left >= place) when the node begins: all its sources have ended, as given or else as usual."""
        tail = np.ones((self._steps + 1, self._steps + 1))
        for source in self._before[node]:
            tail = tail * ends[source] if source in ends else tail * self._usual[source]
        return tail

    def _follow(self) -> Steps[None]:
        """Follow a request that comes with all its time: how each node usually ends, and what it costs in all."""
        usual: list[Floats] = []
        work = 0.0
        for node, sources in enumerate(self._before):
            tail = np.ones(self._steps + 1)
            for source in sources:
                tail = tail * usual[source]
            begins = _exactly(tail[None, :])
            if node == len(self._after):  # after the last
                self.late = float(_mean(begins, self._lates[node])[0])
                break
            work += float(_mean(begins, self._costs[node])[0])
            usual.append(_at_least(np.einsum("ij,jk->ik", begins, self._moves[node]))[0])
            yield
        self._usual = [ends / ends[1] if ends[1] else np.ones(self._steps + 1) for ends in usual]
        for ends in self._usual:
            ends[0] = 1.0
        self.work_usd = work


def _mean(chances: Floats, values: Floats) -> Floats:
    """Per row of chances the mean of the values."""
    means: Floats = np.einsum("ij,j->i", chances, values)
    return means


def _times(chances: Floats, moves: Floats) -> Steps[Floats]:
    """The product of both, which have nothing above the diagonal: time left only shrinks.

    It is made a few rows at a time, so that one thread makes it. A library that shares such a product among threads
    takes ten times as long on cores that are busy, and another number of threads adds up in another order.
    """
    product = np.zeros_like(chances)
    begin, places = 0, len(chances)
    while begin < places:
        end = min(places, begin + max(1, _ONE_THREAD // (min(places, begin + _ROWS) ** 2)))
        end = min(end, begin + _ROWS)
        product[begin:end, :end] = chances[begin:end, :end] @ moves[:end, :end]
        begin = end
        yield
    return product


def _at_least(exactly: Floats) -> Floats:
    """Per row, chances of at least so much out of chances of exactly so much."""
    return np.ascontiguousarray(np.cumsum(exactly[:, ::-1], axis=1)[:, ::-1])


def _exactly(at_least: Floats) -> Floats:
    """The other way round."""
    exactly = at_least.copy()
    exactly[:, :-1] -= at_least[:, 1:]
    return exactly
