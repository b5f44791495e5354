"""How far the guess of a model's time is off before it has run: `python bench/guess.py`.

Each model is measured alone with batches of one, on one core and on all of them, and then guessed three ways: by the
constant that stands for any stage, by its multiply-accumulates alone, and by what the other models of its set took
for theirs (it is left out itself). Two sets: the models of the examples, on which the constant of
`predict/similar.py` was chosen, and the light models that the onnx package brings, which were not looked at for that.
A factor of 2 is twice or half the measured time; means are geometric.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path

import msgspec
import numpy as np
import onnx as onnx_package

from dovetail.predict import Estimator
from dovetail.predict.estimate import GUESSED_RUN_NS
from dovetail.profile.machine import usable_cores
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.state import Config
from dovetail.workflow.runners import OnnxRunner
from dovetail.workflow.stage import Stage, onnx
from examples import weights

#: What the examples feed their models: shapes of one item, as dovetail profile says.
EXAMPLES = {
    "page_way": (weights.page_way, (3, 224, 224)),
    "detect": (weights.text_detector, (3, 384, 480)),
    "line_way": (weights.line_way, (3, 48, 192)),
    "read": (weights.tiny_reader, (3, 48, 512)),
    "read_carefully": (weights.small_reader, (3, 48, 544)),
    "file_kind": (weights.file_kind, (2048,)),
    "nudity": (weights.nudity, (224, 224, 3)),
}
LIGHT = Path(onnx_package.__file__).parent / "backend" / "test" / "data" / "light"


class Case(msgspec.Struct):
    """A model, what it is fed, and what it took: cores -> nanoseconds."""

    stage: Stage
    shape: tuple[int, ...]
    took_ns: dict[int, int]


def examples() -> list[Case]:
    """The models of the examples."""
    return [Case(onnx(get(), name=name, batch=1), shape, {}) for name, (get, shape) in EXAMPLES.items()]


def light() -> list[Case]:
    """Well-known networks with their real shapes; their weights are made up, which onnxruntime does not mind."""
    cases = []
    for path in sorted(LIGHT.glob("light_*.onnx")):
        if not path.stem.endswith("_output_0"):
            stage = onnx(path, name=path.stem.removeprefix("light_"), batch=1)
            assert stage.file is not None
            (spec,) = stage.file.inputs.values()
            cases.append(Case(stage, spec.shape[1:], {}))
    return cases


def measure(case: Case, cores: int, rounds: int) -> None:
    """Median of so many runs after two that are not counted."""
    runner = OnnxRunner(case.stage.spec, cores)
    item = np.random.default_rng(1).random(case.shape, dtype=np.float32)
    times = []
    for _ in range(rounds + 2):
        begin = time.perf_counter_ns()
        runner.run([[item]])
        times.append(time.perf_counter_ns() - begin)
    case.took_ns[cores] = round(statistics.median(times[2:]))


def guesses(case: Case, all_cases: list[Case], cores: int, machine: int) -> tuple[float, float, float]:
    """Guess over measured time: by the constant, by its work alone, by the others of its set."""
    spec, took = case.stage.spec, case.took_ns[cores]
    share = 100 * cores // machine
    others = [
        Entry(o.stage.name, "cpu", points=tuple(Point(1, c, ns, 0.0, 1) for c, ns in o.took_ns.items()))
        for o in all_cases
        if o is not case
    ]
    config = Config(1, cores, share)
    stages = [o.stage.spec for o in all_cases]
    unlike = msgspec.structs.replace(spec, macs=0)
    constant = Estimator(ProfileTable()).run(unlike, "cpu", 1, config).mean_ns
    assert share < 100 or constant == GUESSED_RUN_NS
    alone = Estimator(ProfileTable()).run(spec, "cpu", 1, config).mean_ns
    similar = Estimator(ProfileTable(others), stages=stages).run(spec, "cpu", 1, config).mean_ns
    return constant / took, alone / took, similar / took


def summary(ratios: list[float]) -> str:
    """Mean and worst factor."""
    factors = [max(ratio, 1 / ratio) for ratio in ratios]
    return f"{math.exp(statistics.fmean(map(math.log, factors))):.2f} ({max(factors):.1f})"


def main() -> None:
    """Measure, guess, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="runs per model and number of cores")
    args = parser.parse_args()
    machine = usable_cores()
    counts = sorted({1, machine})
    for title, cases in (("examples", examples()), ("light models of the onnx package", light())):
        for case in cases:
            for cores in counts:
                measure(case, cores, args.rounds)
        print(f"\n{title}: guess over measured time (constant, work alone, by the others)")
        for cores in counts:
            rows = [guesses(case, cases, cores, machine) for case in cases]
            for case, row in zip(cases, rows, strict=True):
                spec = case.stage.spec
                figures = "  ".join(f"{ratio:6.2f}" for ratio in row)
                print(
                    f"{spec.name:16} {cores} core(s) {spec.macs / 1e6:8,.0f} M  {case.took_ns[cores] / 1e6:8.2f} ms  "
                    f"{figures}"
                )
            columns = [summary(list(column)) for column in zip(*rows, strict=True)]
            print(f"{'mean factor (worst)':37} on {cores} core(s): {'  '.join(columns)}")


if __name__ == "__main__":
    main()
