"""`dovetail replay` and `dovetail explain` as a user types them, also wrongly."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.record.recorded import header, run

from dovetail.cli import main
from dovetail.cli.reading import printable
from dovetail.control import Reply, RequestArrived
from dovetail.record.log import LogWriter, Step
from dovetail.wiring import PolicySpec

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Step]]:
    path = tmp_path_factory.mktemp("cli") / "run.log"
    return path, run(path, seed=1, count=60, rate=400.0, spec=PolicySpec("by-class", share_pct=50))


@pytest.fixture
def log(recorded: tuple[Path, list[Step]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(recorded[0].parent)
    return recorded[0]


def rewrite(path: Path, steps: list[Step], spec: PolicySpec) -> Path:
    with LogWriter(path, header(spec)) as log:
        for step in steps:
            log.step(step.event, step.actions, step.note)
    return path


def test_replay_says_same(log: Path, capsys: Capture) -> None:
    assert main(["replay", str(log)]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"same: \d+ steps of a sim run with by-class", out)
    assert "document" in out and "plain" in out
    assert err == ""


def test_replay_as_json(log: Path, recorded: tuple[Path, list[Step]], capsys: Capture) -> None:
    assert main(["replay", str(log), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["same"] is True and told["first_difference"] is None
    assert told["steps"] == told["same_steps"] == len(recorded[1])
    assert told["policy"]["name"] == "by-class"
    assert sum(line["requests"] for line in told["outcomes"]) == 60


def test_replay_shows_the_first_difference(
    tmp_path: Path, recorded: tuple[Path, list[Step]], capsys: Capture
) -> None:
    path = rewrite(tmp_path / "other.log", recorded[1], PolicySpec("by-class", share_pct=25))
    assert main(["replay", str(path)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"different: step \d+ of \d+; the \d+ before it are the same", out)
    assert re.search(r"event +\w+\(at_ns=\d+", out)
    assert re.search(r"- RunBatch\(.*share_pct=50", out) and re.search(r"\+ RunBatch\(.*share_pct=25", out)
    assert main(["replay", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["first_difference"]
    assert found["recorded"][0]["type"] == "RunBatch" and found["recorded"][0]["share_pct"] == 50
    assert found["replayed"][0]["share_pct"] == 25
    assert found["event"]["type"] in ("RequestArrived", "ModelLoaded")


def test_replay_of_a_cut_log(tmp_path: Path, log: Path, capsys: Capture) -> None:
    (tmp_path / "cut.log").write_bytes(log.read_bytes()[:-5])
    assert main(["replay", str(tmp_path / "cut.log")]) == 0
    assert "was cut short; its" in capsys.readouterr().err


def test_replay_writes_a_trace(tmp_path: Path, log: Path, capsys: Capture) -> None:
    assert main(["replay", str(log), "--trace", str(tmp_path / "trace.json")]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().err
    assert json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    assert main(["replay", str(log), "--trace", str(tmp_path / "no" / "trace.json")]) == 2
    assert "cannot write the trace" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["replay"], ["explain", "1", "--log"]])
def test_what_is_not_a_log_is_named(tmp_path: Path, verb: list[str], capsys: Capture) -> None:
    (tmp_path / "notes.txt").write_text("this is not a log, but long enough to be one")
    for name, complaint in (
        ("nowhere.log", "cannot read the log .*nowhere.log: No such file"),
        ("notes.txt", "notes.txt is not a Dovetail log"),
        (".", "Is a directory"),
    ):
        assert main([*verb, str(tmp_path / name)]) == 2
        out, err = capsys.readouterr()
        assert out == "" and re.search(f"dovetail {verb[0]}: .*{complaint}", err), err


def test_explain_takes_run_log_by_default(log: Path, recorded: tuple[Path, list[Step]], capsys: Capture) -> None:
    late = next(a for s in recorded[1] for a in s.actions if isinstance(a, Reply) and a.outcome == "late")
    assert main(["explain", str(late.request)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"request {late.request} of ")
    assert "late by" in out and "waited" in out and "█ running" in out and "critical path" in out
    assert max(len(line) for line in out.splitlines()) <= 160


def test_explain_tells_every_request(log: Path, capsys: Capture) -> None:
    for request in range(1, 61):
        assert main(["explain", str(request)]) == 0
        assert capsys.readouterr().out.startswith(f"request {request} of ")


def test_explain_takes_the_clients_id(log: Path, capsys: Capture) -> None:
    assert main(["explain", "client-2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["request"], told["client_id"]) == (2, "client-2")
    assert told["moments"][0]["text"].startswith("arrived for plain")
    assert {"waiting_ns", "running_ns", "transport_ns"} <= told["path"][0].keys()


def test_a_number_wins_over_an_id_unless_told(tmp_path: Path, capsys: Capture) -> None:
    steps = [Step(RequestArrived(i, 0, i, 0), [], note) for i, note in ((1, "2"), (2, ""), (3, "77"))]
    path = str(rewrite(tmp_path / "run.log", steps, PolicySpec()))
    for words, request in ((["2"], 2), (["2", "--id"], 1), (["77"], 3), (["late", "--id"], 0)):
        assert main(["explain", *words, "--log", path, "--json"]) == (0 if request else 2)
        out = capsys.readouterr().out
        assert not request or json.loads(out)["request"] == request


def test_explain_lists_the_worst(log: Path, capsys: Capture) -> None:
    assert main(["explain", "late"]) == 0
    out = capsys.readouterr().out
    rows = out.splitlines()[2:]
    assert rows and all(" late " in row for row in rows)
    assert main(["explain", "--worst", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told) == 3
    assert [e["over_ns"] for e in told] == sorted((e["over_ns"] for e in told), reverse=True)
    assert str(told[0]["request"]) in rows[0]
    assert main(["explain", "shed"]) == 0
    assert "no request was shed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["99"], "no request 99; it has 60, numbers 1 to 60"),
        (["nobody"], "no request with the client's id 'nobody'; it has 60.*'client-1' to 'client-59'"),
        ([], "say which request"),
        (["3", "--worst", "2"], "not of request '3'"),
    ],
)
def test_a_wrong_question_is_told_the_right_one(log: Path, words: list[str], complaint: str, capsys: Capture) -> None:
    assert main(["explain", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and re.search(complaint, err), err


@pytest.mark.parametrize("number", ["0", "-1", "many"])
def test_worst_takes_a_positive_number(log: Path, number: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["explain", "late", "--worst", number])
    assert stop.value.code == 2
    assert "whole number from 1 on" in capsys.readouterr().err or number == "-1"


def test_what_a_client_sent_cannot_steer_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    name = "[red]\x1b[2J\nboo"
    path = rewrite(tmp_path / "run.log", [Step(RequestArrived(1, 0, 1, 0), [], name)], PolicySpec())
    assert main(["explain", "1", "--log", str(path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"request 1 of plain, class 2, client's id {printable(name).plain}"
    assert "\x1b" not in first and "[red]" in first
