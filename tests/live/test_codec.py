"""Values survive the way through shared memory; what cannot travel, and what arrives broken, is named."""

from __future__ import annotations

import collections
import contextlib
import enum
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dovetail.errors import DovetailError
from dovetail.live.tensors.arena import ALIGN_BYTES, Arena, ArenaFull
from dovetail.live.tensors.codec import MAX_DEPTH, CorruptValue, UnsupportedValue, decode, empty, encode
from dovetail.live.tensors.ref import Ref

DTYPES = ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena.create(3, 64 << 20) as created:
        yield created


def same(left: Any, right: Any) -> bool:
    """Equal, of equal types, with tuples as lists and NaN equal to itself."""
    if isinstance(left, tuple):
        left = list(left)
    if isinstance(left, np.ndarray | np.generic):
        return (
            type(left) is type(right)
            and left.dtype.newbyteorder("=") == right.dtype.newbyteorder("=")
            and left.shape == right.shape
            and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    return bool(left == right) or left != left


orders = st.sampled_from("<>=")
dtypes = st.builds(lambda name, order: np.dtype(name).newbyteorder(order), st.sampled_from(DTYPES), orders)
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
views = st.one_of(arrays, arrays.map(np.transpose), arrays.filter(lambda a: a.ndim > 0).map(lambda a: a[::-2]))
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(),
    st.binary(),
    views,
    arrays.filter(lambda a: a.size > 0).map(lambda a: a.reshape(-1)[0]),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(), inner, max_size=5),
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(values)
def test_a_value_comes_back(value: Any) -> None:
    with Arena.create(1, 1 << 20) as arena:
        ref = encode(value, arena)
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(ref), type=Ref)  # as it travels through the doorbell
        assert again == ref
        assert same(value, decode(again, {1: arena}))
        arena.free(ref.offset)
        assert arena.used_bytes == 0


@settings(deadline=None)
@given(value=values, flips=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=8), data=st.data())
@example([np.zeros(3)], [], None)
def test_broken_bytes_raise_nothing_but_corrupt_value(value: Any, flips: list[tuple[int, int]], data: Any) -> None:
    with Arena.create(1, 1 << 20) as arena:
        ref = encode([value], arena)  # in a list, so that it has a header
        block = arena.view(ref.offset, ref.nbytes)
        for position, byte in flips:
            block[position % ref.nbytes] = byte
        cut = data.draw(st.integers(0, ref.nbytes)) if data else ref.nbytes
        with contextlib.suppress(CorruptValue):
            touch(decode(msgspec.structs.replace(ref, nbytes=cut), {1: arena}))


@settings(deadline=None)
@given(header=st.binary(max_size=60))
@example(b"\xdd\xff\xff\xff\xff")  # a list said to have four billion items
@example(b"\x81\xdd\x7f\xff\xff\xff")  # the same as a key
@example(b"\x91" * 5_000)  # nested deeper than the interpreter goes
@example(b"\x81\xc7\x08\x01" + msgspec.msgpack.encode(["bool", [], 0]) + b"\x00")  # an array as a key
def test_foreign_bytes_raise_nothing_but_corrupt_value(header: bytes) -> None:
    with Arena.create(1, 1 << 20) as arena:
        data = len(header).to_bytes(4, "little") + header
        offset = arena.alloc(len(data))
        arena.view(offset, len(data))[:] = data
        with contextlib.suppress(CorruptValue):
            touch(decode(Ref(1, offset, len(data)), {1: arena}))


def touch(value: Any) -> None:
    """Reads every byte of every array, which would crash if one lay outside the mapping."""
    if isinstance(value, np.ndarray):
        value.tobytes()
    elif isinstance(value, dict):
        for item in value.values():
            touch(item)
    elif isinstance(value, list):
        for item in value:
            touch(item)


@settings(deadline=None)
@given(
    offset=st.integers(-10, 5_000),
    nbytes=st.integers(-10, 5_000),
    dtype=st.sampled_from(["", "bool", "float32", "float64", "object", "f4", "<U8"]),
    shape=st.lists(st.one_of(st.integers(-2, 40), st.integers(-(2**63), 2**64)), max_size=70).map(tuple),
)
@example(0, 4, "float32", (-1,))  # numpy alone would read one item
@example(0, 0, "float32", (0, 2**62, 2**62))
def test_a_wrong_ref_raises_nothing_but_corrupt_value(
    offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]
) -> None:
    with Arena.create(1, 4096) as arena:
        try:
            value = decode(Ref(1, offset, nbytes, dtype, shape), {1: arena})
        except CorruptValue:
            return
        assert 0 <= offset <= offset + nbytes <= arena.size
        if dtype:
            assert value.nbytes == nbytes and value.shape == shape


@pytest.mark.parametrize("ref", [
    Ref(9, 0, 4),  # an arena that is not attached
    Ref(3, 0, 64 << 21),  # beyond its end
    Ref(3, 0, 4, "float32", (2,)),  # too short for the shape
    Ref(3, 0, 8, "float32", (1,)),  # too long for the shape
    Ref(3, 0, 8, "object", (1,)),
    Ref(3, 0, 2),  # no room for the length of the tree
])  # fmt: skip
def test_a_wrong_ref_is_named(arena: Arena, ref: Ref) -> None:
    arena.view(arena.alloc(64), 64)[:] = b"\xff" * 64
    with pytest.raises(CorruptValue, match=r"Ref\(arena="):
        decode(ref, {3: arena})


