"""The experiments by name. Each is a module of this package, imported when it is run.

A name with dashes is a module with underscores; what a module must have is `lab.experiment.Experiment`.
"""

from __future__ import annotations

import difflib
import importlib
from typing import cast

from ...errors import DovetailError
from ..experiment import Experiment

__all__ = ["EXPERIMENTS", "NEEDS", "find"]

#: Name -> one line for `dovetail reproduce`.
EXPERIMENTS = {
    "foundation": "the simulator against queueing theory, its profiles against measurements, and its promises",
    "esg": "how each stage should be run: Dovetail's planner, ESG and its rivals in ESG's three settings",
    "graphs": "graphs that are not chains and tight objectives: the planner and its rivals behind one admission",
    "fikit": "when each kernel should start: classes and gap filling, FIKIT's and ours, simulated and live",
    "joint": "memory, batches, shares and classes at once: goodput and cost of Dovetail and of all rivals",
    "fast-gshare": "how much of a GPU each model should have: FaST-GShare's tables, packing and headline figures",
    "compass": "where each task should run: Compass, its rivals and Dovetail's router in Compass's setting",
    "interference": "how long beside others: our predictor and its rivals, measured elsewhere, simulated and live",
    "interference-live": "the live part of it: real models that share this machine's cores",
}

#: Name -> packages that it needs beside matplotlib, which all do.
NEEDS = {"esg": ("sklearn",), "graphs": ("sklearn",), "interference": ("sklearn",), "interference-live": ("sklearn",)}


def find(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DovetailError(f"there is no experiment {name!r}; {hint}there are: {', '.join(EXPERIMENTS)}")
    return cast(Experiment, importlib.import_module(f".{name.replace('-', '_')}", __package__))
