"""How fast is the simulator? Requests per second through a three-stage workflow, beside SimPy's bare tandem queue.

    python bench/simulator.py                    speed: rounds of both, interleaved, so that a busy machine hits both
    python bench/simulator.py --memory           peak resident memory of 100,000 and of 1,000,000 requests
    python bench/simulator.py --memory --requests 10000000    the same with ten million (a quarter of an hour)
    python bench/simulator.py --default          the default policy on 1,000 devices: ESG's and Compass's workflows

SimPy moves customers through three first-come queues with one server each and does nothing else. We run the whole
controller: queues, batches, deadlines, books. Both get the same arrivals and the same constant service time at
batch 1, so both must come to the same mean latency, which is checked.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path

import simpy

import decide
from dovetail.control import Controller, Policy
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.record.ledger import Ledger
from dovetail.scale import LoadEverything
from dovetail.schedule import FirstCome
from dovetail.sim import SimDevice, Simulation
from dovetail.sim.arrivals import Poisson, Stream, requests, stream_rng
from dovetail.state import WorkerSpec
from dovetail.tools.simulate import ScenarioRun
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec, chain

STAGES = 3
SEED = 1
SERVICE_NS = 700_000
#: Batch size -> arrivals per second: both keep each worker about 70 % busy.
RATES = {1: 1000.0, 8: 3000.0}
ROUNDS = 7
#: The default policy: rounds, devices.
DEFAULT_ROUNDS, DEFAULT_DEVICES = 3, 1_000
#: A batch of 8 takes three times as long as one item, as a GPU does.
BATCH_OF_8_NS = 3 * SERVICE_NS


def simulation(count: int, batch: int) -> Simulation:
    """Three stages one behind the other, a worker each, first come first served."""
    names = [f"stage-{i}" for i in range(STAGES)]
    # Worker i runs stage i alone, as each of the tandem's servers has its own queue.
    graph = chain("three-stage", 50 * MS, [StageSpec(n, n, (batch,), model=n) for n in names])
    points = (Point(1, 1, SERVICE_NS, 0.0, 1), Point(8, 1, BATCH_OF_8_NS, 0.0, 1))
    table = ProfileTable([Entry(stage=n, kind=n, points=points) for n in names])
    policy = Policy(FirstCome(), LoadEverything(), Estimator(table))
    controller = Controller([graph], policy)
    arrivals = requests([Stream(Poisson(RATES[batch]), 0)], seed=SEED, limit=count)
    simulation = Simulation(controller, Ledger([(graph.name, graph.slo_ns)]), arrivals)
    for ident, name in enumerate(names, start=1):
        spec = WorkerSpec(name, name, (name,))
        simulation.join(SimDevice(ident, spec, controller.stages, table, simulation.schedule))
    return simulation


def ours(count: int, batch: int) -> tuple[float, float]:
    """Requests per second of wall clock, and the mean latency in ms."""
    run = simulation(count, batch)
    begin = time.perf_counter()
    run.run()
    seconds = time.perf_counter() - begin
    (line,) = run.ledger.summary()
    assert line.requests == count, f"{line.requests} of {count} requests were answered"
    return count / seconds, line.mean_ms


def simpys(customers: int) -> tuple[float, float]:
    """Customers per second of wall clock, and the mean latency in ms."""
    env = simpy.Environment()
    servers = [simpy.Resource(env, 1) for _ in range(STAGES)]
    service_s = SERVICE_NS / SECOND
    total_s = 0.0

    def customer() -> Generator[simpy.Event]:
        nonlocal total_s
        begin_s = env.now
        for server in servers:
            with server.request() as turn:
                yield turn
                yield env.timeout(service_s)
        total_s += env.now - begin_s

    def source() -> Generator[simpy.Event]:
        times = Poisson(RATES[1]).times_ns(stream_rng(SEED, 0))
        for _ in range(customers):
            yield env.timeout(next(times) / SECOND - env.now)
            env.process(customer())

    env.process(source())
    begin = time.perf_counter()
    env.run()
    return customers / (time.perf_counter() - begin), total_s / customers * 1e3


def speed(count: int) -> dict[str, object]:
    """Rounds of all three, one after the other each round."""
    contenders: dict[str, Callable[[], tuple[float, float]]] = {
        "dovetail, batch 1": lambda: ours(count, 1),
        "dovetail, batch 8": lambda: ours(count, 8),
        "SimPy, bare tandem": lambda: simpys(count),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    means_ms: dict[str, float] = {}
    for contender in contenders.values():
        contender()  # warm up: imports, caches, the processor's clock
    for _ in range(ROUNDS):
        for name, contender in contenders.items():
            per_s, means_ms[name] = contender()
            rates[name].append(per_s)
    mean, reference = means_ms["dovetail, batch 1"], means_ms["SimPy, bare tandem"]
    assert abs(mean - reference) < 1e-3 * reference, f"mean latency {mean} ms, SimPy's {reference} ms"
    ratios = [a / b for a, b in zip(rates["dovetail, batch 1"], rates["SimPy, bare tandem"], strict=True)]
    return {
        "requests": count,
        "rounds": ROUNDS,
        "per_s": {name: spread(values) for name, values in rates.items()},
        "ratio": spread(ratios),
        "mean_latency_ms": means_ms,
    }


def default_policy(count: int) -> dict[str, object]:
    """Requests per second of processor time with the default policy in the world of bench/decide.py."""
    rates: list[float] = []
    in_time: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(DEFAULT_ROUNDS):
            path = Path(folder, f"{number}.toml")
            path.write_text(decide.scenario(DEFAULT_DEVICES, SEED + number, count))
            run = ScenarioRun(path)
            begin = time.process_time()
            run.go([decide.fill_memory(run)])
            rates.append(count / (time.process_time() - begin))
            lines = run.ledger.summary()
            in_time.append(
                sum(line.hit_rate * line.requests for line in lines) / sum(line.requests for line in lines)
            )
    return {
        "devices": DEFAULT_DEVICES,
        "requests": count,
        "rounds": DEFAULT_ROUNDS,
        "per_s": spread(rates),
        "in_time": spread(in_time),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def peak_bytes(count: int) -> int:
    """Peak resident memory of a fresh process that simulates so many requests."""
    command = [sys.executable, __file__, "--one", "--requests", str(count)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=0, help="requests of each run (default: 30,000; see above)")
    parser.add_argument("--memory", action="store_true", help="measure memory rather than speed")
    parser.add_argument("--default", action="store_true", help="the default policy on 1,000 devices")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        ours(args.requests, 1)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return 0
    if args.memory:
        sizes = sorted({100_000, args.requests or 1_000_000})
        peaks = {str(n): peak_bytes(n) for n in sizes}
        if args.json:
            print(json.dumps({"peak_bytes": peaks}, indent=2))
        else:
            for n, peak in peaks.items():
                print(f"{int(n):>12,} requests: peak {peak / 1e6:6.1f} MB")
        return 0
    if args.default:
        found = default_policy(args.requests or 12_000)
        if args.json:
            print(json.dumps(found, indent=2))
        else:
            row: dict[str, float] = found["per_s"]  # type: ignore[assignment]
            late: dict[str, float] = found["in_time"]  # type: ignore[assignment]
            print(f"{found['rounds']} rounds of {found['requests']:,} requests on {found['devices']:,} devices")
            print(f"  default policy       {row['median']:>8,.0f}/s  ({row['least']:,.0f} to {row['most']:,.0f})")
            print(f"  answered in time     {100 * late['median']:>8.1f} %")
        return 0
    result = speed(args.requests or 30_000)
    if args.json:
        print(json.dumps(result, indent=2))
        return 0
    print(f"{ROUNDS} interleaved rounds of {result['requests']:,} requests; median (least to most)")
    for name, row in result["per_s"].items():  # type: ignore[attr-defined]
        print(f"  {name:<20} {row['median']:>8,.0f}/s  ({row['least']:,.0f} to {row['most']:,.0f})")
    ratio: dict[str, float] = result["ratio"]  # type: ignore[assignment]
    print(f"  batch 1 / SimPy      {ratio['median']:>8.2f}    ({ratio['least']:.2f} to {ratio['most']:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
