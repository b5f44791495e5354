"""Stories of requests whose work is sent ahead: where to, what was fetched, and what had to go for it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dovetail.cli import main

SCENARIO = Path("examples/scenarios/placement.toml")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five devices that hold one or two models each, and one ingress."""
    folder = tmp_path_factory.mktemp("routed")
    text = SCENARIO.read_text().replace("ingresses = 4", "ingresses = 1").replace('"8GB"', '"6GB"')
    (folder / "s.toml").write_text(text.replace('"120s"', '"40s"').replace('"20s"', '"1s"'))
    options = ["--policy", "place", "--log", str(folder / "run.log")]
    assert main(["simulate", str(folder / "s.toml"), *options]) in (0, 1)
    return folder / "run.log"


def told(log: Path, request: int, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    capsys.readouterr()
    assert main(["explain", "--log", str(log), str(request), "--json"]) == 0
    return dict(msgspec.json.decode(capsys.readouterr().out))


def test_evictions_that_a_request_caused_are_told_with_their_reason(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evictions = []
    for request in range(1, 60):
        moments = told(log, request, capsys)["moments"]
        assert isinstance(moments, list)
        evictions += [m["text"] for m in moments if m["kind"] == "model" and "evicted the model of" in m["text"]]
    assert evictions
    assert all(": room for " in text for text in evictions)


def test_what_a_worker_was_busy_with_is_waiting_and_the_parts_add_up(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    waited = 0
    for request in range(1, 60):
        story = told(log, request, capsys)
        path = story["path"]
        assert isinstance(path, list)
        parts = sum(leg["waiting_ns"] + leg["transport_ns"] + leg["running_ns"] for leg in path)
        assert parts == int(str(story["ended_ns"])) - int(str(story["arrived_ns"]))
        waited += sum(leg["waiting_ns"] for leg in path)
    assert waited > 0
