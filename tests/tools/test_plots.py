"""The time line's figures, and that pictures are drawn, the same for the same run."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.image import imread

from dovetail.control import (
    BatchFailed,
    BatchFinished,
    Reject,
    Reply,
    RequestArrived,
    RunBatch,
    WorkerJoined,
    WorkerLost,
)
from dovetail.record.ledger import Ledger
from dovetail.state import WorkerSpec
from dovetail.tools.plots import draw_latency, draw_timeline
from dovetail.tools.simulate import ScenarioRun
from dovetail.tools.timeline import FIRST_WIDTH_NS, MAX_BINS, Timeline
from dovetail.units import MS, SECOND

SCENARIO = """
duration = "6s"
[[workflows]]
catalogue = "esg/image-classification"
slo = "700ms"
[[workflows]]
catalogue = "compass/image-to-sound"
[[devices]]
kind = "v100"
count = 2
host = 1
[[arrivals]]
workflow = "esg/image-classification"
kind = "poisson"
rate = 4
[[arrivals]]
workflow = "esg/image-classification"
class = 2
kind = "poisson"
rate = 2
[[arrivals]]
workflow = "compass/image-to-sound"
kind = "poisson"
rate = 2
"""


def gpu(name: str = "gpu") -> WorkerSpec:
    return WorkerSpec(name, name, ("model",))


def run_batch(batch: int, worker: int, share_pct: int) -> RunBatch:
    return RunBatch(1, batch, worker, "a", ((1, 0, 0),), 1, share_pct, 0, 0, 0)


def reply(request: int, arrived_ns: int, outcome: str = "ok") -> Reply:
    return Reply(1, request, 0, 1, outcome, arrived_ns, 0.0)


def test_events_fall_into_their_bins() -> None:
    timeline = Timeline()
    width = FIRST_WIDTH_NS
    timeline.observe(WorkerJoined(0, 0, 1, gpu()), [])
    timeline.observe(WorkerJoined(0, 0, 2, gpu()), [])
    timeline.observe(RequestArrived(1, 0, 1, 0), [run_batch(1, 1, 50)])
    timeline.observe(RequestArrived(width, 0, 2, 0), [])
    # Half a device for one and a half bins, of two devices that were there all the time.
    end = width * 3 // 2
    timeline.observe(BatchFinished(end, 1, 1, 0, end), [reply(1, 1)])
    timeline.observe(RequestArrived(2 * width, 0, 3, 0), [reply(2, width, "late")])
    timeline.finish()
    assert [b.arrived for b in timeline.bins] == [1, 1, 1]
    assert [b.good[0, 1] for b in timeline.bins] == [0, 1, 0]
    assert [b.latency[0, 1].count for b in timeline.bins] == [0, 1, 1]
    assert [b.busy("gpu") for b in timeline.bins] == [0.25, 0.125, 0.0]


def test_a_worker_that_leaves_is_not_counted_as_idle() -> None:
    timeline = Timeline()
    width = FIRST_WIDTH_NS
    timeline.observe(WorkerJoined(0, 0, 1, gpu()), [])
    timeline.observe(WorkerJoined(0, 0, 2, gpu()), [run_batch(1, 1, 100), run_batch(2, 2, 100), run_batch(3, 1, 1)])
    timeline.observe(BatchFailed(1, 1, 3, 0, 1, "error"), [])
    timeline.observe(WorkerLost(width, 0, 2, "gone"), [])
    timeline.observe(BatchFinished(2 * width, 1, 1, 0, 2 * width), [reply(1, 0)])
    timeline.finish()
    assert [b.busy("gpu") for b in timeline.bins[:2]] == [0.5, 1.0]


def test_bins_grow_wider_and_nothing_is_lost() -> None:
    timeline = Timeline()
    timeline.observe(WorkerJoined(0, 0, 1, gpu()), [])
    for n in range(1, 2001):
        timeline.observe(RequestArrived(n * SECOND, 0, n, 0), [run_batch(n, 1, 100)])
        timeline.observe(
            BatchFinished(n * SECOND + 500 * MS, 1, n, n * SECOND, n * SECOND + 500 * MS), [reply(n, n * SECOND)]
        )
    timeline.observe(RequestArrived(2001 * SECOND, 0, 2001, 0), [Reject(1, 2001, 0, 1, "shed", 0, 0.0, "full")])
    timeline.finish()
    assert len(timeline.bins) <= MAX_BINS
    assert sum(b.arrived for b in timeline.bins) == 2001
    assert sum(b.latency[0, 1].count for b in timeline.bins) == 2000
    assert timeline.bins[3].busy("gpu") == pytest.approx(0.5, rel=0.1)
    before = len(timeline.bins)
    timeline.widen(200)
    assert len(timeline.bins) < before
    assert sum(b.arrived for b in timeline.bins) == 2001


def test_pictures_are_drawn_and_are_the_same_for_the_same_run(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCENARIO)
    pictures = []
    for number in range(2):
        run, timeline = ScenarioRun(tmp_path / "s.toml"), Timeline()
        run.go([timeline.observe])
        timeline.finish()
        names = [tmp_path / f"latency{number}.png", tmp_path / f"timeline{number}.png"]
        draw_latency(run.ledger, names[0])
        draw_timeline(timeline, run.world.graphs, names[1])
        pictures.append([name.read_bytes() for name in names])
    assert pictures[0] == pictures[1]
    for name in names:
        height, width, _ = imread(name).shape
        assert height > 300
        assert width > 500


def test_a_workflow_without_answers_can_be_drawn(tmp_path: Path) -> None:
    ledger = Ledger([("shy", SECOND)])
    ledger.add(Reject(1, 1, 0, 1, "shed", 0, 0.0, "full"), 5)
    draw_latency(ledger, tmp_path / "latency.png")
    assert (tmp_path / "latency.png").stat().st_size > 1000
    timeline = Timeline()
    timeline.observe(RequestArrived(5, 0, 1, 0), [Reject(1, 1, 0, 1, "shed", 0, 0.0, "full")])
    timeline.finish()
    draw_timeline(timeline, [], tmp_path / "timeline.png")
    assert (tmp_path / "timeline.png").stat().st_size > 1000
