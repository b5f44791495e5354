"""A worker that is there before anybody asks for it: it joins at once, dies without a loss, and is bounded."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.cli.test_scaled_workers import said, until
from tests.cli.test_serve import gone, serve, worker_pids

from dovetail.cli import main
from dovetail.control import ModelLoaded, WorkerJoined
from dovetail.live.front.spares import CALM_SECONDS
from dovetail.record.log import LogReader
from dovetail.tools.replay import replay

pytestmark = pytest.mark.cpu
__all__ = ["serve"]

APP = "tests.live.scaled_app:one"


def test_a_server_that_sleeps_wakes_with_its_spare_worker(serve, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    flags = ("--workers", "0..1", "--slices", "--zero-after", 1, "--device", "cpu:1", "--store", tmp_path / "store")
    serving = serve(APP, *flags, "--log", log)
    (first,) = worker_pids(serving)
    assert serving.infer("one", 1.0) == 200
    until(lambda: said(serving, "stopping worker cpu-0"))
    until(lambda: gone(first) and worker_pids(serving))
    (spare,) = worker_pids(serving)

    # It is nobody's loss, and comes again.
    os.kill(spare, signal.SIGKILL)
    until(lambda: said(serving, "spare worker cpu-0 (pid "))
    until(lambda: worker_pids(serving) and spare not in worker_pids(serving))
    (spare,) = worker_pids(serving)
    assert serving.infer("one", 1.0) == 200
    (line,) = said(serving, "starting worker ")
    assert "cpu-0, which was there as a spare: no device has room for long" in line, "with the scaler's reason"
    assert worker_pids(serving) == [spare], "it is the process that was there, and there is no other: one is the most"
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0, serving.said
    assert gone(spare)

    assert replay(log).same
    with LogReader(log) as steps:
        events = [step.event for step in steps]
    joined = [event.worker for event in events if isinstance(event, WorkerJoined)]
    loaded = [event.worker for event in events if isinstance(event, ModelLoaded)]
    assert len(joined) == 2 and set(loaded) == set(joined), "the controller hears of no spare, only of who joins"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two cores")
def test_there_are_no_more_spares_than_may_join_and_they_end_with_the_server(serve, tmp_path: Path) -> None:
    flags = ("--workers", "1..2", "--device", "cpu:2", "--store", tmp_path / "store", "--spare-workers")
    none = serve(APP, *flags, 0)
    many = serve(APP, *flags, 5)
    (worker,) = worker_pids(many)
    until(lambda: len(worker_pids(many)) > 1)
    time.sleep(2 * CALM_SECONDS)  # as long as it takes to start another one
    spares = set(worker_pids(many)) - {worker}
    assert len(spares) == 1 and worker in worker_pids(many) and len(worker_pids(none)) == 1
    assert many.infer("one", 1.0) == 200 and not said(many, "worker cpu-"), "nobody is told of a spare"
    many.signal(signal.SIGTERM)
    assert many.wait() == 0
    assert all(map(gone, spares))


def test_spares_are_for_servers_that_scale(capsys) -> None:
    assert main(["serve", APP, "--spare-workers", "1"]) == 2
    assert "add --workers 1..2" in capsys.readouterr().err
