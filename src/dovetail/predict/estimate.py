"""What is said when somebody asks how long something takes, and what is said while nothing is known of it.

Rules of this file: a mean without a spread is half an answer. Each constant here is said nowhere else, so that all
who ask believe the same of what nobody has seen yet.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ..units import MS, US

__all__ = [
    "GUESSED_LOAD_NS", "GUESSED_LOAD_NS_PER_BYTE", "GUESSED_RUN_NS", "GUESSED_SPREAD", "GUESSED_TURNAROUND_NS",
    "SIMILAR_SPREAD", "Estimate", "Source", "guessed_load_ns",
]  # fmt: skip

Source = Literal["profile", "learned", "guess"]

#: A batch of one item on a whole device, of a stage that was neither profiled nor run. It lies between what Python
#: steps take (below 5 ms) and what models take (20 ms in the median of the catalogue's 77 curves for a V100). What a
#: model weighs says next to nothing about it: in these curves the time grows with the 0.15th power of the weights,
#: and its logarithm deviates by 1.25 from that line and by 1.27 from a constant. So this is a constant.
GUESSED_RUN_NS: Final = 10 * MS
#: Standard deviation over mean of a guess: that of a log-normal time whose logarithm deviates by 1.27, as above.
GUESSED_SPREAD: Final = 2.0
#: The same where a guess follows from what similar models took on this kind of device (`similar`).
SIMILAR_SPREAD: Final = 1.0
#: A load: a file is read and prepared by the processor. Measured with onnxruntime 1.31 and the models of the examples
#: (0.6 to 24 MB) on a shared virtual machine: 46 to 110 ms below 7 MB, 170 to 240 ms above 20 MB.
GUESSED_LOAD_NS: Final = 60 * MS
GUESSED_LOAD_NS_PER_BYTE: Final = 6
#: From the end of a batch to the arrival of its requests' next one at the same device, until some were seen.
GUESSED_TURNAROUND_NS: Final = 400 * US


class Estimate(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How long something takes."""

    mean_ns: int
    #: Standard deviation over mean of a single time.
    spread: float
    #: `profile`: measured or fitted beforehand. `learned`: from what was seen here. `guess`: nothing was seen.
    source: Source


def guessed_load_ns(nbytes: int) -> int:
    """What a load of so many bytes is taken to last where nobody knows better; nothing takes no time."""
    return GUESSED_LOAD_NS + nbytes * GUESSED_LOAD_NS_PER_BYTE if nbytes > 0 else 0
