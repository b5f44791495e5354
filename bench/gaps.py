"""Which gaps of a high task are filled by FIKIT's rule and by ours, and which could be: why one is no better.

    python bench/gaps.py [--rounds 12] [--seconds 0.4] [--pairs HIGH/LOW,...] [--json]

The pairs and the gated device are those of `bench/gate.py`; both rules take turns in every round. A gap is the time
between the end of a kernel of the high task and the moment when its next one was launched, by the device's records.
The next kernel of the low task is known, since there is one low task and it runs in order. It "fits" if it takes no
longer, by the median of its other runs, than this gap lasted. So a rule that knew every gap before would begin a
filler in just those gaps.

- `right`: gaps in which the rule did what such a rule would have done.
- `missed`: it would have fitted, and was not begun. `wrong`: it was begun, and did not fit.
- `to first`: from the end of the high kernel to the first filler. It holds the decision.
- `used`: part of the gaps in which fillers ran. `waited`: what the high task waited for fillers, of its gaps.
- `error`: of the length of a kernel as it is known before, its median from earlier runs: median and p95, in per cent.
- `gap error`: the same of a gap, whose length is known by its place in the task.

Results go to stdout, progress to stderr. Needs a quiet machine; results: docs/results/fikit.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dovetail.lab.experiments import fikit_live as live
from dovetail.lab.gate.run import Side, measure_pair
from dovetail.record.kernels import KernelRecord

RULES = ("fikit", "ours")


class Gaps:
    """What one rule did in the gaps of one pair."""

    def __init__(self) -> None:
        self.gaps = self.right = self.missed = self.wrong = self.fillers = 0
        self.gap_ns = self.used_ns = self.waited_ns = 0
        self.first_ns: list[int] = []
        self.errors: list[float] = []
        self.gap_errors: list[float] = []

    def figures(self) -> dict[str, float]:
        count, total_ns = max(1, self.gaps), max(1, self.gap_ns)
        return {
            "gaps": self.gaps,
            "right_pct": 100 * self.right / count,
            "missed_pct": 100 * self.missed / count,
            "wrong_pct": 100 * self.wrong / count,
            "fillers_per_gap": self.fillers / count,
            "used_pct": 100 * self.used_ns / total_ns,
            "waited_pct": 100 * self.waited_ns / total_ns,
            "to_first_us": statistics.median(self.first_ns) / 1e3 if self.first_ns else 0.0,
            **_spread("error", self.errors),
            **_spread("gap_error", self.gap_errors),
        }


def _spread(name: str, errors: Sequence[float]) -> dict[str, float]:
    ordered = sorted(errors) or [0.0]
    return {
        f"{name}_pct": 100 * statistics.median(ordered),
        f"{name}_p95_pct": 100 * ordered[len(ordered) * 95 // 100],
    }


class Watcher:
    """Takes the kernels of every window; lengths that are known are those of windows before."""

    def __init__(self) -> None:
        self.rules = {rule: Gaps() for rule in RULES}
        self._kernels: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._gaps: defaultdict[int, list[int]] = defaultdict(list)

    def note(self, mode: str, records: Sequence[KernelRecord]) -> None:
        high = sorted((r for r in records if r.priority == 1), key=lambda r: r.begin_ns)
        low = sorted((r for r in records if r.priority > 1), key=lambda r: r.begin_ns)
        begins = [r.begin_ns for r in low]
        if mode in self.rules and low and self._kernels:
            lengths = {key: statistics.median(seen) for key, seen in self._kernels.items()}
            gaps = {kernel: statistics.median(seen) for kernel, seen in self._gaps.items()}
            for before, after in pairwise(high):
                if before.task == after.task:
                    self._judge(self.rules[mode], before, after, low, begins, lengths, gaps)
        for record in (*high, *low):
            self._kernels[record.priority, record.kernel].append(record.end_ns - record.begin_ns)
        for before, after in pairwise(high):
            if before.task == after.task and mode in self.rules:
                self._gaps[before.kernel].append(after.ready_ns - before.end_ns)

    def _judge(
        self,
        found: Gaps,
        before: KernelRecord,
        after: KernelRecord,
        low: Sequence[KernelRecord],
        begins: Sequence[int],
        lengths: dict[tuple[int, int], float],
        gaps: dict[int, float],
    ) -> None:
        first = bisect_left(begins, before.end_ns)
        if first == len(low):
            return
        gap_ns = after.ready_ns - before.end_ns
        inside = low[first : bisect_left(begins, after.begin_ns)]
        fits = lengths.get((low[first].priority, low[first].kernel), 0.0) <= gap_ns
        found.gaps += 1
        found.gap_ns += max(0, gap_ns)
        found.right += fits == bool(inside)
        found.missed += fits and not inside
        found.wrong += bool(inside) and not fits
        found.fillers += len(inside)
        found.used_ns += sum(max(0, min(r.end_ns, after.ready_ns) - r.begin_ns) for r in inside)
        found.waited_ns += after.begin_ns - after.ready_ns
        if inside:
            found.first_ns.append(inside[0].begin_ns - before.end_ns)
        if before.kernel in gaps and gap_ns > 0:
            found.gap_errors.append(abs(gaps[before.kernel] / gap_ns - 1))
        for r in inside:
            if (known := lengths.get((r.priority, r.kernel))) is not None:
                found.errors.append(abs(known / (r.end_ns - r.begin_ns) - 1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.4, help="of each rule in each round")
    parser.add_argument("--pairs", help="only these, as HIGH/LOW,HIGH/LOW")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    here = live.models()
    wanted = None if args.pairs is None else set(args.pairs.split(","))
    found: dict[str, Any] = {}
    for pair in live.PAIRS:
        name = f"{pair.high}/{pair.low}"
        if pair.high not in here or pair.low not in here or (wanted is not None and name not in wanted):
            continue
        print(name, file=sys.stderr, flush=True)
        high, low = here[pair.high], here[pair.low]
        watcher = Watcher()
        run = measure_pair(
            Side(pair.high, high.source(live.HIGH_KERNEL_NS), high.shapes()),
            Side(f"{pair.low} (low)", low.source(live.LOW_KERNEL_NS, longest_ns=live.LOW_LONGEST_NS), low.shapes()),
            pair.gap_ns,
            rounds=args.rounds,
            seconds=args.seconds,
            work=pair.work,
            modes=("alone", *RULES),
            note=watcher.note,
        )
        over = {
            what: statistics.median(getattr(r["fikit"], what) / getattr(r["ours"], what) for r in run.rounds)
            for what in ("jct_ns", "low_ns")
        }
        rows = {rule: gaps.figures() for rule, gaps in watcher.rules.items()}
        found[name] = {"high_fikit_over_ours": over["jct_ns"], "low_fikit_over_ours": over["low_ns"], **rows}
    if args.json:
        print(json.dumps(found, indent=2))
        return 0
    for name, rows in found.items():
        print(
            f"{name}: fikit over ours, high {rows['high_fikit_over_ours']:.3f} low {rows['low_fikit_over_ours']:.3f}"
        )
        for rule in RULES:
            print(f"  {rule:6} " + "  ".join(f"{key} {value:.4g}" for key, value in rows[rule].items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
