"""Tensors to bytes and back."""

from __future__ import annotations

import struct
from typing import Any

import hypothesis.extra.numpy as hnp
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.support import MemoryBackend, MemoryBody, spec

from dovetail.errors import BadRequest
from dovetail.serve import tensors
from dovetail.serve.oip_records import InputTensor, OutputTensor
from dovetail.serve.tensors import decode, decode_raw
from dovetail.workflow.tensor import NUMPY_OF

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


def arrays(*without: str) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    dtypes = [dtype for name, dtype in NUMPY_OF.items() if name not in without]
    return st.sampled_from(dtypes).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))


def body(data: bytes) -> MemoryBody:
    memory = MemoryBody(MemoryBackend(), len(data))
    memory.view[:] = data
    return memory


def encode(name: str, value: object, binary: bool) -> tuple[OutputTensor, bytes | memoryview | None]:
    """As `tensors.encode`, of what is no list of arrays: there is one part, or none."""
    tensor, parts = tensors.encode(name, value, binary)
    if parts is None:
        return tensor, None
    (raw,) = parts
    return tensor, raw


def read(tensor: OutputTensor, raw: bytes | memoryview | None, *shape: int) -> Any:
    """What a server makes of a tensor as `encode` writes it; `shape` is what the model declares."""
    sent = msgspec.json.decode(msgspec.json.encode(tensor), type=InputTensor)
    data = b"head" + bytes(raw or b"")
    value, nbytes = decode(spec(tensor.name, tensor.datatype, *shape), sent, body(data), 4)
    assert nbytes == len(data) - 4
    return value


@given(arrays())
def test_binary_round_trip(array: np.ndarray[Any, Any]) -> None:
    tensor, raw = encode("t", array, True)
    np.testing.assert_array_equal(read(tensor, raw, *array.shape), array, strict=True)


@given(arrays("FP16"), st.booleans())
def test_json_round_trip(array: np.ndarray[Any, Any], nested: bool) -> None:
    if array.dtype.kind == "f":
        array = np.asarray(np.nan_to_num(array, posinf=1.0, neginf=-1.0))  # JSON has no other numbers
    tensor, raw = encode("t", array, False)
    if nested and array.ndim:
        tensor.data = array.tolist()
    np.testing.assert_array_equal(read(tensor, raw, *(-1,) * array.ndim), array, strict=True)


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_bytes_round_trip(elements: list[bytes]) -> None:
    assert read(*encode("t", elements, True), -1) == elements
    if len(elements) == 1:
        assert read(*encode("t", elements[0], True), 1) == elements[0]


@given(st.lists(st.text(max_size=20), max_size=6))
def test_text_round_trip(elements: list[str]) -> None:
    expected = [element.encode() for element in elements]
    for binary in (True, False):
        assert read(*encode("t", elements, binary), -1) == expected
        assert read(*encode("t", np.array(elements, object).reshape(1, -1), binary), -1, -1) == expected


@given(arrays())
def test_layout_does_not_matter(array: np.ndarray[Any, Any]) -> None:
    for other in (array.T, array.astype(array.dtype.newbyteorder(">")), array[::-1] if array.ndim else array):
        tensor, raw = encode("t", other, True)
        np.testing.assert_array_equal(read(tensor, raw, *other.shape), other)


def test_a_contiguous_array_is_not_copied() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    _, raw = encode("t", array, True)
    array[0, 0] = 7
    assert raw is not None and struct.unpack("<f", raw[:4]) == (7,)


