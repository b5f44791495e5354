"""Cutting a model into segments: where, and that nothing but the cutting changes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from dovetail.errors import ModelError
from dovetail.live.kernels.onnx_graph import read_graph
from dovetail.live.kernels.segment_run import Bound, Segments
from dovetail.live.kernels.segments import ADDS_IN_PLACE, choose_cuts, cut, cut_again, overwritten
from examples import weights

WIDTH = 4


def save(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], outputs: list[str]) -> Path:
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "columns"]) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
    return path


def run_whole(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(None, feeds)
    return outputs


def run_cut(segments: Segments, feeds: dict[str, np.ndarray]) -> tuple[list[np.ndarray], Bound]:
    bound = segments.bind({name: value.shape for name, value in feeds.items()})
    for name, value in feeds.items():
        bound.buffer(name)[...] = value
    for kernel in bound.begin():
        kernel()
    return [bound.buffer(name) for name in segments.outputs], bound


# -- where to cut ----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.none() | st.floats(0, 1)), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_cuts_are_in_order_where_they_may_be_and_not_too_many(
    nodes: list[tuple[int, float | None]], segments: int
) -> None:
    lengths, fees = [length for length, _ in nodes], [fee for _, fee in nodes]
    cuts = choose_cuts(lengths, fees, segments)
    assert cuts == sorted(set(cuts))
    assert all(0 < c < len(nodes) and fees[c] is not None for c in cuts)
    assert len(cuts) < segments or not cuts


@given(st.integers(1, 8), st.integers(1, 8))
def test_equal_nodes_with_free_cuts_give_equal_segments(segments: int, nodes_each: int) -> None:
    count = segments * nodes_each
    cuts = choose_cuts([100] * count, [0.0] * count, segments)
    assert [b - a for a, b in pairwise([0, *cuts, count])] == [nodes_each] * segments


def test_a_cheap_cut_is_preferred_to_a_slightly_better_balanced_one() -> None:
    lengths = [100] * 10
    fees: list[float | None] = [0.5] * 10
    assert choose_cuts(lengths, fees, 2) == [5]
    fees[4] = 0.0
    assert choose_cuts(lengths, fees, 2) == [4]


def test_a_cut_that_costs_more_than_it_balances_is_not_made() -> None:
    assert choose_cuts([100, 100], [None, 3.0], 2) == []


# -- generated graphs ------------------------------------------------------------------------------------------------

OPERATORS = ("Relu", "Tanh", "Add", "Mul", "MatMul", "Neg")


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_graph_gives_the_same_cut_as_whole(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Random graphs with tensors that are read late, several outputs, and weights that several segments share."""
    names, nodes = ["x"], []
    for i in range(data.draw(st.integers(2, 12), "nodes")):
        operator = data.draw(st.sampled_from(OPERATORS))
        first = data.draw(st.sampled_from(names))
        reads = [first]
        if operator in ("Add", "Mul"):
            reads.append(data.draw(st.sampled_from(names)))
        elif operator == "MatMul":
            reads.append("w")
        nodes.append(helper.make_node(operator, reads, [f"t{i}"]))
        names.append(f"t{i}")
    outputs = [names[-1], *data.draw(st.lists(st.sampled_from(names[1:-1] or names[-1:]), max_size=1))]
    w = np.random.default_rng(3).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 2
    path = tmp_path_factory.mktemp("made") / "made.onnx"
    save(path, nodes, {"w": w}, list(dict.fromkeys(outputs)))
    (segments,) = cut(path, [{"x": (2, WIDTH)}], segments=data.draw(st.integers(1, 6), "segments"), shortest_ns=0)
    for batch in (2, 5):
        x = np.random.default_rng(batch).standard_normal((batch, WIDTH)).astype(np.float32)
        for want, got in zip(run_whole(path, {"x": x}), run_cut(segments, {"x": x})[0], strict=True):
            np.testing.assert_array_equal(got, want)


