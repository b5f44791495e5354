"""What is written of values: where each lies, and what a tree says of the tensors beside it."""

from __future__ import annotations

import msgspec

__all__ = ["Ref", "ScalarEntry", "TensorEntry"]


class Ref(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a value lies: one tensor's raw bytes, little-endian and row-major, or a tree where `dtype` is ""."""

    arena: int
    offset: int
    nbytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()


class TensorEntry(msgspec.Struct, array_like=True, gc=False):
    """A tensor in a tree."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class ScalarEntry(msgspec.Struct, array_like=True, gc=False):
    """A numpy scalar in a tree."""

    dtype: str
    data: bytes
