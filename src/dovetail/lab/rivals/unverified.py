"""Constants of ESG's setting that could not be checked against the paper; kept here and nowhere else.

ESG (HPDC '24, arXiv 2404.16812) was not at hand when these were written: only its abstract and summaries of it were.
Each value is a recollection or an inference and is marked so. Whoever has the paper should correct this file first;
every figure that `dovetail reproduce esg` prints rests on it, and says so.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "ARRIVAL_INTERVAL_MS",
    "BATCHES",
    "CPUS",
    "CPUS_PER_NODE",
    "GROUP_SIZE",
    "HOST_FRACTION",
    "KEEP_ALIVE_S",
    "K_BEST",
    "NODES",
    "SETTINGS",
    "SLICES_PER_NODE",
    "SLO_FACTORS",
]

#: Configurations that the search returns, and stages searched together. [recollection, medium trust]
K_BEST: Final = 5
GROUP_SIZE: Final = 3

#: Invoker nodes, each with processor cores and one A100 cut into seven slices. [recollection, medium trust]
NODES: Final = 16
CPUS_PER_NODE: Final = 16
SLICES_PER_NODE: Final = 7

#: How long an idle function stays loaded: OpenWhisk's default. [recollection]
KEEP_ALIVE_S: Final = 600

#: Values that a configuration may take. "256 configurations" is remembered, the sets are not; these give
#: 4 x 8 x 7 = 224. [inference]
BATCHES: Final = (1, 2, 4, 8)
CPUS: Final = (1, 2, 3, 4, 5, 6, 7, 8)

#: Objective as a multiple of L, the time with every function at its minimum configuration. [second hand]
SLO_FACTORS: Final = {"strict": 0.8, "moderate": 1.0, "relaxed": 1.2}
#: Arrival intervals are drawn evenly between these, in ms. [recollection, medium trust]
ARRIVAL_INTERVAL_MS: Final = {"light": (40.0, 67.2), "normal": (20.0, 33.6), "heavy": (10.0, 16.8)}
#: The three combined settings. [recollection, medium trust]
SETTINGS: Final = {
    "strict-light": ("strict", "light"),
    "moderate-normal": ("moderate", "normal"),
    "relaxed-heavy": ("relaxed", "heavy"),
}

#: Part of a function's time at minimum configuration that is spent on the processor, where cores share the items of a
#: batch; the rest is the device's. Without it the number of cores would not matter at all. [our assumption]
HOST_FRACTION: Final = 0.15
