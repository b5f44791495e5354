"""The demo in short: a real server, real models, real pages; its books must balance. Times are not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.record.ledger import Summary
from dovetail.tools.demo import LOADS_PCT, DemoResult, outcome_of, text_of
from dovetail.tools.load import Answer
from dovetail.tools.replay import replay

PROJECT = Path(__file__).resolve().parents[2]


def demo(*options: str, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dovetail", "demo", *options]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.cpu
def test_every_request_is_accounted_for_and_the_texts_are_right(tmp_path: Path) -> None:
    log = tmp_path / "made" / "demo.log"
    done = demo("--seconds", "6", "--json", "--log", str(log))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["holds"] is True
    assert result["unaccounted"] == []
    assert [step["load_pct"] for step in result["steps"]] == list(LOADS_PCT)
    by_step = sum(row["requests"] for step in result["steps"] for row in step["classes"])
    by_class = sum(sum(row["outcomes"].values()) for row in result["classes"])
    assert result["requests"] == by_step == by_class > 0
    assert result["requests"] == sum(sum(step["sent"].values()) for step in result["steps"])
    assert result["lines"] >= result["lines_exact"] > 0
    assert all(reading["drawn"] for reading in result["readings"])
    for phase in ("starting dovetail serve", "measuring the capacity", "200 % of capacity"):
        assert phase in done.stderr
    replayed = replay(log)
    assert replayed.same
    assert sum(row.requests for row in replayed.outcomes) >= result["requests"]


@pytest.mark.cpu
def test_away_from_the_examples_it_says_what_to_do(tmp_path: Path) -> None:
    done = demo("--seconds", "4", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no module 'examples'" in done.stderr
    assert "run from the directory that holds it" in done.stderr


def test_too_short_a_demo_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from dovetail.cli import main

    with pytest.raises(SystemExit) as stop:
        main(["demo", "--seconds", "1"])
    assert stop.value.code == 2
    assert "from 4 to 3600" in capsys.readouterr().err


class TestJudging:
    def answer(self, status: int, body: object = None, error: str = "") -> Answer:
        return Answer("30-batch-0001-p1", 0, 1, 2, status, json.dumps(body or {}).encode(), error)

    @pytest.mark.parametrize(("status", "outcome"), [(429, "shed"), (504, "expired"), (500, "failed"), (503, "shed")])
    def test_a_status_stands_for_an_outcome(self, status: int, outcome: str) -> None:
        assert outcome_of(self.answer(status)) == outcome

    def test_success_says_its_outcome_itself(self) -> None:
        body = {"parameters": {"dovetail_outcome": "late"}, "outputs": [{"name": "text", "data": ["a", "b"]}]}
        assert outcome_of(self.answer(200, body)) == "late"
        assert text_of(self.answer(200, body)) == ("a", "b")

    def test_no_answer_is_no_outcome(self) -> None:
        assert outcome_of(self.answer(0, error="OSError: gone")) == "no answer (OSError: gone)"
        assert text_of(self.answer(0)) is None

    @pytest.mark.parametrize(
        ("changes", "holds"),
        [
            ({}, True),
            ({"unaccounted": ["30-batch-0001-p1"]}, False),
            ({"lines_exact": 90}, False),
            ({"lines": 0, "lines_exact": 0}, False),
            ({"device": "emulated:v100", "lines_exact": 0}, True),
        ],
    )
    def test_what_makes_it_hold(self, changes: dict[str, object], holds: bool) -> None:
        row = Summary("document", 1, 1, {"ok": 1}, 600.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)
        given: dict[str, object] = {
            "device": "cpu", "capacity_per_s": 9.0, "steps": [], "classes": [row], "client_p95_ms": {1: 1.0},
            "requests": 1, "refused": {1: 0, 2: 0}, "unaccounted": [], "lines": 100, "lines_exact": 100,
            "readings": [], "slowest": (1, 1.0, 1), "log": "demo.log",
        }  # fmt: skip
        assert DemoResult(**{**given, **changes}).holds is holds  # type: ignore[arg-type]
