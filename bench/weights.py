"""What instances of one model take together: sessions of one worker, and workers of one machine.

    python bench/weights.py [--instances 1 2 4 8] [--rounds 7] [--models NAME ...] [--json]

Three models: OpenNSFW (convolutions, 23.6 MB), the small reader (matrix products too, 21.2 MB), and a made one of the
size of BERT-base (matrix products, 340 MB). Every instance has run a batch. Memory is proportional (`Pss` of
/proc/PID/smaps_rollup): a page that several map counts in parts. Sessions are counted above the process without a
model. Workers are real ones of a system that serves; they are counted above as many workers with a model of nothing,
and whole: just after a batch (`working`), and after some seconds without one, when they have given back what they
worked in. `shared` is what `dovetail serve` does, `own` is `--weights own`. Speed is shared over own: processor time
of one batch, in turn, by the median of each round. Results: docs/results/memory.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from _figures import machine, over_rounds
from _models import make_model
from _serverproc import child
from dovetail.live.front.settings import Settings
from dovetail.live.front.system import LiveSystem
from dovetail.live.kernels.optimised import GRAPH
from dovetail.live.kernels.weight_files import WeightDirectory, WeightFiles
from dovetail.live.worker.footprint import trim
from dovetail.state import WorkerSpec
from dovetail.wiring import PolicySpec, make_controller
from dovetail.workflow.app import App
from dovetail.workflow.graph import StageSpec
from dovetail.workflow.runners import OnnxRunner
from dovetail.workflow.stage import onnx as stage_of
from dovetail.workflow.trace import workflow
from examples import weights

#: Of the made model: layers, width, inner width and rows of an item.
LAYERS, WIDTH, INNER, ROWS = 12, 768, 3072, 32
#: Batches by which speed is measured in a round.
BATCHES = 6
GOAL = 1.5
#: Batches of each worker after the first that all have answered, about.
MORE_BATCHES = 3
#: A worker without work gives back what it worked in after some seconds at most.
REST_SECONDS = 5.0


def make_encoder(path: Path) -> None:
    """The matrix products of BERT-base in their order, without attention: as many weights, as much work."""
    rng = np.random.default_rng(1)
    nodes, tensors, last = [], [], "x"
    for layer in range(LAYERS):
        for name, shape in zip("qkvo", [(WIDTH, WIDTH)] * 4, strict=True):
            last = _product(rng, nodes, tensors, last, f"{name}{layer}", shape)
        for name, shape in (("up", (WIDTH, INNER)), ("down", (INNER, WIDTH))):
            last = _product(rng, nodes, tensors, last, f"{name}{layer}", shape)
    nodes.append(helper.make_node("ReduceMean", [last], ["y"], axes=[1], keepdims=0))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", ROWS, WIDTH])
    found = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", WIDTH])
    graph = helper.make_graph(nodes, "encoder", [given], [found], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def _product(rng: Any, nodes: list[Any], tensors: list[Any], last: str, name: str, shape: tuple[int, int]) -> str:
    weight = (rng.standard_normal(shape, np.float32) / np.sqrt(shape[0])).astype(np.float32)
    tensors.append(numpy_helper.from_array(weight, name))
    nodes.append(helper.make_node("MatMul", [last, name], [f"{name}_p"]))
    nodes.append(helper.make_node("Tanh", [f"{name}_p"], [f"{name}_t"]))
    return f"{name}_t"


def pss_bytes(pid: int | str = "self") -> int:
    """What a process has in memory; what it shares counts in parts."""
    with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        line = next(line for line in file if line.startswith(b"Pss:"))
    return int(line.split()[1]) * 1024


def spec_of(path: Path) -> StageSpec:
    return stage_of(path, name="model", batch=(1,)).spec


# -- sessions of one process ---------------------------------------------------------------------------------------


def sessions(pipe: Any) -> None:
    """A child: so many sessions of a model, and what they take together."""
    order = pipe.recv()
    while order is not None:
        path, shape, count, shared = order
        spec, item = spec_of(Path(path)), [[np.zeros(shape, np.float32)]]
        directory = WeightDirectory()
        graph = str(WeightFiles(directory.path).copy_of(spec) / GRAPH) if shared else ""  # type: ignore[operator]
        gc.collect()
        trim()
        before = pss_bytes()
        kept = []
        for _ in range(count):
            kept.append(OnnxRunner(spec, optimised=graph))
            kept[-1].run(item)
            trim()
        pipe.send([pss_bytes() - before])
        directory.close()
        order = pipe.recv()


def one_process(path: Path, shape: tuple[int, ...], count: int, shared: bool) -> int:
    with child(sessions) as process:  # a new one each time: nothing that was freed may be of use
        return int(process.ask(str(path), shape, count, shared)[0])


# -- workers -------------------------------------------------------------------------------------------------------


async def workers_bytes(path: Path, shape: tuple[int, ...], count: int, shared: bool) -> tuple[int, int]:
    """What so many workers have that serve a model: just after a batch of each, and at rest."""
    model = stage_of(path, name="model", batch=(1,))

    @workflow(slo="60s")
    def flow(x):  # type: ignore[no-untyped-def]
        return model(x)

    app = App(flow)
    specs = tuple(
        WorkerSpec(f"cpu-{i}", "cpu", ("onnx",), 1, 8 << 30, 0.05, "cooperative", preempts=True) for i in range(count)
    )
    settings = Settings("", app.graphs, specs, cpus=(1,), arena_bytes=1 << 26, shared_weights=shared)
    system = LiveSystem(settings, make_controller(app.graphs, PolicySpec(), (), 1), say=lambda _: None)
    await system.start(timeout_s=300)
    try:
        left = MORE_BATCHES  # the second one works in more than the first
        while left:
            left -= all(worker.answered for worker in system.fleet.workers.values())
            loop = asyncio.get_running_loop()
            ended: list[asyncio.Future[None]] = [loop.create_future() for _ in range(count)]
            for future in ended:

                def done(_: int, result: Any, future: asyncio.Future[None] = future) -> None:
                    assert result.outcome == "ok", result
                    result.release()
                    future.set_result(None)

                system.submit("flow", [np.zeros(shape, np.float32)], done, objective_ns=60 * 10**9)
            await asyncio.gather(*ended)
        pids = [worker.pid for worker in system.fleet.workers.values()]
        working = sum(map(pss_bytes, pids))
        await asyncio.sleep(REST_SECONDS)
        return working, sum(map(pss_bytes, pids))
    finally:
        await system.close()


# -- speed ---------------------------------------------------------------------------------------------------------


def speed(path: Path, shape: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Shared over own: processor time of a batch and time of a load, round by round."""
    spec, item = spec_of(path), [[np.zeros(shape, np.float32)]]
    directory = WeightDirectory()
    copy = WeightFiles(directory.path).copy_of(spec)
    graphs = {"own": "", "shared": str(copy / GRAPH)}  # type: ignore[operator]
    runs, loads = [], []
    for _ in range(rounds):
        begin = {}
        kept = {}
        for name, graph in graphs.items():
            begin_ns = time.perf_counter_ns()
            kept[name] = OnnxRunner(spec, optimised=graph)
            begin[name] = time.perf_counter_ns() - begin_ns
            kept[name].run(item)
        took: dict[str, list[int]] = {name: [] for name in graphs}
        for _ in range(BATCHES):
            for name, runner in kept.items():
                begin_ns = time.thread_time_ns()
                runner.run(item)
                took[name].append(time.thread_time_ns() - begin_ns)
        runs.append(statistics.median(took["shared"]) / statistics.median(took["own"]))
        loads.append(begin["shared"] / begin["own"])
    directory.close()
    return {"run": over_rounds(runs), "load": over_rounds(loads)}


