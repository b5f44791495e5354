"""Values in shared memory: a lone tensor as its raw bytes, all else as a msgpack tree with tensors beside it.

Rules of this file
- No pickle: a value from another process can be wrong, but it cannot run code.
- Tensors are written once and not copied again: they are read in place, through read-only views.
- What arrives is checked before it is used: a broken value raises `CorruptValue`, and nothing outside its
  block is read.

Layout of a tree, all integers little-endian:

    [u32 length of the msgpack][u32 weight][msgpack][padding to 64][tensor][padding to 64][tensor]...

A tensor in it is the msgpack extension 1, holding [dtype, shape, offset from the first tensor]; a numpy scalar
is the extension 2, holding [dtype, bytes]. Tuples come back as lists, all other values with their own type;
instances of subclasses (OrderedDict, namedtuple, IntEnum) are refused rather than flattened in silence.

The weight says how much work it is to read the tree: one for each value in a list or dict, more for each tensor. A
process that must not be held up looks at it first (`weight_of`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from ...errors import DovetailError
from ...workflow.tensor import OIP_OF
from .arena import ALIGN_BYTES, Arena
from .ref import Ref, ScalarEntry, TensorEntry

__all__ = ["CorruptValue", "UnsupportedValue", "decode", "empty", "encode", "weight_of"]

MAX_DEPTH = 64  # lists and dicts inside each other; also what ends a list that contains itself
#: What a tensor or numpy scalar, and what a list or dict in a tree weighs: reading one takes about as long as so many
#: plain values (measured: 1.2 µs and 0.4 µs against 40 ns).
TENSOR_WEIGHT, CONTAINER_WEIGHT = 32, 8
MAX_TREE_BYTES = (1 << 32) - 1  # what the length in front of it can say
ALLOWED = (
    "None, bool, int (64 bits), float, str, bytes, numpy scalars and arrays (bool, 8 to 64 bit integers, "
    "16 to 64 bit floats), and lists, tuples and dicts (str keys) of these"
)

_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in OIP_OF}
_NAME_OF = {order: name for name in _DTYPES for order in (_DTYPES[name], _DTYPES[name].newbyteorder(">"))}
_Tensors: TypeAlias = list[tuple[int, npt.NDArray[Any]]]  # (offset from the first tensor, tensor)
_HEAD = struct.Struct("<II")
_HEAD_BYTES = _HEAD.size
_TEXT = frozenset({str})
_CONTAINERS = frozenset({list, tuple, dict})
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})  # what msgpack holds as it is
_TENSOR, _SCALAR = 1, 2  # codes of the msgpack extensions


class UnsupportedValue(DovetailError):
    """A stage returned something that cannot travel between processes; the message says what and where."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def add_step(self, key: object) -> None:
        """Called by each container that the error passes through, from the inside out."""
        self.path = (f'["{key}"]' if isinstance(key, str) else f"[{key!r}]") + self.path

    def __str__(self) -> str:
        return f"value{self.path} {self.reason}. Allowed: {ALLOWED}"


class CorruptValue(DovetailError):
    """No value lies at a `Ref`: its block was freed too early or overwritten, or the `Ref` itself is wrong."""


_pack = msgspec.msgpack.Encoder().encode
_unpack_tensor = msgspec.msgpack.Decoder(TensorEntry).decode
_unpack_scalar = msgspec.msgpack.Decoder(ScalarEntry).decode


def empty(dtype: str, shape: tuple[int, ...], arena: Arena) -> tuple[Ref, npt.NDArray[Any]]:
    """A new tensor in this process's own arena, for a model to write in place; its content is undefined."""
    little_endian = _dtype(dtype)
    nbytes = math.prod(shape) * little_endian.itemsize
    ref = Ref(arena.ident, arena.alloc(nbytes), nbytes, dtype, shape)
    return ref, np.ndarray(shape, little_endian, arena.view(ref.offset, nbytes))


def encode(value: object, arena: Arena) -> Ref:
    """Writes `value` into a new block of this process's own arena; `arena.free(ref.offset)` ends its life."""
    if type(value) is np.ndarray:
        ref, target = empty(_dtype_name(value), value.shape, arena)
        target[...] = value  # strides and byte order are straightened on the way
        return ref
    tensors: _Tensors = []
    packed, weight = _pack_tree(value, tensors)
    tree_end = _HEAD_BYTES + len(packed)
    first = _aligned(tree_end)
    nbytes = first + _end(tensors) if tensors else tree_end
    ref = Ref(arena.ident, arena.alloc(nbytes), nbytes)
    block = arena.view(ref.offset, nbytes)
    block[:_HEAD_BYTES] = _HEAD.pack(len(packed), min(weight, MAX_TREE_BYTES))
    block[_HEAD_BYTES:tree_end] = packed
    for offset, tensor in tensors:
        little_endian = _DTYPES[_NAME_OF[tensor.dtype]]
        np.copyto(np.ndarray(tensor.shape, little_endian, block, first + offset), tensor)
    return ref


def decode(ref: Ref, arenas: Mapping[int, Arena]) -> Any:
    """The value at `ref`; its arrays are read-only views of the arena, good until the owner frees the block."""
    arena = arenas.get(ref.arena)
    if arena is None:
        raise CorruptValue(f"{ref} lies in an arena that this process has not attached")
    try:
        block = arena.view(ref.offset, ref.nbytes).toreadonly()
        if not ref.dtype:
            return _decode_tree(block)
        tensor = _tensor(block, ref.dtype, ref.shape)
        if tensor.nbytes != ref.nbytes:
            raise ValueError(f"a tensor of this shape has {tensor.nbytes} bytes")
        return tensor
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CorruptValue(f"there is no value at {ref}: {error}") from error


