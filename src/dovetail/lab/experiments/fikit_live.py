"""FIKIT on real models: what gating kernels does to a high-priority task, to what runs beside it, and what it costs.

Read with care: FIKIT's figures are of CUDA kernels on GPUs that the abstract does not name. Here the device is one
core, kernels are segments of ONNX graphs or groups of torch operators, and default sharing is a queue of launches or
slices of 2 ms, because the operating system shares a core more kindly than a GPU is shared. What can be compared is
the kind of the effect, not the digits.

`pairs` and `overheads` measure, `live_figures` says what that means for the claims; `run_live` puts them on record.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

from ...units import MS, US
from ..experiment import Estimate, Goal, Lab
from ..gate.client import Gate, GateClient, GatePolicy, GateProgram
from ..gate.run import PairRun, Side, measure_pair
from .fikit_models import ONNX_MODELS, TORCH_MODELS, LiveModel

__all__ = ["PAIRS", "LiveFigure", "Overhead", "Pair", "live_figures", "overheads", "pairs", "run_live"]

PAPER = "FIKIT (arXiv 2311.10359 v5), abstract"
OURS = "our own"
#: Lengths of kernels: the high task's, and the low task's, which have to fit into the gaps of the other.
HIGH_KERNEL_NS = 1 * MS
LOW_KERNEL_NS = 500 * US
#: What a high task finds running is cut finer, whatever it costs the low one.
LOW_LONGEST_NS = 500 * US
#: Called with what is being done, and how much of all of it (0 to 1).
Watch = Callable[[str, float], None]
DEFAULTS = ("fifo", "slice")


class Pair(msgspec.Struct, frozen=True):
    """A high and a low task, and the host work between the kernels of the high one."""

    high: str
    gap_ns: int
    low: str
    #: Whether that work is Python at work; else it is a wait.
    work: bool = False


PAIRS = (
    Pair("tiny_reader", 2 * MS, "nudity"),
    Pair("page_way", 1 * MS, "small_reader"),
    Pair("nudity", 500 * US, "tiny_reader", work=True),
    Pair("small_reader", 1 * MS, "file_kind"),
    Pair("small_transformer", 2 * MS, "text_detector"),
    Pair("small_resnet", 1 * MS, "small_transformer"),
)
#: Rounds and seconds per mode, and the same if it has to be quick. Many short ones: the speed of a shared machine
#: drifts by 20 % within seconds, and what is compared is compared within a round.
FULL, QUICK = (15, 0.4), (3, 0.3)
#: Rounds and seconds of each model in which it is run in kernels and whole, at least.
OVERHEAD, QUICK_OVERHEAD = (21, 3.0), (9, 1.0)
#: A model that takes so long is run once each time, shorter ones up to three times.
COST_NS = 20 * MS
#: Four pairs of all kinds, and the gate's cost to the models in them, if it has to be quick.
QUICK_PAIRS = (*PAIRS[:3], PAIRS[-1])
BATCHES = (1, 8)


def models() -> dict[str, LiveModel]:
    """Those that can be run here: torch is an extra."""
    torch = TORCH_MODELS if importlib.util.find_spec("torch") is not None else {}
    return {**ONNX_MODELS, **torch}


# -- pairs ----------------------------------------------------------------------------------------------------------


def pairs(
    chosen: Sequence[Pair] = PAIRS, *, rounds: int, seconds: float, watch: Watch = lambda _what, _done: None
) -> list[PairRun]:
    """Every pair whose models can be run here, one after the other."""
    here = models()
    able = [pair for pair in chosen if pair.high in here and pair.low in here]
    runs = []
    for number, pair in enumerate(able):
        what = f"{pair.high} over {pair.low}"
        watch(what, number / len(able))
        high, low = here[pair.high], here[pair.low]
        runs.append(
            measure_pair(
                Side(pair.high, high.source(HIGH_KERNEL_NS), high.shapes()),
                Side(f"{pair.low} (low)", low.source(LOW_KERNEL_NS, longest_ns=LOW_LONGEST_NS), low.shapes()),
                pair.gap_ns,
                rounds=rounds,
                seconds=seconds,
                work=pair.work,
                watch=lambda done, n=number, w=what: watch(w, (n + done) / len(able)),  # type: ignore[misc]
            )
        )
    return runs


# -- what gating costs ----------------------------------------------------------------------------------------------


class Overhead(msgspec.Struct, frozen=True):
    """A model alone, in kernels behind the gate against whole."""

    model: str
    batch: int
    kernels: int
    #: Whole, processor time of the device.
    whole_ns: float
    #: Ratio of processor times of the device, round by round: arbiter, sockets and segments, but no neighbours.
    device: tuple[float, ...]
    #: Ratio of the times that the client sees.
    client: tuple[float, ...]


def overheads(
    chosen: Sequence[LiveModel] | None = None,
    *,
    rounds: int,
    seconds: float,
    batches: Sequence[int] = BATCHES,
    watch: Watch = lambda _what, _done: None,
) -> list[Overhead]:
    """Every model at every batch size, cut by the defaults, under our arbiter."""
    chosen = list(models().values()) if chosen is None else chosen
    found = []
    for number, model in enumerate(chosen):
        for place, batch in enumerate(batches):
            watch(f"overhead of {model.name}", (number + place / len(batches)) / len(chosen))
            found.append(_overhead(model, batch, rounds, seconds))
    return found


def _overhead(model: LiveModel, batch: int, rounds: int, seconds: float) -> Overhead:
    """Both take turns, and so does who is first: a core that gets slower for a moment does so for both."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, set(cores[:-1] or cores))
    try:
        with Gate(GatePolicy("fifo"), core=cores[-1]) as gate, GateClient(gate.connect()) as client:
            shapes = model.shapes(batch)
            cut = client.open(f"{model.name} cut", model.source(0), shapes)
            whole = client.open(f"{model.name} whole", model.source(0, segments=1), shapes)
            costs: dict[str, list[tuple[float, float]]] = {cut.name: [], whole.name: []}
            order = [(whole, GatePolicy("fifo")), (cut, GatePolicy("ours", learn=True))]
            until = time.monotonic() + seconds
            while len(costs[cut.name]) < rounds or time.monotonic() < until:
                for program, policy in order:
                    gate.set_policy(policy)
                    costs[program.name].append(_cost(gate, client, program))
                order.reverse()
            ratios = [(c[0] / w[0], c[1] / w[1]) for c, w in zip(*costs.values(), strict=True)]
            device, seen = zip(*ratios, strict=True)
            whole_ns = statistics.median(cpu_ns for cpu_ns, _ in costs[whole.name])
            return Overhead(model.name, batch, len(cut.kernels), whole_ns, device, seen)
    finally:
        os.sched_setaffinity(0, cores)


