"""The log of a live system: written by a thread, bounded, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.serve.support import until

from dovetail.control import DrainStarted
from dovetail.errors import LogError
from dovetail.live.front import background
from dovetail.live.front.background import BackgroundFile
from dovetail.live.front.journal import Journal
from dovetail.record.log import LogReader, LogWriter, make_header


def writer(path: Path) -> LogWriter:
    return LogWriter(path, make_header("live", (), b"\xc0", (), 1), BackgroundFile)


def steps(path: Path) -> int:
    """How many can be read by now."""
    try:
        with LogReader(path) as reader:
            return len(list(reader.frames()))
    except LogError:  # not even the header
        return 0


def test_what_is_written_can_be_read_while_it_is_written_and_after(tmp_path):
    said: list[str] = []
    journal = Journal(writer(tmp_path / "run.log"), said.append)
    journal.step(DrainStarted(1, 0), [], "")
    journal.flush()
    until(lambda: steps(tmp_path / "run.log") == 1)
    journal.step(DrainStarted(2, 0), [], "")
    journal.close()
    with LogReader(tmp_path / "run.log") as reader:
        assert [step.event.at_ns for step in reader] == [1, 2]
    assert said == []


def test_a_pipe_that_nobody_reads_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LogError, match="cannot write the log"):
        writer(tmp_path / "pipe")


def test_a_disk_that_hangs_ends_the_log_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(background, "MAX_WAITING_BYTES", 200_000)
    monkeypatch.setattr(background, "CLOSE_SECONDS", 0.01)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)  # it is there, and never reads
    said: list[str] = []
    journal = Journal(writer(tmp_path / "pipe"), said.append)
    for i in range(20_000):  # 64 KiB fit into the pipe
        journal.step(DrainStarted(i, 0), [], "a note of some length")
        if i % 1000 == 0:
            journal.flush()
    journal.close()
    os.close(reader)
    assert len(said) == 1
    assert "the disk is too slow for it" in said[0]
    assert "serving goes on without a log" in said[0]


def test_a_step_that_cannot_be_written_does_not_raise(tmp_path):
    said: list[str] = []
    journal = Journal(writer(tmp_path / "run.log"), said.append)
    journal.step(DrainStarted(1, 0), [], "\ud800")
    journal.step(DrainStarted(2, 0), [], "")
    journal.close()
    assert len(said) == 1
