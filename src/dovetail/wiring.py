"""Which implementation answers which question: the only file that knows them all.

To add a policy: write it behind the protocols of `plan`, `place`, `scale` and `predict`, and enter it in `POLICIES`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

import msgspec

from .control import Controller, Policy
from .errors import DeclarationError
from .lab.rivals.compass import CASCADE_FORM, HEFT_FORM, CompassRouter
from .lab.rivals.hashed import HashRouter
from .lab.rivals.jit import JitRouter
from .place import BestFitPlacer, DovetailRouter, Router, Sole
from .place.local_delays import ONE_MACHINE, OneMachine
from .place.transfer import Delays
from .plan import DovetailPlanner, PlannerSettings, Space
from .predict import Estimator, EstimatorState, Predictor
from .profile.table import Entry, ProfileTable
from .schedule import FirstComePlanner, FirstFitPlacer, LoadEverything
from .units import US
from .workflow.graph import Graph

__all__ = ["POLICIES", "ROUTED_POLICIES", "PolicySpec", "make_controller", "make_policy"]


class PolicySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy by name, as scenario files, logs and the command line say it."""

    name: str = "first-come"
    #: Share of the device that each batch of a model gets.
    share_pct: int = 100
    #: Stage -> largest batch, where it should be other than the largest declared.
    batch: dict[str, int] = {}
    #: Requests that may be open before new ones are shed.
    max_open: int = 10_000
    #: For the `dovetail` policy: part of requests that should be in time, and shares it may give (empty: tenths).
    percentile: float = 0.99
    shares_pct: tuple[int, ...] = ()
    #: For `place`: workers are processes of one machine that run models on its cores.
    near: bool = False
    #: How long before a batch's expected end the next may be sent to its worker, in microseconds.
    lead_us: int = 0


#: (spec, who says how long things take, cores of a device, worker on the ingress's own machine)
_Make = Callable[[PolicySpec, Predictor, int, int], Policy]


def _first_come(spec: PolicySpec, predictor: Predictor, cores: int, home: int, *, by_class: bool = False) -> Policy:
    return Policy(
        planner=FirstComePlanner(
            cores=cores, share_pct=spec.share_pct, batch=spec.batch, max_open=spec.max_open, by_class=by_class
        ),
        placer=FirstFitPlacer(),
        scaler=LoadEverything(),
        predictor=predictor,
    )


def _dovetail(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    space = Space(shares_pct=spec.shares_pct) if spec.shares_pct else Space()
    settings = PlannerSettings(space=space, percentile=spec.percentile, max_open=spec.max_open)
    return Policy(
        planner=DovetailPlanner(predictor, settings),
        placer=BestFitPlacer(),
        scaler=LoadEverything(),
        predictor=predictor,
    )


def _by_class(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    return _first_come(spec, predictor, cores, home, by_class=True)


def _place(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    delays, settings = (OneMachine(), ONE_MACHINE) if spec.near else (None, None)
    return _routed(
        lambda predictor, home: DovetailRouter(predictor, settings, ingress=home, home=home, delays=delays)
    )(spec, predictor, cores, home)


def _routed(make: Callable[[Predictor, int], Router]) -> _Make:
    """Work is sent ahead to workers that keep queues; Python stages wait for host workers, first come first."""

    def policy(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
        kept = _first_come(spec, predictor, cores, home)
        router = make(predictor, home)
        # Ours counts what it has sent by itself; the others know only what a table says.
        told = home or isinstance(router, DovetailRouter)
        return msgspec.structs.replace(kept, router=router if told else Sole(router))

    return policy


#: Name -> (how it is made, what it does).
POLICIES: dict[str, tuple[_Make, str]] = {
    "first-come": (_first_come, "first come first served, fixed configuration, classes not looked at"),
    "dovetail": (_dovetail, "least cost within the objective, planned again before every batch; early refusal"),
    "by-class": (_by_class, "a higher class goes first; first come first served inside a class"),
    "place": (
        _place,
        "each stage where it ends first, its model fetched meanwhile; workers may refuse, memory is shared by need",
    ),
    "compass": (
        _routed(lambda predictor, home: CompassRouter(predictor, CASCADE_FORM, home=home)),
        "Compass: each request planned with queues, inputs and models in the estimate, adjusted on its way",
    ),
    "heft": (
        _routed(lambda predictor, home: CompassRouter(predictor, HEFT_FORM, home=home)),
        "HEFT: planned by rank, blind to queues and to models in memory",
    ),
    "jit": (
        _routed(lambda predictor, home: JitRouter(predictor, home=home)),
        "just in time: each stage goes to the least wait and fetch when its inputs are there",
    ),
    "hash": (_routed(lambda predictor, home: HashRouter()), "each stage of each request on a worker by hash"),
}
#: Those that send work ahead to workers that keep queues and their own memory; the others keep it at the ingress.
ROUTED_POLICIES = ("place", "compass", "heft", "jit", "hash")


def make_policy(spec: PolicySpec, predictor: Predictor, cores: int, home: int = 0) -> Policy:
    """The policy of that name; `cores` is the number of processor cores of a device, `home` the worker on the
    ingress's own machine (0: there is none)."""
    try:
        make, _ = POLICIES[spec.name]
    except KeyError:
        near = difflib.get_close_matches(spec.name, POLICIES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DeclarationError(f"there is no policy {spec.name!r}; {hint}there are: {', '.join(POLICIES)}") from None
    return msgspec.structs.replace(make(spec, predictor, cores, home), lead_ns=spec.lead_us * US)


def make_controller(
    graphs: Sequence[Graph],
    spec: PolicySpec,
    entries: Sequence[Entry],
    cores: int,
    home: int = 0,
    *,
    learned: EstimatorState | None = None,
    ingress: int = 0,
) -> Controller:
    """A controller from plain data: a scenario, a log's header or the server's settings.

    `ingress` is which of several fronts of one machine it is.
    """
    delays = OneMachine() if spec.near else Delays()
    predictor = Estimator(ProfileTable(entries), learned, load_ns=delays.load_ns)
    return Controller(graphs, make_policy(spec, predictor, cores, home), ingress)
