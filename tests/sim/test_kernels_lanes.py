"""The lanes of a device as figures, picture and trace; the command that draws them; the experiment's world."""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from collections import defaultdict
from pathlib import Path

import pytest

from dovetail.cli import trace
from dovetail.errors import DovetailError
from dovetail.lab.experiments.fikit_world import PAIRS, POLICIES, Job, record, simulate
from dovetail.profile.catalogue.kernels import sequences
from dovetail.record.kernels import KernelRecord, decode_records, encode_record
from dovetail.tools.lanes import draw_lanes, gaps, lanes, window, write_lanes

PNG = b"\x89PNG"
#: Two kernels of a high task with a gap between them, and a low one before and in the gap.
RECORDS = [
    KernelRecord(2, "low", 0, 2, 0, 100, 0),
    KernelRecord(1, "high", 0, 1, 100, 200, 50),
    KernelRecord(2, "low", 1, 2, 210, 290, 60, why="fill"),
    KernelRecord(1, "high", 1, 1, 300, 400, 260),
]


def command(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    trace.configure(parser)
    return trace.run(parser.parse_args(arguments))


class TestLanes:
    def test_figures_are_those_of_the_records(self) -> None:
        high, low = lanes(RECORDS)
        assert (high.name, high.priority, high.tasks, high.kernels, high.filled) == ("high", 1, 1, 2, 0)
        assert (high.busy_ns, high.worst_wait_ns, high.longest_kernel_ns) == (200, 50, 100)
        assert (low.filled, low.busy_ns, low.worst_wait_ns) == (1, 180, 110), (
            "its own kernel before it does not count"
        )

    def test_a_gap_is_between_two_kernels_of_a_task_of_the_highest_class(self) -> None:
        assert gaps(RECORDS) == [(200, 300)]

    def test_the_window_begins_before_a_high_task(self) -> None:
        begin, end = window(RECORDS)
        assert begin < 100 < end
        assert window(RECORDS, 40) == (98, 140)

    def test_the_trace_is_one_that_perfetto_reads(self, tmp_path: Path) -> None:
        write_lanes(RECORDS, tmp_path / "lanes.json", title="a device")
        events = json.loads((tmp_path / "lanes.json").read_bytes())["traceEvents"]
        slices = [e for e in events if e["ph"] == "X"]
        assert len(slices) == len(RECORDS) + 1
        by_track = defaultdict(list)
        for event in slices:
            by_track[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
        assert len(by_track) == 3
        for spans in by_track.values():
            assert all(a[1] <= b[0] for a, b in zip(sorted(spans), sorted(spans)[1:], strict=False))

    def test_the_picture_is_the_same_again(self, tmp_path: Path) -> None:
        for name in ("one.png", "two.png"):
            draw_lanes(RECORDS, tmp_path / name, title="a device")
        assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
        assert (tmp_path / "one.png").read_bytes().startswith(PNG)


class TestCommand:
    def test_a_pair_is_simulated_drawn_and_summed_up(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = ["--high", "mobilenetv2", "--low", "bert", "--tasks", "1", "--json", "--out", str(tmp_path)]
        assert command(*arguments) == 0
        found = json.loads(capsys.readouterr().out)
        assert [(lane["name"], lane["priority"]) for lane in found] == [
            ("mobilenetv2/high", 1),
            ("bert-large/low", 2),
        ]
        assert found[1]["filled"] > 0
        assert (tmp_path / "lanes.png").read_bytes().startswith(PNG)
        assert gzip.decompress((tmp_path / "lanes.json.gz").read_bytes()).startswith(b"{")
        with (tmp_path / "kernels.jsonl").open("rb") as file:
            assert len(list(decode_records(file))) == sum(lane["kernels"] for lane in found)

    def test_a_log_is_drawn_as_it_is(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        log = tmp_path / "gate.jsonl"
        log.write_bytes(b"".join(map(encode_record, RECORDS)))
        assert command("--log", str(log), "--out", str(tmp_path / "out")) == 0
        assert "high" in capsys.readouterr().out
        assert not (tmp_path / "out" / "kernels.jsonl").exists()

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--policy", "hours"), "no arbiter 'hours'; did you mean 'ours'"),
            (("--host", "x"), "no host 'x'"),
            (("--tasks", "0"), "at least one"),
            (("--high", "resnet5"), "Did you mean 'resnet50'"),
            (("--log", "nowhere.jsonl"), "cannot read"),
        ],
    )
    def test_wrong_arguments_are_named(self, arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
        with pytest.raises(DovetailError, match=said):
            command(*arguments, "--out", str(tmp_path))

    def test_a_log_that_is_none_is_named_with_its_line(self, tmp_path: Path) -> None:
        log = tmp_path / "gate.jsonl"
        log.write_bytes(encode_record(RECORDS[0]) + b"what?\n")
        with pytest.raises(DovetailError, match="line 2"):
            command("--log", str(log), "--out", str(tmp_path))


class TestWorld:
    def test_there_are_ten_pairs_and_more_of_known_models(self) -> None:
        assert len(set(PAIRS)) >= 10
        assert {name for pair in PAIRS for name in pair} <= set(sequences())

    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_job_is_the_same_again(self, policy: str) -> None:
        job = Job("mobilenetv2", "resnet50", "sync", policy, 1, 1)
        assert simulate(job) == simulate(job)

    def test_in_a_small_run_already_ours_is_near_alone_and_fills_more_than_fikit(self) -> None:
        ours, fikit, slices = (
            simulate(Job("mobilenetv2", "resnet50", "sync", policy, 1, 2)) for policy in ("ours", "fikit", "slices")
        )
        assert ours.high < 1.1
        assert slices.high > 3.4
        assert ours.low < fikit.low
        assert ours.worst_wait_ns < 1.13 * ours.longest_low_ns

    @pytest.mark.parametrize("beside", [False, True])
    def test_arbitrated_kernels_overlap_only_where_they_may_run_beside_each_other(self, beside: bool) -> None:
        job = Job("mobilenetv2", "resnet50", "host", "ours", 1, 1, beside=beside)
        records = sorted(record(job), key=lambda r: r.begin_ns)
        assert any(a.end_ns > b.begin_ns for a, b in itertools.pairwise(records)) == beside
