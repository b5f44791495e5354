"""`--store`, which `profile`, `plan` and `serve` have in common. Which store was taken is said on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from ..profile.find import find_store
from ..profile.store import DEFAULT_STORE, ProfileStore
from ..workflow.app import target_folder

__all__ = ["add_store", "chosen_store", "to_stderr"]


def add_store(parser: argparse.ArgumentParser) -> None:
    """The option."""
    parser.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help=f"profile store (default: {DEFAULT_STORE} in the current directory, or else beside the application)",
    )


def to_stderr(who: str) -> Callable[[str], None]:
    """Says something on stderr, as a command that ends soon may."""
    return lambda text: print(f"{who}: {text}", file=sys.stderr)


def chosen_store(args: argparse.Namespace, say: Callable[[str], None]) -> ProfileStore:
    """The store for `args.target`, whose module is loaded; which one that is is said if nobody named it."""
    folder = None if args.target is None else target_folder(args.target)
    found = find_store(args.store, folder)
    if found.note and found.path.exists():
        say(found.note)
    return ProfileStore(found.path)
