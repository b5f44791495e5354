"""A log is read as it was written; cut short it is read as far as it goes, damaged it is refused."""

from __future__ import annotations

import errno
import os
import struct
import tracemalloc
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.record.recorded import ENTRIES, document, header, plain, run

from dovetail.control import Drained, DrainStarted, Reject, RequestArrived, RequestRefused, RunBatch
from dovetail.errors import LogError
from dovetail.predict import EstimatorState
from dovetail.predict.state import LearnedRun
from dovetail.record.log import VERSION, Header, LogReader, LogWriter, Step
from dovetail.version import __version__
from dovetail.wiring import PolicySpec

STEPS = [
    Step(RequestArrived(5, 0, 1, 0, deadline_ns=9), [RunBatch(1, 1, 2, "read", ((1, 0, 0),), 1, 50, 5, 9, 3)], "née"),
    Step(RequestArrived(6, 0, 2, 1, counts=(3, 0)), []),
    Step(RequestRefused(6, 0, 3, 1, 2, "no memory", 9), [Reject(3, 3, 1, 2, "shed", 6, 0.0, "no memory", 9)], "mine"),
    Step(DrainStarted(7, 0), [Drained(4)]),
]


def write(path: Path, steps: list[Step] = STEPS) -> Path:
    with LogWriter(path, header(PolicySpec())) as log:
        for step in steps:
            log.step(step.event, step.actions, step.note)
    return path


def read(path: Path) -> tuple[list[Step], bool]:
    with LogReader(path) as log:
        return list(log), log.cut_short


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("log") / "run.log").read_bytes()


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "run.log")
    with LogReader(path) as log:
        assert log.header.version == VERSION
        assert log.header.graphs == (plain(), document())
        assert log.header.entries == ENTRIES
        assert msgspec.msgpack.decode(log.header.policy, type=PolicySpec) == PolicySpec()
        assert list(log) == STEPS
        assert (log.steps, log.cut_short) == (4, False)
        assert log.read_bytes == log.size_bytes == path.stat().st_size


def test_what_was_known_of_times_is_in_the_header_and_a_log_without_it_is_read(tmp_path: Path) -> None:
    learned = EstimatorState(runs=(LearnedRun("read", "cpu", 1, 1, 100, 5, 7, 0.5),))
    path = tmp_path / "run.log"
    with LogWriter(path, msgspec.structs.replace(header(PolicySpec()), learned=learned)):
        pass
    with LogReader(path) as log:
        assert log.header.learned == learned
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(header(PolicySpec())))
    del older["learned"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=Header).learned is None
    with LogWriter(path, msgspec.Raw(msgspec.msgpack.encode(older | {"learned": {"version": 9}}))):  # type: ignore[arg-type]
        pass
    with pytest.raises(LogError, match="is a log of another version: what was learned is of version 9"):
        LogReader(path)


def test_the_same_run_is_the_same_bytes(tmp_path: Path) -> None:
    run(tmp_path / "a.log", seed=3)
    run(tmp_path / "b.log", seed=3)
    assert (tmp_path / "a.log").read_bytes() == (tmp_path / "b.log").read_bytes()


def frame_ends(data: bytes) -> list[int]:
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + struct.unpack_from("<I", data, ends[-1])[0] + 12)
    return ends[1:]


