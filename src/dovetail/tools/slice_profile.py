"""Measure the stages of an application in slices of this machine: by batch, share and quota, with few points.

Rules of this file
- What is measured is what is enforced: a Device machine with the token account in strict mode says when each batch of
  the real model may start, by the real clock. The next batch is there as soon as the last has ended.
- A share is a number of threads, as in a worker. Shares that are the same number of threads are one.
- Each point is kept in the profile store as soon as it is measured. What is there already is not measured again.
- It prints nothing. `cli/profile_slices.py` shows it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any

import msgspec

from ..device import Device, DeviceTimes, ModelCache, TokenAccount, TokenSettings
from ..device.events import AlarmRang, DeviceEvent, Grant, GrantEnded, SetAlarm
from ..errors import ProfileError
from ..live.worker.footprint import Peak
from ..predict import Estimator
from ..profile.machine import Identity, core_counts
from ..profile.profiler import ProfileRequest, chosen_stages
from ..profile.record import Key
from ..profile.samples import collect
from ..profile.store import ProfileStore
from ..profile.surface import Grid, SlicePoint, next_place
from ..profile.table import ProfileTable
from ..state.run_batch import NEVER_NS, RunBatch
from ..state.worker import FULL_SHARE
from ..units import SECOND
from ..workflow.app import App
from ..workflow.graph import StageSpec
from ..workflow.runners import Runner, make_runner

__all__ = ["QUOTAS", "SliceProfile", "grid_of", "profile_slices"]

#: Quotas that may be measured [our choice]: about half as much again each time.
QUOTAS = (10, 15, 20, 30, 45, 70, 100)
#: Batches that are not counted, that are counted at least, and for how long they are counted.
WARM_UPS, LEAST_RUNS, LEAST_NS, MOST_NS = 2, 10, SECOND, 4 * SECOND


class SliceProfile(msgspec.Struct, frozen=True):
    """One stage: its grid, all points that there are, and how many of them are new."""

    spec: StageSpec
    grid: Grid
    points: tuple[SlicePoint, ...]
    measured: int = 0
    trouble: str = ""


def grid_of(spec: StageSpec, cores: int) -> Grid:
    """What a stage could be given on a machine of so many cores."""
    shares = tuple(-(-FULL_SHARE * cpus // cores) for cpus in core_counts(cores))
    return Grid(tuple(sorted(set(spec.batch))), shares, QUOTAS)


def profile_slices(
    app: App,
    store: ProfileStore,
    identity: Identity,
    request: ProfileRequest,
    most: int,
    watch: Callable[[str, float], None] = lambda stage, done: None,
) -> Iterator[SliceProfile]:
    """Measure models stage after stage, up to so many points each; a stage that cannot be measured says why."""
    chosen = [stage for stage in chosen_stages(app, request) if not stage.spec.on_host]
    if not chosen:
        raise ProfileError("no stage here runs a model, and only models run in slices")
    items, why_not = collect(app, [stage.name for stage in chosen])
    store.create()
    for stage in chosen:
        spec, grid = stage.spec, grid_of(stage.spec, identity.cores)
        key = Key.of(spec, identity)
        if stage.name not in items:
            yield SliceProfile(spec, grid, (), trouble=why_not[stage.name])
            continue
        fed = items[stage.name]
        points = {} if request.again else {p.place: p for p in store.slices(key, fed.text)}
        runners: dict[int, Runner] = {}
        measured = 0
        while (place := next_place(grid, {at: p.per_s for at, p in points.items()}, most)) is not None:
            watch(stage.name, len(points) / most)
            batch, share_pct, quota_pct = place
            cpus = max(1, identity.cores * share_pct // FULL_SHARE)
            if cpus not in runners:
                runners[cpus] = make_runner(stage, threads=cpus)
            points[place] = _measure(spec, runners[cpus], fed.batches(batch), share_pct, quota_pct)
            measured += 1
            store.put_slices(key, fed.text, list(points.values()))
        watch(stage.name, 1.0)
        yield SliceProfile(spec, grid, tuple(points.values()), measured)


def _measure(spec: StageSpec, runner: Runner, variants: Sequence[Any], share_pct: int, quota_pct: int) -> SlicePoint:
    """Run batches one after the other as the device allows."""
    size = len(variants[0][0])
    device = Device(
        1,
        {spec.name: (spec.weights, 0)},
        ModelCache(1 << 62),
        DeviceTimes(Estimator(ProfileTable()), "cpu", {}),
        account=TokenAccount(TokenSettings(mode="strict")),
    )
    origin_ns = time.monotonic_ns()
    took: list[int] = []
    peak = Peak()
    number, begin_ns = 0, 0
    while number < WARM_UPS + LEAST_RUNS or time.monotonic_ns() - begin_ns < LEAST_NS:
        came_ns = time.monotonic_ns()
        if number == WARM_UPS:
            begin_ns = came_ns
        items = tuple((number, 0, i) for i in range(size))
        run = RunBatch(0, number + 1, 1, spec.name, items, 1, share_pct, 0, NEVER_NS, 1, quota_pct=quota_pct)
        _grant(device, run, origin_ns)
        runner.run(variants[number % len(variants)])
        end_ns = time.monotonic_ns()
        device.step(GrantEnded(number + 1, 1), end_ns - origin_ns)
        number += 1
        if number > WARM_UPS:
            took.append(end_ns - came_ns)
            if number >= WARM_UPS + 3 and end_ns - begin_ns > MOST_NS:
                break
    per_s = size * len(took) * SECOND / (time.monotonic_ns() - begin_ns)
    took.sort()
    p50, p95, p99 = (took[ceil(part * len(took)) - 1] for part in (0.5, 0.95, 0.99))
    memory_bytes = spec.weights_bytes + peak.above_bytes()
    return SlicePoint(size, share_pct, quota_pct, per_s, p50, p95, p99, memory_bytes, len(took))


def _grant(device: Device, run: RunBatch, origin_ns: int) -> None:
    """Wait until the device lets the batch start."""
    event: DeviceEvent = run
    while True:
        actions = device.step(event, time.monotonic_ns() - origin_ns)
        if any(isinstance(action, Grant) for action in actions):
            return
        alarms = [action.at_ns for action in actions if isinstance(action, SetAlarm)]
        if alarms:
            until_ns = min(alarms)
        elif event is run:
            raise ProfileError(f"the device will never start a batch of stage {run.stage!r}: {actions}")
        time.sleep(max(0, until_ns - (time.monotonic_ns() - origin_ns)) / SECOND)
        event = AlarmRang()
