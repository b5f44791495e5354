"""Runs to read logs of: random graphs, arrivals, failures and losses on simulated devices, recorded step by step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dovetail.control import Action, BatchFailed, BatchFinished, Event, RequestArrived, RequestCancelled
from dovetail.control.validate import validate
from dovetail.profile.table import Entry, Point
from dovetail.record.ledger import Ledger
from dovetail.record.log import Header, LogWriter, Step, make_header
from dovetail.sim import SimDevice, Simulation
from dovetail.state import WorkerSpec
from dovetail.units import MS
from dovetail.wiring import PolicySpec, ProfileTable, make_controller
from dovetail.workflow.graph import Graph, Node, Port, Source, StageSpec, chain

STAGES = {
    name: StageSpec(name, "model", batch, model=name)
    for name, batch in {"detect": (1, 4), "crop": (1, 8), "read": (1, 16), "check": (1,), "join": (1, 2)}.items()
}
ENTRIES = tuple(
    Entry(
        name, "gpu", points=(Point(1, 1, (1 + i) * MS, 0.0, 1), Point(16, 1, (4 + i) * MS, 0.0, 1)),
        load_ns=5 * MS, spread=0.3,
    )
    for i, name in enumerate(STAGES)
)  # fmt: skip


def document(slo_ns: int = 40 * MS) -> Graph:
    """Detect words, crop and read each, check only if there are any, join."""
    nodes = (
        Node("detect", "detect", (Source(-1),)),
        Node("crop", "crop", (Source(0),), mapped=True),
        Node("read", "read", (Source(1, each=True),), mapped=True),
        Node("check", "check", (Source(0),), when=Source(0), otherwise=Source(0)),
        Node("join", "join", (Source(2), Source(3))),
    )
    page = (Port("page", "BYTES", (1,)),)
    return Graph("document", slo_ns, 1, tuple(STAGES.values()), nodes, page, page, (Source(4),))


def plain(slo_ns: int = 20 * MS) -> Graph:
    """Two stages behind one, and one behind both."""
    stages = [STAGES[name] for name in ("detect", "check", "crop", "join")]
    after = {"check": ["detect"], "crop": ["detect"], "join": ["check", "crop"]}
    return chain("plain", slo_ns, stages, after, priority=2)


class Words:
    """Each page has its own number of words, some none."""

    def counts(self, items: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
        """Only `detect` of a document (an odd request) is counted."""
        return tuple(request * 7 % 13 % 6 for request, node, _ in items if node == 0 and request % 2)


class Flaky:
    """A device whose batches fail, one in ten, after they have run."""

    def __init__(self, device: SimDevice, rng: random.Random) -> None:
        self._device = device
        self._moods = rng

    @property
    def gone(self) -> bool:
        """Whether it was lost."""
        return self._device.gone

    def wake(self, payload: object, now_ns: int) -> list[Event]:
        """As a sound device, but for the failures."""
        return [self._spoil(event) for event in self._device.wake(payload, now_ns)]

    def _spoil(self, event: Event) -> Event:
        if isinstance(event, BatchFinished) and self._moods.random() < 0.1:
            return BatchFailed(event.at_ns, event.cause, event.batch, event.begin_ns, event.end_ns, "error", "boom")
        return event


def header(spec: PolicySpec, seed: int = 0) -> Header:
    """The header of a run with this policy."""
    return make_header("sim", [plain(), document()], msgspec.msgpack.encode(spec), ENTRIES, 2, seed=seed)


def arrivals(count: int, rng: random.Random, rate: float) -> Iterator[RequestArrived]:
    """Odd requests are documents; some have a class of their own, some a deadline."""
    at_ns = 0
    for request in range(1, count + 1):
        at_ns += int(rng.expovariate(rate) * 1e9)
        deadline = at_ns + rng.randrange(1, 60) * MS if rng.random() < 0.3 else 0
        yield RequestArrived(at_ns, 0, request, request % 2, rng.choice((0, 0, 3)), 0, deadline)


def run(
    path: Path, *, seed: int = 0, count: int = 40, rate: float = 300.0, spec: PolicySpec | None = None
) -> list[Step]:
    """Simulate a run, write its log, and give its steps: flaky workers of which one is lost, cancelled requests."""
    rng = random.Random(seed)
    spec = spec or PolicySpec()
    log = header(spec, seed)
    controller = make_controller(log.graphs, spec, log.entries, log.cores)
    steps: list[Step] = []
    with LogWriter(path, log) as writer:

        def record(event: Event, actions: list[Action]) -> None:
            note = f"client-{event.request}" if isinstance(event, RequestArrived) and event.request % 3 else ""
            steps.append(Step(event, actions, note))
            writer.step(event, actions, note)
            validate(controller)

        sim = Simulation(controller, Ledger([("plain", 1), ("document", 1)]), arrivals(count, rng, rate), [record])

        def schedule(at_ns: int, device: SimDevice, payload: object) -> None:
            sim.schedule(at_ns, Flaky(device, rng), payload)

        for ident in (1, 2, 3):
            spec_of = WorkerSpec(f"gpu{ident}", "gpu", ("model",), cores=2, usd_per_hour=1.0)
            table = ProfileTable(log.entries)
            device = SimDevice(ident, spec_of, controller.stages, table, schedule, rng=rng, branching=Words())
            sim.join(device, at_ns=ident * MS)
        for _ in range(count // 8):
            sim.post(RequestCancelled(rng.randrange(1, 200) * MS, 0, rng.randrange(1, count + 1)))
        sim.lose(2, 30 * MS, "the process died")
        sim.run()
    return steps
