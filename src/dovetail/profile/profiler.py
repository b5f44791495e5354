"""Measure the stages of an application on this machine, and keep the results.

What is run is what is served: the runners of `workflow.runners` on the items that the workflow's sample leads to each
stage. One stage is measured at a time, all its points in turns, with one session per number of cores; so for
that while there are that many copies of its weights in memory.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator
from functools import partial

import msgspec

from ..errors import ProfileError
from ..workflow.app import App
from ..workflow.graph import StageSpec
from ..workflow.runners import Runner, StageFailed, make_runner
from ..workflow.stage import Stage
from .machine import Identity
from .measure import FULL, Rule, Series, Timer, measure, wall_timer
from .record import Key, Record, wanted_points
from .samples import Items, collect
from .store import ProfileStore

__all__ = ["ProfileOutcome", "ProfileRequest", "chosen_stages", "profile"]

#: What a watcher is told while the workflows run on their samples; no stage can have this name.
SAMPLE_RUN = "running the sample"
#: Told the stage's name and how far it is, from 0 to 1. Called between runs, never during one.
Watch = Callable[[str, float], None]


class ProfileRequest(msgspec.Struct, frozen=True):
    """What to measure, and how carefully."""

    rule: Rule = FULL
    #: Stages and batch sizes; empty is all.
    stages: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    #: Measure also what the store has.
    again: bool = False


class ProfileOutcome(msgspec.Struct, frozen=True):
    """One stage: its profile, old points and new, or why there is none."""

    spec: StageSpec
    record: Record | None
    #: Points measured now.
    measured: int = 0
    trouble: str = ""


def profile(
    app: App,
    store: ProfileStore,
    identity: Identity,
    request: ProfileRequest | None = None,
    *,
    timer: Timer = wall_timer,
    watch: Watch = lambda stage, done: None,
) -> Iterator[ProfileOutcome]:
    """Measure stage after stage what the store does not have; one outcome per stage as soon as it is known.

    When it is interrupted, points that have runs enough for a figure are kept, marked as quick. A stage that
    cannot be measured is an outcome with its trouble; the others go on.
    """
    request = request or ProfileRequest()
    chosen = chosen_stages(app, request)
    watch(SAMPLE_RUN, 0.0)
    items, why_not = collect(app, [stage.name for stage in chosen])
    watch(SAMPLE_RUN, 1.0)
    if not any(stage.name in items for stage in chosen):
        raise ProfileError(f"nothing can be measured: {why_not[chosen[0].name]}")
    store.create()
    for stage in chosen:
        if stage.name not in items:
            yield ProfileOutcome(stage.spec, None, trouble=why_not[stage.name])
            continue
        key = Key.of(stage.spec, identity)
        fed = items[stage.name]
        todo = _todo(stage.spec, identity, request, store.get(key), fed.text)
        trouble = ""
        measured = 0
        if todo:
            try:
                measured = _measure(stage, key, todo, fed, store, request.rule, timer, watch)
            except StageFailed as error:
                trouble = str(error)
        watch(stage.name, 1.0)
        yield ProfileOutcome(stage.spec, store.get(key), measured, trouble)


def chosen_stages(app: App, request: ProfileRequest) -> list[Stage]:
    """The stages asked for; a name or a batch size that nothing here has is refused."""
    for name in request.stages:
        if name not in app.stages:
            near = difflib.get_close_matches(name, app.stages, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ProfileError(f"there is no stage {name!r}; {hint}there are: {', '.join(app.stages)}")
    chosen = [s for name, s in app.stages.items() if not request.stages or name in request.stages]
    sizes = {batch for stage in chosen for batch in stage.spec.batch}
    for batch in request.batches:
        if batch not in sizes:
            raise ProfileError(
                f"no stage declares batch {batch}; declared are: {', '.join(map(str, sorted(sizes)))} "
                f"(add it to batch=(...) of the stage)"
            )
    return [s for s in chosen if not request.batches or set(request.batches) & set(s.spec.batch)]


def _todo(
    spec: StageSpec, identity: Identity, request: ProfileRequest, record: Record | None, items: str
) -> list[tuple[int, int]]:
    """Points that are asked for and not in the store, or there from other items or from a hastier run."""
    have: Collection[tuple[int, int]] = ()
    if record is not None and record.items == items and not request.again:
        have = {(p.batch, p.cpus) for p in record.points if request.rule.quick or not p.quick}
    return [
        (batch, cpus)
        for batch, cpus in wanted_points(spec, identity)
        if (batch, cpus) not in have and (not request.batches or batch in request.batches)
    ]


def _measure(
    stage: Stage,
    key: Key,
    todo: list[tuple[int, int]],
    items: Items,
    store: ProfileStore,
    rule: Rule,
    timer: Timer,
    watch: Watch,
) -> int:
    """Measure the points and keep them; how many."""
    runners: dict[int, Runner] = {}

    def load(cpus: int) -> None:
        runners[cpus] = make_runner(stage, threads=cpus)

    loads_ns = [timer(partial(load, cpus)) for cpus in sorted({c for _, c in todo})]
    series = [
        Series(batch, cpus, [partial(runners[cpus].run, columns) for columns in items.batches(batch)])
        for batch, cpus in todo
    ]
    load_ns = 0 if stage.spec.on_host else sum(loads_ns) // len(loads_ns)
    try:
        for done in measure(series, rule, timer):
            watch(stage.name, done)
    finally:
        points = [one.result(rule) for one in series if one.enough(rule)]
        if points:
            store.put(key, points, load_ns, memory_bytes=stage.spec.weights_bytes, items=items.text)
    return len(points)
