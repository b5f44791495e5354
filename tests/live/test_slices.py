"""Slices of a running server are listed, resized and moved, by HTTP and by `dovetail slices`; nothing is lost."""

from __future__ import annotations

import json
import threading
from collections import Counter

import pytest
from tests.serve.live_support import LiveServer
from tests.serve.support import Wire

from dovetail.cli import main
from dovetail.control import RunBatch, SliceChanged
from dovetail.record.log import LogReader
from dovetail.serve.keys import Key, add

pytestmark = pytest.mark.cpu
TARGET = "tests.live.slices_app:app"
CLIENTS, EACH = 3, 20


@pytest.fixture
def serve():
    started = []

    def start(**options):
        started.append(LiveServer(TARGET, **options))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def post(server, client, body):
    with Wire(server.port) as wire:
        reply = wire.ask("POST", f"/v2/slices/{client}", json.dumps(body).encode())
    return reply.status, reply.json


def test_slices_are_resized_and_moved_under_load_and_no_request_is_lost(serve, tmp_path, capsys):
    log = tmp_path / "run.log"
    server = serve(device="cpu", workers=2, log=log)
    statuses = Counter()

    def ask(workflow):
        for _ in range(EACH):
            statuses[server.ask(workflow, 1.0).status] += 1

    threads = [threading.Thread(target=ask, args=(f"use_{w}",)) for w in ("large", "small") for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for turn in range(6):
        status, said = post(server, "large", {"quota": 20 + 10 * turn, "worker": f"cpu-{turn % 2}"})
        assert status == 200
        assert said == {"client": "large", "share_pct": 100, "quota_pct": 20 + 10 * turn, "worker": f"cpu-{turn % 2}"}
    assert post(server, "small", {"share": 50})[0] == 200
    for thread in threads:
        thread.join()
    assert statuses == {200: 2 * CLIENTS * EACH}
    url = f"http://127.0.0.1:{server.port}"
    assert main(["slices", "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"client": "large", "share_pct": 100, "quota_pct": 70, "worker": "cpu-1"},
        {"client": "small", "share_pct": 50, "quota_pct": 25, "worker": ""},
    ]
    assert main(["slices", "large", "--quota", "90", "--worker", "", "--url", url]) == 0
    assert "90" in capsys.readouterr().out
    assert server.ask("use_large", 1.0).status == 200
    assert server.stop()
    with LogReader(log) as reader:
        steps = list(reader)
    changes = [step.event for step in steps if isinstance(step.event, SliceChanged)]
    assert [change.quota_pct for change in changes] == [20, 30, 40, 50, 60, 70, 25, 90]
    last = [action for step in steps for action in step.actions if isinstance(action, RunBatch)][-1]
    assert (last.stage, last.quota_pct) == ("large", 90)
    assert main(["replay", str(log)]) == 0
    capsys.readouterr()
    told = [main(["explain", str(number), "--log", str(log)]) for number in range(1, 20)]
    assert set(told) == {0} and "large has 100 % for" in capsys.readouterr().out


def test_what_cannot_be_is_refused_with_the_reason(serve):
    server = serve(device="cpu:1")
    for client, body, part in [
        ("nobody", {"quota": 10}, "those that do: large, small"),
        ("large", {"quota": 101}, "give 1 to 100"),
        ("large", {"worker": "cpu-7"}, "there are: cpu-0"),
        ("large", {"limit": 3}, "unknown field"),
        ("large", {"quota": "much"}, "a slice is"),
    ]:
        status, said = post(server, client, body)
        assert status == 400 and part in said["error"]
    with Wire(server.port) as wire:
        assert wire.ask("GET", "/v2/slices/large", b"").status == 405


def test_only_whoever_is_trusted_changes_slices(serve):
    server = serve(device="cpu:1", trust_priority=False)
    status, said = post(server, "large", {"quota": 10})
    assert status == 403 and "--trust-priority" in said["error"]


def test_a_key_may_see_slices_and_change_none(serve, tmp_path):
    _, observer = add(tmp_path / "keys.json", Key("0" * 12, "0" * 64, "acme", scopes=("observe",)))
    server = serve(device="cpu:1", keys=tmp_path / "keys.json")
    with Wire(server.port) as wire:
        assert wire.ask("GET", "/v2/slices", X_Api_Key=observer).json["slices"][0]["client"] == "large"
    with Wire(server.port) as wire:
        reply = wire.ask("POST", "/v2/slices/large", b'{"quota": 10}', X_Api_Key=observer)
    assert reply.status == 403 and "not for changing slices" in reply.json["error"]


def test_the_command_says_what_is_wrong(capsys):
    assert main(["slices", "--quota", "3"]) == 2
    assert "of which client" in capsys.readouterr().err
    assert main(["slices", "--url", "http://127.0.0.1:9"]) == 2
    assert "no Dovetail server answers" in capsys.readouterr().err
    assert main(["slices", "--url", "ftp://x"]) == 2
