"""`dovetail load`: times before the first request, inputs that fit the model, and books that add up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.support import HOST, Server

from dovetail.cli import main
from dovetail.errors import DovetailError
from dovetail.sim.arrivals import Bursts, Constant, stream_rng
from dovetail.tools.load import Answer
from dovetail.tools.loading import Model, describe, generate, outcome_of
from dovetail.units import MS, SECOND

MODEL = Model("m", (("image", "UINT8", (-1, 4, 3)), ("words", "BYTES", (2,)), ("flag", "BOOL", (1,))))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def load(server: Server, *arguments: str) -> int:
    return main(["load", *arguments, "--url", f"http://{HOST}:{server.port}"])


@given(rate=st.floats(0.5, 5000), size=st.integers(2, 50))
def test_constant_and_bursts_have_their_rate(rate: float, size: int) -> None:
    beat = list(islice(Constant(rate).times_ns(), 50))
    gap_ns = SECOND / rate
    assert beat[0] == 0 and all(abs(b - a - gap_ns) <= 1 for a, b in pairwise(beat))
    bursts = list(islice(Bursts(rate, size).times_ns(stream_rng(3, 0)), 40 * size))
    assert all(len(set(bursts[i : i + size])) == 1 for i in range(0, len(bursts), size))
    mean_ns = bursts[-1] / 40
    assert 0.4 < mean_ns / (size * gap_ns) < 2.5
    assert all(a <= b for a, b in pairwise(bursts))


def test_inputs_are_made_up_from_what_the_model_says() -> None:
    made = generate(MODEL, {}, {}, seed=4)
    assert all(m["image"].shape == (1, 4, 3) and m["image"].dtype == np.uint8 for m in made)
    assert all(m["words"].shape == (2,) and all(isinstance(w, bytes) for w in m["words"]) for m in made)
    assert made[0]["flag"].dtype == np.bool_
    assert len({m["image"].tobytes() for m in made}) == len(made)
    again = generate(MODEL, {}, {}, seed=4)
    assert all(np.array_equal(a["image"], b["image"]) for a, b in zip(made, again, strict=True))
    given_flag = generate(MODEL, {"image": (7, 4, 3)}, {"flag": np.array([True])}, seed=4)
    assert given_flag[0]["image"].shape == (7, 4, 3) and given_flag[0]["flag"].tolist() == [True]


@pytest.mark.parametrize(
    ("shapes", "given_inputs", "message"),
    [
        ({"picture": (1,)}, {}, "no input 'picture'; it has: flag, image, words"),
        ({}, {"flags": np.zeros(1)}, "no input 'flags'"),
        ({"image": (1 << 20, 1 << 20)}, {}, "more than 64 MiB"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(shapes, given_inputs, message) -> None:
    with pytest.raises(DovetailError, match=message):
        generate(MODEL, shapes, given_inputs, 1)


def test_open_shapes_and_unknown_types_say_what_to_give() -> None:
    with pytest.raises(DovetailError, match=r"--shape x=480,640,3, or give --input x=FILE.npy"):
        generate(Model("m", (("x", "FP32", (-1, -1, 3)),)), {}, {}, 1)
    with pytest.raises(DovetailError, match="cannot be made up"):
        generate(Model("m", (("x", "BF16", (2,)),)), {}, {}, 1)


@pytest.mark.parametrize(
    ("status", "ms", "outcome"),
    [(200, 99, "in time"), (200, 101, "late"), (429, 1, "shed"), (503, 1, "shed"), (504, 1, "expired"),
     (500, 1, "failed"), (400, 1, "refused"), (0, 1, "no answer")],
)  # fmt: skip
def test_what_a_client_calls_an_outcome(status: int, ms: int, outcome: str) -> None:
    assert outcome_of(Answer("x", 50 * MS, 60 * MS, (50 + ms) * MS, status, b""), 100.0) == outcome


@pytest.mark.cpu
def test_every_request_is_in_the_books(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("add_one", "--rate", "40/s,80/s", "--seconds", "0.5", "--slo", "60s", "--classes", "1:0.5,2:0.5")
    server.backend.calls.clear()
    assert load(server, *arguments, "--json", "--warm-up", "3") == 0
    told = json.loads(capsys.readouterr().out)
    assert [result["rate_per_s"] for result in told["results"]] == [40, 80]
    sent = 0
    for result in told["results"]:
        assert {line["priority"] for line in result["classes"]} == {1, 2}
        for line in result["classes"]:
            assert line["sent"] == sum(line["outcomes"].values()) == line["in_time"]
            sent += line["sent"]
    assert len(server.backend.calls) == sent + 3
    assert {call.priority for call in server.backend.calls} == {1, 2}
    assert load(server, *arguments, "--json") == 0
    again = json.loads(capsys.readouterr().out)
    counts = [[line["sent"] for line in r["classes"]] for r in told["results"]]
    assert [[line["sent"] for line in r["classes"]] for r in again["results"]] == counts  # the seed gives the times


@pytest.mark.cpu
def test_the_exit_code_says_whether_enough_were_in_time(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert load(server, "shed", "--rate", "50/s", "--seconds", "0.2", "--arrivals", "constant", "--shape", "x=2") == 1
    assert " 10 " in capsys.readouterr().out
    quick = ("add_one", "--rate", "50/s", "--seconds", "0.2", "--slo", "1us")
    assert load(server, *quick) == 1
    assert load(server, *quick, "--target", "0") == 0


@pytest.mark.cpu
def test_inputs_come_from_files_too(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.full((2, 4), 3, np.float32))
    (tmp_path / "text").write_bytes(b"stressed")
    few = ("--rate", "20/s", "--seconds", "0.2", "--arrivals", "burst", "--burst", "2", "--slo", "60s")
    server.backend.calls.clear()
    assert load(server, "add_one", *few, "--input", f"x={tmp_path / 'x.npy'}") == 0
    assert all(np.array_equal(c.inputs["x"], np.full((2, 4), 3)) for c in server.backend.calls)
    server.backend.calls.clear()
    assert load(server, "reverse", *few, "--body", str(tmp_path / "text")) == 0
    assert load(server, "reverse", *few, "--input", f"text={tmp_path / 'text'}") == 0
    assert {c.inputs["text"] for c in server.backend.calls} == {b"stressed"}


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nobody",), "unknown model 'nobody'"),
        (("add_one", "--burst", "3"), "add --arrivals burst"),
        (("add_one", "--classes", "1:0.5"), "add up to 1"),
        (("add_one", "--shape", "x"), "must be NAME=VALUE"),
        (("add_one", "--shape", "x=a"), "whole numbers above 0"),
        (("add_one", "--input", "x=/nowhere.npy"), "cannot read /nowhere.npy"),
        (("add_one", "--body", "/nowhere"), "cannot read /nowhere"),
        (("add_one", "--rate", "fast"), "rate"),
    ],
)
def test_wrong_flags_are_refused_with_a_reason(
    server: Server, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load(server, *arguments) == 2
    assert message in capsys.readouterr().err


def test_no_server_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "m", "--url", f"http://{HOST}:1"]) == 2
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err
    assert main(["load", "m", "--url", "https://elsewhere"]) == 2
    with pytest.raises(DovetailError):
        describe(HOST, 1, "m", {})
