"""A device floor where kernels really run beside each other in virtual time, for laws about quotas.

It carries out grants kernel by kernel, and keeps its own record of who had the device when. It knows nothing of how
quotas are kept.
"""

from __future__ import annotations

from heapq import heappop, heappush

from dovetail.device import Device, DeviceTimes, GapArbiter, GapSettings, ModelCache, TokenAccount, TokenSettings
from dovetail.device.events import (
    TO_THE_END,
    AlarmRang,
    DeviceEvent,
    Grant,
    GrantEnded,
    QuotaChanged,
    Revoke,
    SetAlarm,
    TaskPlanned,
)
from dovetail.predict import Estimator
from dovetail.profile.table import ProfileTable
from dovetail.state.run_batch import NEVER_NS, RunBatch

__all__ = ["Floor", "Work"]


class Work:
    """A batch of equal kernels."""

    def __init__(self, client: str, kernels: int, kernel_ns: int, share_pct: int, priority: int, quota_pct: int):
        self.client, self.kernels, self.kernel_ns, self.share_pct = client, kernels, kernel_ns, share_pct
        self.priority, self.quota_pct = priority, quota_pct
        self.arrived_ns = self.begun_ns = self.ended_ns = -1
        self.ran = 0
        self.grant: Grant | None = None
        self.granted_ns = 0
        self.revoked = False


class Floor:
    """One device, its kernels and its clock."""

    def __init__(self, settings: TokenSettings | None = None) -> None:
        self.account = TokenAccount(settings)
        times = DeviceTimes(Estimator(ProfileTable()), "gpu", {})
        arbiter = GapArbiter(times.kernels, GapSettings(order="slack"), account=self.account, learn=False)
        self.device = Device(1, {"s": ("s", 0)}, ModelCache(1), times, arbiter=arbiter)
        self.now_ns = 0
        self.works: dict[int, Work] = {}
        #: Client -> when it had grants.
        self.held: dict[str, list[tuple[int, int]]] = {}
        self.grants: list[tuple[int, str, Grant]] = []
        self._heap: list[tuple[int, int, str, object]] = []
        self._count = 0
        #: Ended work is followed by the same again, this number of times more.
        self.again: dict[int, int] = {}

    def at(self, at_ns: int, what: str, about: object) -> None:
        self._count += 1
        heappush(self._heap, (at_ns, self._count, what, about))

    def arrive(self, at_ns: int, client: str, *, kernels: int = 1, kernel_ns: int, share_pct: int = 100,
               priority: int = 1, quota_pct: int = 100, again: int = 0) -> Work:  # fmt: skip
        work = Work(client, kernels, kernel_ns, share_pct, priority, quota_pct)
        number = len(self.works) + 1
        self.works[number] = work
        self.again[number] = again
        self.at(at_ns, "arrive", number)
        return work

    def change(self, at_ns: int, event: QuotaChanged) -> None:
        self.at(at_ns, "event", event)

    def run(self, until_ns: int = NEVER_NS) -> None:
        steps = 0
        while self._heap and self._heap[0][0] <= until_ns:
            steps += 1
            assert steps < 300_000, "it never ends"
            self.now_ns, _, what, about = heappop(self._heap)
            if what == "arrive":
                self._arrive(about)  # type: ignore[arg-type]
            elif what == "kernel":
                self._kernel_ended(about)  # type: ignore[arg-type]
            else:
                self._step(about)  # type: ignore[arg-type]

    def _arrive(self, number: int) -> None:
        work = self.works[number]
        work.arrived_ns = self.now_ns
        items = ((number, 0, 0),)
        window = (0, NEVER_NS)
        total_ns = work.kernels * work.kernel_ns
        self._step(
            RunBatch(0, number, 1, "s", items, 1, work.share_pct, *window, total_ns, priority=work.priority,
                     quota_pct=work.quota_pct, client=work.client)
        )  # fmt: skip
        if work.kernels > 1:
            idents = tuple(f"k{i}" for i in range(work.kernels))
            self._step(TaskPlanned(number, f"{work.client} of {work.kernels}", idents, work.kernels))

    def _kernel_ended(self, number: int) -> None:
        work = self.works[number]
        grant = work.grant
        assert grant is not None
        work.ran += 1
        last = work.kernels - 1 if grant.last == TO_THE_END else grant.last
        if work.ran <= last and not work.revoked and self.now_ns < grant.until_ns:
            self.at(self.now_ns + work.kernel_ns, "kernel", number)
            return
        work.grant = None
        self.held.setdefault(work.client, []).append((work.granted_ns, self.now_ns))
        over = work.ran == work.kernels
        if over:
            work.ended_ns = self.now_ns
        self._step(GrantEnded(number, work.ran, over))
        if over and self.again[number]:
            self.arrive(self.now_ns, work.client, kernels=work.kernels, kernel_ns=work.kernel_ns,
                        share_pct=work.share_pct, priority=work.priority, quota_pct=work.quota_pct,
                        again=self.again[number] - 1)  # fmt: skip

    def _step(self, event: DeviceEvent) -> None:
        for action in self.device.step(event, self.now_ns):
            if isinstance(action, Grant):
                work = self.works[action.task]
                assert work.grant is None and action.first == work.ran, "kernels run in order, none twice"
                work.grant, work.granted_ns, work.revoked = action, self.now_ns, False
                work.begun_ns = self.now_ns if work.begun_ns < 0 else work.begun_ns
                self.grants.append((self.now_ns, work.client, action))
                self.at(self.now_ns + work.kernel_ns, "kernel", action.task)
            elif isinstance(action, Revoke):
                self.works[action.task].revoked = True
            elif isinstance(action, SetAlarm):
                assert action.at_ns > self.now_ns
                self.at(action.at_ns, "event", AlarmRang())
            else:
                raise AssertionError(f"unexpected: {action}")
        self.device.validate()
        self.account.validate()
        running = [w for w in self.works.values() if w.grant is not None]
        assert sum(w.share_pct for w in running) <= 100, "shares are never above 100 %"

    # -- what was seen --------------------------------------------------------------------------------------------

    def used_ns(self, client: str, since_ns: int, until_ns: int) -> int:
        """How long the client had grants between the two."""
        spans = self.held.get(client, [])
        spans = spans + [(w.granted_ns, self.now_ns) for w in self.works.values() if w.grant and w.client == client]
        return sum(max(0, min(end, until_ns) - max(begin, since_ns)) for begin, end in spans)