@pytest.mark.parametrize(
    ("value", "datatype", "shape", "data"),
    [
        ("ä", "BYTES", [1], ["ä"]),
        (b"b", "BYTES", [1], ["b"]),
        (bytearray(b"b"), "BYTES", [1], ["b"]),
        (["a", b"b"], "BYTES", [2], ["a", "b"]),
        (("a",), "BYTES", [1], ["a"]),
        ([], "BYTES", [0], []),
        (np.array(["a", "b"]), "BYTES", [2], ["a", "b"]),
        (np.array([["a"], [{"k": 1}]], object), "BYTES", [2, 1], ["a", '{"k":1}']),
        (True, "BOOL", [1], [True]),
        (5, "INT64", [1], [5]),
        (2.5, "FP64", [1], [2.5]),
        (np.float32(2.5), "FP32", [1], [2.5]),
        (np.array(3, np.uint8), "UINT8", [], [3]),
        (2**63, "BYTES", [1], ["9223372036854775808"]),
        (None, "BYTES", [1], ["null"]),
        ([1, 2], "BYTES", [1], ["[1,2]"]),
        ([["a"]], "BYTES", [1], ['[["a"]]']),
        ({"box": np.array([1, 2]), "p": np.float64(0.5)}, "BYTES", [1], ['{"box":[1,2],"p":0.5}']),
        (np.array([np.nan, np.inf, 1]), "FP64", [3], [None, None, 1.0]),
    ],
)
def test_values_become_tensors(value: object, datatype: str, shape: list[int], data: list[object]) -> None:
    tensor, raw = encode("t", value, False)
    seen = msgspec.json.decode(msgspec.json.encode(tensor))
    assert raw is None
    assert seen == {"name": "t", "datatype": datatype, "shape": shape, "data": data}


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (np.zeros(1, np.float16), BadRequest, "FP16, which has no JSON form"),
        (b"\xff", BadRequest, "not UTF-8"),
        (np.zeros(1, complex), TypeError, "complex128"),
        ({"x": object()}, TypeError, "object cannot be written"),
    ],
)
def test_values_that_cannot_be_sent(value: object, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        encode("t", value, False)


def check(datatype: str, shape: list[int], data: str, *declared: int) -> Any:
    sent = InputTensor("t", datatype, shape, data=msgspec.Raw(data.encode()))
    return decode(spec("t", datatype, *declared), sent, body(b""), 0)[0]


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "says"),
    [
        ("UINT8", [1], "[300]", "does not fit UINT8 .*<= 255"),
        ("UINT8", [1], "[-1]", ">= 0"),
        ("INT8", [1], "[128]", "<= 127"),
        ("INT64", [1], "[9223372036854775808]", "does not fit"),
        ("UINT64", [1], "[18446744073709551616]", "does not fit"),
        ("INT32", [1], "[1.5]", "Expected `int`, got `float`"),
        ("INT32", [1], "[true]", "got `bool`"),
        ("FP32", [1], "[1e39]", "does not fit FP32"),
        ("FP64", [1], "[1e999]", "out of range"),
        ("FP32", [1], '["1"]', "got `str`"),
        ("FP32", [1], "[null]", "got `null`"),
        ("BOOL", [1], "[1]", "got `int`"),
        ("BYTES", [1], "[1]", "got `int`"),
        ("FP16", [1], "[1]", "no JSON form"),
        ("FP32", [2], "[1]", "has 2 elements, data has 1"),
        ("FP32", [2], "[1,2,3]", "has 2 elements, data has 3"),
        ("FP32", [0], "[1]", "has 0 elements"),
        ("BYTES", [2], '["a,b"]', "has 2 elements"),
        ("BYTES", [1], '["\\ud800"]', "does not fit"),
        ("FP32", [1], "1", "flat list or nested"),
        ("FP32", [1], "{}", "flat list or nested"),
        ("FP32", [1], "[[1]]", "flat list or nested"),
        ("FP32", [2, 2], "[[1,2],[3],[4]]", "."),
        ("FP32", [2, 2], "[[1,2,3],[4]]", "."),
        ("FP32", [2, 2], "[[[1,2],[3,4]]]", "flat list or nested"),
        ("BYTES", [2, 1], '[["a","b"]]', r"data has shape \[1, 2\]"),
        ("BYTES", [2, 2], '[["a","b"],["c"]]', "."),
        ("FP32", [1], "", "has no data"),
    ],
)
def test_bad_json(datatype: str, shape: list[int], data: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        check(datatype, shape, data, *shape)


def test_the_ends_of_the_ranges_fit() -> None:
    assert check("UINT64", [2], "[0, 18446744073709551615]", 2).tolist() == [0, 2**64 - 1]
    assert check("INT8", [2], "[-128, 127]", 2).tolist() == [-128, 127]
    assert check("FP32", [2], "[3.4028234663852886e38, 1]", 2).dtype == np.float32
    assert check("FP32", [], "[4]").shape == ()
    assert check("FP32", [], "4").shape == ()


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "says"),
    [
        ("FP32", [2], b"1234567", r"FP32 \[2\] takes 8 bytes, got 7 bytes"),
        ("FP32", [2**31 - 1] * 2, b"1234", "takes 18446744056529682436 bytes"),
        ("BOOL", [2], b"\x01\x02", "0 or 1"),
        ("BYTES", [1], b"\x05\0\0\0abcd", "element 0 of 1 reaches beyond"),
        ("BYTES", [1], b"\x03\0\0\0abcd", "1 bytes are left over"),
        ("BYTES", [2], b"\x04\0\0\0abcd\0\0", "element 1 of 2 reaches beyond"),
        ("BYTES", [2**31 - 1], b"\xff\xff\xff\xff", "are more than the"),
        ("BYTES", [2], b"\xff\xff\xff\xff", "take at least"),
    ],
)
def test_bad_binary(datatype: str, shape: list[int], data: bytes, says: str) -> None:
    sent = InputTensor("t", datatype, shape, {"binary_data_size": len(data)})
    with pytest.raises(BadRequest, match=says):
        decode(spec("t", datatype, *(-1,) * len(shape)), sent, body(data), 0)


@given(st.binary(max_size=60), st.lists(st.integers(0, 5), max_size=3), st.sampled_from([*NUMPY_OF, "BYTES"]))
def test_any_bytes_are_a_tensor_or_refused(data: bytes, shape: list[int], datatype: str) -> None:
    declared = spec("t", datatype, *(-1,) * len(shape))
    for sent in (
        InputTensor("t", datatype, shape, {"binary_data_size": len(data)}),
        InputTensor("t", datatype, shape, data=msgspec.Raw(data)),
    ):
        try:
            decode(declared, sent, body(data), 0)
        except BadRequest as refusal:
            assert str(refusal).startswith("input 't'")


def test_raw_requests() -> None:
    floats = np.arange(6, dtype=np.float32)
    value = decode_raw(spec("t", "FP32", 2, -1), body(floats.tobytes()))
    np.testing.assert_array_equal(value, floats.reshape(2, 3))
    assert decode_raw(spec("t", "BYTES", 1), body(b"text")) == b"text"
    for declared, says in [
        (spec("t", "FP32", 2, -1), "takes"),
        (spec("t", "FP32", -1, -1), "at most one -1"),
        (spec("t", "BYTES", -1), "need BYTES"),
        (spec("t", "FP32", 2), "takes 8 bytes"),
    ]:
        with pytest.raises(BadRequest, match=says):
            decode_raw(declared, body(b"12345"))
