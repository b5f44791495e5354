"""A device of many kinds of work: batches of several kernels, classes, shares, models, ingresses, hosts and quotas.

It carries out what the Device machine says, kernel by kernel, and checks the laws at every step. It knows of the
machine only what it answers, but for the states of tasks, which have to follow the table.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.control import RunBatch
from dovetail.device import Account, Device, DeviceTimes, GapArbiter, GapSettings, ModelCache, TaskState
from dovetail.device.events import (
    TO_THE_END,
    AlarmRang,
    BatchWithdrawn,
    DeviceAction,
    DeviceEvent,
    Evict,
    Grant,
    GrantEnded,
    KernelsLaunched,
    Load,
    LoadBroke,
    LoadDone,
    ModelHinted,
    Refuse,
    Revoke,
    SetAlarm,
    TaskPlanned,
)
from dovetail.device.task import TRANSITIONS
from dovetail.predict import Estimator
from dovetail.profile.table import ProfileTable
from dovetail.state import NEVER_NS
from dovetail.state.run_batch import task_of
from dovetail.units import MS

__all__ = ["SIZES", "Workshop"]

SIZES = {"": 0, "a": 2, "b": 3, "c": 4}
BUDGET = 6
LOAD_NS = 10 * MS


class Job:
    """A batch as its ingress knows it."""

    def __init__(self, run: RunBatch, kernels: int, launched: int) -> None:
        self.run = run
        self.kernels = kernels
        self.launched = launched
        #: Kernels that ran, in order.
        self.ran: list[int] = []
        #: The kernel of its grant that is next, the last one that is granted, and until when one may begin.
        self.granted: Grant | None = None
        self.at = 0
        self.revoked = False
        self.ends = 0


class Workshop:
    """One device, and everything that can happen to it."""

    def __init__(self, *, account: Account | None = None, ageing_ns: int = 0) -> None:
        cache = ModelCache(BUDGET, host_bytes=0)
        times = DeviceTimes(Estimator(ProfileTable(), load_ns=lambda nbytes: LOAD_NS), "gpu", SIZES)
        limited = {} if account is None else {"account": account}
        settings = GapSettings(order="slack", ageing_ns=ageing_ns)
        arbiter = GapArbiter(times.kernels, settings, learn=False, **limited)  # type: ignore[arg-type]
        models = {name or "plain": (name, size) for name, size in SIZES.items()}
        self.device = Device(1, models, cache, times, arbiter=arbiter, account=account)
        self.now_ns = 0
        self.jobs: dict[int, Job] = {}
        self.loading: list[str] = []
        self.resident: set[str] = set()
        self.alarms: list[int] = []
        self.states: dict[int, TaskState] = {}
        #: Every step, to be played again.
        self.log: list[tuple[DeviceEvent, int, list[DeviceAction]]] = []
        #: Who is given a grant in this step: all of them begin at the same moment.
        self.granted_now: set[int] = set()
        #: Called with each grant before it is carried out: tests look for themselves.
        self.watch: Callable[[Job, Grant], None] = lambda job, grant: None

    # -- what happens -------------------------------------------------------------------------------------------

    def arrive(self, batch: int, *, kernels: int = 1, launched: int | None = None, **given: object) -> int:
        fields: dict[str, object] = {
            "cause": 0,
            "batch": batch,
            "worker": 1,
            "stage": "plain",
            "items": ((batch, 0, 0),),
            "cpus": 1,
            "share_pct": 100,
            "earliest_ns": 0,
            "latest_ns": NEVER_NS,
            "expected_ns": kernels * MS,
            **given,
        }
        run = RunBatch(**fields)  # type: ignore[arg-type]
        task = task_of(run.ingress, batch)
        assert task not in self.jobs
        self.jobs[task] = Job(run, kernels, kernels if launched is None else launched)
        self.step(run)
        if kernels > 1 and not self.jobs[task].ends:
            idents = tuple(f"{run.stage}{i}" for i in range(kernels))
            self.step(TaskPlanned(task, f"{run.stage} of {kernels}", idents, self.jobs[task].launched))
        return task

    def kernel(self, task: int, took_ns: int) -> None:
        """The task's next kernel runs to its end, if its grant lets one begin; then the grant may be over."""
        job = self.jobs[task]
        grant = job.granted
        assert grant is not None
        if not job.revoked and job.at < job.launched:
            self.now_ns += took_ns
            job.ran.append(job.at)
            job.at += 1
        last = job.kernels - 1 if grant.last == TO_THE_END else grant.last
        waits = grant.last == TO_THE_END and job.at == job.launched < job.kernels
        if job.revoked or job.at > last or self.now_ns >= grant.until_ns or waits:
            self.end(task)

    def end(self, task: int) -> None:
        """What was granted is over."""
        job = self.jobs[task]
        job.granted = None
        over = job.at == job.kernels
        job.ends += over
        self.step(GrantEnded(task, job.at, over))

    def launch(self, task: int, more: int) -> None:
        job = self.jobs[task]
        job.launched = min(job.kernels, job.launched + more)
        self.step(KernelsLaunched(task, job.launched))

    def withdraw(self, task: int) -> None:
        job = self.jobs[task]
        job.granted = None
        job.ends += 1
        self.step(BatchWithdrawn(task))

    def loaded(self, weights: str, *, broke: bool = False) -> None:
        self.loading.remove(weights)
        if broke:
            self.step(LoadBroke(weights, "the file is broken"))
            return
        self.resident.add(weights)
        self.step(LoadDone(weights))

    def hint(self, weights: str) -> None:
        self.step(ModelHinted(weights, SIZES[weights]))

    def wait(self, by_ns: int) -> None:
        """Time passes, and alarms ring when their time has come."""
        until_ns = self.now_ns + by_ns
        while self.alarms and min(self.alarms) <= until_ns:
            at_ns = min(self.alarms)
            self.alarms.remove(at_ns)
            self.now_ns = max(self.now_ns, at_ns)
            self.step(AlarmRang())
        self.now_ns = until_ns

    @property
    def open(self) -> list[int]:
        return [task for task, job in self.jobs.items() if not job.ends]

    @property
    def running(self) -> list[int]:
        return [task for task, job in self.jobs.items() if job.granted is not None]

    def drain(self) -> None:
        """Let everything go well until nothing is left."""
        for _ in range(20_000):
            if not self.open:
                return
            if self.loading:
                self.loaded(self.loading[0])
            elif self.running:
                self.kernel(self.running[0], MS)
            else:
                for task in [t for t in self.open if self.jobs[t].launched < self.jobs[t].kernels]:
                    self.launch(task, 1)
                if not self.running:
                    self.wait(10 * MS)
        raise AssertionError("it never ends")

    # -- laws -----------------------------------------------------------------------------------------------------

    def step(self, event: DeviceEvent) -> list[DeviceAction]:
        actions = self.device.step(event, self.now_ns)
        self.log.append((event, self.now_ns, actions))
        self.granted_now = {action.task for action in actions if isinstance(action, Grant)}
        for action in actions:
            self._carry_out(action)
        self.device.validate()
        self._states()
        self._shares_and_bytes()
        self._classes()
        return actions

    def _carry_out(self, action: DeviceAction) -> None:
        if isinstance(action, Grant):
            job = self.jobs[action.task]
            assert job.granted is None and not job.ends, "it has a grant, or has ended"
            assert action.first == job.at == len(job.ran), "kernels run in order, none twice, none left out"
            assert action.first < job.launched, "nothing is launched that could run"
            assert not (weights := self._weights(job)) or weights in self.resident, "its model is here"
            assert job.run.earliest_ns <= self.now_ns, "its window has not opened"
            self.watch(job, action)
            job.granted, job.revoked = action, False
        elif isinstance(action, Revoke):
            job = self.jobs[action.task]
            assert job.granted is not None and job.kernels > 1, "there is nothing to be revoked"
            job.revoked = True
        elif isinstance(action, Refuse):
            job = self.jobs[action.task]
            assert not job.ran and job.granted is None, "it has begun"
            job.ends += 1
        elif isinstance(action, Load):
            assert action.weights not in self.loading and action.weights not in self.resident
            self.loading.append(action.weights)
        elif isinstance(action, Evict):
            used = {self._weights(job) for job in self.jobs.values() if not job.ends and (job.ran or job.granted)}
            assert action.weights not in used, "it is in use"
            self.resident.remove(action.weights)
        else:
            assert isinstance(action, SetAlarm) and action.at_ns > self.now_ns
            self.alarms.append(action.at_ns)

    def _weights(self, job: Job) -> str:
        return "" if job.run.stage == "plain" else job.run.stage

    def _shares_and_bytes(self) -> None:
        assert sum(self.jobs[task].run.share_pct for task in self.running) <= 100
        assert sum(SIZES[weights] for weights in [*self.resident, *self.loading]) <= BUDGET
        assert all(job.ends <= 1 for job in self.jobs.values()), "a batch ends once"

    def _states(self) -> None:
        """States follow the table; several changes in one step are possible one after the other."""
        for task in self.jobs:
            known = self.device.task(task)
            now = TaskState.OVER if known is None else known.state
            before = self.states.get(task)
            assert before is None or now in reachable(before), f"{before} -> {now}"
            self.states[task] = now

    def _classes(self) -> None:
        """What could run goes before what runs in a lower class, as soon as a kernel of that has ended."""
        for task in self.open:
            job = self.jobs[task]
            if job.granted is not None or not self.could_run(job):
                continue
            for lower in (self.jobs[t] for t in self.running):
                grant = lower.granted
                assert grant is not None
                ahead = grant.last == TO_THE_END and lower.kernels > 1 and lower.at + 1 < lower.kernels
                if lower.run.priority > job.run.priority and ahead:
                    assert lower.revoked, "a lower class goes on though a higher one waits"

    def could_run(self, job: Job) -> bool:
        """Whether nothing but shares keeps a batch from running."""
        weights = self._weights(job)
        here = not weights or weights in self.resident
        inside = job.run.earliest_ns <= self.now_ns and (job.ran or self.now_ns <= job.run.latest_ns)
        return bool(here and inside and job.at < job.launched)


def reachable(state: TaskState) -> set[TaskState]:
    """All states that may follow, one after the other."""
    found, todo = {state}, [state]
    while todo:
        for after in TRANSITIONS[todo.pop()]:
            if after not in found:
                found.add(after)
                todo.append(after)
    return found
