"""`dovetail profile --slices`: real models in slices of this machine. Nothing that is asserted is a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import onnx_models

from dovetail import App, onnx, tensor, workflow
from dovetail.cli import main
from dovetail.profile.machine import this_machine
from dovetail.profile.profiler import ProfileRequest
from dovetail.profile.record import Key
from dovetail.profile.store import ProfileStore
from dovetail.tools import slice_profile
from dovetail.tools.slice_profile import grid_of, profile_slices
from dovetail.units import MS

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_profile, "LEAST_RUNS", 4)
    monkeypatch.setattr(slice_profile, "LEAST_NS", 10 * MS)


@pytest.fixture
def app(tmp_path: Path) -> App:
    model = onnx_models.slow(tmp_path / "slow.onnx", products=1, side=64)
    stage = onnx(model, name="model", batch=(1, 2))

    def flow(x):  # type: ignore[no-untyped-def]
        return stage(x)

    flow.__annotations__["x"] = tensor("float32", 3)
    return App(workflow(slo="1s")(flow))


def test_points_are_measured_once_and_kept(app: App, tmp_path: Path) -> None:
    store, identity = ProfileStore(tmp_path / "store.sqlite"), this_machine()
    (spec,) = app.specs
    corners = len(grid_of(spec, identity.cores).corners)
    (first,) = profile_slices(app, store, identity, ProfileRequest(), corners)
    assert first.measured == len(first.points) == corners and not first.trouble
    assert {p.place for p in first.points} == set(first.grid.corners)
    assert all(p.per_s > 0 and p.runs >= 3 and p.memory_bytes >= spec.weights_bytes for p in first.points)
    assert all(p.p50_ns <= p.p95_ns <= p.p99_ns for p in first.points)
    (more,) = profile_slices(app, store, identity, ProfileRequest(), corners + 1)
    assert more.measured == 1 and set(first.points) < set(more.points), "it goes on where it was"
    key = Key.of(spec, identity)
    fed = "float32[3]"
    assert set(store.slices(key, fed)) == set(more.points) and store.slices(key, "something else") == []
    (again,) = profile_slices(app, store, identity, ProfileRequest(again=True), corners)
    assert again.measured == corners


def test_the_command_shows_points_and_how_far_the_surface_is_off(
    app: App, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dovetail.cli.profile.load_target", lambda _: app)
    command = ["profile", "t:app", "--slices", "9", "--store", str(tmp_path / "store.sqlite")]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "items per second: " in text and "points measured, 0 already there" in text
    assert main([*command, "--json"]) == 0
    (stage,) = json.loads(capsys.readouterr().out)["stages"]
    assert stage["stage"] == "model" and stage["measured"] == 0 and stage["surfaces"]["per_s"] is not None
    assert main([*command, "--quick"]) == 2
    assert "--slices measures by batch, share and quota" in capsys.readouterr().err
