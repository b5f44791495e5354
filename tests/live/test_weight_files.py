"""One copy of a model's weights for all sessions of a machine: the same answers, shared pages, what goes wrong."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from dovetail.errors import ModelError
from dovetail.live.kernels import weight_files
from dovetail.live.kernels.cut_model import CutModel
from dovetail.live.kernels.optimised import ALIGN_BYTES, GRAPH, WEIGHTS, mapped_bytes, write_optimised
from dovetail.live.kernels.segments import cut_again
from dovetail.live.kernels.weight_files import WeightDirectory, WeightFiles
from dovetail.workflow.runners import OnnxRunner
from dovetail.workflow.stage import onnx as declare

pytestmark = pytest.mark.cpu
#: Odd sizes, so that what is packed does not come to lie where it may by chance.
WIDTHS = (37, 301, 517, 1031)


def products(path, widths=WIDTHS):
    """A chain of matrix products, whose weights onnxruntime packs."""
    rng = np.random.default_rng(5)
    nodes, weights, last = [], [], "x"
    for i in range(len(widths) - 1):
        weights.append(numpy_helper.from_array(rng.random(widths[i : i + 2], np.float32) - 0.5, f"w{i}"))
        nodes += [
            helper.make_node("MatMul", [last, f"w{i}"], [f"p{i}"]),
            helper.make_node("Relu", [f"p{i}"], [f"r{i}"]),
        ]
        last = f"r{i}"
    nodes.append(helper.make_node("Neg", [last], ["y"]))
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, widths[0]])
    found = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3, widths[-1]])
    graph = helper.make_graph(nodes, "g", [given], [found], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return declare(path, name=path.stem, batch=(1, 2)).spec


@pytest.fixture
def spec(tmp_path):
    return products(tmp_path / "chain.onnx")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "copies").mkdir()
    return WeightFiles(tmp_path / "copies")


def items(count=2):
    return [list(np.random.default_rng(3).random((count, 3, WIDTHS[0]), np.float32))]


def test_a_copy_gives_the_same_answers_to_the_bit_whole_and_cut(spec, files):
    copy = files.copy_of(spec)
    want = OnnxRunner(spec).run(items())
    for threads in (1, 2):
        got = OnnxRunner(spec, threads, optimised=str(copy / GRAPH)).run(items())
        assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))
    (segments,) = cut_again(Path(spec.path), [[2, 4]], copy=copy)
    bound = segments.bind({"x": (2, 3, WIDTHS[0])})
    bound.buffer("x")[...] = np.stack(items()[0])
    for kernel in bound.begin():
        kernel()
    assert len(segments.parts) == 3
    assert np.array_equal(bound.buffer("y"), np.stack(want))


def test_packed_weights_begin_where_onnxruntime_may_read_them(spec, tmp_path):
    (tmp_path / "copy").mkdir()
    write_optimised(Path(spec.path), tmp_path / "copy")
    graph = onnx.load(tmp_path / "copy" / GRAPH, load_external_data=False).graph
    places = [
        [int(blob.split(";")[0]) for blob in entry.value.split("|")[1:]]
        for tensor in graph.initializer
        for entry in tensor.external_data
        if entry.key.startswith("prepacked_")
    ]
    assert sum(map(len, places)) == len(WIDTHS) - 1, "all are packed"
    assert all(offset % ALIGN_BYTES == 0 for some in places for offset in some)


def test_bytes_of_a_copy_are_those_that_a_session_maps(spec, files):
    """Packed ones are a little larger than what they were made of, and stand for it."""
    least = sum(4 * a * b for a, b in pairwise(WIDTHS))
    copy = files.copy_of(spec)
    assert least <= files.nbytes(spec) == mapped_bytes(copy) <= 1.2 * least
    assert (copy / WEIGHTS).stat().st_size > 1.5 * least, "both are in the file"


def test_sessions_have_no_weights_of_their_own(tmp_path):
    """Each of four sessions more takes less than a tenth of the weights, by the kernel's count."""
    wide = products(tmp_path / "wide.onnx", (1024, 2048, 2048, 1024))
    (tmp_path / "copies").mkdir()
    program = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from dovetail.live.kernels.weight_files import WeightFiles\n"
        "from dovetail.live.worker.footprint import anonymous_bytes, trim\n"
        "from dovetail.workflow.runners import OnnxRunner; from dovetail.workflow.stage import onnx\n"
        "spec = onnx(Path(sys.argv[1]), name='wide', batch=(1,)).spec\n"
        "copy = WeightFiles(Path(sys.argv[2])).copy_of(spec)\n"
        "item = [[np.ones((3, 1024), np.float32)]]\n"
        "def load():\n"
        "    runner = OnnxRunner(spec, optimised=str(copy / 'whole.onnx')); runner.run(item); trim(); return runner\n"
        "kept = [load()]; before = anonymous_bytes()\n"
        "kept += [load() for _ in range(4)]; print((anonymous_bytes() - before) // 4)\n"
    )
    command = [sys.executable, "-c", program, wide.path, str(tmp_path / "copies")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) < wide.weights_bytes / 10


def test_a_copy_is_made_once_and_found_by_others(spec, files, monkeypatch, tmp_path):
    first = files.copy_of(spec)
    monkeypatch.setattr(weight_files, "write_optimised", None)
    assert WeightFiles(tmp_path / "copies").copy_of(spec) == first == files.copy_of(spec)


def test_without_a_copy_a_model_is_loaded_from_its_file(spec, files, monkeypatch, capfd):
    def no_room(model, directory):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(weight_files, "write_optimised", no_room)
    assert files.copy_of(spec) is None
    assert files.nbytes(spec) == 0
    assert "No space left on device" in capfd.readouterr().err
    assert len(CutModel(spec, copy=files.copy_of(spec)).plan(items()).kernels) == 1


def test_what_killed_a_worker_is_not_tried_again(spec, files, tmp_path, capfd):
    key = files.copy_of(spec).name
    copies = tmp_path / "copies"
    (copies / key).rename(copies / f"{key}.part")  # as it is left by one that dies
    assert WeightFiles(copies).copy_of(spec) is None
    assert "a worker ended while it made the copy" in capfd.readouterr().err


def test_a_file_that_is_no_model_is_refused_and_may_come_back(spec, files):
    model = Path(spec.path)
    content = model.read_bytes()
    model.write_bytes(b"\x08\x08" + content[: len(content) // 2])
    with pytest.raises(ModelError, match=r"chain\.onnx"):
        files.copy_of(spec)
    model.write_bytes(content)
    assert files.copy_of(spec) is not None


def test_what_a_killed_server_left_goes_and_what_a_living_one_has_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_files.tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "dovetail-weights-left"
    left.mkdir()
    (left / "owner").write_text("")
    living = WeightDirectory()
    second = WeightDirectory()
    assert not left.exists()
    assert living.path.exists() and second.path.exists()
    with (living.path / "owner").open() as owner, pytest.raises(BlockingIOError):
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    living.close()
    second.close()
    assert os.listdir(tmp_path) == []
