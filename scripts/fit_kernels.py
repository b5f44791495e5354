"""Fit the catalogue's kernel sequences from Orion's public profiles and write kernels.toml.

    python scripts/fit_kernels.py [--data DIR] [--orion DIR] [--check]

Reads DIR/orion_kernels (default DIR: ../shared/data) and, for the sequences that are not kept there, a checkout of
eth-easl/orion (MIT). Without a checkout their entries stay as they are. The measurements are not part of the project:
what is written holds fitted parameters and their errors, never a row of data. Same input, same bytes. --check writes
nothing and fails where the committed file is not what comes out. docs/kernels.md says what the parameters mean.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import defaultdict
from itertools import pairwise
from math import erf, exp, log, sqrt
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any, NamedTuple

from dovetail.lab.kernels.recorded import KINDS, SM_COUNT, read_rows

TARGET = Path(__file__).resolve().parent.parent / "src" / "dovetail" / "profile" / "catalogue" / "kernels.toml"
ORION = "eth-easl/orion at aded65d (MIT), V100, PyTorch eager FP32; rows are operators, without gaps"

Row = dict[str, Any]


class Sequence(NamedTuple):
    """Where a sequence is kept: in our data, or in a checkout."""

    name: str
    what: str
    batch: int
    data: str = ""
    orion: str = ""


PROFILES = "profiling/postprocessing/profiles"
KERNELS = "benchmarking/model_kernels"
SEQUENCES = (
    Sequence("mobilenetv2", "inference", 4, data="mobilenetv2_b4.csv"),
    Sequence("resnet50", "inference", 4, data="resnet50_b4.csv"),
    Sequence("resnet101", "inference", 4, orion=f"{PROFILES}/resnet101_4_fwd_new"),
    Sequence("efficientnet", "inference", 4, orion=f"{PROFILES}/efficientnet_4_fwd_new"),
    Sequence("transformer-xl", "inference", 4, data="transformer_xl_b4.csv"),
    Sequence("bert-large", "inference", 2, data="bert_large_b2.csv"),
    Sequence("retinanet", "inference", 4, orion=f"{PROFILES}/retinanet_4_fwd_new"),
    Sequence("mobilenetv2-b64", "forward pass in training mode", 64, data="mobilenetv2_b64.csv"),
    Sequence("resnet50-b32", "forward pass in training mode", 32, data="resnet50_b32.csv"),
    Sequence("mobilenetv2-train", "training step", 32, orion=f"{KERNELS}/mobilenetv2_32_fb1"),
    Sequence("resnet50-train", "training step", 32, orion=f"{KERNELS}/resnet50_32_fb1"),
    Sequence("transformer-xl-train", "training step", 8, orion=f"{KERNELS}/transformer_xl_8_fb1"),
    Sequence("bert-large-train", "training step", 8, orion=f"{KERNELS}/bert_8_fb1"),
)


def fit(sequence: Sequence, rows: list[Row]) -> Row:
    """The parameters of a sequence: by kind log-normal durations and shares, and how kinds follow one another."""
    kinds = [KINDS[row["Profile"].strip()] for row in rows]
    logs = [log(float(row["Duration"]) / 1000) for row in rows]
    shares = [min(100.0, 100 * float(row["SM_usage"]) / SM_COUNT) for row in rows]
    by_name: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row, value in zip(rows, logs, strict=True):
        by_name[row["Name"], row["SM_usage"]].append(value)
    within = sqrt(sum((x - fmean(v)) ** 2 for v in by_name.values() for x in v) / len(rows))
    fitted: list[Row] = []
    follow: list[list[float]] = []
    for kind in KINDS.values():
        own = [value for value, k in zip(logs, kinds, strict=True) if k == kind]
        pcts = [log(max(share, 1.0)) for share, k in zip(shares, kinds, strict=True) if k == kind]
        after = [b for a, b in pairwise(kinds) if a == kind]
        follow.append([round(after.count(k) / len(after), 3) if after else 0.0 for k in KINDS.values()])
        fitted.append(
            {
                "kind": kind,
                "count": len(own),
                "mu": round(fmean(own), 3) if own else 0.0,
                "sigma": round(pstdev(own), 3) if own else 0.0,
                "share_pct": round(exp(median(pcts))) if own else 0,
                "share_sigma": round(pstdev(pcts), 3) if own else 0.0,
            }
        )
    total_us = sum(exp(value) for value in logs)
    guess_us = sum(f["count"] * exp(f["mu"] + f["sigma"] ** 2 / 2) for f in fitted)
    return {
        "name": sequence.name,
        "what": sequence.what,
        "batch": sequence.batch,
        "count": len(rows),
        "names": len(by_name),
        "name_sigma": round(within, 3),
        "total_us": round(total_us, 1),
        "longest_us": round(exp(max(logs)), 1),
        "total_error_pct": round(100 * (guess_us / total_us - 1), 1),
        "distance": round(distance(logs, fitted), 3),
        "kind": fitted,
        "follow": follow,
    }


def distance(logs: list[float], fitted: list[Row]) -> float:
    """Kolmogorov and Smirnov's: the largest gap between the shares of kernels up to a duration, fitted and real."""
    parts = [(f["count"] / len(logs), f["mu"], max(f["sigma"], 1e-9)) for f in fitted if f["count"]]
    worst, ordered = 0.0, sorted(logs)
    for i, x in enumerate(ordered):
        at = sum(w * (1 + erf((x - mu) / sigma / sqrt(2))) / 2 for w, mu, sigma in parts)
        worst = max(worst, abs(at - i / len(ordered)), abs(at - (i + 1) / len(ordered)))
    return worst


