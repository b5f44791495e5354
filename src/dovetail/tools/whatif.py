"""What if: the simulator's answer from the present of a live run, with other rates or another number of devices.

    answer = WhatIf(header, window, learned).ask(Question(rate=2.0, devices={"cpu": 2}))

Rules of this file
- The world is the live one: its policy and what it has learned, its workers with the models that they hold, the
  requests that are open with the time that they have left, and the requests of the last half minute once more.
- Twice the rate is twice the requests: copies of those that came, moved by a random time. Half of it leaves half out.
- Batches and loads take what they took (`resimulate`). One more device is one like those of its kind.
- A request that is open starts from its beginning again. What lies between front and workers is not simulated.
- It is bounded: so many requests, so many seconds of virtual time. Whoever runs it bounds its processor time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from ..control import LoadModel, RequestArrived
from ..errors import DovetailError
from ..predict import EstimatorState
from ..profile.table import ProfileTable
from ..record.follow import Present
from ..record.ledger import Ledger, Summary
from ..record.log import Header
from ..record.window import Window
from ..sim import SimDevice, Simulation
from ..state import WorkerSpec
from ..units import SECOND
from ..wiring import make_controller
from .replay import policy_spec
from .resimulate import Recorded, Service, unscaled

__all__ = ["Outlook", "Question", "WhatIf"]

#: Requests of the last seconds are repeated for as long; if those are too few, all that were seen are.
HORIZON_NS = 30 * SECOND
#: Requests of one simulation [our choice]: some seconds of processor time.
MOST_REQUESTS = 4000
#: Fewer than this say nothing of what is to come.
LEAST_REQUESTS = 10
MOST_RATE, MOST_DEVICES = 20.0, 64


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be different."""

    #: How many times as many requests.
    rate: float = 1.0
    #: Kind -> number of devices; a kind that is not named keeps those that it has.
    devices: dict[str, int] = {}
    seed: int = 1


class Outlook(msgspec.Struct, frozen=True):
    """What became of the requests of the last half minute, and what would."""

    #: As it was.
    seen: list[Summary]
    #: Simulated as it is, which tells how far the simulator is to be trusted; and with what is different.
    same: list[Summary]
    other: list[Summary]
    #: Virtual seconds; requests per second that came, and that were simulated.
    seconds: float
    rate_per_s: float
    other_rate_per_s: float
    #: Kind -> devices, as it is and in the question.
    devices: dict[str, int]
    other_devices: dict[str, int]
    notes: list[str]


