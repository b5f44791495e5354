"""Workers that come and go while a server runs: as many as the load asks for, and no request is lost."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.test_serve import Serving, gone, serve, worker_pids
from tests.serve.support import HOST

from dovetail.cli import main
from dovetail.control import WorkerLost
from dovetail.record.log import LogReader
from dovetail.tools.replay import replay
from dovetail.tools.resimulate import Resimulation

pytestmark = pytest.mark.cpu
__all__ = ["serve"]

APP = "tests.live.scaled_app:one"
CLIENTS = 48
#: A device is not needed for 15 s before it goes; a machine may be busy with other things.
PATIENCE_SECONDS = 90.0


def until(condition: Callable[[], object]) -> None:
    """Waits for something that the server is about to do."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "it never came"
        time.sleep(0.02)


class Clients:
    """Ask without a pause, unless told to come back; and note what came."""

    def __init__(self, serving: Serving) -> None:
        self.got: list[int] = []
        self._going = True
        self._threads = [threading.Thread(target=self._work, args=(serving,)) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _work(self, serving: Serving) -> None:
        while self._going:
            self.got.append(serving.infer("one", 1.0))
            if self.got[-1] != 200:
                time.sleep(0.2)

    def stop(self) -> list[int]:
        self._going = False
        for thread in self._threads:
            thread.join()
        return self.got


def workers_of_the_stage(serving: Serving) -> int:
    """Those that have its model."""
    with urllib.request.urlopen(f"http://{HOST}:{serving.port}/metrics", timeout=PATIENCE_SECONDS) as answer:
        metrics = answer.read().decode()
    (line,) = [line for line in metrics.splitlines() if line.startswith('dovetail_stage_workers{stage="long"}')]
    return int(float(line.split()[-1]))


def said(serving: Serving, text: str) -> list[str]:
    return [line for line in serving.said if text in line]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two cores")
def test_load_starts_a_worker_and_quiet_stops_one_and_no_request_is_lost(serve, tmp_path: Path, capsys) -> None:
    log = tmp_path / "run.log"
    serving = serve(
        APP,
        "--workers",
        "1..2",
        "--spare-workers",
        0,
        "--device",
        "cpu:2",
        "--log",
        log,
        "--store",
        tmp_path / "store",
    )
    (first,) = worker_pids(serving)
    clients = Clients(serving)
    try:
        until(lambda: workers_of_the_stage(serving) == 2)
        (second,) = set(worker_pids(serving)) - {first}
        (started,) = said(serving, "starting worker cpu-1: ")
        assert "long: " in started and "/s come" in started, "with the reason"

        # It is killed, and started again as any other; the scaler asks for no third.
        answered = len(clients.got)
        os.kill(second, signal.SIGKILL)
        until(lambda: said(serving, "worker cpu-1 (pid "))
        until(lambda: workers_of_the_stage(serving) == 2 and second not in worker_pids(serving))
        until(lambda: len(clients.got) > answered + CLIENTS)
        until(lambda: clients.got.count(200) > CLIENTS)
    finally:
        got = clients.stop()
    assert set(got) <= {200, 429}
    assert len(said(serving, "starting worker ")) == 1

    until(lambda: said(serving, "stopping worker "))
    (stopped,) = said(serving, "stopping worker cpu-")
    assert "1 device has been enough for 15 s" in stopped
    until(lambda: len(worker_pids(serving)) == 1)
    assert serving.infer("one", 1.0) == 200, "the one that is left serves"
    assert len(said(serving, "is lost")) == 1, "who was told to stop is not lost"
    workers = worker_pids(serving)
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0, serving.said
    assert all(map(gone, workers))

    result = replay(log)
    assert result.same and result.steps
    assert all(not line.outcomes[bad] for line in result.outcomes for bad in ("failed", "expired", "cancelled"))
    with LogReader(log) as steps:
        (lost,) = [step.event for step in steps if isinstance(step.event, WorkerLost)]
    assert lost.replaced, "so that the scaler does not ask for another one"
    again = Resimulation(log)
    assert list(again.recorded.lost), "workers go when they went"
    (simulated,) = again.go().simulated
    assert simulated.requests == result.outcomes[0].requests
    assert main(["explain", "--scaling", "--log", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    decisions = found["decisions"] if isinstance(found, dict) else found
    assert [decision["kind"] for decision in decisions] == ["start", "stop"]


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("1..2", "--share-workers", "shared"), "none may stop one; give one number"),
        (("1..2", "--policy", "by-class"), "the policy 'by-class' starts and stops no workers"),
        (("1..2", "--device", "emulated:v100x2"), "both say how many devices there are; write emulated:v100"),
        (("1..999",), "--workers 999 would share"),
    ],
)
def test_a_range_of_workers_that_cannot_be_is_refused_with_the_reason(flags, why, capsys) -> None:
    assert main(["serve", APP, "--workers", *flags]) == 2
    assert why in capsys.readouterr().err


def test_emulated_devices_scale_too(serve) -> None:
    serving = serve(APP, "--workers", "2..3", "--spare-workers", 0, "--device", "emulated:v100")
    assert len(worker_pids(serving)) == 2 and serving.infer("one", 1.0) == 200
    assert not said(serving, "starting worker"), "those that it starts with are not asked for"
