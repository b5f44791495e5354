"""The experiment on kernels once more, on sequences as they were measured: do they say what the made ones say?"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import chain

from ..experiment import Goal, Lab, over_seeds
from ..kernels.hosts import HOSTS
from .fikit_studies import OURS, PUBLISHED_LOW, Cells, low_ratios
from .fikit_world import PAIRS, Job, Outcome, simulate

__all__ = ["recorded"]

#: Sequences of the pairs that are at hand as they were measured.
FILES = {
    "mobilenetv2": "mobilenetv2_b4.csv",
    "resnet50": "resnet50_b4.csv",
    "transformer-xl": "transformer_xl_b4.csv",
    "bert-large": "bert_large_b2.csv",
}
CLAIMS = ("recorded.high", "recorded.low", "recorded.off")
ABSENT = "needs orion_kernels of the public measurements, which are not part of the project; set DOVETAIL_DATA"


def recorded(lab: Lab, tasks: int, cells: Cells) -> None:
    """Pairs of which both sequences were measured. `cells` are the outcomes with made ones."""
    files = {name: str(path) for name, file in FILES.items() if (path := lab.data("orion_kernels", file)) is not None}
    if len(files) < len(FILES):
        for ident in CLAIMS:
            lab.leave_out(ident, ABSENT)
        return
    chosen = [i for i, pair in enumerate(PAIRS) if files.keys() >= set(pair)]
    keys = [(host, policy) for host in HOSTS for policy in ("slices", "ours", "parts")]
    jobs = [
        Job(files[PAIRS[i][0]], files[PAIRS[i][1]], host, policy, seed, tasks)
        for host, policy in keys
        for seed in lab.seeds
        for i in chosen
    ]
    found = iter(lab.map(simulate, jobs, "measured sequences"))
    real: Cells = {key: [[next(found) for _ in chosen] for _ in lab.seeds] for key in keys}
    made: Cells = {key: [[seed[i] for i in chosen] for seed in cells[key]] for key in keys}
    source = f"{OURS}; sequences measured by Orion's authors on a V100, {len(chosen)} of the pairs"
    seeds = range(len(lab.seeds))
    lab.claim(
        "recorded.high",
        "high-priority completion time over that alone on measured sequences, ours: median of the pairs, worst host",
        source=source,
        goal=Goal("at most", 1.05, "×"),
        measured=over_seeds(
            [max(statistics.median(o.high for o in real[h, "ours"][n]) for h in HOSTS) for n in seeds]
        ),
    )
    lab.claim(
        "recorded.low",
        "low-priority completion time under slices, over ours, in parts, on measured sequences: lowest of pairs and "
        "hosts",
        source=source,
        published=PUBLISHED_LOW,
        goal=Goal("at least", PUBLISHED_LOW, "×"),
        measured=over_seeds([min(r) for r in low_ratios(real, "slices", "parts", len(lab.seeds))]),
    )
    ours = [key for key in keys if key[1] != "slices"]
    high, low = (max(abs(_gain(real, key, of) / _gain(made, key, of) - 1) for key in ours) for of in (_high, _low))
    lab.claim(
        "recorded.off",
        "by how much completion times, slices over ours (medians of pairs), differ between measured and made "
        f"sequences: the worst host, whole or in parts, and the worse of high ({high:.1%}) and low ({low:.1%})",
        source=source,
        goal=Goal("at most", 10.0, "%"),
        measured=100 * max(high, low),
    )


def _gain(cells: Cells, key: tuple[str, str], of: Callable[[Outcome], float]) -> float:
    """Slices over this way of sharing: median of pairs and seeds."""
    both = zip(chain(*cells[key[0], "slices"]), chain(*cells[key]), strict=True)
    return statistics.median(of(a) / of(b) for a, b in both)


def _high(outcome: Outcome) -> float:
    return outcome.high


def _low(outcome: Outcome) -> float:
    return outcome.low
