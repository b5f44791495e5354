"""Which implementation answers which question: the one registry of policies.

To add a policy: write it behind the protocols of `schedule`, `scale` and `predict`, and enter it in `POLICIES`.
The rivals are the lab's, which the product does not import: they are entered by name and loaded when they are named.
Each of their modules has a `make(spec, table, cores, home) -> Policy`. Arbiters of kernels are in `arbiters`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, cast

import msgspec
from msgspec import Meta

from .control import Controller, Policy
from .device.tokens import QuotaMode
from .errors import DeclarationError, ProfileError
from .extras import load, need
from .place import LOCAL_OWN, OwnSettings, OwnWorkers, SharedWorkers
from .place.local_delays import LOCAL_SETTINGS, LocalDelays
from .place.transfer import Delays
from .plan import Space
from .predict import Estimator, EstimatorState, Predictor
from .predict.interference import Interference
from .profile.table import Entry, ProfileTable
from .scale import FetchOnDemand, LoadEverything, LoadScaler, Scaler, ScaleSettings
from .schedule import Dovetail, FirstCome, Goal, PlannerSettings
from .state.worker import FULL_SHARE
from .units import MS, SECOND, US
from .workflow.graph import Graph

__all__ = [
    "POLICIES",
    "PolicyEntry",
    "PolicySpec",
    "ScaleSpec",
    "find_policy",
    "make_controller",
    "make_policy",
    "own_policy",
    "shared_policy",
    "unread",
]


Count = Annotated[int, Meta(ge=1)]
Share = Annotated[int, Meta(ge=1, le=FULL_SHARE)]


class ScaleSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the scaler of `dovetail` may do, as scenario files and logs say it."""

    #: Devices at the least and at the most.
    least: Annotated[int, Meta(ge=0)] = 1
    most: Count = 1
    #: Stages have slices of devices; otherwise only devices come and go.
    slices: bool = True
    #: Slices are limits; otherwise a stage may use what nobody else does.
    limits: bool = True
    #: Times are learned while it runs, as those of a server are.
    learns: bool = False
    #: How long a device takes to start.
    start_ms: Annotated[int, Meta(ge=0)] = 0
    #: A stage that nothing has come for in this time has no slice any more; 0: it always has one.
    zero_s: Annotated[int, Meta(ge=0)] = 60
    #: Only say what would be done.
    dry: bool = False
    #: Devices that join at the start without being asked for, as those of a server do.
    started: Annotated[int, Meta(ge=0)] = 0

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(f"at least {self.least} devices are more than the {self.most} that there may be at most")

    @property
    def settings(self) -> ScaleSettings:
        """As the scaler takes it."""
        return ScaleSettings(
            least=self.least,
            most=self.most,
            slices=self.slices,
            limits=self.limits,
            learns=self.learns,
            start_ns=self.start_ms * MS,
            zero_ns=self.zero_s * SECOND,
            dry=self.dry,
        )


class PolicySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy by name, as scenario files, logs and the command line say it."""

    name: str = "dovetail"
    #: Share of the device that each batch of a model gets.
    share_pct: Share = FULL_SHARE
    #: Stage -> largest batch, where it should be other than the largest declared.
    batch: dict[str, Count] = {}
    #: Requests that may be open before new ones are shed.
    max_open: Count = 10_000
    #: For the `dovetail` policy: part of requests that should be in time.
    percentile: Annotated[float, Meta(gt=0, lt=1)] = 0.99
    #: For `dovetail`: what is saved while objectives are met; `time` where devices are there anyway, as when serving.
    goal: Goal = "cost"
    #: For policies that plan: shares of a GPU that they may give (empty: tenths), and numbers of cores (empty: one).
    shares_pct: tuple[Share, ...] = ()
    #: For policies that look at memory: workers are processes of one machine that run models on its cores.
    near: bool = False
    #: For `dovetail`: other ingresses send to the same workers.
    several: bool = False
    #: How long before a batch's expected end the next may be sent to its worker, in microseconds.
    lead_us: Annotated[int, Meta(ge=0)] = 0
    cpus: tuple[Count, ...] = ()
    #: For `dovetail`: learn what batches that share a device cost each other, and decide with it.
    interference: bool = True
    #: For `dovetail`: what a declared quota is (`device.tokens`).
    quotas: QuotaMode = "conserving"
    #: Of what is left to chance: Aquatope's trials, the hashes of `hash` and `jit`.
    seed: int = 0
    #: For `dovetail`: slices and devices follow the load; None: devices are as they are, and shared freely.
    scale: ScaleSpec | None = None

    @property
    def space(self) -> Space:
        """What a planner may choose from."""
        usual = Space()
        return Space(self.shares_pct or usual.shares_pct, self.cpus or usual.cpus)


#: (spec, who says how long things take, cores of a device, worker on the ingress's own machine)
Make = Callable[[PolicySpec, Predictor, int, int], Policy]


class PolicyEntry(msgspec.Struct, frozen=True):
    """A policy as the registry knows it."""

    #: What it does, in one line.
    summary: str
    #: How it is made: a function, or where one is found (`extras.load`).
    make: Make | str
    #: Fields of a spec that it looks at.
    reads: tuple[str, ...]
    #: It may be one of several ingresses that share workers; the others have theirs to themselves.
    shares: bool = False
    #: Every batch runs on a whole device.
    whole: bool = False
    #: It plans from profiles: every stage needs one.
    profiles: bool = False
    #: Package that it needs beside a plain installation, and the extra that brings it.
    package: str = ""
    extra: str = ""


def own_policy(
    predictor: Predictor,
    settings: PlannerSettings,
    own: OwnSettings | None = None,
    *,
    bind_ns: int = 0,
    scaler: Scaler | None = None,
) -> Policy:
    """Dovetail with these settings, on workers that it has to itself."""
    scheduler = Dovetail(predictor, OwnWorkers(predictor, own, bind_ns=bind_ns), settings)
    return Policy(scheduler, scaler or LoadEverything(), predictor)


def shared_policy(predictor: Predictor, settings: PlannerSettings, where: SharedWorkers) -> Policy:
    """Dovetail with these settings, on workers that several ingresses share."""
    planned = msgspec.structs.replace(settings, goal="time")
    return Policy(Dovetail(predictor, where, planned), FetchOnDemand(), predictor)


def _first_come(spec: PolicySpec, predictor: Predictor, cores: int, home: int, *, by_class: bool = False) -> Policy:
    scheduler = FirstCome(
        cores=cores,
        share_pct=spec.share_pct,
        batch=spec.batch,
        max_open=spec.max_open,
        by_class=by_class,
        bind_ns=spec.lead_us * US,
    )
    return Policy(scheduler, LoadEverything(), predictor)


def _by_class(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    return _first_come(spec, predictor, cores, home, by_class=True)


def _dovetail(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    settings = PlannerSettings(
        space=spec.space,
        goal=spec.goal,
        percentile=spec.percentile,
        limits=spec.quotas == "strict",
        max_open=spec.max_open,
    )
    if home or spec.several:
        if spec.scale is not None:
            raise DeclarationError(
                "several ingresses share the workers, and none of them may scale them; leave scale out"
            )
        delays, router = (LocalDelays(), LOCAL_SETTINGS) if spec.near else (None, None)
        where = SharedWorkers(predictor, router, ingress=home, home=home, delays=delays)
        return shared_policy(predictor, settings, where)
    scaler = None
    if spec.scale is not None:
        scale = spec.scale.settings
        if spec.near:  # a share is a number of cores
            counts = {*(2**i for i in range(cores.bit_length())), cores}  # as models are loaded for
            shares_pct = tuple(FULL_SHARE * count // cores for count in sorted(counts) if count <= cores)
            scale = msgspec.structs.replace(scale, shares_pct=shares_pct)
        scaler = LoadScaler(predictor, (), scale)
    own = LOCAL_OWN if spec.near else None
    return own_policy(predictor, settings, own, bind_ns=spec.lead_us * US, scaler=scaler)


#: What a policy with one fixed configuration looks at, one that plans, and one that sends work as soon as it is
#: ready. There `batch` is for stages on the host: what is sent at once goes alone.
_FIXED = ("share_pct", "batch", "max_open", "lead_us")
_PLANNED = ("shares_pct", "cpus", "max_open")
_SENT = ("batch", "max_open")

POLICIES: dict[str, PolicyEntry] = {
    "first-come": PolicyEntry(
        "first come first served, fixed configuration, classes not looked at", _first_come, _FIXED
    ),
    "by-class": PolicyEntry("a higher class goes first; first come first served inside a class", _by_class, _FIXED),
    "dovetail": PolicyEntry(
        "batch, share, worker and memory decided together before every batch; early refusal",
        _dovetail,
        (*_PLANNED, "percentile", "goal", "lead_us", "near", "several", "interference", "scale", "quotas"),
        shares=True,
    ),
    "place": PolicyEntry(
        "each stage where it ends first, one item on a whole device; the router that `dovetail` grew out of",
        "lab.rivals.place:make",
        (*_SENT, "near"),
        shares=True,
        whole=True,
    ),
    "esg": PolicyEntry(
        "ESG: the cheapest configurations of a group of stages within its budget, searched before every batch",
        "lab.rivals.esg:make",
        _PLANNED,
        profiles=True,
    ),
    "infless": PolicyEntry(
        "INFless: instances of single functions with batches of unequal size, by resource efficiency",
        "lab.rivals.infless:make",
        _PLANNED,
        profiles=True,
    ),
    "fast-gshare": PolicyEntry(
        "FaST-GShare: instances of single functions, share of a device by part of the time",
        "lab.rivals.fast_gshare:make",
        _PLANNED,
        profiles=True,
    ),
    "orion": PolicyEntry(
        "Orion: sizes of all stages fixed once, so that the 95th percentile is in time",
        "lab.rivals.orion:make",
        _PLANNED,
        profiles=True,
    ),
    "aquatope": PolicyEntry(
        "Aquatope: sizes of all stages fixed once, by Bayesian optimisation",
        "lab.rivals.aquatope:make",
        (*_PLANNED, "seed"),
        profiles=True,
        package="sklearn",
        extra="lab",
    ),
    "compass": PolicyEntry(
        "Compass: each request planned with queues, inputs and models in the estimate, adjusted on its way",
        "lab.rivals.compass:make",
        _SENT,
        shares=True,
        whole=True,
    ),
    "heft": PolicyEntry(
        "HEFT: planned by rank, blind to queues and to models in memory",
        "lab.rivals.compass:make_heft",
        _SENT,
        shares=True,
        whole=True,
    ),
    "jit": PolicyEntry(
        "just in time: each stage goes to the least wait and fetch when its inputs are there",
        "lab.rivals.jit:make",
        (*_SENT, "seed"),
        shares=True,
        whole=True,
    ),
    "hash": PolicyEntry(
        "each stage of each request on a worker by hash",
        "lab.rivals.hashed:make",
        (*_SENT, "seed"),
        shares=True,
        whole=True,
    ),
    "old-dovetail": PolicyEntry(
        "Dovetail's planner of 16 November 2026: no memory, no giving up, kept for comparison",
        "lab.rivals.old_dovetail:make",
        _PLANNED,
        profiles=True,
    ),
    "triton": PolicyEntry(
        "like Triton: a dynamic batcher per model, fixed instances on each device, queue timeouts",
        "lab.rivals.triton:make",
        _PLANNED,
        profiles=True,
    ),
    "ray-serve": PolicyEntry(
        "like Ray Serve: fixed replicas, power of two choices, batches with a wait",
        "lab.rivals.ray_serve:make",
        (*_PLANNED, "seed"),
        profiles=True,
    ),
}


def find_policy(name: str) -> PolicyEntry:
    """The policy of that name; what it needs is installed."""
    entry = POLICIES.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, POLICIES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DeclarationError(f"there is no policy {name!r}; {hint}there are: {', '.join(POLICIES)}")
    if entry.package:
        need(entry.package, extra=entry.extra, for_=f"the policy {name!r}")
    return entry


def unread(spec: PolicySpec) -> list[str]:
    """Settings that were given and that the policy does not look at."""
    usual, reads = PolicySpec(spec.name), ("name", *find_policy(spec.name).reads)
    return [f for f in spec.__struct_fields__ if f not in reads and getattr(spec, f) != getattr(usual, f)]


def make_policy(spec: PolicySpec, predictor: Predictor, cores: int, home: int = 0) -> Policy:
    """The policy of that name; `cores` is the number of processor cores of a device, `home` the worker on the
    ingress's own machine (0: there is none)."""
    entry = find_policy(spec.name)
    make = cast(Make, load(entry.make)) if isinstance(entry.make, str) else entry.make
    return make(spec, predictor, cores, home)


