"""The default policy whole: what `dovetail` would run (`DovetailPlanner`), where (`place`), as offers.

The planner names configurations for the queue's head, the best first, each with its score (`ranked`). The first that
some worker is ready for, with room and model, is an offer. If the best of all is not ready, the view of the workers
says where it would start first, with fetches and evictions counted, and that is another. The least score wins.

Rules of this file
- An ingress that has its workers to itself binds late; one that shares them binds as soon as work is ready, and
  workers keep the queues (`Where.bind_ns`). Nothing else is different.
- A queue for which nobody is ready waits for a change: more work, more room at somebody who has its model, or time
  that passes. Until then it is told the same without being weighed again.
- Beside others who slow it down a batch may take longer than planned: then the next configuration is tried, or it is
  kept apart from them (`apart`).
- A fetch that nobody can avoid is time that is gone: plans are made for what is left after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

import msgspec

from ..place import Hint, Spot
from ..predict import Predictor
from ..state import Batch, Cluster, CompiledGraph, Config, Item, Queue, Request, Worker, WorkerRow
from ..units import MS
from ..workflow.graph import StageSpec
from .apart import Apart, Verdict
from .dovetail import DovetailPlanner
from .in_slices import slice_offers
from .protocol import Hold, Offer, Refusal
from .quotas import quota_wait_ns
from .ranked import Ranked
from .settings import Goal, PlannerSettings
from .where import Where

__all__ = ["Considered", "Dovetail"]


#: Configurations that are tried for one that is in time beside those who run.
_TRIES: Final = 4
#: A queue that waits for room is weighed again after this time, whatever happens: budgets shrink. [our choice]
_AGAIN_NS = 2 * MS
#: And when it has grown by more than one in so many.
_GROWN = 4


class _Told:
    """What a queue was told that could not start, the configurations that found no room, and in which state."""

    __slots__ = ("configs", "fetchers", "freed", "head", "offers", "size", "until_ns")

    def __init__(
        self,
        offers: Sequence[Offer],
        configs: Sequence[Config],
        head: Item | None,
        size: int,
        freed: int,
        fetchers: bool,
        until_ns: int,
    ) -> None:
        self.offers = offers
        self.configs = configs
        self.head = head
        self.size = size
        self.freed = freed
        self.fetchers = fetchers
        self.until_ns = until_ns


class Considered(msgspec.Struct, frozen=True):
    """What was weighed for a queue's next batch: every offer, the one that was taken first; or why it is held."""

    queue: str
    at_ns: int
    #: Items that waited there.
    waiting: int = 0
    offers: tuple[Offer, ...] = ()
    hold: str = ""
    #: What scores are in (`ranked`): dollars with the goal of cost, nanoseconds per item with the goal of time.
    goal: Goal = "cost"


