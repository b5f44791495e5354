"""How long does it take to say how long a batch takes beside others, and to learn from one?

    python bench/predict.py [--json]

Eight co-residents of ten models in four batch sizes, drawn anew for every batch with a fixed seed. "Stays" is with
neighbours that are there all the time, "leaves" with neighbours that leave at eight different times: the work
integral has nine pieces then. "Of two" is with two that leave, as on a small device. A prediction includes its 95 %
bound. The answer of the plain estimator, which knows no neighbours, is measured beside them. All take turns in every
round, so that a busy neighbour meets all of them; a figure is the median over rounds of the median of a round, with
the least and the most. Takes about ten seconds.
"""

from __future__ import annotations

import platform
import random
import statistics
import sys
from time import perf_counter_ns as clock
from typing import Any

from rich.console import Console
from rich.table import Table

from _figures import over_rounds, table_or_json
from dovetail.predict import Estimator
from dovetail.predict.interference import Beside, Interference, Load
from dovetail.profile.table import ProfileTable
from dovetail.state import Config
from dovetail.workflow.graph import StageSpec

SEED, ROUNDS, BATCHES, BESIDE = 7, 15, 400, 8
GOAL_US = 20.0
SOLO_NS = 10_000_000


def measure() -> dict[str, Any]:
    """All figures, in microseconds."""
    rng = random.Random(SEED)
    loads = [Load(f"m{n}", items, 12, 50 + n, "", 0.5, 0.2, n / 10) for n in range(10) for items in (1, 2, 4, 8)]
    model = Interference()
    plain = Estimator(ProfileTable({}))
    stage, config = StageSpec("m0", "model"), Config(1, 1, 12)
    figures: dict[str, list[float]] = {}
    for _ in range(ROUNDS + 2):
        times: dict[str, list[int]] = {}
        for _ in range(BATCHES):
            victim, others = rng.choice(loads), rng.sample(loads, BESIDE)
            ends = [rng.randrange(SOLO_NS // 10, 2 * SOLO_NS) for _ in others]
            for how, count in (("stays", BESIDE), ("leaves", BESIDE), ("of two", 2)):
                there, until = others[:count], None if how == "stays" else ends[:count]
                leave = until or [1 << 62] * count
                beside = [Beside(other, 0, end) for other, end in zip(there, leave, strict=True)]
                took = round(SOLO_NS * (1.6 if how == "stays" else 1.3) * rng.lognormvariate(0, 0.02))
                begin = clock()
                said = model.predict("k", victim, SOLO_NS, there, until)
                model.bound_ns("k", said, 0.95)
                middle = clock()
                model.observe("k", victim, SOLO_NS, took, beside, said)
                end = clock()
                times.setdefault(f"predict, {how}", []).append(middle - begin)
                times.setdefault(f"update, {how}", []).append(end - middle)
            begin = clock()
            plain.run(stage, "k", 1, config)
            middle = clock()
            plain.observe_run(stage, "k", 1, config, SOLO_NS)
            end = clock()
            times.setdefault("estimator alone, answer", []).append(middle - begin)
            times.setdefault("estimator alone, update", []).append(end - middle)
        for name, found in times.items():
            figures.setdefault(name, []).append(statistics.median(found) / 1000)
    rows = {name: over_rounds(found[2:]) for name, found in figures.items()}
    return {"beside": BESIDE, "goal_us": GOAL_US, "python": platform.python_version(), "us": rows}


def show(result: dict[str, Any]) -> None:
    """As a table."""
    table = Table(box=None)
    for title in ("microseconds", "median", "least", "most", f"at most {GOAL_US:g}"):
        table.add_column(title, justify="left" if title == "microseconds" else "right")
    for name, row in result["us"].items():
        holds = "holds" if row["median"] <= GOAL_US else "fails"
        table.add_row(name, f"{row['median']:.1f}", f"{row['least']:.1f}", f"{row['most']:.1f}", holds)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(table_or_json(__doc__ or "", measure, show))
