"""A scenario, run: the glue between the simulated world and the policies, and what comes out of it.

    result = ScenarioRun(Path("scenario.toml"), policy="by-class").go()

The result depends on the scenario, the policy and the seed, and on nothing else: no clock is read here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from ..control import Action, Event, RequestArrived, WorkerJoined
from ..control.validate import validate
from ..device import GapArbiter, GapSettings, TokenAccount, TokenSettings
from ..errors import DovetailError, ScenarioError
from ..place.transfer import Delays
from ..predict import Estimator
from ..profile.machine import HOST
from ..profile.table import ProfileTable
from ..record.ledger import Ledger, Summary
from ..record.log import Header, make_header
from ..record.scaling import Decision, Decisions
from ..record.usage import Usage
from ..sim import SimDevice, Simulation
from ..sim.arrivals import requests
from ..sim.branching import Branches
from ..sim.contention import PairContention
from ..sim.driver import Observer
from ..sim.network import Network
from ..sim.scenario.file import read_scenario
from ..sim.scenario.world import build_world
from ..sim.state_table import Staleness
from ..state import WorkerSpec
from ..units import MS, SECOND
from ..wiring import POLICIES, PolicySpec, find_policy, make_controller
from .knowledge import outlook

__all__ = ["DeviceUse", "Result", "ScaledUse", "ScenarioRun"]

#: Arrivals between two calls of `progress`.
_STRIDE = 512

#: Takes the share of the run that is done, from 0 to 1.
Progress = Callable[[float], None]


class DeviceUse(msgspec.Struct, frozen=True):
    """How busy a worker was while it was there."""

    name: str
    kind: str
    #: Mean share of the device that was at work.
    busy: float


class ScaledUse(msgspec.Struct, frozen=True):
    """What a scaler reserved over the run."""

    #: Share times quota of all slices; and devices, each from the moment it was asked for.
    gpu_s: float
    device_s: float
    most_devices: int
    #: Times that slices were opened, resized or closed.
    changes: int
    #: Its decisions, where it only says what it would do.
    advice: tuple[Decision, ...] = ()


class Result(msgspec.Struct, frozen=True):
    """What came out of a run."""

    scenario: str
    policy: PolicySpec
    seed: int
    simulated_s: float
    #: Steps that the controller took.
    events: int
    summaries: list[Summary]
    devices: list[DeviceUse]
    #: Share of its requests that each class had to answer within the objective, and whether all did.
    target: float
    met: bool
    #: What the scaler reserved; None where there is none.
    scaled: ScaledUse | None = None


class _Advice:
    """An observer that collects what the scaler decides."""

    def __init__(self, found: Decisions, names: dict[int, str]) -> None:
        self._found = found
        self._names = names

    def __call__(self, event: Event, actions: list[Action]) -> None:
        if isinstance(event, WorkerJoined):
            self._names[event.worker] = event.spec.name
        self._found.take(event.at_ns, actions, lambda worker: self._names.get(worker, f"worker {worker}"))


class ScenarioRun:
    """A scenario that is ready to go, once."""

    def __init__(
        self, path: Path, *, policy: str | None = None, seed: int | None = None, dry_run: bool = False
    ) -> None:
        self.path = path
        self.scenario, file = read_scenario(path)
        self.seed = self.scenario.seed if seed is None else seed
        self.world = world = build_world(self.scenario, file)
        spec = file.convert(self.scenario.policy, PolicySpec, "policy", known=PolicySpec.__struct_fields__)
        self.policy = spec if policy is None else msgspec.structs.replace(spec, name=policy)
        if dry_run:
            if spec.scale is None:
                raise file.error(
                    "policy", "--dry-run says what the scaler would do, and there is none; add [policy.scale]"
                )
            self.policy = msgspec.structs.replace(self.policy, scale=msgspec.structs.replace(spec.scale, dry=True))
        #: Profiles that the policy knows.
        self._told = world.entries if self.scenario.profiled else ()
        #: What the user should know of how it was put together.
        self.notes = list(world.notes)
        several = self.scenario.cluster.ingresses > 1
        try:
            reads = ("name", *find_policy(self.policy.name).reads)
        except DovetailError as error:
            raise error if policy is not None else file.error("policy", str(error)) from None
        # Settings that the policy does not look at are wrong where the file names it; else they are for another. What
        # stands in the file counts as given, also where it is what it would be anyway.
        for setting in (name for name in self.scenario.policy if name not in reads):
            told = f"the policy {self.policy.name!r} does not look at"
            if policy is None:
                raise file.error(f"policy.{setting}", f"{told} it; leave it out")
            self.notes.append(f"{told} {setting}, which is the scenario's")
        try:
            self.controllers = [
                # The first workers are on the ingresses' own machines; a sole ingress is on nobody's.
                make_controller(
                    world.graphs,
                    self.policy,
                    self._told,
                    world.cores,
                    home=number + 1 if several else 0,
                    ingress=number,
                )
                for number in range(self.scenario.cluster.ingresses)
            ]
        except DovetailError as error:
            raise error if policy is not None else file.error("policy", str(error)) from None
        if not self.scenario.profiled:
            self.notes.append("the policy is not told how long stages take (profiled = false)")
        self.controller = self.controllers[0]
        idle = [key for key in ("push", "pull") if key in file.data.get("cluster", {}) and not several]
        if idle:
            self.notes.append(f"a sole ingress needs no state table: cluster.{' and '.join(idle)} is not looked at")
        if several:
            if not find_policy(self.policy.name).shares:
                raise file.error(
                    "cluster.ingresses",
                    f"the policy {self.policy.name!r} has its workers to itself; there are for several ingresses: "
                    f"{', '.join(name for name, entry in POLICIES.items() if entry.shares)}",
                )
            hosts = sum(place.spec.kind == HOST for place in world.places)
            if any(s.on_host for g in world.graphs for s in g.stages) and hosts < len(self.controllers):
                raise file.error(
                    "cluster.ingresses",
                    f"stages run on the host and every ingress needs a host worker of its own: there are {hosts} "
                    f"for {len(self.controllers)}; add some to a device: host = {len(self.controllers)}",
                )
        table = ProfileTable(world.entries)
        self.notes += outlook(world.graphs, [place.spec for place in world.places], Estimator(table))
        self.ledger = Ledger([(g.name, g.slo_ns) for g in world.graphs], skip_before_ns=self.scenario.warmup)

    @property
    def header(self) -> Header:
        """The head of this run's log."""
        policy = msgspec.msgpack.encode(self.policy)
        return make_header("sim", self.world.graphs, policy, self._told, self.world.cores, seed=self.seed)

    def go(
        self, observers: Sequence[Observer] = (), *, check: bool = False, progress: Progress | None = None
    ) -> Result:
        """Simulate; with `check`, the invariants are checked after every step, and the run is the same as without."""
        watchers = list(observers)
        if check:
            watchers.append(lambda event, actions: self._validate())
        branches = self._branches()
        arrivals = requests(
            self.world.streams,
            self.seed,
            until_ns=self.scenario.duration,
            limit=self.scenario.requests,
            counts=None if branches is None else branches.input_counts,
        )
        if progress is not None:
            arrivals = self._watched(arrivals, progress)
        if len(self.controllers) == 1:
            simulation = Simulation(self.controller, self.ledger, arrivals, watchers)
        else:
            simulation = self._linked(arrivals, watchers)
        devices = self._join(simulation, branches)
        usage, advice = Usage(sum(d.spec.kind != HOST for d in devices)), Decisions()
        if self.policy.scale is not None:
            for watcher in (usage, _Advice(advice, {d.ident: d.spec.name for d in devices})):
                simulation.observe(watcher)
        simulation.run()
        self._check_answered()
        summaries = self.ledger.summary()
        if not summaries:
            raise ScenarioError(f"{self.path}: no request arrived after the warm-up; run longer, or send more")
        end_ns = self.ledger.last_ns  # events may follow that concern nobody: a deadline that was kept, say
        return Result(
            scenario=str(self.path),
            policy=self.policy,
            seed=self.seed,
            simulated_s=end_ns / SECOND,
            events=simulation.steps,
            summaries=summaries,
            devices=[self._use(device, end_ns) for device in devices],
            target=self.scenario.target,
            met=all(line.hit_rate >= self.scenario.target for line in summaries),
            scaled=self._scaled(usage, advice, end_ns),
        )

    def _scaled(self, usage: Usage, advice: Decisions, end_ns: int) -> ScaledUse | None:
        scale = self.policy.scale
        if scale is None:
            return None
        usage.advance(end_ns)
        told = tuple(advice.found) if scale.dry else ()
        return ScaledUse(usage.gpu_s, usage.device_s, usage.most_devices, usage.changes, told)

    def _validate(self) -> None:
        for controller in self.controllers:
            validate(controller)

    def _linked(self, arrivals: Iterator[RequestArrived], watchers: Sequence[Observer]) -> Simulation:
        """Requests come to any of the ingresses."""
        cluster = self.scenario.cluster
        rng = random.Random(f"{self.seed}/ingress")

        def watch(ingress: int, event: Event, actions: list[Action]) -> None:
            for watcher in watchers:
                watcher(event, actions)

        network = Network(self.controllers, Delays(), Staleness(cluster.push, cluster.pull))
        spread = ((rng.randrange(cluster.ingresses), arrival) for arrival in arrivals)
        return Simulation.linked(self.controllers, network, self.ledger, spread, [watch] if watchers else [])

    def _branches(self) -> Branches | None:
        if not any(self.world.draws):
            return None

        def graph_of(request: int) -> int:
            return next(c.requests[request].graph.index for c in self.controllers if request in c.requests)

        return Branches(self.seed, self.world.draws, graph_of)

    def _join(self, simulation: Simulation, branches: Branches | None) -> list[SimDevice]:
        table, stages = ProfileTable(self.world.entries), self.controller.stages
        several = len(self.controllers) > 1
        declared = self.scenario.contention
        contention = None if declared is None else PairContention(declared.beside)
        devices: list[SimDevice] = []
        hosts = 0
        scale = self.policy.scale
        sliced = scale is not None and scale.slices and not scale.dry

        def make(ident: int, spec: WorkerSpec) -> SimDevice:
            host = spec.kind == HOST
            arbiter = None
            if scale is not None and sliced and not host:  # slices are paid for, so that they are limits as a rule
                account = TokenAccount(TokenSettings(mode="strict" if scale.limits else "conserving"))
                arbiter = GapArbiter({}, GapSettings(order="slack"), account=account, learn=False)
            return SimDevice(
                ident,
                spec,
                stages,
                table,
                simulation.schedule,
                rng=random.Random(f"{self.seed}/{spec.name}"),
                branching=branches,
                contention=None if host else contention,
                sequences=self.world.sequences if spec.preempts else None,
                arbiter=arbiter,
            )

        model = next((place.spec for place in self.world.places if place.spec.kind != HOST), None)
        if scale is not None and model is not None:

            def spawn(ident: int) -> tuple[SimDevice, int]:
                device = make(ident, msgspec.structs.replace(model, name=f"{model.kind}-{ident - 1}"))
                devices.append(device)
                return device, scale.start_ms * MS

            simulation.spawn = spawn
        for ident, place in enumerate(self.world.places, start=1):
            host = place.spec.kind == HOST
            device = make(ident, place.spec)
            if several and host:
                simulation.join_host(device, hosts % len(self.controllers), place.join_ns)
                hosts += 1
            else:
                # Machines with a device come first, and as many have an ingress as there are.
                own_of = ident - 1 if several and ident <= len(self.controllers) else None
                simulation.join(device, place.join_ns, own_of=own_of)
            devices.append(device)
            if place.leave_ns is not None:
                simulation.lose(ident, place.leave_ns)
        return devices

    def _watched(self, arrivals: Iterator[RequestArrived], progress: Progress) -> Iterator[RequestArrived]:
        duration_ns, count = self.scenario.duration, self.scenario.requests
        for number, arrival in enumerate(arrivals):
            if not number % _STRIDE:
                progress(arrival.at_ns / duration_ns if duration_ns else number / count if count else 0.0)
            yield arrival

    def _use(self, device: SimDevice, end_ns: int) -> DeviceUse:
        if device.ident > len(self.world.places):
            return DeviceUse(device.spec.name, device.spec.kind, device.busy_pct_ns / 100 / max(1, end_ns))
        place = self.world.places[device.ident - 1]
        there_ns = (end_ns if place.leave_ns is None else min(end_ns, place.leave_ns)) - place.join_ns
        return DeviceUse(place.spec.name, place.spec.kind, device.busy_pct_ns / 100 / max(1, there_ns))

    def _check_answered(self) -> None:
        """Nothing happens any more, so whatever is open now would wait for ever."""
        waiting = [queue.stage.name for c in self.controllers for queue in c.queues.values() if queue.size]
        if waiting:
            still_open = sum(len(c.requests) for c in self.controllers)
            raise ScenarioError(
                f"{self.path}: {still_open} requests were never answered, because in the end no "
                f"worker held stage {waiting[0]!r}: its model found no room, or the devices had left"
            )