CHANNELS = 16


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_sums_that_are_added_to_in_place_give_the_same_wherever_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Random residual networks: sums that are read again, late or never, and cuts before any node."""
    names, nodes = ["stem"], [helper.make_node("Conv", ["x", "w"], ["stem"], pads=[1, 1, 1, 1])]
    for i in range(data.draw(st.integers(2, 6), "blocks")):
        taken = data.draw(st.sampled_from(names[-3:]))
        if data.draw(st.integers(0, 3)):  # else the sum is what is convolved
            nodes.append(helper.make_node("Conv", [taken, "w"], [f"b{i}"], pads=[1, 1, 1, 1]))
            taken = f"b{i}"
        nodes.append(helper.make_node("Conv", [taken, "w"], [f"c{i}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Add", [f"c{i}", data.draw(st.sampled_from(names[-4:]))], [f"s{i}"]))
        names.append(f"s{i}")
        if data.draw(st.booleans()):
            nodes.append(helper.make_node("Relu", [f"s{i}"], [f"r{i}"]))
            names.append(f"r{i}")
    shape = ["batch", CHANNELS, 5, 5]
    outputs = list(dict.fromkeys([names[-1], data.draw(st.sampled_from(names[1:]))]))
    rng = np.random.default_rng(4)
    w = (rng.standard_normal((CHANNELS, CHANNELS, 3, 3)) / CHANNELS).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
        [numpy_helper.from_array(w, "w")],
    )
    path = tmp_path_factory.mktemp("residual") / "residual.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    count = cut_again(path, [[]])[0].parts[-1].last
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, count - 1)), max_size=count - 1), "cuts"))
    (segments,) = cut_again(path, [cuts])
    for batch in (2, 3):
        x = rng.standard_normal((batch, CHANNELS, 5, 5)).astype(np.float32)
        want = run_whole(path, {"x": x})
        found, bound = run_cut(segments, {"x": x})
        for _ in range(2):
            for name, value in zip(outputs, want, strict=True):
                np.testing.assert_array_equal(found[segments.outputs.index(name)], value)
            for kernel in bound.begin():
                kernel()


def test_only_a_sum_that_nobody_reads_any_more_is_overwritten(tmp_path: Path) -> None:
    domain, _, conv = ADDS_IN_PLACE.partition(":")

    def add(reads: list[str], write: str) -> onnx.NodeProto:
        return helper.make_node(conv, [reads[0], "w", *reads[1:]], [write], domain=domain)

    nodes = [
        add(["x"], "a"),
        add(["a"], "b"),
        add(["b", "a"], "c"),  # b, which it waits for, is all else that reads a
        add(["c"], "d"),
        add(["d", "c"], "e"),
        add(["e"], "f"),
        add(["f", "e"], "g"),  # e is read once more
        helper.make_node("Add", ["g", "e"], ["h"]),
        add(["h", "x"], "i"),  # the caller's own memory
        add(["i"], "j"),
        add(["j", "i"], "y"),
    ]
    path = save(tmp_path / "sums.onnx", [helper.make_node("Relu", ["x"], ["y"])], {}, ["y"])
    model = onnx.load(path)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.float32([0]), "w"))
    path.write_bytes(model.SerializeToString())
    assert overwritten(read_graph(path)) == {"a": "a", "c": "a", "e": "a"}


def test_what_a_branch_takes_from_outside_is_handed_on(tmp_path: Path) -> None:
    def branch(name: str, operator: str) -> onnx.GraphProto:
        node = helper.make_node(operator, ["early"], [name])
        return helper.make_graph(
            [node], name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "columns"])]
        )

    nodes = [
        helper.make_node("Tanh", ["x"], ["early"]),
        *(helper.make_node("MatMul", [f"m{i}" if i else "x", "w"], [f"m{i + 1}"]) for i in range(6)),
        helper.make_node("ReduceSum", ["m6"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=branch("a", "Neg"), else_branch=branch("b", "Abs")),
    ]
    w = np.eye(WIDTH, dtype=np.float32)
    path = save(tmp_path / "branch.onnx", nodes, {"w": w, "zero": np.float32(0)}, ["y"])
    graph = read_graph(path)
    assert "early" in graph.nodes[-1].reads
    (segments,) = cut(path, [{"x": (1, WIDTH)}], segments=5, shortest_ns=0)
    for value in (1.0, -1.0):
        x = np.full((1, WIDTH), value, np.float32)
        np.testing.assert_array_equal(run_cut(segments, {"x": x})[0][0], run_whole(path, {"x": x})[0])


def chain(path: Path, products: int = 12, side: int = 96) -> Path:
    w = (np.random.default_rng(7).standard_normal((side, side)) / side).astype(np.float32)
    first = np.random.default_rng(8).standard_normal((WIDTH, side)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["m0"]),
        *(helper.make_node("MatMul", [f"m{i}", "w"], [f"m{i + 1}"]) for i in range(products)),
    ]
    return save(path, nodes, {"w": w, "first": first}, [f"m{products}"])


def test_identities_tell_operators_shapes_and_which_of_them_and_stay_the_same(tmp_path: Path) -> None:
    path = chain(tmp_path / "chain.onnx")
    found = []
    for _ in range(2):
        (segments,) = cut(path, [{"x": (2, WIDTH)}], segments=4, shortest_ns=0)
        found.append(run_cut(segments, {"x": np.ones((2, WIDTH), np.float32)})[1].idents)
    for idents in found:
        assert len(set(idents)) == len(idents) > 1
        assert all("MatMul" in ident and "[2x" in ident for ident in idents)
    (other,) = cut(path, [{"x": (2, WIDTH)}], segments=4, shortest_ns=0)
    assert all("[3x" in ident for ident in run_cut(other, {"x": np.ones((3, WIDTH), np.float32)})[1].idents)


def test_a_model_shorter_than_the_shortest_segment_stays_whole(tmp_path: Path) -> None:
    (segments,) = cut(chain(tmp_path / "chain.onnx"), [{"x": (1, WIDTH)}], segments=8, shortest_ns=10**12)
    assert len(segments.parts) == 1


def test_missing_shapes_are_named(tmp_path: Path) -> None:
    path = chain(tmp_path / "chain.onnx")
    with pytest.raises(ModelError, match="input 'x' needs a shape"):
        cut(path, [{}])
    with pytest.raises(ModelError, match="no shape was given for input 'x'"):
        cut(path, [{"x": (1, WIDTH)}])[0].bind({})


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.onnx"
    path.write_bytes(b"this is no model")
    with pytest.raises(ModelError):
        cut(path, [{"x": (1, 1)}])
    with pytest.raises(ModelError, match="not an ONNX model"):
        read_graph(path)


# -- real models -----------------------------------------------------------------------------------------------------

REAL = {
    "page_way": ("x", (3, 224, 224)),
    "text_detector": ("x", (3, 160, 96)),
    "line_way": ("x", (3, 48, 192)),
    "tiny_reader": ("x", (3, 48, 160)),
    "small_reader": ("x", (3, 48, 160)),
    "file_kind": ("bytes", (2048,)),
    "nudity": ("input:0", (224, 224, 3)),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", REAL)
def test_real_models_give_the_same_cut_as_whole(name: str) -> None:
    path = getattr(weights, name)()
    tensor, item = REAL[name]
    (segments,) = cut(path, [{tensor: (1, *item)}], segments=6, shortest_ns=0)
    assert len(segments.parts) > 1
    rng = np.random.default_rng(1)
    for batch in (1, 2):
        shape = (batch, *item)
        x = rng.integers(0, 257, shape).astype(np.int32) if name == "file_kind" else rng.random(shape, np.float32)
        for want, got in zip(run_whole(path, {tensor: x}), run_cut(segments, {tensor: x})[0], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.cpu
def test_segments_read_the_weights_where_they_are_mapped() -> None:
    """Blocked convolutions use weights as they lie in the file: after a run nearly all of it was read there."""
    path = weights.nudity()
    x = {"input:0": np.zeros((1, 224, 224, 3), np.float32)}
    before = mapped_and_read()
    (segments,) = cut(path, [{"input:0": x["input:0"].shape}], segments=8, shortest_ns=0)
    assert len(segments.parts) > 4
    run_cut(segments, x)
    assert mapped_and_read() - before > 0.9 * path.stat().st_size


def mapped_and_read() -> int:
    """Bytes of mapped weights that are in memory."""
    found, inside = 0, False
    with open("/proc/self/smaps") as file:
        for line in file:
            first = line.split()[0]
            if not first.endswith(":"):
                inside = "weights.bin" in line
            elif inside and first == "Rss:":
                found += int(line.split()[1]) << 10
    return found