# -- all of it -----------------------------------------------------------------------------------------------------


def measure(instances: list[int], rounds: int, names: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {"machine": machine(), "models": {}}
    with tempfile.TemporaryDirectory() as scratch:
        nothing, encoder = Path(scratch, "nothing.onnx"), Path(scratch, "encoder.onnx")
        make_model(nothing, (), size=(128, 128))
        if "encoder" in names:
            make_encoder(encoder)
        models = {
            "nudity": (weights.nudity(), (224, 224, 3)),
            "read_carefully": (weights.small_reader(), (3, 48, 320)),
            "encoder": (encoder, (ROWS, WIDTH)),
        }
        empty = {n: asyncio.run(workers_bytes(nothing, (3, 128, 128), n, True)) for n in instances}
        found["workers_without"] = empty
        for name, (path, shape) in ((name, models[name]) for name in names):
            rows: dict[str, Any] = {"file_bytes": path.stat().st_size, "speed": speed(path, shape, rounds)}
            for way in ("shared", "own"):
                shared = way == "shared"
                rows[f"sessions_{way}"] = {n: one_process(path, shape, n, shared) for n in instances}
                whole = {n: asyncio.run(workers_bytes(path, shape, n, shared)) for n in instances}
                rows[f"workers_whole_{way}"] = {n: whole[n][1] for n in instances}
                for at, what in enumerate((f"working_{way}", f"workers_{way}")):
                    rows[what] = {n: whole[n][at] - empty[n][at] for n in instances}
            found["models"][name] = rows
    return found


def show(found: dict[str, Any], instances: list[int]) -> None:
    print(found["machine"])
    first, last = min(instances), max(instances)
    print(f"MB of {', '.join(map(str, instances))} instances, and {last} over {first} (goal: at most {GOAL})")
    for name, rows in found["models"].items():
        print(f"{name}, file {rows['file_bytes'] / 1e6:.1f} MB")
        for what in (
            "sessions_shared", "sessions_own", "workers_shared", "workers_own", "working_shared", "working_own",
            "workers_whole_shared",
        ):  # fmt: skip
            got = rows[what]
            cells = " ".join(f"{got[n] / 1e6:8.1f}" for n in instances)
            print(f"  {what:22} {cells}   {got[last] / got[first]:.2f}")
        for what, figures in rows["speed"].items():
            spread = f"{figures['least']:.3f}-{figures['most']:.3f}"
            print(f"  {what} time, shared over own: {figures['median']:.3f} ({spread})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", nargs="+", default=["nudity", "read_carefully", "encoder"], metavar="NAME")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    args = parser.parse_args()
    found = measure(args.instances, args.rounds, args.models)
    if args.json:
        print(json.dumps(found, indent=2))
    else:
        show(found, args.instances)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
