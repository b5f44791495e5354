"""Where a model comes from, and how long its kernels are to be."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["Source"]


class Source(msgspec.Struct, frozen=True):
    """A model and how it is made into kernels."""

    #: "onnx": a file; "torch": module:function that makes a torch module; "kernels": module:function that makes
    #: something with a `bind` like that of `segment_run.Segments`.
    kind: Literal["onnx", "torch", "kernels"]
    where: str
    #: Kernels are about this long; 0: about `segments` of them.
    target_ns: int = 0
    segments: int = 8
    #: No kernels are made shorter; 0: as the kind has it.
    shortest_ns: int = 0
    #: Kernels that would be longer are divided where the graph allows; 0: they are not.
    longest_ns: int = 0