def test_arrays_are_read_only_aligned_views(arena: Arena) -> None:
    value = {"boxes": np.arange(5, dtype="u1"), "scores": np.arange(3, dtype="f4")}
    tree, lone = encode(value, arena), encode(value["scores"], arena)
    with Arena.attach(3, os.dup(arena.fd)) as other:
        for reader in (arena, other):
            decoded = decode(tree, {3: reader})
            for array in (decoded["boxes"], decoded["scores"], decode(lone, {3: reader})):
                assert array.ctypes.data % ALIGN_BYTES == 0
                assert not array.flags.owndata
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True  # not even on purpose, in a process that is not the owner


def test_arrays_outlive_the_arena() -> None:
    arena = Arena.create(1, 1 << 20)
    array = decode(encode([np.arange(1_000)], arena), {1: arena})[0]
    arena.close()
    del arena
    assert array.sum() == 499_500


def test_a_lone_tensor_is_its_raw_little_endian_bytes(arena: Arena) -> None:
    ref = encode(np.array([[1, 2], [3, 4]], ">i2").T, arena)
    assert (ref.dtype, ref.shape, ref.nbytes) == ("int16", (2, 2), 8)
    assert bytes(arena.view(ref.offset, ref.nbytes)) == bytes([1, 0, 3, 0, 2, 0, 4, 0])


def test_a_model_writes_its_output_in_place(arena: Arena) -> None:
    ref, output = empty("float32", (2, 3), arena)
    output[:] = 7
    assert decode(ref, {3: arena}).tolist() == [[7.0] * 3] * 2
    with pytest.raises(ValueError, match="'complex64' is not a dtype that travels"):
        empty("complex64", (1,), arena)


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(("value", "message"), [
    ([1, 2, 3, {"boxes": {1, 2}}], r'value[3]["boxes"] is of type set. Allowed: None, bool,'),
    (collections.OrderedDict(a=1), "value is of type collections.OrderedDict; convert it to a plain dict first"),
    ([Colour.RED], "Colour; convert it to a plain int first"),
    (np.ma.array([1]), "value is of type numpy.ma.MaskedArray; convert it to a plain ndarray first"),
    (np.array([object()]), "value has the dtype object"),
    ([np.array(["text"])], "value[0] has the dtype <U4"),
    ([np.datetime64(1, "s")], "value[0] has the dtype datetime64[s]"),
    ({"f": len}, 'value["f"] is of type builtin_function_or_method'),
    ({"a": [{1: 2}]}, 'value["a"][0] has the key 1 of type int instead of str'),
    ({"a": (0, 2**64)}, 'value["a"][1] is an integer of 65 bits'),
    ([-(2**63) - 1], "value[0] is an integer of 64 bits"),
    ([{"\ud800": 1}], "is text that UTF-8 cannot express"),
    ([np.zeros(2), ["\ud800"]], "value[1][0] is text that UTF-8 cannot express"),
])  # fmt: skip
def test_what_cannot_travel_is_named_with_its_place(arena: Arena, value: object, message: str) -> None:
    with pytest.raises(UnsupportedValue) as caught:
        encode(value, arena)
    assert message in str(caught.value)
    assert isinstance(caught.value, DovetailError)
    assert arena.blocks == 0


def test_depth_is_bounded(arena: Arena) -> None:
    deep: list[Any] = []
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert decode(encode(deep, arena), {3: arena}) == deep
    endless: list[Any] = []
    endless.append(endless)
    for value in ([deep], endless, {"a": endless}):
        with pytest.raises(UnsupportedValue, match="nested more than 64 deep, or contains itself"):
            encode(value, arena)


def test_a_value_that_does_not_fit_leaves_nothing_behind(arena: Arena) -> None:
    for value in (np.zeros(arena.size), [np.zeros(arena.size)]):
        with pytest.raises(ArenaFull):
            encode(value, arena)
    assert arena.blocks == 0


CHILD = """
import socket, sys, msgspec, numpy as np
from dovetail.live.tensors.arena import Arena
from dovetail.live.tensors.codec import decode, encode
from dovetail.live.tensors.ref import Ref

door, front = socket.socket(fileno=int(sys.argv[1])), Arena.attach(0, int(sys.argv[2]))
mine = Arena.create(1, 1 << 20)
socket.send_fds(door, [b"arena"], [mine.fd])
while message := door.recv(4096):
    value = decode(msgspec.msgpack.decode(message, type=Ref), {0: front})
    answer = encode({"sum": float(value["x"].sum()), "twice": value["x"] * 2, "tag": value["tag"]}, mine)
    door.send(msgspec.msgpack.encode(answer))
"""


@pytest.mark.cpu
def test_values_travel_between_processes_and_outlive_a_killed_one() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, Arena.create(0, 1 << 20) as front:
        command = [sys.executable, "-c", CHILD, str(theirs.fileno()), str(front.fd)]
        child = subprocess.Popen(command, pass_fds=[theirs.fileno(), front.fd])
        try:
            theirs.close()
            ours.settimeout(60)  # only so that a child which cannot start fails the test instead of hanging it
            _, fds, _, _ = socket.recv_fds(ours, 100, 1)
            with Arena.attach(1, fds[0]) as worker:
                x = np.arange(12, dtype="f4").reshape(3, 4)
                ours.send(msgspec.msgpack.encode(encode({"x": x, "tag": "a"}, front)))
                answer = msgspec.msgpack.decode(ours.recv(4096), type=Ref)
                os.kill(child.pid, signal.SIGKILL)
                child.wait()
                value = decode(answer, {0: front, 1: worker})
                assert same({"sum": 66.0, "twice": x * 2, "tag": "a"}, value)
        finally:
            child.kill()
            child.wait()
