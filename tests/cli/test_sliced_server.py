"""Slices that a server sets by the load, and a server that scales to zero: no request is lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from pathlib import Path

import pytest
from tests.cli.test_scaled_workers import PATIENCE_SECONDS, said, until
from tests.cli.test_serve import Serving, serve, worker_pids
from tests.serve.support import HOST

from dovetail.cli import main
from dovetail.control import RunBatch, SetSlice
from dovetail.record.log import LogReader
from dovetail.tools.offers import decisions
from dovetail.tools.replay import replay

pytestmark = pytest.mark.cpu
__all__ = ["serve"]

APP = "tests.live.scaled_app:one"


def get(serving: Serving, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{HOST}:{serving.port}{path}", timeout=PATIENCE_SECONDS) as answer:
        assert answer.status == 200
        return bytes(answer.read())


def slices(serving: Serving) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(get(serving, "/v2/slices"))["slices"]
    return found


def test_a_server_sets_slices_sleeps_without_a_worker_and_wakes_with_the_next_request(
    serve, tmp_path: Path, capsys
) -> None:
    log = tmp_path / "run.log"
    workers = ("--workers", "0..1", "--spare-workers", 0, "--zero-after", 1)
    flags = ("--slices", *workers, "--device", "cpu:1", "--store", tmp_path / "store")
    serving = serve(APP, *flags, "--log", log)
    assert len(worker_pids(serving)) == 1 and slices(serving) == [], "nothing has come"
    assert serving.infer("one", 1.0) == 200
    (piece,) = slices(serving)
    assert piece["client"] == "long#1" and piece["worker"] == "cpu-0"

    until(lambda: said(serving, "stopping worker cpu-0"))
    until(lambda: not worker_pids(serving))
    assert slices(serving) == []
    get(serving, "/v2/health/ready")

    # Several come at once, and are held. Their worker is killed as soon as it is there.
    got: list[int] = []
    clients = [threading.Thread(target=lambda: got.append(serving.infer("one", 1.0))) for _ in range(8)]
    for client in clients:
        client.start()
    until(lambda: said(serving, "starting worker cpu-0: ") and worker_pids(serving))
    os.kill(worker_pids(serving)[0], signal.SIGKILL)
    for client in clients:
        client.join(PATIENCE_SECONDS)
    assert got == [200] * 8, serving.said
    assert len(said(serving, "starting worker ")) == 1, "who was killed is started again anyway"
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0, serving.said

    assert replay(log).same
    runs: list[RunBatch] = []
    kinds: list[bool] = []
    with LogReader(log) as steps:
        for step in steps:
            runs += [a for a in step.actions if isinstance(a, RunBatch)]
            kinds += [bool(a.quota_pct) for a in step.actions if isinstance(a, SetSlice)]
    assert {run.client.partition("#")[0] for run in runs} == {"long"}, "all batches run in slices"
    assert kinds[0] and kinds[kinds.index(False) :].count(True), "opened, closed, and opened again"
    found, why = decisions(log, 1, 1 << 62)
    assert not why and found[0].offers[0].score > 0, "what was weighed is told, with its score"
    assert main(["explain", "--scaling", "--log", str(log)]) == 0
    told = capsys.readouterr().out
    assert "slice 1 of long on cpu-0 opened" in told and "closed" in told


def test_what_the_scaler_would_do_is_said_and_not_done(serve, tmp_path: Path) -> None:
    serving = serve(APP, "--slices", "--dry-run", "--device", "cpu:1", "--store", tmp_path / "store")
    assert serving.infer("one", 1.0) == 200
    until(lambda: said(serving, "would open slice 1 of long on cpu-0"))
    assert len(worker_pids(serving)) == 1


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--slices", "--share-workers", "shared"), "none may slice them; leave one out"),
        (("--slices", "--policy", "by-class"), "the policy 'by-class' sets no slices"),
        (("--dry-run",), "there is none; add --slices"),
        (("--zero-after", "5"), "add --slices or --workers 0..1"),
    ],
)
def test_what_cannot_be_scaled_is_refused_with_the_reason(flags, why, capsys) -> None:
    assert main(["serve", APP, *flags]) == 2
    assert why in capsys.readouterr().err
