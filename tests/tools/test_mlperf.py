"""`dovetail load --mlperf`: LoadGen's own verdict over a real server; a refusal is never a fast answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve.support import HOST, Server

from dovetail.cli import main

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def load(server: Server, *arguments: str) -> int:
    return main(["load", *arguments, "--url", f"http://{HOST}:{server.port}"])


@pytest.mark.parametrize("scenario", [("server", "--rate", "200/s"), ("single-stream",)])
def test_loadgen_gives_its_verdict(
    server: Server, tmp_path: Path, scenario: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("add_one", "--mlperf", *scenario, "--seconds", "1", "--slo", "60s", "--json")
    server.backend.calls.clear()
    assert load(server, *words, "--mlperf-log", str(tmp_path / "log")) == 0
    told = json.loads(capsys.readouterr().out)["mlperf"]
    assert told["valid"] and told["summary"]["Result is"] == "VALID" and not told["without_results"]
    assert told["sent"] == len(server.backend.calls) > 10
    assert "Result is : VALID" in (tmp_path / "log" / "mlperf_log_summary.txt").read_text()


def test_who_is_refused_counts_as_late(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("shed", "--mlperf", "server", "--rate", "100/s", "--seconds", "0.5", "--slo", "100ms")
    assert load(server, *words, "--json") == 1
    told = json.loads(capsys.readouterr().out)["mlperf"]
    assert not told["valid"] and told["without_results"] == {"status 429": told["sent"]}
    assert int(told["summary"]["Min latency (ns)"]) >= 200_000_000  # twice the objective, though refused at once
    assert load(server, *words) == 1
    assert "times no results, which LoadGen counts as twice the objective: status 429" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--mlperf-log", "x"), "add --mlperf server"),
        (("--mlperf", "server", "--classes", "1:0.5,2:0.5"), "LoadGen has its own"),
        (("--mlperf", "single-stream", "--rate", "3/s"), "one request after the other"),
        (("--mlperf", "server", "--rate", "3/s,4/s"), "one rate at a time"),
    ],
)
def test_what_loadgen_does_not_know_is_refused(
    server: Server, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load(server, "add_one", *arguments) == 2
    assert message in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(
    server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dovetail.extras.has", lambda package: False)
    assert load(server, "add_one", "--mlperf", "server") == 2
    assert "--mlperf needs mlcommons-loadgen" in capsys.readouterr().err