def _cost(gate: Gate, client: GateClient, program: GateProgram) -> tuple[float, float]:
    """Processor time of the device and time of the client (ns) for one run with warm caches, the mean of a few."""
    client.run(program, priority=1)
    times: list[int] = []
    before_ns = _settled_cpu_ns(gate)
    while sum(times) < COST_NS and len(times) < 3:
        times.append(client.run(program, priority=1))
    return (_settled_cpu_ns(gate) - before_ns) / len(times), statistics.median(times)


def _settled_cpu_ns(gate: Gate) -> int:
    """Processor time of the device's thread, once it sleeps: while it runs the figure is old."""
    time.sleep(0.002)
    with open(f"/proc/{gate.pid}/schedstat", "rb") as file:
        return int(file.read().split()[0])


# -- claims ---------------------------------------------------------------------------------------------------------


class LiveFigure(msgspec.Struct, frozen=True):
    """What `Lab.claim` takes."""

    id: str
    text: str
    source: str
    goal: Goal
    measured: float | Estimate
    published: float | None = None


def live_figures(runs: Sequence[PairRun], costs: Sequence[Overhead]) -> list[LiveFigure]:
    """The claims' figures: medians over rounds, then over pairs, with the smallest and the largest pair."""
    figures = []
    if runs:
        for default in DEFAULTS:
            text = "device queue, first in first out" if default == "fifo" else "slices of 2 ms"
            figures += [
                LiveFigure(
                    f"live.high.{default}",
                    f"high-priority time under {text}, over ours; median over pairs, smallest and largest pair",
                    PAPER,
                    Goal("at least", 1.32, "times"),
                    _over_pairs(runs, lambda w, d=default: w[d].jct_ns / w["ours"].jct_ns),
                    3.4,
                ),
                LiveFigure(
                    f"live.low.{default}",
                    f"low-priority time under {text}, over ours; FIKIT under preemptive sharing: 0.86 to 1",
                    PAPER,
                    Goal("at least", 0.86, "times"),
                    _over_pairs(runs, lambda w, d=default: w[d].low_ns / w["ours"].low_ns),
                    0.86,
                ),
            ]
        figures += [
            LiveFigure(
                "live.high.alone",
                "high-priority time under ours, over the same task alone on the device, one after the other",
                OURS,
                Goal("at most", 1.10, "times"),
                _over_pairs(runs, lambda w: w["ours"].jct_ns / w["alone"].jct_ns),
            ),
            LiveFigure(
                "live.high.paced",
                "high-priority time under ours, over the same task alone on the device and as often",
                OURS,
                Goal("at most", 1.10, "times"),
                _over_pairs(runs, lambda w: w["ours"].jct_ns / w["alone, paced"].jct_ns),
            ),
            LiveFigure(
                "live.high.fikit",
                "high-priority time under FIKIT's rule, over ours",
                OURS,
                Goal("at least", 0.9, "times"),
                _over_pairs(runs, lambda w: w["fikit"].jct_ns / w["ours"].jct_ns),
            ),
            LiveFigure(
                "live.low.fikit",
                "low-priority time under FIKIT's rule, over ours",
                OURS,
                Goal("at least", 0.9, "times"),
                _over_pairs(runs, lambda w: w["fikit"].low_ns / w["ours"].low_ns),
            ),
            LiveFigure(
                "live.low.ageing",
                "low-priority time under FIKIT's rule, over the same with one aged kernel per 10 ms",
                OURS,
                Goal("at least", 0.9, "times"),
                _over_pairs(runs, lambda w: w["fikit"].low_ns / w["fikit, ageing"].low_ns),
            ),
            LiveFigure(
                "live.overtaken",
                "lower kernels that began although a higher launch was in the device's socket, under ours, no ageing",
                "promise 3",
                Goal("exactly", 0),
                float(sum(w["ours"].overtaken for run in runs for w in run.rounds)),
            ),
            LiveFigure(
                "live.wait",
                "longest wait of a high kernel under ours, over the longest low kernel of the same window",
                "promise 3",
                Goal("at most", 1.25, "times"),
                _over_pairs(runs, lambda w: w["ours"].worst_wait_ns / max(1, w["ours"].longest_low_ns)),
            ),
        ]
    if costs:
        device = [100 * (statistics.median(cost.device) - 1) for cost in costs]
        figures.append(
            LiveFigure(
                "live.overhead",
                "what gating costs a task alone, in processor time of the device: median over models, batch 1 and 8",
                PAPER,
                Goal("at most", 5, "%"),
                Estimate(statistics.median(device), min(device), max(device)),
                5,
            )
        )
    return figures