@given(data=st.data())
@settings(deadline=None)
def test_cut_anywhere_it_is_read_to_the_last_whole_frame(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    ends = frame_ends(whole)
    assert len(ends) == 1 + len(STEPS)
    size = data.draw(st.integers(ends[0], len(whole)))
    path = tmp_path_factory.getbasetemp() / "cut.log"
    path.write_bytes(whole[:size])
    steps, cut_short = read(path)
    assert steps == STEPS[: sum(end <= size for end in ends) - 1]
    assert cut_short == (size not in ends)


@given(data=st.data())
@settings(deadline=None)
def test_a_changed_byte_is_noticed_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.log"
    path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    with pytest.raises(LogError, match="damaged"):
        read(path)


def test_damage_is_placed(tmp_path: Path, whole: bytes) -> None:
    broken = bytearray(whole)
    broken[frame_ends(whole)[1] + 20] ^= 1
    (tmp_path / "run.log").write_bytes(broken)
    with LogReader(tmp_path / "run.log") as log, pytest.raises(LogError, match=r"step 2 of .* \(at byte \d+\)"):
        list(log)


def frame(payload: object) -> bytes:
    body = msgspec.msgpack.encode(payload)
    length = struct.pack("<I", len(body))
    return length + struct.pack("<I", crc32(length)) + body + struct.pack("<I", crc32(body))


def test_another_version_is_refused_by_name(tmp_path: Path) -> None:
    newer = {"version": VERSION + 1, "dovetail": "9.8", "what": "is not known yet"}
    for written, by in ((newer, "Dovetail 9.8"), ({"version": VERSION - 1}, "another Dovetail")):
        (tmp_path / "run.log").write_bytes(frame(written))
        with pytest.raises(LogError) as refused:
            LogReader(tmp_path / "run.log")
        said = str(refused.value)
        assert f"run.log is a log of version {written['version']}, by {by}; this one, Dovetail " in said
        assert f"reads version {VERSION}. Read it with the Dovetail that wrote it, or record the run again" in said


def test_a_log_without_the_stamp_of_its_writer_is_read(tmp_path: Path) -> None:
    """Headers of this version were written before there was one, with fewer fields of the policy, too."""
    known = msgspec.msgpack.decode(msgspec.msgpack.encode(header(PolicySpec())))
    assert known.pop("dovetail") == __version__
    known["policy"] = {"name": "by-class"}
    (tmp_path / "run.log").write_bytes(frame(known))
    with LogReader(tmp_path / "run.log") as log:
        assert log.header.dovetail == ""
        assert log.header.graphs == (plain(), document())
        assert msgspec.msgpack.decode(log.header.policy, type=PolicySpec) == PolicySpec("by-class")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x01", "cut short before its first step"),
        (b"GIF89a and so on, for a while", "is not a Dovetail log"),
        (frame(["not", "a", "header"]), "is not a Dovetail log"),
        (frame({"version": VERSION}), "is not a Dovetail log"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "run.log").write_bytes(content)
    with pytest.raises(LogError, match=message):
        LogReader(tmp_path / "run.log")


def test_a_step_of_another_make_is_refused(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "run.log").write_bytes(whole + frame([["SomethingNew", 1, 2], [], ""]))
    with LogReader(tmp_path / "run.log") as log, pytest.raises(LogError, match=r"step 5 of .* cannot be read"):
        list(log)


def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"nowhere\.log: No such file"):
        LogReader(tmp_path / "nowhere.log")
    with pytest.raises(LogError, match="Is a directory"):
        LogReader(tmp_path)
    with pytest.raises(LogError, match="cannot write the log"):
        LogWriter(tmp_path / "no" / "folder.log", header(PolicySpec()))


class FullFile:
    """A file on a disk that has just become full."""

    def __init__(self, file: BinaryIO) -> None:
        self.close = file.close
        self.closed = False

    def write(self, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_at_once() -> None:
    with pytest.raises(LogError, match="No space left"):
        LogWriter(Path("/dev/full"), header(PolicySpec()))


def test_a_disk_that_fills_up_is_said_once_and_the_log_stays_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.log"
    with LogWriter(path, header(PolicySpec())) as log:
        log.step(STEPS[0].event, STEPS[0].actions, STEPS[0].note)
        log.flush()
        monkeypatch.setattr(log, "_file", FullFile(log._file))
        with pytest.raises(LogError, match="No space left on device; it ends before this step"):
            log.step(STEPS[1].event, STEPS[1].actions)
        log.step(STEPS[2].event, STEPS[2].actions)
        log.flush()
    assert read(path) == (STEPS[:1], False)


def test_what_was_flushed_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "run.log", header(PolicySpec())) as log:
        assert read(tmp_path / "run.log") == ([], False)
        log.step(STEPS[0].event, STEPS[0].actions, STEPS[0].note)
        log.flush()
        assert read(tmp_path / "run.log") == (STEPS[:1], False)


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    tracemalloc.start()
    try:
        write(path, STEPS * 5_000)
        with LogReader(path) as log:
            assert sum(1 for _ in log) == 20_000
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 750_000
    assert peak_bytes < 600_000
