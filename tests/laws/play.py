"""A hostile world for the controller: whatever may happen happens, in any order, and its books are checked each time.

It knows nothing of the controller's insides beside `validate`. From events and actions alone it keeps a second set of
books: who was answered how often, what runs where, how much of each device and of its memory is taken.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import cycle

from tests.laws.recipes import Lengths, counts_of, input_counts

from dovetail.control import (
    Action,
    BatchFailed,
    BatchFinished,
    Drained,
    DrainStarted,
    Event,
    EvictModel,
    LoadFailed,
    LoadModel,
    ModelEvicted,
    ModelLoaded,
    PeerStateReceived,
    Reject,
    Reply,
    RequestArrived,
    RequestCancelled,
    RequestRefused,
    RunBatch,
    SetTimer,
    TimerFired,
    WorkerJoined,
    WorkerLost,
)
from dovetail.control.validate import validate
from dovetail.profile.table import Entry, Point
from dovetail.state import WorkerRow, WorkerSpec
from dovetail.units import MS
from dovetail.wiring import PolicySpec, find_policy, make_controller
from dovetail.workflow.graph import Graph

KIND = "cpu"
CORES = 8
#: Priorities of requests go from 1 (and 0, which means the workflow's) to this.
CLASSES = 3
REASONS = ("error", "too_late", "not_loaded", "no_share", "no_memory")
#: A play that does not end by then will never.
MAX_STEPS = 20_000


#: Of a stage: milliseconds on one core, and how much of each doubling of the cores is lost, in per cent.
Pace = tuple[int, int]


def entries_of(graphs: Sequence[Graph], paces: Sequence[Pace]) -> list[Entry]:
    """Profiles of all stages, whose paces take turns; a batch of four takes twice as long as one item.

    So speed costs more than it saves, and how much of it is worth its price depends on the time that is left.
    """
    names = dict.fromkeys(s.name for g in graphs for s in g.stages)
    entries = []
    for name, (alone_ms, lost_pct) in zip(names, cycle(paces), strict=False):
        gain = 2 * (1 - lost_pct / 200)
        times = {2**i: int(alone_ms * MS / gain**i) for i in range(CORES.bit_length())}
        points = [
            Point(batch, c, ns * factor, 0.1, 1) for batch, factor in ((1, 1), (4, 2)) for c, ns in times.items()
        ]
        entries.append(Entry(name, KIND, points=tuple(points), spread=0.1))
    return entries


class Play:
    """Feeds one controller, and keeps the second set of books."""

    def __init__(self, graphs: Sequence[Graph], policy: PolicySpec | None = None, *paces: Pace) -> None:
        self.graphs = graphs
        self.policy = policy or PolicySpec()
        entries = entries_of(graphs, paces or ((12, 50),))
        self.controller = make_controller(graphs, self.policy, entries, cores=CORES)
        self.now_ns = 0
        self.events: list[Event] = []
        self.actions: list[list[Action]] = []
        self.given: dict[int, tuple[int, Lengths]] = {}
        self.routed = find_policy(self.policy.name).whole
        #: Workers that keep queues.
        self.keeping: set[int] = set()
        #: Request -> every answer that it got.
        self.answers: dict[int, list[Reply | Reject]] = defaultdict(list)
        self.running: dict[int, RunBatch] = {}
        self.loading: list[LoadModel] = []
        self.timers: dict[int, int] = {}
        self.budgets: dict[int, int] = {}
        self.held: dict[int, dict[str, int]] = {}
        self.last_worker = 0
        #: Shares that a worker may have been sent at once.
        self.limits_pct: dict[int, int] = {}
        #: Batches that were sent to a worker that had to fetch their model: others could run there meanwhile.
        self.fetched: set[int] = set()
        self.drains = 0
        #: Request -> node -> items that were finished.
        self.done: dict[int, Counter[int]] = defaultdict(Counter)
        self.weights = {s.name: s.weights_bytes for g in graphs for s in g.stages}

    # -- what may happen --------------------------------------------------------------------------------------

    def arrive(
        self, graph: int, given: Lengths, *, priority: int = 0, patience_ns: int = 0, within_ns: int = 0
    ) -> int:
        """A new request, with an objective of its own or (0) its workflow's; its number."""
        ident = len(self.given) + 1
        self.given[ident] = (graph, given)
        deadline_ns = self.now_ns + patience_ns if patience_ns else 0
        objective_ns = self.now_ns + within_ns if within_ns else 0
        counts = input_counts(self.graphs[graph], given)
        self._step(RequestArrived(self.now_ns, 0, ident, graph, priority, objective_ns, deadline_ns, counts))
        return ident

    def refuse(self, graph: int, priority: int = 0) -> None:
        """The front has no room for one more."""
        ident = len(self.given) + 1
        self.given[ident] = (graph, {})
        self._step(RequestRefused(self.now_ns, 0, ident, graph, priority, "no room", MS))

    def cancel(self, request: int) -> None:
        """A client gives up, perhaps one that was answered long ago."""
        self._step(RequestCancelled(self.now_ns, 0, request))

    def finish(self, batch: int) -> None:
        """A batch is done."""
        action = self.running.pop(batch)
        counts: list[int] = []
        for request, node, _ in action.items:
            graph, given = self.given[request]
            counts += counts_of(self.graphs[graph], node, given)
            self.done[request][node] += 1
        self._step(BatchFinished(self.now_ns, action.cause, batch, self.now_ns, self.now_ns, tuple(counts)))

    def fail(self, batch: int, reason: str) -> None:
        """A batch could not be run."""
        action = self.running.pop(batch)
        self._step(BatchFailed(self.now_ns, action.cause, batch, self.now_ns, self.now_ns, reason, "on purpose"))

    def load(self, which: int, *, fails: bool = False) -> None:
        """A model has been loaded, or not."""
        action = self.loading.pop(which)
        if fails:
            self._step(LoadFailed(self.now_ns, action.cause, action.worker, action.stage, "on purpose"))
            return
        nbytes = self.weights[action.stage]
        if action.worker in self.held:
            self.held[action.worker][action.stage] = nbytes
        self._step(ModelLoaded(self.now_ns, action.cause, action.worker, action.stage, nbytes))

    def join(self, memory_bytes: int = 0, *, preempts: bool = False) -> int:
        """A worker joins; its number. Where work is sent ahead it keeps a queue, and a host worker comes with it."""
        if self.routed:
            self._join(("python",), 0, False)
        return self._join(("model",), memory_bytes, self.routed, preempts and not self.routed)

    def _join(self, runs: tuple[str, ...], memory_bytes: int, keeps_queue: bool, preempts: bool = False) -> int:
        self.last_worker += 1
        self.held[self.last_worker] = {}
        self.budgets[self.last_worker] = memory_bytes
        if keeps_queue:
            self.keeping.add(self.last_worker)
        spec = WorkerSpec(
            f"w{self.last_worker}",
            KIND,
            runs,
            cores=CORES,
            memory_bytes=memory_bytes,
            usd_per_hour=3.6,
            preempts=preempts,
        )
        # One batch ahead for each that runs, and where a higher class is let in, so for each class.
        self.limits_pct[self.last_worker] = 100 * (1 + (self.policy.lead_us > 0)) * (CLASSES if preempts else 1)
        self._step(WorkerJoined(self.now_ns, 0, self.last_worker, spec))
        return self.last_worker

    def evict(self, worker: int, stage: str) -> None:
        """A worker that keeps its own memory lets a model go."""
        nbytes = self.held[worker].pop(stage)
        weights = next(s.weights for g in self.graphs for s in g.stages if s.name == stage)
        self._step(ModelEvicted(self.now_ns, 0, worker, weights, nbytes, "on purpose"))

    def tell(self, worker: int, wait_ns: int, age_ns: int) -> None:
        """The state table says something of a worker, true or not, perhaps long out of date."""
        at_ns = max(0, self.now_ns - age_ns)
        resident = tuple(self.held.get(worker, {}))
        row = WorkerRow(worker, at_ns, wait_ns, at_ns + wait_ns, resident, self.budgets.get(worker, 0))
        self._step(PeerStateReceived(self.now_ns, 0, (row,)))

    def lose(self, worker: int) -> None:
        """A worker is gone with all that it had."""
        del self.held[worker]
        self.running = {ident: batch for ident, batch in self.running.items() if batch.worker != worker}
        self._step(WorkerLost(self.now_ns, 0, worker, "on purpose"))

    def drain(self) -> None:
        """Nothing new is taken any more."""
        self._step(DrainStarted(self.now_ns, 0))

    def wait(self, until_ns: int, late_ns: int = 0) -> None:
        """Time passes; timers that come due are told, perhaps late, as a real clock does."""
        while self.timers:
            timer, at_ns = min(self.timers.items(), key=lambda entry: (entry[1], entry[0]))
            if at_ns > until_ns:
                break
            del self.timers[timer]
            self.now_ns = max(self.now_ns, min(at_ns + late_ns, until_ns))
            self._step(TimerFired(self.now_ns, 0, timer))
        self.now_ns = max(self.now_ns, until_ns)

    def end(self) -> None:
        """Let everything that is open come to its end, with a worker that can run all of it."""
        self.join()
        for _ in range(MAX_STEPS):
            if self.loading:
                self.load(0)
            elif self.running:
                self.now_ns += MS
                self.finish(next(iter(self.running)))
            elif self.timers:
                self.wait(min(self.timers.values()))
            else:
                return
        raise AssertionError("it does not come to an end")

    # -- the second set of books ------------------------------------------------------------------------------

    def _step(self, event: Event) -> None:
        actions = self.controller.step(event)
        self.events.append(event)
        self.actions.append(actions)
        for action in actions:
            assert action.cause == len(self.events)
            if isinstance(action, Reply | Reject):
                self.answers[action.request].append(action)
            elif isinstance(action, RunBatch):
                assert action.worker in self.held, "a batch for a worker that is not there"
                loaded = self._brings(action.worker) or action.stage in self.held[action.worker]
                assert loaded, "a batch for a worker without its model"
                self.running[action.batch] = action
            elif isinstance(action, LoadModel):
                self.loading.append(action)
            elif isinstance(action, EvictModel):
                used = [b for b in self.running.values() if (b.worker, b.stage) == (action.worker, action.stage)]
                assert not used, "a model in use is evicted"
                del self.held[action.worker][action.stage]
            elif isinstance(action, SetTimer):
                assert action.at_ns >= self.now_ns, "a timer in the past"
                self.timers[action.timer] = action.at_ns
            elif isinstance(action, Drained):
                self.drains += 1
        self._check_devices()
        validate(self.controller)

    def _brings(self, worker: int) -> bool:
        """Whether the worker brings models itself: it is sent work ahead, or its models do not fit together."""
        return self.controller.workers[worker].swaps

    def _check_devices(self) -> None:
        shares: Counter[int] = Counter()
        items: Counter[tuple[int, int, int]] = Counter()
        fetching: Counter[int] = Counter()
        for batch in self.running.values():
            fetches = self.controller.batches[batch.batch].fetches
            fetching[batch.worker] += fetches
            self.fetched.update([batch.batch] * fetches)
            counts = batch.worker not in self.keeping and batch.batch not in self.fetched
            shares[batch.worker] += batch.share_pct if counts else 0
            for item in batch.items:
                items[item] += not self.answers[item[0]]
        assert all(share <= self.limits_pct[worker] for worker, share in shares.items()), f"shares {dict(shares)}"
        assert all(count <= 2 for count in fetching.values()), f"fetches {dict(fetching)}"
        assert all(times <= 1 for times in items.values()), "an item runs twice at once"
        for worker, held in self.held.items():
            budget = self.budgets[worker]
            kept = self._brings(worker)  # its own business
            assert kept or not budget or sum(held.values()) <= budget, f"worker {worker} holds too much"

    def check_end(self) -> None:
        """Everything has come to its end: nothing is lost, nothing is left."""
        for request in self.given:
            assert len(self.answers[request]) == 1, f"request {request} was answered {self.answers[request]}"
        assert set(self.answers) <= set(self.given), "an answer that nobody asked for"
        c = self.controller
        left = {"requests": c.requests, "batches": c.batches, "timers": c.timers}
        assert not any(left.values()), {name: dict(table) for name, table in left.items()}
        assert not any(queue.size for queue in c.queues.values())


def outcome(answers: Mapping[int, Sequence[Reply | Reject]], request: int) -> str:
    """How the request ended."""
    (answer,) = answers[request]
    return answer.outcome