def make_controller(
    graphs: Sequence[Graph],
    spec: PolicySpec,
    entries: Iterable[Entry],
    cores: int,
    home: int = 0,
    *,
    ingress: int = 0,
    learned: EstimatorState | None = None,
) -> Controller:
    """A controller from plain data: a scenario, a log's header or the server's settings."""
    table = ProfileTable(entries)
    stages = dict.fromkeys(s.name for g in graphs for s in g.stages)
    for name in spec.batch:
        if name not in stages:
            raise DeclarationError(f"batch of stage {name!r}: there is no such stage; there are: {', '.join(stages)}")
    if find_policy(spec.name).profiles:
        _check_profiles(stages, spec.name, table)
    delays = LocalDelays() if spec.near else Delays()
    neighbours = Interference() if spec.interference and "interference" in find_policy(spec.name).reads else None
    predictor = Estimator(table, learned, load_ns=delays.load_ns, interference=neighbours)
    policy = make_policy(spec, predictor, cores, home)
    if isinstance(policy.scaler, LoadScaler):
        policy.scaler.graphs = tuple(graphs)
    controller = Controller(graphs, policy, ingress)
    if spec.scale is not None:
        controller.cluster.starting = spec.scale.started
    return controller


def _check_profiles(stages: Iterable[str], policy: str, table: ProfileTable) -> None:
    """Every stage has a profile on some kind of device; on which it is needed is known when a worker joins."""
    known = {stage for stage, _ in table.entries}
    missing = [stage for stage in stages if stage not in known]
    if missing:
        names = ", ".join(map(repr, missing))
        raise ProfileError(
            f"the policy {policy!r} plans from profiles, and there is none of {names}; measure them with "
            f"dovetail profile, or give their times in the scenario"
        )
