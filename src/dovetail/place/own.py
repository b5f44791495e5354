"""Workers that this ingress has to itself: it knows what is free, so a batch is bound when there is room for it.

Where models do not all fit (`Worker.swaps`), memory is part of the choice. Each way to start a batch is scored by
when it would start and by what it takes from others:

    holds the model, has room now        now
    holds the model, will have room      when it should have room
    is fetching the model                when it should be there
    must fetch                           load, or when there is room if that is later, and a toll if another model
                                         has to go for it

Rules of this file
- A fetch runs beside batches (`OwnSettings.beside`), so it does not wait for room: it begins early enough to be over
  when there is room, and who waits for it takes none. Where batches are bound only when there is room, it begins
  then. Where a load takes a core from batches, it is part of its batch, and has room only where that has.
- A worker is asked for few fetches at a time, and for one of each model. A model that is on its way somewhere is
  waited for, unless so many wait that another fetch is sooner for the last of them.
- A fetch that evicts is charged to others by `toll_pct` of its load: the evicted model will be fetched again.
- Workers are found by index (`rooms`); nothing here looks at all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..predict import Predictor
from ..state import NEVER_NS, Batch, Cluster, Config, Item, Queue, Request, Worker, WorkerRow
from ..state.worker import FULL_SHARE
from ..workflow.graph import StageSpec
from .company import Company
from .fit import reason_of, taken_bytes
from .rooms import Group, Rooms
from .route import Hint
from .settings import OwnSettings

__all__ = ["OwnWorkers", "Spot"]

#: Workers that could fetch a model which are looked at for free memory.
_LOOKS = 4
#: Models that a worker fetches at a time at most, as far as this ingress asks: as many as it loads side by side.
_FETCHES = 2
FETCHES = "fetches it first"
#: Any room at all.
_ANYTHING = Config(1, 0, 1)


class Spot(msgspec.Struct, frozen=True, gc=False):
    """Where a batch could run, and from when on."""

    worker: Worker
    start_ns: int
    fetch_ns: int = 0
    reason: str = ""
    order: int = 0
    accept_ns: int = 0
    #: Others run there while its model is fetched.
    beside: bool = False
    #: What an eviction for it costs others, in time of the worker.
    toll_ns: int = 0
    #: How much longer the last of its queue would wait for such workers than the first.
    behind_ns: int = 0


class _Fetch(msgspec.Struct, frozen=True, gc=False):
    """A worker that could fetch a model: when it has room, what the load takes, and what that costs others."""

    worker: Worker
    room_ns: int
    load_ns: int
    toll_ns: int


class OwnWorkers:
    """Answers where, for an ingress that shares its workers with nobody."""

    def __init__(self, predictor: Predictor, settings: OwnSettings | None = None, *, bind_ns: int = 0) -> None:
        self._predictor = predictor
        self._company = Company(predictor)
        self._settings = settings or OwnSettings()
        self.bind_ns = bind_ns
        self._early = bind_ns > 0
        #: All devices, and all host processes.
        self._rooms = (Rooms(), Rooms())
        #: Stage -> workers that have its model, and swapping workers that could fetch it.
        self._have: dict[str, Group] = {}
        self._could: dict[str, Group] = {}
        #: Weights -> workers that are fetching them, and when they should be there.
        self._coming: dict[str, dict[int, int]] = {}
        #: Stage -> how often its holders have come to have more room, or have become more.
        self._freed: dict[str, int] = {}
        #: Weights of stages that wait for room: only of those it has to be known that somebody has more.
        self._asked: dict[str, None] = {}
        #: Stages whose queues are not asked, and those of them for which somebody may have room again.
        self._asleep: dict[str, None] = {}
        self._woken: list[str] = []
        #: Those of them for which nobody has enough room, and whether others had any to fetch the model.
        self._dozing: dict[str, tuple[Group, bool]] = {}
        #: Worker -> memory that models take there, until something about it changes.
        self._taken_bytes: dict[int, int] = {}
        self._stages: dict[str, StageSpec] = {}
        #: Weights -> stages that run on them.
        self._users: dict[str, list[str]] = {}
        self._swapping = 0
        #: Weights -> when a copy was last asked for.
        self._copied_ns: dict[str, int] = {}

    def bind(self, cluster: Cluster) -> None:
        """Whose workers they are."""
        self._cluster = cluster
        for queue in cluster.queues.values():
            stage = queue.stage
            if stage.name not in self._stages:
                self._stages[stage.name] = stage
                self._users.setdefault(stage.weights, []).append(stage.name)
                self._coming[stage.weights] = {}
                self._freed[stage.name] = 0
                self._have[stage.name] = Group(self._rooms[stage.on_host])
                self._could[stage.name] = Group(self._rooms[stage.on_host])

    # -- what is known ------------------------------------------------------------------------------------------

    def joined(self, worker: Worker) -> None:
        """It is idle."""
        self._rooms[worker.spec.on_host].join(worker)
        self._early = self._early or worker.spec.preempts
        if worker.swaps:
            self._swapping += 1
            for name, stage in self._stages.items():
                self._enter(worker, name)
                self._free(stage.weights)

    def lost(self, worker: Worker) -> None:
        """It is gone."""
        self._rooms[worker.spec.on_host].leave(worker)
        self._taken_bytes.pop(worker.id, None)
        self._swapping -= worker.swaps
        for coming in self._coming.values():
            coming.pop(worker.id, None)

    def holds(self, worker: Worker, weights: str, here: bool, now_ns: int) -> None:
        """A model has come or gone."""
        if here:
            self._changed(worker)  # what waited for it has begun
            self._coming[weights].pop(worker.id, None)
        self._taken_bytes.pop(worker.id, None)
        self._enter_all(worker, weights)

    def heard(self, rows: Sequence[WorkerRow], now_ns: int) -> None:
        """Nobody else sends them anything: what they say of themselves is known."""

    def started(self, batch: Batch, now_ns: int) -> None:
        """Its worker has less room, or fetches the model."""
        worker, stage = batch.worker, batch.queue.stage
        self._changed(worker)
        if worker.swaps and stage.weights not in worker.resident and stage.weights_bytes:
            self._coming[stage.weights][worker.id] = now_ns + self._load_ns(stage, worker)
            self._enter_all(worker, stage.weights)

    def ended(self, batch: Batch, now_ns: int, done: bool) -> None:
        """Its worker has more room. If it never got its model, others may fetch it."""
        worker, weights = batch.worker, batch.queue.stage.weights
        self._changed(worker)
        asked, resident = self._asked, worker.resident
        if asked:
            for held in [w for w in asked if w in resident] if len(asked) < len(resident) else list(resident):
                self._free(held)
            self._free(weights)
        coming = self._coming[weights]
        if worker.id not in coming or any(other.queue.stage.weights == weights for other in worker.running.values()):
            return
        del coming[worker.id]
        if worker.id in self._cluster.workers:
            self._enter_all(worker, weights)

    def closed(self, request: Request) -> None:
        """Nothing is kept of requests."""

    def _changed(self, worker: Worker) -> None:
        """What it runs is not what it was."""
        self._rooms[worker.spec.on_host].changed(worker)
        self._taken_bytes.pop(worker.id, None)

    def _free(self, weights: str) -> None:
        """Somebody may have more room for the stages of a model."""
        if weights not in self._asked:
            return
        del self._asked[weights]
        for name in self._users[weights]:
            self._freed[name] += 1
            if name in self._asleep:
                self._wake(name)

    def _wake(self, name: str) -> None:
        """Queues of a stage are asked again."""
        del self._asleep[name]
        self._dozing.pop(name, None)
        self._woken.append(name)

    def _enter_all(self, worker: Worker, weights: str) -> None:
        for name in self._users.get(weights, ()):
            self._enter(worker, name)
        self._free(weights)

    def _enter(self, worker: Worker, name: str) -> None:
        """Put a worker where it belongs for a stage."""
        here = worker.id in self._cluster.holders[name]
        weights = self._stages[name].weights
        swaps = worker.swaps and self._settings.memory and self._stages[name].weights_bytes > 0
        has = here and (not swaps or weights in worker.resident)
        comes = worker.id in self._coming[weights]
        have, could = self._have[name], self._could[name]
        (have.add if has else have.drop)(worker)
        (could.add if here and swaps and not has and not comes else could.drop)(worker)

    # -- answers ------------------------------------------------------------------------------------------------

    def full(self, on_host: bool) -> bool:
        """Whether nobody has room for anything; in doubt not, where batches are sent before there is room."""
        return not self._early and not self._rooms[on_host].roomy

    def closed_to(self, stage: StageSpec, priority: int) -> bool:
        """Whether nobody who could run a stage has room for anything of a class, or will have before an end."""
        have, could = self._have[stage.name], self._could[stage.name]
        if self._early and not stage.on_host:
            return not could.count and have.promised(priority)
        return not have.roomy() and not could.roomy()

    def sleeps(self, stage: StageSpec, priority: int) -> bool:
        """Whether nobody has room for a stage, and that can only change at those who have its model."""
        if self._could[stage.name].count or not self.closed_to(stage, priority):
            return False
        self._asleep[stage.name] = self._asked[stage.weights] = None
        return True

    def dozes(self, stage: StageSpec) -> bool:
        """The same for a stage for which nobody has enough room: until a holder has more, or others have any."""
        if self._early:
            return False
        self._asleep[stage.name] = self._asked[stage.weights] = None
        could = self._could[stage.name]
        self._dozing[stage.name] = could, could.roomy()
        return True

    def woken(self) -> Sequence[str]:
        """Stages for which somebody may have room again."""
        if self._dozing:
            for name in [n for n, (could, roomy) in self._dozing.items() if could.roomy() is not roomy]:
                self._wake(name)
        if not self._woken:
            return ()
        found, self._woken = self._woken, []
        return found

    def changes(self, stage: StageSpec) -> tuple[int, bool]:
        """Another number if a holder of its model may have more room; whether others have room to fetch it."""
        self._asked[stage.weights] = None
        return self._freed[stage.name], self._could[stage.name].roomy()

    def ready(self, stage: StageSpec, config: Config, now_ns: int) -> Spot | None:
        """The tightest worker that has the model, and room for a batch in this configuration; None: nobody.

        Where neighbours cost something, one with better company goes before it.
        """
        group = self._have[stage.name]
        worker = group.tightest(config)
        if worker is None:
            return None
        if self._company.felt(worker):
            worker = self._company.best(stage, config, self._candidates(group, config), now_ns)
        return Spot(worker, now_ns)

    @staticmethod
    def _candidates(group: Group, config: Config) -> list[Worker]:
        """Some workers with room, the tightest first, and one that is idle, if there is any."""
        idle = group.fitting(Config(config.batch, config.cpus, FULL_SHARE, kind=config.kind), 1)
        return list(dict.fromkeys((*group.fitting(config, _LOOKS), *idle)))

    def spot(self, queue: Queue, head: Item, config: Config, now_ns: int) -> Spot | None:
        """Where a batch that nobody is ready for would start first; None if that cannot be said.

        Also if its model is on its way, and nobody who has it would start it before: then it waits for that.
        """
        stage, priority = queue.stage, head.request.priority
        have, could, coming = self._have[stage.name], self._could[stage.name], self._coming[stage.weights]
        fetch = self._fetch(could, stage, config, priority, now_ns) if could.count else None
        early = self._early and not stage.on_host
        if not early and fetch is None and not config.kind:
            return None
        # Who began first has it first, as far as can be said: loads of one model take the same.
        first_ns = next(iter(coming.values())) if coming else NEVER_NS
        fetched_ns, behind_ns = NEVER_NS, 0
        if fetch is not None:
            fetched_ns = max(fetch.room_ns, now_ns + fetch.load_ns) + fetch.toll_ns
            behind_ns = self._behind_ns(queue, config, have.count + len(coming), fetch.worker.spec.kind)
        waits = None
        if have.count and have.next_end_ns() - self.bind_ns + behind_ns <= min(fetched_ns, first_ns + behind_ns):
            waits = have.soonest(config, priority, now_ns, self.bind_ns)
            if waits is not None and waits[1] > first_ns:
                waits = None
        if waits is not None:
            first_ns = waits[1]
        if fetch is not None and fetched_ns < first_ns + behind_ns:
            start_ns = max(now_ns, fetch.room_ns - fetch.load_ns)
            beside, toll_ns = self._settings.beside, fetch.toll_ns
            return Spot(fetch.worker, start_ns, fetch.load_ns, FETCHES, beside=beside, toll_ns=toll_ns)
        if waits is None:
            return None
        worker, start_ns = waits
        if config.kind:  # another kind of device may be ready: it would be for all that wait
            behind_ns = self._behind_ns(queue, config, have.meant(config), config.kind)
        return Spot(worker, start_ns, 0, reason_of(worker, config, start_ns, now_ns), behind_ns=behind_ns)

    def _behind_ns(self, queue: Queue, config: Config, holders: int, kind: str) -> int:
        """How much longer the last item of a queue waits for holders than the first: a fetch is for all of them."""
        batches = -(-queue.size // config.batch) - 1
        if batches <= 0 or not self._settings.queues:
            return 0
        at_once = max(1, holders * (FULL_SHARE // config.share_pct))
        run_ns = self._predictor.run(queue.stage, kind, config.batch, config).mean_ns
        return batches * run_ns // at_once

    def _fetch(self, could: Group, stage: StageSpec, config: Config, priority: int, now_ns: int) -> _Fetch | None:
        """Who could fetch the model, and what that takes: with memory to spare, with room, or with room soon."""
        best: Worker | None = None
        room_ns = now_ns
        for worker in could.fitting(config, _LOOKS):
            if worker.fetching >= _FETCHES:
                continue
            if self._free_bytes(worker) >= stage.weights_bytes:
                return _Fetch(worker, now_ns, self._load_ns(stage, worker), 0)
            best = best or worker
        if best is None and self._early:
            found = could.soonest(config, priority, now_ns, self.bind_ns)
            if found is not None and found[0].fetching < _FETCHES and (found[1] <= now_ns or self._settings.beside):
                best, room_ns = found
        if best is None:
            return None
        load_ns = self._load_ns(stage, best)
        free = self._free_bytes(best) >= stage.weights_bytes
        return _Fetch(best, room_ns, load_ns, 0 if free else load_ns * self._settings.toll_pct // 100)

    def _load_ns(self, stage: StageSpec, worker: Worker) -> int:
        return self._predictor.load(stage.weights, stage.weights_bytes, worker.spec.kind).mean_ns

    def _free_bytes(self, worker: Worker) -> int:
        """Memory that nothing is in, and that nothing on its way will take."""
        if not worker.memory_bytes:
            return 1 << 62
        taken = self._taken_bytes.get(worker.id)
        if taken is None:
            taken = self._taken_bytes[worker.id] = taken_bytes(worker)
        return worker.memory_bytes - taken

    def fetch_ns(self, stage: StageSpec) -> int:
        """What the model of a stage takes to be fetched, if nobody has it."""
        if not self._swapping:
            return 0
        if self._have[stage.name].count or self._coming[stage.weights]:
            return 0
        fetcher = self._could[stage.name].first()
        return 0 if fetcher is None else self._load_ns(stage, fetcher)

    def wait_ns(self, stage: StageSpec, now_ns: int) -> int:
        """What waits is at this ingress: nothing is known of queues elsewhere."""
        return 0

    def hints(self, request: Request, now_ns: int) -> Sequence[Hint]:
        """Models of later stages that nobody has, for a worker that has memory to spare."""
        if not self._swapping or not self._settings.hints:
            return ()
        found: list[Hint] = []
        asked: set[str] = set()
        for node in request.graph.nodes:
            stage = node.stage
            if not stage.weights_bytes or stage.weights in asked:
                continue
            have = self._have[stage.name]
            if self._coming[stage.weights]:
                continue
            if have.count and (have.roomy() or not self._may_copy(stage, now_ns)):
                continue
            if not have.count and node in request.graph.entries:
                continue  # it is sent in this very step, and brings its fetch with it
            asked.add(stage.weights)
            for worker in self._could[stage.name].fitting(_ANYTHING, _LOOKS):
                if self._free_bytes(worker) >= stage.weights_bytes:
                    found.append(Hint(worker.id, stage.name))
                    self._copied_ns[stage.weights] = now_ns
                    break
        return found

    def _may_copy(self, stage: StageSpec, now_ns: int) -> bool:
        """Whether a copy of a model may be asked for: not too soon after the last."""
        every_ns = self._settings.copy_every_ns
        return every_ns > 0 and now_ns - self._copied_ns.get(stage.weights, -every_ns) >= every_ns
