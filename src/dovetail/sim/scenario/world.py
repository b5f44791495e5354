"""From a checked scenario to what is simulated: graphs, profile entries, workers and streams of requests.

Rule of this file: it knows what names mean (catalogue, applications, profile stores) and decides nothing. A wrong
name is reported where it stands in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from ...errors import DovetailError
from ...profile import catalogue
from ...profile.find import find_store
from ...profile.machine import CPU, HOST, this_machine
from ...profile.record import FRESH, MISSING
from ...profile.store import ProfileStore
from ...profile.table import Entry
from ...state import WorkerSpec
from ...units import format_bytes
from ...workflow.app import load_target, target_folder
from ...workflow.graph import Graph, StageSpec
from ..arrivals import Stream
from ..branching import Draws, plan_draws
from ..sequences import KernelSequence, catalogue_sequences
from .declared import catalogue_graph, inline_graph, timed
from .file import DeviceEntry, FileEntry, Scenario, Times, WorkflowEntry
from .toml_source import TomlSource

__all__ = ["Place", "World", "build_world"]


class Place(msgspec.Struct, frozen=True):
    """A worker and when it is there."""

    spec: WorkerSpec
    join_ns: int = 0
    #: None: to the end.
    leave_ns: int | None = None


class World(msgspec.Struct, frozen=True):
    """Everything a simulation needs beside a policy."""

    graphs: tuple[Graph, ...]
    draws: tuple[Draws, ...]
    entries: tuple[Entry, ...]
    places: tuple[Place, ...]
    streams: tuple[Stream, ...]
    #: Kernels of stages, for workers that tell them apart (`WorkerSpec.preempts`).
    sequences: dict[str, KernelSequence]
    #: Processor cores of the largest device.
    cores: int
    #: What the user should know of how it was put together.
    notes: tuple[str, ...]


class _Stage(msgspec.Struct, frozen=True):
    """A stage, its times if the file gives them, and the key of the workflow that declared it first."""

    spec: StageSpec
    times: Times | None
    key: str


def build_world(scenario: Scenario, file: TomlSource) -> World:
    """Find everything that the scenario names."""
    return _Builder(scenario, file).build()


class _Builder:
    def __init__(self, scenario: Scenario, file: TomlSource) -> None:
        self.scenario = scenario
        self.file = file
        self.folder = file.path.parent
        self.graphs: list[Graph] = []
        self.draws: list[Draws] = []
        self.stages: dict[str, _Stage] = {}
        self.notes: list[str] = []
        self.sequences: dict[str, KernelSequence] = {}

    def build(self) -> World:
        for number, workflow in enumerate(self.scenario.workflows):
            self._workflow(workflow, f"workflows[{number}]")
        # Of one class alone nobody is in anybody's way, so that kernels would only take time to simulate.
        usual = {graph.name: graph.priority for graph in self.graphs}
        if len({entry.class_ or usual.get(entry.workflow, 1) for entry in self.scenario.arrivals}) > 1:
            self.sequences = catalogue_sequences(s.spec for s in self.stages.values() if not s.spec.on_host)
        places = [p for number, entry in enumerate(self.scenario.devices) for p in self._places(entry, number)]
        self._check_room([place.spec for place in places])
        return World(
            graphs=tuple(self.graphs),
            draws=tuple(self.draws),
            entries=tuple(self._entries([place.spec for place in places])),
            places=tuple(places),
            streams=tuple(self._streams()),
            sequences=self.sequences,
            cores=max([1, *(place.spec.cores for place in places if place.spec.kind != HOST)]),
            notes=tuple(self.notes),
        )

    @contextmanager
    def _at(self, key: str) -> Iterator[None]:
        """Whatever is refused inside is reported at `key`."""
        try:
            yield
        except (DovetailError, ValueError) as error:
            raise self.file.error(key, str(error)) from None

    # -- workflows --------------------------------------------------------------------------------------------

    def _workflow(self, entry: WorkflowEntry, key: str) -> None:
        given = [name for name in ("catalogue", "app", "stages") if getattr(entry, name)]
        if len(given) != 1:
            what = " and ".join(given) or "nothing"
            raise self.file.error(key, f"say where it comes from by one of catalogue, app or stages, not by {what}")
        for name in ("workflow", "time"):
            if getattr(entry, name) and not entry.app:
                raise self.file.error(f"{key}.{name}", "goes with app only")
        if entry.catalogue:
            with self._at(f"{key}.catalogue"):
                graph, times = catalogue_graph(entry.catalogue)
        elif entry.app:
            graph, times = self._app(entry, key)
        else:
            graph, times = inline_graph(entry, key, self.file)
        graph = msgspec.structs.replace(
            graph,
            name=entry.name or graph.name,
            slo_ns=int(entry.slo or graph.slo_ns),
            priority=entry.priority or graph.priority,
        )
        if any(graph.name == other.name for other in self.graphs):
            raise self.file.error(key, f"there are two workflows named {graph.name!r}; give one another name")
        for spec in graph.stages:
            stage = _Stage(spec, times.get(spec.name), key)
            first = self.stages.setdefault(spec.name, stage)
            if (first.spec, first.times) != (stage.spec, stage.times):
                raise self.file.error(key, f"stage {spec.name!r} is another one in {first.key}; rename one of them")
        with self._at(key):
            self.draws.append(plan_draws(graph, entry.fanout, entry.condition))
        self.graphs.append(graph)

    def _app(self, entry: WorkflowEntry, key: str) -> tuple[Graph, dict[str, Times]]:
        with self._at(f"{key}.app"):
            app = load_target(entry.app)
        has = f"{entry.app} has: {', '.join(app.workflows)}"
        if entry.workflow and entry.workflow not in app.workflows:
            raise self.file.error(f"{key}.workflow", f"there is no workflow {entry.workflow!r}; {has}")
        if not entry.workflow and len(app.workflows) > 1:
            raise self.file.error(key, f'say which one, as in workflow = "{next(iter(app.workflows))}"; {has}')
        graph = app.workflows[entry.workflow or next(iter(app.workflows))].graph
        stages = [spec.name for spec in graph.stages]
        for name in entry.time:
            if name not in stages:
                raise self.file.error(f"{key}.time", f"there is no stage {name!r}; there are: {', '.join(stages)}")
        return graph, entry.time

    # -- devices ----------------------------------------------------------------------------------------------

    def _places(self, entry: DeviceEntry, number: int) -> Iterator[Place]:
        key = f"devices[{number}]"
        if entry.leave is not None and entry.leave <= entry.join:
            raise self.file.error(f"{key}.leave", "must be later than join")
        usd_per_core_hour = catalogue.unit_prices().usd_per_vcpu_hour
        if entry.kind == CPU:
            cores = entry.cores or (this_machine().cores if entry.profile else 1)
            memory_bytes, usd_per_hour = 0, usd_per_core_hour * cores
        else:
            with self._at(f"{key}.kind"):
                card = catalogue.device(entry.kind)
            cores, memory_bytes, usd_per_hour = entry.cores, card.memory_bytes, card.usd_per_hour
        if entry.memory is not None:
            memory_bytes = int(entry.memory)
        if entry.usd_per_hour is not None:
            usd_per_hour = entry.usd_per_hour
        join_ns, leave_ns = int(entry.join), None if entry.leave is None else int(entry.leave)
        mark = f"{number}-" if len(self.scenario.devices) > 1 else ""  # names are unique over all entries
        by_kernel = bool(self.sequences) and entry.kernels == "auto"
        for i in range(entry.count):
            spec = WorkerSpec(
                f"{entry.kind}-{mark}{i}",
                entry.kind,
                ("onnx", "torch", "model"),
                cores,
                memory_bytes,
                usd_per_hour,
                "simulated",
                preempts=by_kernel,
            )
            yield Place(spec, join_ns, leave_ns)
        for i in range(entry.host):
            spec = WorkerSpec(f"{HOST}-{mark}{i}", HOST, ("python",), 1, 0, usd_per_core_hour, "simulated")
            yield Place(spec, join_ns, leave_ns)

    def _check_room(self, workers: Sequence[WorkerSpec]) -> None:
        """Every stage must have a worker that can run it and hold its model."""
        for stage in self.stages.values():
            spec = stage.spec
            able = [w for w in workers if spec.kind in w.runs]
            if spec.on_host and not able:
                raise self.file.error(
                    "devices[0]", f"stage {spec.name!r} runs on the host; add workers there: host = 2"
                )
            if not any(not w.memory_bytes or w.memory_bytes >= spec.weights_bytes for w in able):
                size = format_bytes(spec.weights_bytes)
                raise self.file.error(
                    "devices[0]", f"stage {spec.name!r} has {size} of weights and fits on no device"
                )

    # -- profiles ---------------------------------------------------------------------------------------------

    def _entries(self, workers: Sequence[WorkerSpec]) -> Iterator[Entry]:
        """One entry for each stage on each kind of device that may run it."""
        measured = self._measured()
        spread = self.scenario.noise.spread
        for stage in self.stages.values():
            spec = stage.spec
            for kind in dict.fromkeys(worker.kind for worker in workers if spec.kind in worker.runs):
                with self._at(stage.key):
                    entry = (
                        timed(spec, kind, stage.times)
                        if stage.times is not None
                        else measured.get((spec.name, kind))
                        or (None if kind in (CPU, HOST) else catalogue.modelled(spec, kind))
                    )
                if entry is not None:
                    yield entry if spread is None else msgspec.structs.replace(entry, spread=spread)
                elif spec.on_host:
                    self.notes.append(f"stage {spec.name!r} has no profile; it is taken to need 1 ms per item")
                else:
                    raise self.file.error(
                        stage.key,
                        f"nobody knows how long stage {spec.name!r} takes on {kind!r}; say which model of the "
                        f"catalogue it is like (onnx(..., like='resnet50')), or give a profile or a time",
                    )

    def _measured(self) -> dict[tuple[str, str], Entry]:
        """Entries of all profile stores, by stage and kind; the first store that has one counts."""
        found: dict[tuple[str, str], Entry] = {}
        specs = [stage.spec for stage in self.stages.values()]
        for key, store in self._stores().items():
            identity = this_machine()
            with self._at(key):
                # One of another machine is better than none: a simulation may well ask about another machine.
                for entry in store.entries(specs, identity, allow_stale=True):
                    found.setdefault((entry.stage, entry.kind), entry)
                for status in store.status(specs, identity):
                    if status.state not in (FRESH, MISSING):
                        why = "; ".join(status.reasons)
                        self.notes.append(f"the profile of stage {status.stage!r} is stale: {why}")
        return found

    def _stores(self) -> dict[str, ProfileStore]:
        """Stores by the key that asks for them: those that devices name, or else the one that is found."""
        found = {}
        for number, device in enumerate(self.scenario.devices):
            if not device.profile:
                continue
            key, path = f"devices[{number}].profile", self.folder / device.profile
            if not path.exists():
                raise self.file.error(key, f"there is no profile store {path}; `dovetail profile` makes one")
            if device.kind != CPU and not any(stage.spec.on_host for stage in self.stages.values()):
                raise self.file.error(key, "no stage runs on a processor, so that no profile counts; leave it out")
            found[key] = ProfileStore(path)
        apps = [(f"workflows[{i}].app", w.app) for i, w in enumerate(self.scenario.workflows) if w.app]
        if apps and not found:
            folders = [folder for _, app in apps if (folder := target_folder(app)) is not None]
            chosen = find_store(None, folders)
            if chosen.path.exists():
                self.notes.append(chosen.note.replace("--store", "profile = ... of a device"))
                found[apps[0][0]] = ProfileStore(chosen.path)
        return found

    # -- arrivals ---------------------------------------------------------------------------------------------

    def _streams(self) -> Iterator[Stream]:
        names = [graph.name for graph in self.graphs]
        for number, entry in enumerate(self.scenario.arrivals):
            key = f"arrivals[{number}]"
            if entry.workflow not in names:
                raise self.file.error(
                    f"{key}.workflow", f"there is no workflow {entry.workflow!r}; there are: {', '.join(names)}"
                )
            if isinstance(entry, FileEntry) and not (self.folder / entry.path).is_file():
                raise self.file.error(f"{key}.path", f"there is no file {self.folder / entry.path}")
            process = entry.process(self.folder)
            yield Stream(process, names.index(entry.workflow), entry.class_ or 0, int(entry.timeout or 0))