def _over_pairs(runs: Sequence[PairRun], ratio: Callable[..., float]) -> Estimate:
    """The median pair with the smallest and the largest; of a pair the median round."""
    of_pairs = [statistics.median(ratio(windows) for windows in run.rounds) for run in runs]
    return Estimate(statistics.median(of_pairs), min(of_pairs), max(of_pairs))


def run_live(lab: Lab, watch: Watch = lambda _what, _done: None) -> None:
    """Measure and put the claims on record."""
    rounds, seconds = QUICK if lab.quick else FULL
    chosen = QUICK_PAIRS if lab.quick else PAIRS
    runs = pairs(chosen, rounds=rounds, seconds=seconds, watch=lambda what, done: watch(what, 0.8 * done))
    cost_rounds, cost_seconds = QUICK_OVERHEAD if lab.quick else OVERHEAD
    named = {name for pair in chosen for name in (pair.high, pair.low)}
    costly = [model for name, model in models().items() if name in named or not lab.quick]
    costs = overheads(
        costly,
        rounds=cost_rounds,
        seconds=cost_seconds,
        watch=lambda what, done: watch(what, 0.8 + 0.2 * done),
    )
    for figure in live_figures(runs, costs):
        lab.claim(
            figure.id,
            figure.text,
            source=figure.source,
            goal=figure.goal,
            measured=figure.measured,
            published=figure.published,
        )
    if importlib.util.find_spec("torch") is None:
        lab.leave_out(
            "live.torch", "torch is not installed (the extra `torch`): pairs with torch models were left out"
        )