class Dovetail(DovetailPlanner):
    """The scheduler that users get."""

    def __init__(self, predictor: Predictor, where: Where, settings: PlannerSettings | None = None) -> None:
        super().__init__(predictor, settings)
        self._where = where
        self.bind_ns = where.bind_ns
        self._apart = Apart(predictor, self.latest_ns)
        #: Queue -> what it was told when nothing could start.
        self._told: dict[str, _Told] = {}
        #: (when, number, stage) of queues that are not asked until then, unless the room for them changes before.
        self._until: list[tuple[int, int, str]] = []
        self._dozed = 0
        #: Configurations that found no room when a queue was last weighed.
        self._tried: list[Config] = []
        #: Whether a stage declares a quota.
        self._quotas = False
        #: Told of everything that is considered, for `dovetail explain`; it costs time and changes nothing.
        self.watcher: Callable[[Considered], None] | None = None

    def bind(self, cluster: Cluster) -> None:
        """Remember the cluster."""
        super().bind(cluster)
        self._where.bind(cluster)
        self._quotas = any(queue.stage.sliced for queue in cluster.queues.values())

    def full(self, on_host: bool) -> bool:
        """As the view of the workers says."""
        return self._where.full(on_host)

    def sleeps(self, queue: Queue) -> bool:
        """As the view of the workers says; and a queue that would be told the same until something changes."""
        head, stage, where = queue.head(), queue.stage, self._where
        if head is None:
            return False
        if where.sleeps(stage, head.request.priority):
            return True
        told = self._told.get(queue.key)
        if told is None or told.offers or told.head is not head or told.until_ns <= self._now_ns:
            return False
        if where.changes(stage) != (told.freed, told.fetchers) or not where.dozes(stage):
            return False
        self._dozed += 1
        heappush(self._until, (told.until_ns, self._dozed, stage.name))
        return True

    def closed_to(self, queue: Queue) -> bool:
        """As the view of the workers says."""
        head = queue.head()
        if head is None or queue.stage.name in self._cluster.sliced:
            return False
        return self._where.sleeps(queue.stage, head.request.priority)

    def woken(self) -> Sequence[str]:
        """As the view of the workers says; and those who have waited for long enough to be weighed again."""
        found, until = self._where.woken(), self._until
        if not until or until[0][0] > self._now_ns:
            return found
        due = list(found)
        while until and until[0][0] <= self._now_ns:
            due.append(heappop(until)[2])
        return due

    def offers(self, queue: Queue, now_ns: int) -> Sequence[Offer] | Hold:
        """The best configuration that some worker is ready for; or the best one where it would start first."""
        stage, head = queue.stage, queue.head()
        assert head is not None, "the controller asks for queues with work"
        if stage.name in self._cluster.sliced:
            return self._in_slices(queue, now_ns)
        if self._where.closed_to(stage, head.request.priority):
            return ()
        told = self._told.get(queue.key)
        if told is not None and self._still(told, queue, now_ns):
            return told.offers
        self._tried = []
        offers = self._weigh(queue, head, now_ns)
        if not isinstance(offers, Hold):
            start_ns = offers[0].start_ns - self.bind_ns if offers else now_ns + _AGAIN_NS
            if start_ns > now_ns:
                until_ns = min(start_ns, now_ns + _AGAIN_NS)
                freed, fetchers = self._where.changes(stage)
                tried = self._tried
                self._told[queue.key] = _Told(offers, tried, queue.head(), queue.size, freed, fetchers, until_ns)
        return offers

    def _in_slices(self, queue: Queue, now_ns: int) -> Sequence[Offer]:
        """What its stage declares, or the scaler has given it; where that is no limit, the planner says how much."""
        cluster = self._cluster
        pieces = cluster.slices_with_room(queue.stage.name)
        if not pieces:
            return ()
        planned: Sequence[Ranked] = ()
        if any(not piece.limits for piece in pieces):
            choice = self.choose(queue, now_ns)
            planned = () if isinstance(choice, Hold) else list(choice)
        offers = slice_offers(cluster, queue, self._predictor, planned, now_ns)
        if self.watcher is not None and offers:
            self.watcher(Considered(queue.key, now_ns, queue.size, tuple(offers), goal="time"))
        return offers

    def _still(self, told: _Told, queue: Queue, now_ns: int) -> bool:
        """Whether nothing has happened since that would change what a queue was told."""
        if now_ns >= told.until_ns or told.head is not queue.head():
            return False
        if queue.size < told.size or (queue.size - told.size) * _GROWN > told.size:
            return False
        where, stage = self._where, queue.stage
        freed, fetchers = where.changes(stage)
        if fetchers != told.fetchers:
            return False
        if freed != told.freed:
            for config in told.configs:
                if where.ready(stage, config, now_ns) is not None:
                    return False
            told.freed = freed
        return True

    def _weigh(self, queue: Queue, head: Item, now_ns: int) -> Sequence[Offer] | Hold:
        choice = self.choose(queue, now_ns)
        if isinstance(choice, Hold):
            if self.watcher is not None:
                self.watcher(Considered(queue.key, now_ns, queue.size, hold=choice.reason))
            return choice
        choice = choice if self.watcher is None else list(choice)
        best = self._best(queue, head, choice, now_ns)
        if isinstance(best, Hold):
            if self.watcher is not None:
                self.watcher(Considered(queue.key, now_ns, queue.size, hold=best.reason))
            return best
        if self.watcher is not None and best is not None:
            others = self._others(queue, head, choice, best, now_ns)
            self.watcher(Considered(queue.key, now_ns, queue.size, (best, *others), goal=self._settings.goal))
        return () if best is None else (best,)

    def _best(self, queue: Queue, head: Item, choice: Iterable[Ranked], now_ns: int) -> Offer | Hold | None:
        """The best that somebody is ready for, or the best of all where it would start first: the least score wins.

        Where nothing is paid for, nobody waits while somebody is ready. What would be late beside those who run on a
        worker is passed over for the next, a few times.
        """
        where = self._where
        firsts: dict[str, Ranked] = {}  # of each kind of device
        best: Offer | None = None
        late: list[Offer] = []
        for ranked in choice:
            spot = where.ready(queue.stage, ranked.config, now_ns)
            if spot is not None:
                verdict = self._beside(queue, head, ranked.config, spot.worker, now_ns)
                if isinstance(verdict, Hold):
                    return verdict
                offer = self._offer(queue, ranked, spot, now_ns)
                if verdict:
                    best = offer
                    break
                late.append(offer)
                if len(late) == _TRIES:
                    break
                continue
            self._tried.append(ranked.config)
            firsts.setdefault(ranked.config.kind, ranked)
        if best is None and late:
            return late[0]
        ready = best is not None
        for first in firsts.values():
            scored = self.score_later(first, 0) is not None
            if ready and not scored:
                break
            spot = where.spot(queue, head, first.config, now_ns)
            if spot is None:
                continue
            later = self._offer(queue, first, spot, now_ns)
            if best is None or (later.score < best.score if scored else self._sooner(queue, later, best)):
                best = later
        return best

    def _sooner(self, queue: Queue, offer: Offer, other: Offer) -> bool:
        """Whether one offer should end before another."""

        def end_ns(of: Offer) -> int:
            run_ns = self._predictor.run(queue.stage, of.worker.spec.kind, of.config.batch, of.config).mean_ns
            return of.start_ns + of.fetch_ns + run_ns

        return end_ns(offer) < end_ns(other)

    def _beside(self, queue: Queue, head: Item, config: Config, worker: Worker, now_ns: int) -> Verdict:
        """Whether a batch should begin beside those who run on a worker."""
        if not worker.running or not self._predictor.felt(worker.spec.kind):
            return True
        end_by_ns = self.end_by_ns(head)
        return self._apart.judge(queue, config, worker, end_by_ns, head.request.priority, now_ns)

    def end_by_ns(self, item: Item) -> int:
        """When the batch of an item has to end for its request to be in time."""
        plan = self._plans.made.get(item.request.graph.name)
        return item.request.objective_ns - (0 if plan is None else plan.after_ns[item.node])

    def latest_ns(self, batch: Batch) -> int:
        """The same for all requests of a batch."""
        return min([self.end_by_ns(item) for item in batch.items])

    def _others(
        self, queue: Queue, head: Item, choice: Iterable[Ranked], best: Offer, now_ns: int
    ) -> Sequence[Offer]:
        """All other configurations as offers, for whoever watches, the least score first."""
        found = []
        for ranked in {ranked.config: ranked for ranked in choice}.values():
            spot = self._where.ready(queue.stage, ranked.config, now_ns)
            if spot is None:
                spot = self._where.spot(queue, head, ranked.config, now_ns)
            if spot is not None and ranked.config != best.config:
                found.append(self._offer(queue, ranked, spot, now_ns))
        return sorted(found, key=lambda offer: (offer.start_ns, offer.score))

    def _offer(self, queue: Queue, ranked: Ranked, spot: Spot, now_ns: int) -> Offer:
        config, run_ns = ranked.config, 0
        if self.watcher is not None:
            kind = spot.worker.spec.kind
            run_ns = self._predictor.run(queue.stage, kind, min(config.batch, queue.size), config).mean_ns
        return Offer(
            spot.worker,
            config,
            spot.start_ns,
            spot.reason,
            spot.order,
            spot.accept_ns,
            run_ns,
            spot.fetch_ns,
            spot.beside,
            self._score(queue, ranked, spot, now_ns),
        )

    def _score(self, queue: Queue, ranked: Ranked, spot: Spot, now_ns: int) -> float:
        """As named if it starts now; what it waits for and fetches is time that is gone, an eviction others' loss."""
        later_ns = max(0, spot.start_ns - now_ns)
        if ranked.config.kind and later_ns:
            # Another kind of device would do it now. Waits may be in vain, and then there has to be time for that.
            later_ns = 2 * later_ns + spot.behind_ns
        if spot.fetch_ns:
            later_ns += spot.fetch_ns - self._where.fetch_ns(queue.stage)  # what nobody can avoid is counted already
        if not later_ns and not spot.toll_ns:
            return ranked.score
        score = self.score_later(ranked, later_ns)
        if score is None:
            return ranked.score
        return score + spot.toll_ns * spot.worker.usd_per_ns(ranked.config)

    def fetch_ns(self, stage: StageSpec) -> int:
        """What its model takes to be fetched, if nobody has it."""
        return self._where.fetch_ns(stage)

    # -- what the view of the workers has to know -----------------------------------------------------------------

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """Models that should be fetched for it."""
        return self._where.hints(request, now_ns)

    def admit(self, graph: CompiledGraph, priority: int, objective_ns: int, now_ns: int) -> Refusal | None:
        """As the planner says; what nobody can avoid is counted: fetches, queues at workers, and waits for quotas."""
        where = self._where
        fetch_ns = queue_ns = 0
        for node in graph.nodes:
            fetch_ns += where.fetch_ns(node.stage)
        for node in graph.entries:
            queue_ns = max(queue_ns, where.wait_ns(node.stage, now_ns))
        if self._quotas and (plan := self._plans.made.get(graph.name)) is not None and plan.familiar:
            own_ns = quota_wait_ns(self._cluster, graph, plan.least_work, priority, limits=self._settings.limits)
            queue_ns = max(queue_ns, own_ns)
        return self.judge(graph, priority, objective_ns, now_ns, fetch_ns, queue_ns)

    def started(self, batch: Batch, now_ns: int) -> None:
        """A batch is on its way."""
        self._where.started(batch, now_ns)
        self.began(batch)

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """A batch has ended."""
        self._where.ended(batch, now_ns, done)
        self.returned(batch)
        if done:
            self.finished(batch, now_ns)

    def closed(self, request: Request) -> None:
        """A request has ended."""
        self._where.closed(request)
        super().closed(request)

    def joined(self, worker: Worker) -> None:
        """A worker is there."""
        self._where.joined(worker)

    def lost(self, worker: Worker) -> None:
        """A worker is gone."""
        self._where.lost(worker)

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:
        """A model has come or gone."""
        self._where.holds(worker, weights, here, now_ns)

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """The state table has news."""
        self._where.heard(rows, now_ns)