def render(data: Path, orion: Path | None) -> str:
    """The text of kernels.toml."""
    kept = {row["name"]: row for row in tomllib.loads(TARGET.read_text())["sequence"]} if TARGET.exists() else {}
    lines = [
        "# Generated by scripts/fit_kernels.py; docs/kernels.md explains it. Durations: log-normal, in microseconds.",
        f'source = "{ORION}"',
        'device = "v100"',
    ]
    for sequence in SEQUENCES:
        if sequence.data:
            row = fit(sequence, read_rows(data / "orion_kernels" / sequence.data))
        elif orion is not None:
            row = fit(sequence, read_rows(orion / sequence.orion))
        elif sequence.name in kept:
            row = kept[sequence.name]
        else:
            raise FileNotFoundError(sequence.orion)
        lines += ["", "[[sequence]]"]
        lines += [f"{key} = {_toml(value)}" for key, value in row.items() if key != "kind"]
        for kind in row["kind"]:
            lines += ["[[sequence.kind]]"] + [f"{key} = {_toml(value)}" for key, value in kind.items()]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return "[" + ", ".join(map(_toml, value)) + "]" if isinstance(value, list) else repr(value)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fit kernel sequences from Orion's profiles.")
    parser.add_argument("--data", type=Path, default=Path("..", "shared", "data"), metavar="DIR")
    parser.add_argument("--orion", type=Path, metavar="DIR", help="a checkout of eth-easl/orion")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file would change")
    args = parser.parse_args()
    try:
        text = render(args.data, args.orion)
    except FileNotFoundError as error:
        print(
            f"fit_kernels: {error.filename or error} is not there; name the measurements with --data DIR, a checkout "
            "of eth-easl/orion with --orion DIR (docs/kernels.md)",
            file=sys.stderr,
        )
        return 2
    if args.check:
        same = TARGET.read_text(encoding="utf-8") == text
        print("kernels.toml is what comes out" if same else "kernels.toml is not what comes out")
        return 0 if same else 1
    TARGET.write_text(text, encoding="utf-8")
    print(f"wrote {len(SEQUENCES)} sequences")
    return 0


if __name__ == "__main__":
    sys.exit(main())
