"""A shop around a Device machine: carries out what it says, mirrors it, and checks the laws at every step."""

from __future__ import annotations

from dovetail.control import RunBatch
from dovetail.device import Device, DeviceTimes, ModelCache, Rules
from dovetail.device.events import (
    AlarmRang,
    BatchWithdrawn,
    DeviceAction,
    Evict,
    Grant,
    GrantEnded,
    Load,
    LoadBroke,
    LoadDone,
    ModelHinted,
    Refuse,
    SetAlarm,
)
from dovetail.predict import Estimator
from dovetail.profile.table import ProfileTable
from dovetail.state import NEVER_NS
from dovetail.units import MS

__all__ = ["BUDGET", "LOAD_NS", "SIZES", "Shop"]

#: Bytes of each model; "" is one without weights, "huge" fits nowhere.
SIZES = {"a": 2, "b": 3, "c": 4, "d": 5, "e": 7, "": 0, "huge": 11}
BUDGET = 11
RESERVE = 1
LOAD_NS = 10 * MS


class Shop:
    """Knows of the machine only what it answers."""

    def __init__(self, rules: Rules | None = None, *, host_bytes: int | None = None) -> None:
        self.rules = rules or Rules()
        cache = ModelCache(BUDGET, reserve_bytes=RESERVE, host_bytes=host_bytes, eviction=self.rules.eviction)
        times = DeviceTimes(Estimator(ProfileTable(), load_ns=lambda nbytes: LOAD_NS), "gpu", SIZES, cold_factor=3.0)
        self.device = Device(3, {name: (name, size) for name, size in SIZES.items()}, cache, times, self.rules)
        self.now_ns = 0
        #: Batch -> (order, arrival), model, share, earliest.
        self.queued: dict[int, tuple[tuple[int, int], str, int, int]] = {}
        self.running: dict[int, tuple[str, int]] = {}
        self.loading: list[str] = []
        #: The model whose load is just being said to have failed.
        self.failing: str | None = None
        self.resident: set[str] = set()
        self.outcomes: dict[int, list[str]] = {}
        self.batches = 0

    def take(
        self,
        weights: str,
        *,
        share_pct: int = 100,
        order: int = 0,
        expected_ns: int = 5 * MS,
        earliest_ns: int = 0,
        latest_ns: int = 0,
    ) -> list[DeviceAction]:
        self.batches += 1
        batch = self.batches
        self.outcomes[batch] = []
        self.queued[batch] = ((order, batch), weights, share_pct, earliest_ns)
        return self.heed(
            self.device.step(
                RunBatch(
                    0,
                    batch,
                    3,
                    weights,
                    ((batch, 0, 0),),
                    1,
                    share_pct,
                    earliest_ns,
                    latest_ns or NEVER_NS,
                    expected_ns,
                    order,
                ),
                self.now_ns,
            )
        )

    def hint(self, weights: str) -> list[DeviceAction]:
        return self.heed(self.device.step(ModelHinted(weights, SIZES[weights]), self.now_ns))

    def end(self, batch: int) -> list[DeviceAction]:
        del self.running[batch]
        self.outcomes[batch].append("ended")
        return self.heed(self.device.step(GrantEnded(batch, 1), self.now_ns))

    def forget(self, batch: int) -> list[DeviceAction]:
        self.queued.pop(batch, None)
        self.running.pop(batch, None)
        self.outcomes[batch].append("forgotten")
        return self.heed(self.device.step(BatchWithdrawn(batch), self.now_ns))

    def loaded(self, weights: str) -> list[DeviceAction]:
        self.loading.remove(weights)
        self.resident.add(weights)
        return self.heed(self.device.step(LoadDone(weights), self.now_ns))

    def fail(self, weights: str) -> list[DeviceAction]:
        self.loading.remove(weights)
        self.failing = weights
        actions = self.heed(self.device.step(LoadBroke(weights, "the file is broken"), self.now_ns))
        self.failing = None
        return actions

    def tick(self, by_ns: int) -> list[DeviceAction]:
        self.now_ns += by_ns
        return self.heed(self.device.step(AlarmRang(), self.now_ns))

    def drain(self) -> None:
        """Let everything go well until nothing is left."""
        for _ in range(10_000):
            if self.loading:
                self.loaded(self.loading[0])
            elif self.running:
                self.end(next(iter(self.running)))
            elif self.queued:
                self.tick(max(1, min(entry[3] for entry in self.queued.values()) - self.now_ns))
            else:
                return
        raise AssertionError("it never ends")

    # -- laws -------------------------------------------------------------------------------------------------

    def heed(self, actions: list[DeviceAction]) -> list[DeviceAction]:
        for action in actions:
            if isinstance(action, Grant):
                self._started(action)
            elif isinstance(action, Load):
                assert action.weights not in self.loading, "single flight"
                assert action.weights not in self.resident, "it is here already"
                self.loading.append(action.weights)
                assert len(self.loading) <= self.rules.loads or self.rules.fetch_blocks
            elif isinstance(action, Evict):
                self._evicted(action)
            elif isinstance(action, Refuse):
                self.queued.pop(action.task)
                self.outcomes[action.task].append("refused")
                assert len(action.detail) <= 200
            else:
                assert isinstance(action, SetAlarm) and action.at_ns > self.now_ns
            if not self.rules.fetch_blocks:
                assert sum(SIZES[w] for w in [*self.resident, *self.loading]) <= BUDGET - RESERVE
        self.device.validate()
        self._something_happens()
        row = self.device.row(self.now_ns)
        assert row.free_at_ns >= row.at_ns == self.now_ns
        assert 0 <= row.free_bytes <= BUDGET - RESERVE
        if not self.rules.fetch_blocks:
            assert set(row.resident) == self.resident | set(self.loading)
        return actions

    def _started(self, action: Grant) -> None:
        _, weights, share_pct, earliest_ns = self.queued.pop(action.task)
        assert not weights or weights in self.resident, "its model is here"
        assert self.now_ns >= earliest_ns
        self.running[action.task] = (weights, share_pct)
        self.outcomes[action.task].append("started")
        assert sum(share for _, share in self.running.values()) <= 100

    def _evicted(self, action: Evict) -> None:
        assert action.weights in self.resident
        assert action.weights not in {weights for weights, _ in self.running.values()}, "it is in use"
        assert 0 < len(action.reason) <= 160
        self.resident.remove(action.weights)
        if self.rules.fetch_blocks:  # it was chosen when the fetch began; the queue has moved on
            ahead = self.rules.prefetch_evicts != "nothing" or self.rules.hints_evict
            ended = action.newcomer in self.resident or action.newcomer == self.failing
            assert ahead or ended, "it goes when the newcomer's load has ended"
            return
        needs = self._needs()
        late = 1 << 30
        position = needs.get(action.weights, late)
        assert position > needs.get(action.newcomer, late - 1), "it is needed earlier than the newcomer"
        if self.rules.eviction == "look-ahead":
            pinned = {weights for weights, _ in self.running.values()}
            for other in self.resident - pinned:
                assert needs.get(other, late) <= position, f"{other} is needed later than {action.weights}"

    def _needs(self) -> dict[str, int]:
        due = sorted(e for e in self.queued.values() if e[3] <= self.now_ns)
        early = sorted((e for e in self.queued.values() if e[3] > self.now_ns), key=lambda e: (e[3], e[0]))
        needs: dict[str, int] = {}
        for position, (_, weights, _, _) in enumerate([*due, *early]):
            needs.setdefault(weights, position)
        return needs

    def _something_happens(self) -> None:
        due = [e for e in self.queued.values() if e[3] <= self.now_ns]
        assert not due or self.running or self.loading, "work is queued, and nothing runs or loads"
