"""Which profile store a command takes when none is named: the one rule of `profile`, `plan`, `serve` and `simulate`.

Rules of this file
- A store that is named counts, whatever else there is.
- Otherwise it is `profiles.sqlite` in the current directory, or the one beside the application, which is where its
  module is. If both exist, that of the current directory is taken and the other one is reported.
- If neither exists, a store is made in the current directory when there is something to keep.
- Nothing is opened here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from .store import DEFAULT_STORE

__all__ = ["FoundStore", "find_store"]


class FoundStore(msgspec.Struct, frozen=True):
    """The store to use."""

    path: Path
    #: What the user should know of the choice; empty if the user made it.
    note: str = ""
    #: Whether two stores could have been meant.
    conflict: bool = False


def find_store(given: Path | None, beside: Path | Iterable[Path] | None = None) -> FoundStore:
    """The store that was `given`, or the one in the current directory or `beside` the application."""
    if given is not None:
        return FoundStore(given)
    here = Path(DEFAULT_STORE)
    folders = (beside,) if isinstance(beside, Path) else beside or ()
    there = {path.resolve(): path for path in (here, *(folder / DEFAULT_STORE for folder in folders))[::-1]}
    found = [_shown(path) for path in reversed(there.values()) if path.exists()]
    if not found:
        return FoundStore(here, f"there is no profile store {DEFAULT_STORE} here or beside the application")
    taken, *left = found
    where = "in the current directory" if taken == here else "beside the application"
    note = f"profile store {taken}, {where}"
    if left:
        note += f"; {', '.join(map(str, left))} beside the application is not used: choose with --store"
    return FoundStore(taken, note, bool(left))


def _shown(path: Path) -> Path:
    """Short if it is below the current directory."""
    here = Path.cwd()
    if not path.is_absolute():
        return path
    return path.relative_to(here) if path.is_relative_to(here) else path