class WhatIf:
    """Answers questions about one moment; `learned` is what the policy knows of times then."""

    def __init__(self, header: Header, window: Window, learned: EstimatorState | None = None) -> None:
        self._header = header if learned is None else msgspec.structs.replace(header, learned=learned)
        self._present = window.now.present()
        self._now_ns = window.now.now_ns
        self._open = dict(window.now.requests)
        steps = window.steps()
        self._recorded = Recorded(header, steps, window.begin)
        first_ns = window.begin.now_ns
        self._begin_ns = max(first_ns, self._now_ns - HORIZON_NS)
        self._arrivals = [event for event in self._recorded.arrivals if event.at_ns >= self._begin_ns]
        if len(self._arrivals) < LEAST_REQUESTS:
            self._begin_ns, self._arrivals = first_ns, list(self._recorded.arrivals)
        self._seen = Ledger([(g.name, g.slo_ns) for g in header.graphs], skip_before_ns=self._begin_ns)
        for step in steps:
            self._seen.note(step.actions, step.event.at_ns)

    def ask(self, question: Question) -> Outlook:
        """Simulate twice: as it is, and as it might be."""
        has = _devices(self._present)
        wants = {**has, **question.devices}
        self._check(question, has)
        if len(self._arrivals) < LEAST_REQUESTS:
            raise DovetailError(
                f"only {len(self._arrivals)} requests came while somebody watched; the simulator repeats those of "
                f"the last half minute and wants at least {LEAST_REQUESTS}: send some and ask again"
            )
        span_ns = max(1, self._now_ns - self._begin_ns)
        rate = len(self._arrivals) * SECOND / span_ns
        horizon_ns = min(HORIZON_NS, round(MOST_REQUESTS * SECOND / (rate * max(1.0, question.rate))))
        notes = []
        if horizon_ns < HORIZON_NS:
            notes.append(f"{MOST_REQUESTS} requests are simulated at most: {horizon_ns / SECOND:.1f} s")
        if self._header.policy and policy_spec(self._header).several:
            notes.append("other servers share the workers; what they send is not known here and not simulated")
        if self._header.policy and policy_spec(self._header).scale is not None:
            notes.append("the server starts and stops workers with the load; here their number stays")
        same = self._simulate(1.0, has, horizon_ns, question.seed)
        other = self._simulate(question.rate, wants, horizon_ns, question.seed)
        return Outlook(
            seen=self._seen.summary(),
            same=same,
            other=other,
            seconds=horizon_ns / SECOND,
            rate_per_s=rate,
            other_rate_per_s=rate * question.rate,
            devices=has,
            other_devices=wants,
            notes=notes,
        )

    def _check(self, question: Question, has: dict[str, int]) -> None:
        if not 0 < question.rate <= MOST_RATE:
            raise DovetailError(f"rate {question.rate:g} must be above 0 and at most {MOST_RATE:g} times the present")
        for kind, count in question.devices.items():
            if kind not in has:
                raise DovetailError(f"there is no device of kind {kind!r}; kinds are: {', '.join(sorted(has))}")
            if not 1 <= count <= MOST_DEVICES:
                raise DovetailError(f"{count} devices of kind {kind!r} must be from 1 to {MOST_DEVICES}")

    def _simulate(self, factor: float, devices: dict[str, int], horizon_ns: int, seed: int) -> list[Summary]:
        header, recorded = self._header, self._recorded
        controller = make_controller(
            header.graphs, unscaled(policy_spec(header)), header.entries, header.cores, learned=header.learned
        )
        ledger = Ledger([(g.name, g.slo_ns) for g in header.graphs])
        stages = controller.stages
        specs = _specs(self._present, devices)
        ready_ns = self._ready_ns([spec for spec, _ in specs])
        arrivals, origin = self._requests(factor, horizon_ns, ready_ns, seed)

        class Branching:
            """How many elements results have: as many as that of the request which this is a copy of."""

            def counts(self, items: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
                found: list[int] = []
                for request, node, index in items:
                    width = len(controller.requests[request].graph.nodes[node].counted)
                    found += recorded.counts_of(origin[request], node, index, width)
                return tuple(found)

        simulation = Simulation(controller, ledger, iter(arrivals))
        for ident, (spec, _) in enumerate(specs, 1):
            device = SimDevice(
                ident,
                spec,
                stages,
                ProfileTable(header.entries),
                simulation.schedule,
                branching=Branching(),
                service=Service(recorded, spec.kind, stages, f"{seed}/{ident}"),
                sequences=recorded.sequences(spec.kind),
                load_ns=recorded.load_ns(spec.kind, stages),
            )
            simulation.join(device)
        simulation.run(until_ns=0)
        for ident, (_, like) in enumerate(specs, 1):
            for stage in [s for s, workers in self._present.holders.items() if like in workers]:
                for event in simulation.devices[ident].take(LoadModel(0, ident, stage), 0):
                    simulation.post(event)
        simulation.run()
        return ledger.summary()

    def _ready_ns(self, specs: Sequence[WorkerSpec]) -> int:
        """When the models that are held now have been brought to the simulated devices, one after the other."""
        entries = {(e.stage, e.kind): e.load_ns for e in self._header.entries}
        longest = 0
        stages = {s.name: s for g in self._header.graphs for s in g.stages}
        for kind in {spec.kind for spec in specs}:
            loads = self._recorded.load_ns(kind, stages)
            total = sum(max(loads.get(s.weights, 0), entries.get((name, kind), 0)) for name, s in stages.items())
            longest = max(longest, total)
        return longest + SECOND

    def _requests(
        self, factor: float, horizon_ns: int, ready_ns: int, seed: int
    ) -> tuple[list[RequestArrived], dict[int, int]]:
        """Requests in order of time, and which each is a copy of: those that are open now come first."""
        rng = random.Random(f"{seed}/{factor}")
        span_ns = max(1, self._now_ns - self._begin_ns)
        copies = -(-factor // 1)
        found: list[tuple[int, RequestArrived]] = []
        skip_ns = max(0, span_ns - horizon_ns)  # the latest of them, if not all
        for copy in range(int(copies)):
            shift_ns = rng.randrange(span_ns) if copy else 0
            for lap in range(-(-horizon_ns // span_ns)):
                for event in self._arrivals:
                    at_ns = (event.at_ns - self._begin_ns - skip_ns + shift_ns) % span_ns + lap * span_ns
                    if at_ns < horizon_ns and rng.random() < factor / copies:
                        found.append((at_ns, event))
        found.sort(key=lambda each: each[0])
        arrivals: list[RequestArrived] = []
        origin: dict[int, int] = {}
        by_ident = {event.request: event for event in self._recorded.arrivals}
        waiting = [by_ident[ident] for ident in self._open if ident in by_ident]
        for at_ns, event in [(0, event) for event in waiting] + found:
            ident = len(arrivals) + 1
            origin[ident] = event.request
            begin_ns = self._now_ns if ident <= len(waiting) else event.at_ns
            at = ready_ns + at_ns

            def moved(time_ns: int, begin_ns: int = begin_ns, at: int = at) -> int:
                return max(at + 1, at + time_ns - begin_ns) if time_ns else 0

            objective_ns = event.objective_ns or event.at_ns + self._header.graphs[event.graph].slo_ns
            times = (moved(objective_ns), moved(event.deadline_ns))
            arrivals.append(RequestArrived(at, 0, ident, event.graph, event.priority, *times, event.counts))
        return arrivals, origin


def _devices(present: Present) -> dict[str, int]:
    """Kind -> how many there are."""
    found: dict[str, int] = {}
    for spec in present.workers.values():
        found[spec.kind] = found.get(spec.kind, 0) + 1
    return found


def _specs(present: Present, devices: dict[str, int]) -> list[tuple[WorkerSpec, int]]:
    """Workers of the simulation, each with the live one that it is like."""
    found = []
    for kind, count in sorted(devices.items()):
        live = sorted((ident, spec) for ident, spec in present.workers.items() if spec.kind == kind)
        for number in range(count):
            ident, spec = live[number % len(live)]
            name = spec.name if number < len(live) else f"{spec.name}+{number // len(live)}"
            found.append((msgspec.structs.replace(spec, name=name), ident))
    return found
