"""The scaler of the default policy: how much of a device each stage has, and how many devices there are.

Rules of this file
- Once a tick it compares what is asked for (`demand`) with what the slices of a stage yield (`points`), and takes the
  slices that are enough (`choose`): the quota changes first, then the share, then the number of replicas. Where they
  go is `fitting`'s business. Devices are asked for when slices find no room, and go when nothing needs them.
- More is given at once. Less is given when the need of the last seconds allows it (cool-down), and only if it is less
  by more than a band (hysteresis). On a constant load nothing changes.
- A stage never has less than its latency filter asks for, unless it has nothing: scaled to zero. Then its requests
  are held. The first one wakes it in the same step, if a device is there: models stay in memory (the warm pool).
- A device that is not needed stays for as long as another one would take: to start, and to load its models. So it
  never costs more than twice what it would have cost to know the future (ski rental, Karlin et al. 1988).
- A device that is to go is emptied first. Its slices are opened elsewhere before they are closed here.
- It reads the cluster and the predictor, and changes neither. The same questions have the same answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..predict import Predictor
from ..state import Cluster, Config, Queue, Slice, Worker
from ..state.run_batch import FULL_QUOTA
from ..workflow.graph import Graph, StageSpec
from .choose import Choice, choose
from .demand import NO_RATE_PER_S, Demand, Need
from .fitting import Wanted, fit
from .points import ScalePoint, limits_ns, points_of
from .protocol import Adjustment, SliceWish
from .settings import ScaleSettings

__all__ = ["LoadScaler"]

#: Looks in a tick, if more than so many batches of each slice have piled up [our choice].
_LOOKS, _PILED = 5, 2
_DEVICE = FULL_QUOTA * FULL_QUOTA


class _Stage:
    """A stage, what it may have, and what is asked of it."""

    def __init__(self, spec: StageSpec, points: list[ScalePoint], demand: Demand, limit_ns: int) -> None:
        self.spec = spec
        self.limit_ns = limit_ns
        self.points = points
        self.demand = demand


class LoadScaler:
    """Answers how many, from the load."""

    adjusts = True

    def __init__(self, predictor: Predictor, graphs: Sequence[Graph], settings: ScaleSettings | None = None) -> None:
        self.settings = settings or ScaleSettings()
        self.dry = self.settings.dry
        self._predictor = predictor
        #: The workflows; whoever makes a scaler before it knows them sets them before it is asked.
        self.graphs = tuple(graphs)
        self._stages: dict[str, _Stage] = {}
        #: Kind and cores of the devices that points were made for.
        self._made_for: tuple[str, int] | None = None
        self._next_ns = 0
        #: Since when fewer devices would do; -1: they would not.
        self._spare_ns = -1
        #: For so long before one goes.
        self._settle_ns = self.settings.device_settle_ns
        self._quiet = False
        self._looked_ns = 0

    # -- what the controller asks -------------------------------------------------------------------------------

    def manages(self, stage: StageSpec) -> bool:
        """Stages on devices that declare no slice of their own."""
        return self.settings.slices and not stage.on_host and not stage.quota_pct and not stage.share_pct

    def residents(self, worker: Worker, stages: Sequence[StageSpec]) -> Sequence[StageSpec] | None:
        """All models that fit: a stage may have a slice anywhere without waiting for its model (the warm pool)."""
        return stages

    def adjust(self, cluster: Cluster, starved: Sequence[Queue], now_ns: int) -> Adjustment:
        """Once a tick; and at once for a stage that has nothing and is asked for."""
        if now_ns < self._next_ns and not self._urgent(cluster, starved, now_ns):
            return Adjustment(next_ns=self._next_ns)
        if self._quiet and not cluster.requests:
            return Adjustment()
        if not self._prepare(cluster):
            waits = bool(cluster.requests) and not cluster.starting
            return Adjustment(devices=1, reason="requests wait, and there is no device") if waits else Adjustment()
        settings = self.settings
        self._looked_ns = now_ns
        needs = {name: self._look(stage, cluster, now_ns) for name, stage in self._stages.items()}
        wanted, why = self._wanted(cluster, needs, now_ns)
        adjustment = self._placed(cluster, wanted, why, now_ns)
        idle = not cluster.requests and not any(need.settled_per_s for need in needs.values())
        changed = adjustment.slices or adjustment.drains or cluster.starting
        kept = any(cluster.slices.values()) or self._own(wanted, cluster)
        waits = kept if settings.slices and settings.zero_ns else False
        self._quiet = idle and not changed and not waits and self._spare_ns < 0
        self._next_ns = 0 if self._quiet else now_ns + settings.tick_ns
        return Adjustment(
            next_ns=self._next_ns,
            slices=adjustment.slices,
            devices=adjustment.devices,
            reason=adjustment.reason,
            drains=adjustment.drains,
        )

    # -- what is asked for --------------------------------------------------------------------------------------

    def _urgent(self, cluster: Cluster, starved: Sequence[Queue], now_ns: int) -> bool:
        """Whether work waits for a stage that has no slice and could have one, or piles up between two ticks."""
        soon = now_ns - self._looked_ns >= self.settings.tick_ns // _LOOKS
        for queue in starved:
            pieces = cluster.slices.get(queue.stage.name)
            if pieces is None or not cluster.holders[queue.stage.name]:
                continue
            if not pieces or (soon and queue.size > _PILED * sum(piece.batch for piece in pieces.values())):
                return True
        return False

    def _prepare(self, cluster: Cluster) -> bool:
        """Work out what stages may have, for the kind of device that is there.

        It is worked out anew without slices, where times are learned, and where neighbours are known to cost
        something: that changes with the company. Else slices are what they were made as.
        """
        device = next((w for w in cluster.workers.values() if not w.spec.on_host), None)
        if device is None:
            return self._made_for is not None
        made_for = (device.spec.kind, device.spec.cores)
        settled = self.settings.slices and not self.settings.learns and not self._predictor.felt(device.spec.kind)
        if self._made_for == made_for and settled:
            return True
        self._made_for = made_for
        kind, cores = made_for
        specs = {s.name: s for g in self.graphs for s in g.stages if not s.on_host}
        run = self._predictor.run
        alone = {
            n: run(s, kind, s.batch[0], Config(s.batch[0], max(1, cores), FULL_QUOTA)).mean_ns
            for n, s in specs.items()
        }
        host = {
            s.name: run(s, "host", s.batch[0], Config(s.batch[0], 1, FULL_QUOTA)).mean_ns
            for g in self.graphs
            for s in g.stages
            if s.on_host
        }
        limits = limits_ns(self.graphs, {**host, **alone}, self.settings.part)
        models = {s.weights: s.weights_bytes for s in specs.values()}
        load_ns = sum(self._predictor.load(weights, size, kind).mean_ns for weights, size in models.items())
        self._settle_ns = max(self.settings.device_settle_ns, self.settings.start_ns + load_ns)
        for name, spec in specs.items():
            points = points_of(spec, kind, cores, self._predictor, limits[name], self.settings.shares_pct)
            lead_ns = self.settings.tick_ns + self.settings.start_ns
            before = self._stages.get(name)
            demand = before.demand if before is not None else Demand(self.settings.demand, lead_ns, limits[name])
            self._stages[name] = _Stage(spec, points, demand, limits[name])
        return True

    def _look(self, stage: _Stage, cluster: Cluster, now_ns: int) -> Need:
        arrived = waiting = 0
        for queue in cluster.queues.values():
            if queue.stage.name == stage.spec.name:
                arrived += queue.arrived
                waiting += queue.size
        own_ns = max(point.latency_ns(point.least_quota_pct) for point in stage.points[:1])
        return stage.demand.look(arrived, waiting, own_ns, now_ns)

    # -- which slices -------------------------------------------------------------------------------------------

    def _wanted(
        self, cluster: Cluster, needs: Mapping[str, Need], now_ns: int
    ) -> tuple[dict[str, Choice | None], dict[str, str]]:
        """For each stage what it should have, and why; None: nothing."""
        found: dict[str, Choice | None] = {}
        why: dict[str, str] = {}
        for name, stage in self._stages.items():
            pieces = [p for p in cluster.slices.get(name, {}).values() if not p.closing]
            found[name], why[name] = self._choice(stage, needs[name], pieces, now_ns)
        return found, why

    def _choice(self, stage: _Stage, need: Need, pieces: Sequence[Slice], now_ns: int) -> tuple[Choice | None, str]:
        settings = self.settings
        idle_ns = now_ns - stage.demand.busy_ns
        # Without slices the last device is what there is to sleep without.
        unused = not pieces and need.settled_per_s < NO_RATE_PER_S
        asleep = unused and (self.manages(stage.spec) if settings.slices else settings.least > 0)
        if settings.zero_ns and (asleep or idle_ns >= settings.zero_ns):
            return None, f"nothing has come for {idle_ns / 1e9:.0f} s"
        share_pct = pieces[0].share_pct if pieces else 0
        now = self._as_it_is(stage, pieces)
        if now is None and pieces:  # they are not alike, because some found no room when they were to grow
            return self._enough(stage, need.settled_per_s, share_pct), _because(need)
        more = self._enough(stage, need.per_s, share_pct)
        if now is None or more.per_s > now.per_s * (1 + settings.band_pct / 200):
            return more, _because(need)
        less = self._enough(stage, need.settled_per_s, share_pct)
        if less.area < now.area * (1 - settings.band_pct / 100):
            return less, f"{_because(need)} for {settings.demand.settle_ns / 1e9:.0f} s"
        return now, ""

    def _enough(self, stage: _Stage, per_s: float, share_pct: int) -> Choice:
        settings, limit_ns = self.settings, stage.limit_ns
        if not settings.slices and all(2 * point.batch_ns > limit_ns for point in stage.points):
            limit_ns = 0  # it is late on any device, and more of them would not help
        return choose(stage.points, per_s, share_pct, limit_ns=limit_ns, late=settings.late)

    def _as_it_is(self, stage: _Stage, pieces: Sequence[Slice]) -> Choice | None:
        """What a stage has, if its slices are alike."""
        if not pieces:
            return None
        first = pieces[0]
        if any(
            (p.share_pct, p.quota_pct, p.batch) != (first.share_pct, first.quota_pct, first.batch) for p in pieces
        ):
            return None
        for point in stage.points:
            if (point.share_pct, point.batch) == (first.share_pct, first.batch):
                return Choice(point, len(pieces), first.quota_pct)
        return None

    # -- where ----------------------------------------------------------------------------------------------------

    def _placed(
        self, cluster: Cluster, wanted: Mapping[str, Choice | None], why: Mapping[str, str], now_ns: int
    ) -> Adjustment:
        settings = self.settings
        workers = [w for w in cluster.workers.values() if not w.closing and not w.spec.on_host]
        if not settings.slices:
            area = sum(choice.area for choice in wanted.values() if choice is not None)
            reason = "; ".join(f"{name}: {text}" for name, text in why.items() if wanted[name] is not None)
            return self._count(workers, area, reason, now_ns)
        pieces: list[Wanted] = []
        wishes: list[SliceWish] = []
        for name, choice in wanted.items():
            if name not in cluster.slices:
                continue
            open_pieces = [p for p in cluster.slices[name].values() if not p.closing]
            keep = 0 if choice is None else choice.count
            # The slices on the emptiest devices go first.
            areas = {
                w.id: sum(p.area for s in cluster.slices.values() for p in s.values() if p.worker == w.id)
                for w in workers
            }
            open_pieces.sort(key=lambda p: (-areas.get(p.worker, 0), p.id))
            less = why[name] or "one slice less"
            wishes += [SliceWish(name, piece.worker, 0, 0, 0, less, piece.id) for piece in open_pieces[keep:]]
            if choice is None:
                continue
            share_pct, quota_pct = choice.point.share_pct, choice.quota_pct
            pieces += [
                Wanted(name, share_pct, quota_pct, p.id, p.worker, (p.share_pct, p.quota_pct))
                for p in open_pieces[:keep]
            ]
            pieces += [Wanted(name, share_pct, quota_pct)] * (keep - len(open_pieces))
        able = [w.id for w in workers]
        floor = max(settings.least, 1 if pieces or self._own(wanted, cluster) else 0)
        empties = self._spare(workers, pieces, floor, now_ns)
        fitted = fit(pieces, able, avoid=empties)
        if empties and fitted.homeless:
            fitted, empties = fit(pieces, able), 0
        for slot, worker in fitted.placed:
            choice = wanted[slot.stage]
            assert choice is not None, "what is wanted was chosen"
            batch, reason = choice.point.batch, why[slot.stage]
            size = (slot.share_pct, slot.quota_pct)
            if slot.worker == worker:
                if size != slot.now:
                    wishes.append(SliceWish(slot.stage, worker, *size, batch, reason, slot.slice))
                continue
            moved = f"device {slot.worker} is not needed" if slot.worker == empties else "there is more room here"
            reason = moved if slot.slice else reason
            wishes.append(SliceWish(slot.stage, worker, *size, batch, reason, limits=settings.limits))
            if slot.slice:
                wishes.append(SliceWish(slot.stage, slot.worker, 0, 0, 0, moved, slot.slice))
        need = len(workers) + fitted.more
        devices = max(floor, min(settings.most, need))
        blocked = ", ".join(sorted({piece.stage for piece in fitted.homeless}))
        reason = f"no device has room for {blocked}" if blocked else f"at least {settings.least} is asked for"
        return Adjustment(
            slices=tuple(wishes), devices=devices, reason=reason,
            drains=self._drains(cluster, workers, pieces, empties, wishes),
        )  # fmt: skip

    @staticmethod
    def _own(wanted: Mapping[str, Choice | None], cluster: Cluster) -> bool:
        """Whether a stage is asked for that has a slice of its own on whatever device is there."""
        return any(choice is not None and name not in cluster.slices for name, choice in wanted.items())

    def _spare(self, workers: Sequence[Worker], pieces: Sequence[Wanted], floor: int, now_ns: int) -> int:
        """The device to be emptied, if fewer have been enough for some time."""
        if len(workers) <= floor:
            self._spare_ns = -1
            return 0
        areas = {w.id: sum(p.share_pct * p.quota_pct for p in pieces if p.worker == w.id) for w in workers}
        emptiest = min(workers, key=lambda w: (areas[w.id], -w.id)).id
        if fit(pieces, [w.id for w in workers], avoid=emptiest).homeless:
            self._spare_ns = -1
            return 0
        if self._spare_ns < 0:
            self._spare_ns = now_ns
        return emptiest if now_ns - self._spare_ns >= self._settle_ns else 0

    def _drains(
        self,
        cluster: Cluster,
        workers: Sequence[Worker],
        pieces: Sequence[Wanted],
        empties: int,
        wishes: Sequence[SliceWish],
    ) -> tuple[tuple[int, str], ...]:
        """The emptied device goes when it has no slice any more."""
        if not empties or any(wish.quota_pct and wish.worker == empties for wish in wishes):
            return ()
        if any(p.worker == empties for s in cluster.slices.values() for p in s.values()):
            return ()  # what is there has been told to go, or goes now
        self._spare_ns = -1
        return ((empties, self._not_needed(len(workers) - 1)),)

    def _not_needed(self, enough: int) -> str:
        devices = "1 device has" if enough == 1 else f"{enough} devices have"
        return f"{devices} been enough for {self._settle_ns / 1e9:.0f} s"

    def _count(self, workers: Sequence[Worker], area: int, reason: str, now_ns: int) -> Adjustment:
        """Without slices: as many devices as the work is worth."""
        settings = self.settings
        devices = max(settings.least, min(settings.most, -(-area // _DEVICE)))
        if len(workers) <= devices:
            self._spare_ns = -1
            return Adjustment(devices=devices, reason=reason)
        if self._spare_ns < 0:
            self._spare_ns = now_ns
        if now_ns - self._spare_ns < self._settle_ns:
            return Adjustment()
        self._spare_ns = -1
        # One whose models have not come yet goes before one that has them.
        idlest = min(workers, key=lambda w: (len(w.resident), len(w.running), -w.id))
        return Adjustment(drains=((idlest.id, self._not_needed(devices)),))


def _because(need: Need) -> str:
    """What the need consists of."""
    text = f"{need.rate_per_s:.1f}/s come"
    if need.forecast_per_s > need.rate_per_s:
        text += f", {need.forecast_per_s:.1f}/s are to be expected"
    if need.queued_per_s > 0:
        text += f", and {need.queued_per_s:.1f}/s for what waits"
    return text
