"""`dovetail reproduce`: what it lists, what it prints, and what its exit code says."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from dovetail.cli import main
from dovetail.lab import reproduce
from dovetail.lab.experiment import Estimate, Goal, Lab
from dovetail.lab.experiments import EXPERIMENTS

FIELDS = {"id", "text", "source", "published", "goal", "measured", "spread", "holds"}


def dice(*, limit: float) -> SimpleNamespace:
    """An experiment that takes no time."""

    def run(lab: Lab) -> None:
        with lab.figure("dice") as figure:
            figure.subplots().plot([1, 6], [1, 6])
        lab.map(abs, [1, 2], "throwing")
        estimate = Estimate(3.5, 3.4, 3.6)
        lab.claim("mean", "mean of a die", source="us", goal=Goal("at most", limit), measured=estimate, published=3.5)
        lab.leave_out("loaded", "needs loaded dice")

    return SimpleNamespace(SEEDS=(1, 2, 3), QUICK_SEEDS=(1,), run=run)


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "find", lambda _: dice(limit=4))


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "find", lambda _: dice(limit=3))


def test_alone_it_lists_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    said = capsys.readouterr()
    assert all(name in said.out for name in EXPERIMENTS)
    assert said.err == ""


def test_the_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == EXPERIMENTS


def test_an_unknown_name_is_an_error_of_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fundation"]) == 2
    assert "did you mean 'foundation'" in capsys.readouterr().err


@pytest.mark.usefixtures("holds")
def test_json_is_one_object_on_stdout_and_progress_is_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "dice", "--json", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert {"name", "command", "seeds", "seconds", "claims", "left_out"} <= report.keys()
    assert (report["name"], report["command"], report["seeds"]) == ("dice", "dovetail reproduce dice", [1, 2, 3])
    (claim,) = report["claims"]
    assert claim.keys() == FIELDS
    assert (claim["goal"], claim["published"], claim["spread"], claim["holds"]) == ("≤ 4", 3.5, [3.4, 3.6], True)
    assert report["left_out"] == [{"id": "loaded", "reason": "needs loaded dice"}]
    assert "throwing" in said.err
    assert (tmp_path / "dice.png").is_file()


@pytest.mark.usefixtures("fails")
def test_exit_code_says_that_a_goal_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "dice", "--quick", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "fails" in said
    assert "0 of 1 claims hold" in said
    assert "left out: loaded: needs loaded dice" in said
    assert "dovetail reproduce dice --quick" in said


@pytest.mark.usefixtures("holds")
def test_figures_go_to_a_folder_of_their_own_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "dice"]) == 0
    assert Path("out", "dice", "dice.png").is_file()
    assert "out/dice/dice.png" in capsys.readouterr().out
