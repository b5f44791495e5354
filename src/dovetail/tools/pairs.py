"""What `dovetail interference` measures: every model of an application beside every other, on this machine.

Rules of this file
- Models run as they are served, on the items that the workflows' samples lead to. Each has half of the cores; beside
  another of its kind it is there twice.
- Times alone are measured before and after the pairs, and the mean of both counts, so that a machine that changes its
  mind meets both.
- A pair is worth running together if both together do more than the device does for one after the other, each with
  all cores.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import msgspec

from ..errors import ProfileError
from ..predict.interference import Beside, Interference, Load, quarter_octaves
from ..profile.machine import CPU
from ..profile.samples import collect
from ..units import SECOND
from ..workflow.app import App
from ..workflow.runners import make_runner

__all__ = ["Pairs", "draw_pairs", "measure_pairs", "teach", "together"]

#: Told what is measured, and how far all is, from 0 to 1.
Watch = Callable[[str, float], None]
Call = Callable[[], object]
#: (calls that run at once, seconds) -> times of each, ns.
Race = Callable[[Sequence[Call], float], list[list[int]]]


class Pairs(msgspec.Struct, frozen=True):
    """The matrix of slow-downs."""

    stages: tuple[str, ...]
    items: tuple[int, ...]
    #: Time alone with half of the cores, and with all.
    half_ns: tuple[int, ...]
    whole_ns: tuple[int, ...]
    #: How many times as long a stage (row) takes beside another (column).
    slowdown: tuple[tuple[float, ...], ...]


def race(calls: Sequence[Call], seconds: float) -> list[list[int]]:
    """Run each over and over in a thread of its own, and take times while all run."""
    times: list[list[int]] = [[] for _ in calls]
    start = threading.Barrier(len(calls))
    failed: list[BaseException] = []

    def loop(number: int) -> None:
        try:
            calls[number]()
            start.wait(60)
            until = time.perf_counter_ns() + round(seconds * SECOND)
            # Three at least, and none after the end: by then the other may be alone.
            while (begin := time.perf_counter_ns()) < until or len(times[number]) < 3:
                calls[number]()
                times[number].append(time.perf_counter_ns() - begin)
        except BaseException as error:
            failed.append(error)
            start.abort()

    threads = [threading.Thread(target=loop, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise next((e for e in failed if not isinstance(e, threading.BrokenBarrierError)), failed[0])
    return times


def measure_pairs(
    app: App,
    *,
    cores: int,
    stages: Sequence[str] = (),
    seconds: float = 1.0,
    race: Race = race,
    watch: Watch = lambda what, done: None,
) -> Pairs:
    """Measure every pair of the application's models."""
    for name in stages:
        if name not in app.stages:
            raise ProfileError(f"there is no stage {name!r}; there are: {', '.join(app.stages)}")
        if app.stages[name].spec.on_host:
            raise ProfileError(f"stage {name!r} runs on the host; only models are measured beside each other")
    names = [n for n, s in app.stages.items() if not s.spec.on_host and (not stages or n in stages)]
    items, why_not = collect(app, names)
    names = [name for name in names if name in items]
    if not names:
        raise ProfileError(f"no model can be measured: {'; '.join(why_not.values()) or 'there is none'}")
    sizes = [min(app.stages[name].spec.batch) for name in names]
    half = max(1, cores // 2)

    def calls(number: int, threads: int) -> Call:
        runner = make_runner(app.stages[names[number]], threads=threads)
        columns = items[names[number]].batches(sizes[number])[0]
        return lambda: runner.run(columns)

    ready = [(calls(number, half), calls(number, half)) for number in range(len(names))]
    whole = [calls(number, cores) for number in range(len(names))]
    pairs = list(combinations_with_replacement(range(len(names)), 2))
    steps, done = len(pairs) + 3 * len(names), 0

    def timed(what: str, *who: Call) -> list[float]:
        nonlocal done
        watch(what, done / steps)
        done += 1
        return [statistics.median(found) for found in race(who, seconds)]

    before = [timed(names[n], ready[n][0])[0] for n in range(len(names))]
    slow = [[0.0] * len(names) for _ in names]
    for one, two in pairs:
        first, second = timed(f"{names[one]} beside {names[two]}", ready[one][0], ready[two][1])
        slow[one][two] = (first + second) / 2 if one == two else first
        if one != two:
            slow[two][one] = second
    after = [timed(names[n], ready[n][0])[0] for n in range(len(names))]
    fast = [timed(names[n], whole[n])[0] for n in range(len(names))]
    watch("", 1.0)
    alone = [(b + a) / 2 for b, a in zip(before, after, strict=True)]
    return Pairs(
        tuple(names),
        tuple(sizes),
        tuple(round(ns) for ns in alone),
        tuple(round(ns) for ns in fast),
        tuple(tuple(max(1.0, ns / alone[n]) for ns in row) for n, row in enumerate(slow)),
    )


def together(pairs: Pairs, one: int, two: int) -> float:
    """What two do together, over what the device does for one after the other, each with all cores."""

    def speed(victim: int, other: int) -> float:
        return pairs.whole_ns[victim] / (pairs.half_ns[victim] * pairs.slowdown[victim][other])

    return speed(one, two) + speed(two, one)


#: So many batches are a measured pair worth, to the predictor.
_WORTH = 20


def teach(model: Interference, pairs: Pairs) -> None:
    """Let the predictor see what was measured."""
    loads = [
        Load(name, items, 50, quarter_octaves(ns))
        for name, items, ns in zip(pairs.stages, pairs.items, pairs.half_ns, strict=True)
    ]
    for _ in range(_WORTH):
        for one, row in enumerate(pairs.slowdown):
            for two, slow in enumerate(row):
                ns = pairs.half_ns[one]
                model.observe(CPU, loads[one], ns, round(ns * slow), [Beside(loads[two])])
                model.kind(CPU).presence.saw_beside(math.log(slow))


def draw_pairs(pairs: Pairs, path: Path) -> None:
    """The matrix as a heat map."""
    from matplotlib.figure import Figure

    count = len(pairs.stages)
    figure = Figure((2.2 + 0.75 * count, 1.8 + 0.6 * count), dpi=130, layout="constrained")
    axes: Any = figure.subplots()
    image = axes.imshow(pairs.slowdown, cmap="YlOrRd", vmin=1.0, vmax=max(2.0, *map(max, pairs.slowdown)))
    axes.set_xticks(range(count), pairs.stages, rotation=45, ha="right")
    axes.set_yticks(range(count), pairs.stages)
    axes.set_xlabel("beside")
    axes.set_ylabel("takes so many times as long")
    middle = (1 + image.get_clim()[1]) / 2
    for one, row in enumerate(pairs.slowdown):
        for two, slow in enumerate(row):
            axes.text(two, one, f"{slow:.2f}", ha="center", va="center", color="white" if slow > middle else "black")
    figure.savefig(path, metadata={"Software": None})
