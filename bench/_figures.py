"""What benches make of their rounds, and how they tell it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def p50(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def over_rounds(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def ratio(slow: Sequence[Sequence[int]], fast: Sequence[Sequence[int]]) -> dict[str, float]:
    """How many times longer the median takes, round by round."""
    return over_rounds([statistics.median(a) / statistics.median(b) for a, b in zip(slow, fast, strict=True)])


def machine() -> str:
    """What it was measured on."""
    import onnxruntime

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown CPU")
    return f"{os.cpu_count()} × {name}, Python {platform.python_version()}, onnxruntime {onnxruntime.__version__}"


def table_or_json(about: str, measure: Callable[[], dict[str, Any]], show: Callable[[dict[str, Any]], None]) -> int:
    """The whole of a bench that has no other option."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of a table")
    args = parser.parse_args()
    result = measure()
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
    return 0
