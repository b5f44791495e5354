"""Arbiters of kernels by name: the one registry, beside `wiring` for policies.

A live device runs an arbiter (`make_arbiter`). A simulated device can also be shared in ways that no arbiter of ours
could: by streams, by slices that interrupt a kernel, by Orion's rule. Those are the lab's (`lab.kernels.sharing`) and
are loaded when they are named. To add an arbiter: write it behind `device.KernelArbiter` and enter it here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from .device import ArbiterSettings, GapArbiter, GapSettings, KernelArbiter, PriorityArbiter
from .errors import DeclarationError
from .extras import load
from .profile.kernels import KernelStats

__all__ = ["ARBITERS", "ArbiterEntry", "find_arbiter", "make_arbiter"]


class ArbiterEntry(msgspec.Struct, frozen=True):
    """A way of sharing a device between kernels, as the registry knows it."""

    #: What it does, in one line.
    summary: str
    #: The arbiter, or where it is found (`extras.load`); None: only a simulated device can be shared so.
    arbiter: type | str | None = None
    #: Its knobs, or where they are found; None: it has none, and knows neither classes nor durations.
    settings: type[ArbiterSettings] | str | None = None
    #: What a simulated device is shared by in place of the arbiter; "": the arbiter.
    sharing: str = ""
    #: The simulated device can run kernels in parts.
    in_parts: bool = False

    @property
    def by_class(self) -> bool:
        """Whether it looks at classes."""
        return self.settings is not None


ARBITERS: dict[str, ArbiterEntry] = {
    "slices": ArbiterEntry(
        "time slices of 2 ms: default sharing of processes",
        "lab.kernels.slices:SliceArbiter",
        sharing="lab.kernels.sharing:slices",
    ),
    "fifo": ArbiterEntry(
        "one queue in the order of launch: default sharing at its worst",
        "lab.kernels.first_come:FirstComeArbiter",
        sharing="lab.kernels.sharing:fifo",
    ),
    "streams": ArbiterEntry(
        "streams that take turns, kernels beside each other where they fit", sharing="lab.kernels.sharing:streams"
    ),
    "priority": ArbiterEntry("the same by priority", sharing="lab.kernels.sharing:priority"),
    "orion": ArbiterEntry("Orion's rule", sharing="lab.kernels.sharing:orion"),
    "tasks": ArbiterEntry("the low task runs when no high one is there", PriorityArbiter, ArbiterSettings),
    "fikit": ArbiterEntry(
        "FIKIT, reconstructed", "lab.kernels.fikit:FikitArbiter", "lab.kernels.fikit:FikitSettings"
    ),
    "ours": ArbiterEntry("GapArbiter", GapArbiter, GapSettings),
    "parts": ArbiterEntry(
        "GapArbiter, on a device that can run kernels in parts", GapArbiter, GapSettings, in_parts=True
    ),
}


def find_arbiter(name: str) -> ArbiterEntry:
    """The entry of that name."""
    entry = ARBITERS.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, ARBITERS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DeclarationError(f"there is no arbiter {name!r}; {hint}there are: {', '.join(ARBITERS)}")
    return entry


def make_arbiter(name: str, stats: Mapping[str, KernelStats], *, learn: bool = False, **knobs: Any) -> KernelArbiter:
    """The arbiter of that name; `stats` may be filled later and, with `learn`, is kept up to date by it.

    Knobs that it does not have are left out, so that one set can be given to all.
    """
    entry = find_arbiter(name)
    if entry.arbiter is None:
        raise DeclarationError(f"{name!r} is a way to share simulated devices; no arbiter does it on a live one")
    arbiter: Any = load(entry.arbiter) if isinstance(entry.arbiter, str) else entry.arbiter
    kind: Any = load(entry.settings) if isinstance(entry.settings, str) else entry.settings
    if kind is None:
        return cast(KernelArbiter, arbiter())
    settings = kind(**{knob: value for knob, value in knobs.items() if knob in kind.__struct_fields__})
    return cast(KernelArbiter, arbiter(stats, settings, learn=learn))
