"""`dovetail simulate scenario.toml`: run a scenario against simulated devices and show what became of the requests.

Exit code 0: every workflow and class met its objective (the scenario's `target` share of its requests, 95 % if it
does not say). 1: some did not. 2: the scenario is wrong. The same scenario gives the same stdout, byte for byte.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from ..errors import DovetailError
from ..extras import need
from ..record.log import LogWriter
from ..sim.driver import Observer
from ..tools.resimulate import Resimulation
from ..tools.scaling import print_decisions
from ..tools.simulate import DeviceUse, Result, ScaledUse, ScenarioRun
from ..tools.table import render, results_console
from ..wiring import POLICIES
from .flags import whole
from .reading import print_json, progress_bar, writing

if TYPE_CHECKING:
    from ..tools.timeline import Timeline
    from ..tools.trace import TraceRecorder

#: More devices than these are summed up by kind.
_NAMED_DEVICES = 12


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument(
        "scenario", type=Path, nargs="?", metavar="SCENARIO", help="scenario file; docs/simulate.md explains it"
    )
    parser.add_argument(
        "--recorded",
        type=Path,
        metavar="LOG",
        help="instead of a scenario: the requests and workers of a log that dovetail serve --log has written",
    )
    parser.add_argument("--policy", metavar="NAME", help=f"instead of the scenario's: {', '.join(POLICIES)}")
    parser.add_argument("--seed", type=whole(0), metavar="N", help="instead of the scenario's")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw latencies and time line into this directory")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write a log for dovetail replay and explain")
    parser.add_argument(
        "--dry-run", action="store_true", help="print what the scaler would do, and do none of it (docs/scale.md)"
    )
    parser.add_argument("--check", action="store_true", help="check all invariants after every step (slow)")


def run(args: argparse.Namespace) -> int:
    """Simulate; the exit code."""
    if (args.scenario is None) == (args.recorded is None):
        raise DovetailError("give a scenario file, or --recorded with the log of a run, and not both")
    if args.recorded is not None:
        return _resimulate(args)
    if args.plot is not None:
        need("matplotlib", extra="plot", for_="--plot")
    simulated = ScenarioRun(args.scenario, policy=args.policy, seed=args.seed, dry_run=args.dry_run)
    if len(simulated.controllers) > 1:
        one = [name for name in ("log", "trace", "plot") if getattr(args, name) is not None]
        if one:
            raise DovetailError(f"--{one[0]} tells of one controller; for that, set cluster.ingresses = 1")
    for note in simulated.notes:
        _say(f"note: {note}")
    # Opened before the run: what cannot be written to is better known before than after.
    with _recorders(args, simulated) as recorders, progress_bar(args.scenario.name) as progress:
        begin_s = time.perf_counter()
        observers = [recorder.observe for recorder in recorders]
        result = simulated.go(observers, check=args.check, progress=lambda done: progress(done, 1.0))
        took_s = time.perf_counter() - begin_s
    for recorder in recorders:
        recorder.write()
    requests = sum(line.requests for line in result.summaries)
    _say(f"{requests:,} requests, {result.events:,} events in {took_s:.1f} s ({requests / took_s:,.0f} requests/s)")
    if args.json:
        print_json(result, order="sorted")
    else:
        _print(result)
    return 0 if result.met else 1


def _resimulate(args: argparse.Namespace) -> int:
    """Simulate what a log recorded, and show both."""
    given = [name for name in ("plot", "trace", "log") if getattr(args, name) is not None]
    given += ["dry-run"] if args.dry_run else []
    if given or args.check:
        raise DovetailError(f"--{(given or ['check'])[0]} goes with a scenario; leave it out with --recorded")
    simulated = Resimulation(args.recorded, policy=args.policy, seed=1 if args.seed is None else args.seed)
    for note in simulated.notes:
        _say(f"note: {note}")
    compared = simulated.go()
    if args.json:
        print_json(compared, order="sorted")
        return 0
    out = results_console()
    out.print("[bold]as recorded[/]")
    out.print(render(compared.recorded))
    out.print(f"[bold]as simulated[/], {compared.policy.name}, seed {compared.seed}")
    out.print(render(compared.simulated))
    return 0


def _say(text: str) -> None:
    print(f"dovetail simulate: {text}", file=sys.stderr)


def _print(result: Result) -> None:
    out = results_console()
    if result.scaled is not None and result.scaled.advice:
        print_decisions(result.scaled.advice)
        out.print()
    out.print(render(result.summaries, target=result.target))
    busy = _busy(result.devices)
    out.print(Text(f"\n{result.policy.name}, seed {result.seed}, {result.simulated_s:,.1f} s; busy: {busy}"))
    if result.scaled is not None:
        out.print(Text(_scaled(result.scaled)))
    goal = f"{result.target:.0%} of the requests of each class within the objective"
    out.print(f"[green]met[/]: {goal}" if result.met else f"[bold red]missed[/]: {goal}")


def _scaled(use: ScaledUse) -> str:
    would = "would have reserved" if use.advice else "reserved"
    slices = f"{use.gpu_s:,.1f} GPU-seconds in slices, {use.changes:,} changes, " if use.changes else ""
    return f"the scaler {would} {slices}{use.device_s:,.1f} device-seconds, at most {use.most_devices} devices"


def _busy(devices: Sequence[DeviceUse]) -> str:
    """How busy each device was; of many, how busy they were by kind."""
    if len(devices) <= _NAMED_DEVICES:
        return ", ".join(f"{device.name} {device.busy:.0%}" for device in devices)
    kinds: dict[str, list[float]] = {}
    for device in devices:
        kinds.setdefault(device.kind, []).append(device.busy)
    return ", ".join(
        f"{len(busy)} x {kind} {sum(busy) / len(busy):.0%} ({min(busy):.0%} to {max(busy):.0%})"
        for kind, busy in kinds.items()
    )


class _Recorder(NamedTuple):
    """Sees every step, and writes something when all is over."""

    observe: Observer
    write: Callable[[], None]


@contextmanager
def _recorders(args: argparse.Namespace, simulated: ScenarioRun) -> Iterator[list[_Recorder]]:
    graphs = simulated.world.graphs
    recorders: list[_Recorder] = []
    with ExitStack() as stack:
        if args.log is not None:
            with writing(args.log):
                log = stack.enter_context(LogWriter(args.log, simulated.header))
            recorders.append(_Recorder(log.step, lambda: _say(f"wrote the log {args.log}")))
        if args.trace is not None:
            from ..tools.trace import TraceRecorder

            with writing(args.trace):
                args.trace.open("ab").close()
            trace = TraceRecorder(graphs)
            recorders.append(_Recorder(trace.observe, lambda: _write_trace(trace, args.trace)))
        if args.plot is not None:
            from ..tools.timeline import Timeline

            with writing(args.plot):
                args.plot.mkdir(parents=True, exist_ok=True)
            timeline = Timeline()
            recorders.append(_Recorder(timeline.observe, lambda: _draw(simulated, timeline, args.plot)))
        yield recorders


def _write_trace(trace: TraceRecorder, path: Path) -> None:
    with writing(path):
        trace.write(path)
    cut = f" ({trace.stopped})" if trace.stopped else ""
    _say(f"wrote the trace {path}{cut}; open it at https://ui.perfetto.dev")


def _draw(simulated: ScenarioRun, timeline: Timeline, folder: Path) -> None:
    from ..tools.plots import draw_latency, draw_timeline

    timeline.finish()
    with writing(folder):
        draw_latency(simulated.ledger, folder / "latency.png")
        draw_timeline(timeline, simulated.world.graphs, folder / "timeline.png")
    _say(f"drew latency.png and timeline.png in {folder}")