def weight_of(ref: Ref, arenas: Mapping[int, Arena]) -> int:
    """How many values lie at `ref`, as its writer has counted; a lone tensor is 1, and so is what cannot be read."""
    arena = arenas.get(ref.arena)
    if ref.dtype or arena is None or ref.nbytes < _HEAD_BYTES:
        return 1
    return max(1, int(_HEAD.unpack(arena.view(ref.offset, _HEAD_BYTES))[1]))


def _decode_tree(block: memoryview) -> Any:
    tree_end = _HEAD_BYTES + int.from_bytes(block[: _HEAD_BYTES // 2], "little")
    if tree_end > len(block):
        raise ValueError(f"its tree would end at byte {tree_end} of {len(block)}")
    tensors = block[_aligned(tree_end) :]

    def extension(code: int, data: memoryview) -> Any:
        if code == _TENSOR:
            entry = _unpack_tensor(data)
            return _tensor(tensors, entry.dtype, entry.shape, entry.offset)
        if code == _SCALAR:
            scalar = _unpack_scalar(data)
            return np.frombuffer(scalar.data, _dtype(scalar.dtype), count=1)[0]
        raise ValueError(f"{code} is not an extension of this codec")

    return msgspec.msgpack.decode(block[_HEAD_BYTES:tree_end], ext_hook=extension)


def _tensor(block: memoryview, dtype: str, shape: tuple[int, ...], offset: int = 0) -> npt.NDArray[Any]:
    """A view of one tensor; numpy refuses what does not lie inside `block`, and offsets below zero."""
    if shape and min(shape) < 0:  # numpy would take a lone -1 for "as many as there are"
        raise ValueError("a tensor's lengths cannot be negative")
    return np.ndarray(shape, _dtype(dtype), block, offset)


def _pack_tree(value: object, tensors: _Tensors) -> tuple[bytes, int]:
    """The tree in msgpack, and its weight."""
    weight = [1]
    try:
        packed = _pack(_to_tree(value, tensors, MAX_DEPTH, weight))
    except (ValueError, OverflowError) as error:
        _blame(value)
        raise UnsupportedValue(f"cannot be packed: {error}") from error
    if len(packed) > MAX_TREE_BYTES:
        raise UnsupportedValue(f"packs into {len(packed)} bytes without its arrays; {MAX_TREE_BYTES} are the most")
    return packed, weight[0]


def _to_tree(value: Any, tensors: _Tensors, levels_left: int, weight: list[int]) -> object:
    """What msgpack holds in place of `value`; appends its tensors, each with its offset from the first.

    What it weighs is added to `weight`.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is np.ndarray:
        entry = TensorEntry(_dtype_name(value), value.shape, _aligned(_end(tensors)))
        tensors.append((entry.offset, value))
        weight[0] += TENSOR_WEIGHT
        return msgspec.msgpack.Ext(_TENSOR, _pack(entry))
    if isinstance(value, np.generic):
        name = _dtype_name(value)
        weight[0] += TENSOR_WEIGHT
        return msgspec.msgpack.Ext(_SCALAR, _pack(ScalarEntry(name, value.astype(_DTYPES[name]).tobytes())))
    if kind not in _CONTAINERS:
        raise UnsupportedValue(_refusal(kind))
    if levels_left == 0:
        raise UnsupportedValue(f"is nested more than {MAX_DEPTH} deep, or contains itself")
    if kind is dict and not _TEXT.issuperset(map(type, value)):
        key = next(key for key in value if type(key) is not str)
        raise UnsupportedValue(f"has the key {key!r} of type {type(key).__qualname__} instead of str")
    items = value.values() if kind is dict else value
    weight[0] += CONTAINER_WEIGHT + len(value)
    if _PLAIN.issuperset(map(type, items)):  # ten thousand floats in a list: no step of Python for each
        return value
    branches = []
    for key, item in zip(value if kind is dict else range(len(value)), items, strict=True):
        try:
            branches.append(_to_tree(item, tensors, levels_left - 1, weight))
        except UnsupportedValue as error:
            error.add_step(key)
            raise
    return dict(zip(value, branches, strict=True)) if kind is dict else branches


def _blame(value: Any) -> None:
    """Raises `UnsupportedValue` for the first number or text that msgpack refuses, with the path to it."""
    if type(value) in _CONTAINERS:
        for key, item in value.items() if type(value) is dict else enumerate(value):
            try:
                _blame(key)
                _blame(item)
            except UnsupportedValue as error:
                error.add_step(key)
                raise
    elif type(value) is int and not -(1 << 63) <= value < 1 << 64:
        raise UnsupportedValue(f"is an integer of {value.bit_length()} bits")
    elif type(value) is str:
        try:
            value.encode()
        except UnicodeEncodeError as problem:  # a name of its own: a compiler gives each name one type
            raise UnsupportedValue(f"is text that UTF-8 cannot express ({problem.reason})") from problem


def _refusal(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    plain = next((base for base in kind.__mro__ if base in _PLAIN | _CONTAINERS | {np.ndarray}), None)
    return f"is of type {name}" + (f"; convert it to a plain {plain.__name__} first" if plain else "")


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return _DTYPES[name]
    except KeyError:
        raise ValueError(f"{name!r} is not a dtype that travels; known: {', '.join(_DTYPES)}") from None


def _dtype_name(value: npt.NDArray[Any] | np.generic) -> str:
    name = _NAME_OF.get(value.dtype)
    if name is None:
        raise UnsupportedValue(f"has the dtype {value.dtype}")
    return name


def _end(tensors: _Tensors) -> int:
    return tensors[-1][0] + tensors[-1][1].nbytes if tensors else 0


def _aligned(nbytes: int) -> int:
    return (nbytes + ALIGN_BYTES - 1) & -ALIGN_BYTES
