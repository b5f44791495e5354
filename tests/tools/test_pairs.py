"""What `dovetail interference` measures and says of it, with a race that is made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.onnx_models import WIDTH, double

from dovetail.cli import interference, main
from dovetail.errors import ProfileError
from dovetail.predict import EstimatorState
from dovetail.predict.interference import Interference, Load, quarter_octaves
from dovetail.profile.machine import CPU, Identity, this_machine
from dovetail.profile.record import LearnedRow
from dovetail.profile.store import ProfileStore
from dovetail.record.interference import row_of, state_of
from dovetail.record.learned import judge_learned, rows_of
from dovetail.tools.pairs import Pairs, draw_pairs, race, teach, together

#: a suffers from b and not the other way round; two of b are as good as one after the other.
PAIRS = Pairs(("a", "b"), (1, 1), (10_000_000, 40_000_000), (6_000_000, 20_000_000), ((1.0, 3.0), (1.1, 1.0)))


def test_what_a_pair_is_worth_is_work_together_over_one_after_the_other() -> None:
    assert together(PAIRS, 0, 0) == pytest.approx(1.2)
    assert together(PAIRS, 1, 1) == pytest.approx(1.0)
    assert together(PAIRS, 0, 1) == pytest.approx(6 / 30 + 20 / 44)
    assert together(PAIRS, 0, 1) == together(PAIRS, 1, 0)


def test_the_predictor_learns_what_was_measured() -> None:
    model = Interference()
    teach(model, PAIRS)
    a, b = (Load(name, 1, 50, quarter_octaves(ns)) for name, ns in zip("ab", PAIRS.half_ns, strict=True))
    assert model.slowdown(CPU, a, [b]) == pytest.approx(3.0, rel=0.07)
    assert model.slowdown(CPU, b, [a]) == pytest.approx(1.1, rel=0.07)


def test_all_of_a_race_run_and_whoever_fails_is_named() -> None:
    ran = [0, 0]

    def call(number: int) -> None:
        ran[number] += 1

    times = race([lambda: call(0), lambda: call(1)], 0.0)
    assert [len(found) >= 3 for found in times] == [True, True]
    assert ran == [len(found) + 1 for found in times], "the first run of each does not count"

    def bad() -> None:
        raise ProfileError("no")

    with pytest.raises(ProfileError, match="no"):
        race([lambda: call(0), bad], 0.0)


def test_a_heat_map_is_drawn(tmp_path: Path) -> None:
    draw_pairs(PAIRS, tmp_path / "pairs.png")
    assert (tmp_path / "pairs.png").read_bytes()[:4] == b"\x89PNG"


def test_a_row_holds_for_this_machine_and_its_libraries_only() -> None:
    identity = this_machine()
    model = Interference()
    teach(model, PAIRS)
    row = row_of(model.state(), identity)
    assert state_of([row], identity) == (model.state(), "")
    elsewhere = Identity(**{f: getattr(identity, f) for f in identity.__struct_fields__} | {"cores": 99})
    assert state_of([row], elsewhere)[0] is None
    damaged = LearnedRow(row.key, 1, b"rubbish")
    state, why = state_of([damaged], identity)
    assert state is None and "damaged" in why
    assert state_of([], identity) == (None, "nothing was learned yet")
    assert judge_learned([row], identity) == [], "it is no row of run or load times"
    (kept,) = rows_of(EstimatorState(interference=model.state()), [], identity)
    assert state_of([kept], identity) == (model.state(), ""), "what an estimator has learned is kept in the same row"


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    double(tmp_path / "m.onnx")
    (tmp_path / "pairs_app.py").write_text(
        f"""
import numpy as np
from dovetail import App, onnx, stage, tensor, workflow
@stage
def host(xs):
    return xs
one = onnx({str(tmp_path / "m.onnx")!r}, name="one", batch=(1,))
two = onnx({str(tmp_path / "m.onnx")!r}, name="two", batch=(1,))
@workflow(slo="1s", sample=lambda: {{"x": np.ones({WIDTH}, np.float32)}})
def wf(x: tensor("float32", {WIDTH})):
    return two(host(one(x)))
app = App(wf)
"""
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "pairs_app:app"


@pytest.mark.cpu
def test_measured_shown_and_kept(app: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["interference", "--show", "--store", "p.db"]) == 2
    assert "nothing was learned yet" in capsys.readouterr().err
    assert main(["interference", app, "--store", "p.db", "--seconds", "0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"]["stages"] == ["one", "two"]
    assert all(slow >= 1 for row in found["pairs"]["slowdown"] for slow in row)
    assert [row["together"] for row in found["together"]] == sorted(row["together"] for row in found["together"])
    assert main(["interference", app, "--store", "p.db", "--seconds", "0.05", "--plot", "heat.png"]) == 0
    out = capsys.readouterr().out
    assert "beside one" in out and "together" in out
    assert (tmp_path / "heat.png").exists()
    assert main(["interference", "--show", "--store", "p.db"]) == 0
    assert "160 batches were learned from" in capsys.readouterr().out
    assert main(["interference", "--show", "--store", "p.db", "--json"]) == 0
    (kind,) = json.loads(capsys.readouterr().out)
    assert kind["on"] == "cpu" and kind["effects"]
    assert len(ProfileStore(tmp_path / "p.db").learned()) == 1
    assert main(["interference", "--show", "--seconds", "1"]) == 2
    assert main(["interference", app, "--stage", "three", "--store", "p.db"]) == 2
    assert "there is no stage 'three'" in capsys.readouterr().err
    assert main(["interference"]) == 2
    capsys.readouterr()
    assert main(["interference", app, "--stage", "host", "--store", "p.db"]) == 2
    assert "stage 'host' runs on the host" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "why"), [("pairs.xyz", ".png, .pdf or .svg"), ("no/pairs.png", "no directory no")])
def test_a_picture_that_cannot_be_is_refused_before_anything_is_measured(
    name: str, why: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(interference, "measure_pairs", lambda *_, **__: pytest.fail("it was measured"))
    monkeypatch.setattr(interference, "load_target", lambda _: None)
    assert main(["interference", "any:app", "--plot", name]) == 2
    assert why in capsys.readouterr().err
