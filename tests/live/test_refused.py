"""Requests that are turned away before they are submitted: each has its outcome, its number, its line in the log."""

from __future__ import annotations

from contextlib import closing

import msgspec
import numpy as np
import pytest
from tests.live.support import Live

from dovetail.control import Reject, RequestRefused
from dovetail.errors import Overloaded
from dovetail.record.log import LogReader, LogWriter, make_header
from dovetail.record.story import story
from dovetail.tools.replay import replay
from dovetail.units import MS

pytestmark = pytest.mark.cpu
TOO_MUCH = np.zeros(9 << 20, np.uint8)
TIMES = 300


def test_a_storm_of_refusals_is_logged_replayed_explained_and_leaves_nothing(tmp_path):
    path = tmp_path / "run.log"

    def log(made_from):
        graphs, policy, entries, cores = made_from
        return LogWriter(path, make_header("live", graphs, msgspec.msgpack.encode(policy), entries, cores))

    with closing(Live("tests.live.apps:hosted", arena_bytes=8 << 20, log=log)) as live:
        storm(live)
    assert replay(path).same
    with LogReader(path) as reader:
        steps = list(reader)
        told = story(steps, "mine-7", reader.header.graphs)
    assert (told.request, told.outcome, told.priority) == (9, "shed", 3)
    assert "no room" in told.verdict
    refused = [step for step in steps if isinstance(step.event, RequestRefused)]
    assert len(refused) == TIMES
    for step in refused:
        (answer,) = step.actions
        assert isinstance(answer, Reject) and answer.retry_after_ns == 1000 * MS


def storm(live):
    assert live.ask("big", 1).outcome in ("ok", "late")
    for number in range(TIMES):
        with pytest.raises(Overloaded, match="no room") as refusal:
            live.submit("big", TOO_MUCH, priority=3, note=f"mine-{number}")
        assert refusal.value.request == number + 2
    live.check_clean()
    assert live.ask("big", 1).outcome in ("ok", "late")
    stats = live.system.statistics.model_stats("big")["inference_stats"]
    assert (stats["success"]["count"], stats["fail"]["count"]) == (2, TIMES)
    (row,) = [row for row in live.system.ledger.summary() if row.workflow == "big" and row.priority == 3]
    assert row.outcomes["shed"] == row.requests == TIMES


def test_once_it_has_stopped_a_server_keeps_no_books():
    with closing(Live("tests.live.apps:hosted")) as live:
        live.run(live.system.close())
        steps = len(live.steps)
        with pytest.raises(Overloaded, match="stopped") as refusal:
            live.submit("big", 1)
        assert refusal.value.request == 0
        assert len(live.steps) == steps
