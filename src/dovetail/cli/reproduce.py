"""`dovetail reproduce NAME`: run an experiment, judge its claims, and draw its figures.

Exit code 0: every goal holds. 1: some do not. 2: there is no such experiment, or what it needs is not installed.

The experiments are the lab's, which is loaded only here and when it is asked for.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..extras import load
from .flags import refuse

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="the experiment; without it, all are listed")
    parser.add_argument("--quick", action="store_true", help="fewer seeds, shorter runs: one to four minutes")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where figures go (default: out/NAME)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """List, or run and judge; the exit code."""
    if args.name is None:
        refuse(args, "--quick", "--out", because="say which experiment; dovetail reproduce alone lists them")
        load("lab.reproduce:list_experiments")(as_json=args.json)
        return 0
    code: int = load("lab.reproduce:reproduce")(args.name, quick=args.quick, out=args.out, as_json=args.json)
    return code
