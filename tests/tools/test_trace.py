"""A trace is valid for the strictest reader: slices never overlap, arrows bind, spans balance, bytes repeat."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.record.recorded import document, plain, run
from tests.record.test_follow import SPECS

from dovetail.control import BatchFinished, LoadModel, ModelLoaded, Reject, Reply, RunBatch, WorkerJoined, WorkerLost
from dovetail.record.log import Step
from dovetail.tools.trace import TraceRecorder
from dovetail.wiring import PolicySpec

GRAPHS = [plain(), document()]


def record(steps: list[Step], **limits: int) -> TraceRecorder:
    recorder = TraceRecorder(GRAPHS, **limits)
    for step in steps:
        recorder.observe(step.event, step.actions)
    return recorder


def written(recorder: TraceRecorder, path: Path) -> dict[str, Any]:
    recorder.write(path)
    return json.loads(path.read_bytes())


def ns(us: float) -> int:
    assert abs(us * 1000 - round(us * 1000)) < 1e-3, f"{us} µs is not a whole number of nanoseconds"
    return round(us * 1000)


def check(trace: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Every rule of the format that a viewer enforces; the events by phase."""
    by_phase: dict[str, list[dict[str, Any]]] = defaultdict(list)
    drawn: set[tuple[int, int]] = set()
    for event in trace["traceEvents"]:
        assert {"ph", "ts", "pid", "tid", "name"} <= event.keys()
        assert event["ts"] >= 0
        by_phase[event["ph"]].append(event)
        if event["ph"] == "X":
            drawn.add((event["pid"], ns(event["ts"])))
        # At equal times a reader keeps the order of the file, so an arrow's head comes behind its slice.
        assert event["ph"] != "f" or (event["pid"], ns(event["ts"])) in drawn, "an arrow comes before its slice"
    assert by_phase.keys() <= set("MXbesfiC"), by_phase.keys()
    named = {(e["pid"], e["tid"], e["name"]) for e in by_phase["M"]}
    assert len(named) == len(by_phase["M"]), "something is named twice"
    for event in trace["traceEvents"]:
        assert (event["pid"], 0, "process_name") in named
    _check_slices(by_phase["X"], named)
    _check_arrows(by_phase)
    _check_spans(by_phase)
    for counter in by_phase["C"]:
        assert counter["args"] and all(isinstance(v, int) and v >= 0 for v in counter["args"].values()), counter
    assert all(e["s"] == "p" for e in by_phase["i"])
    return by_phase


def tracks(slices: list[dict[str, Any]]) -> dict[tuple[int, int], list[tuple[int, int]]]:
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for s in slices:
        found[s["pid"], s["tid"]].append((ns(s["ts"]), ns(s["ts"]) + ns(s["dur"])))
    return found


def _check_slices(slices: list[dict[str, Any]], named: set[tuple[int, int, str]]) -> None:
    for (pid, tid), spans in tracks(slices).items():
        assert (pid, tid, "thread_name") in named
        spans.sort()
        assert all(begin < end for begin, end in spans), "an empty slice takes no arrow"
        for (_, end), (begin, _) in pairwise(spans):
            assert end <= begin, f"slices overlap on track {tid}"


def _check_arrows(by_phase: dict[str, list[dict[str, Any]]]) -> None:
    where = tracks(by_phase["X"])
    starts = {e["id"]: e for e in by_phase["s"]}
    ends = {e["id"]: e for e in by_phase["f"]}
    assert len(starts) == len(by_phase["s"]) and len(ends) == len(by_phase["f"]), "an id is used twice"
    assert starts.keys() == ends.keys(), "an arrow has one end only"
    for ident, start in starts.items():
        end = ends[ident]
        assert (start["cat"], start["name"]) == (end["cat"], end["name"])
        assert ns(start["ts"]) <= ns(end["ts"]), "an arrow goes back in time"
        assert end["bp"] == "e"
        for place in (start, end):
            spans = where[place["pid"], place["tid"]]
            assert sum(b <= ns(place["ts"]) < e for b, e in spans) == 1, "an arrow hangs in the air"


def _check_spans(by_phase: dict[str, list[dict[str, Any]]]) -> None:
    begins = {(e["cat"], e["id"]): e for e in by_phase["b"]}
    ends = {(e["cat"], e["id"]): e for e in by_phase["e"]}
    assert len(begins) == len(by_phase["b"]) and begins.keys() == ends.keys(), "spans do not balance"
    for key, begin in begins.items():
        assert (begin["name"], begin["pid"]) == (ends[key]["name"], ends[key]["pid"])
        assert begin["ts"] <= ends[key]["ts"]


@pytest.mark.parametrize(
    ("phase", "change", "complaint"),
    [
        ("X", {"dur": 1e6}, "overlap"),
        ("X", {"dur": 0.0}, "empty slice"),
        ("X", {"ts": 0.0005}, "whole number"),
        ("s", {"tid": 1}, "hangs in the air"),
        ("f", {"id": -1}, "one end only"),
        ("e", {"id": -1}, "do not balance"),
    ],
)
def test_the_check_itself_notices(tmp_path: Path, phase: str, change: dict[str, float], complaint: str) -> None:
    trace = written(record(run(tmp_path / "run.log", seed=1)), tmp_path / "trace.json")
    next(e for e in trace["traceEvents"] if e["ph"] == phase).update(change)
    with pytest.raises(AssertionError, match=complaint):
        check(trace)


@given(seed=st.integers(0, 10**6), spec=SPECS, cut=st.floats(0.05, 1.0))
@settings(deadline=None, max_examples=25)
def test_a_random_run_gives_a_valid_trace(
    tmp_path_factory: pytest.TempPathFactory, seed: int, spec: PolicySpec, cut: float
) -> None:
    folder = tmp_path_factory.getbasetemp()
    steps = run(folder / "trace.log", seed=seed, spec=spec)
    steps = steps[: int(len(steps) * cut)]
    recorder = record(steps)
    phases = check(written(recorder, folder / "trace.json"))
    actions = [a for step in steps for a in step.actions]
    batches = [a for a in actions if isinstance(a, RunBatch)]
    assert sorted(s["args"]["batch"] for s in phases["X"]) == [a.batch for a in batches]
    ended = Counter(a.outcome for a in actions if isinstance(a, Reply | Reject))
    shown = Counter(e["args"]["outcome"] for e in phases["b"] if e["cat"] == "request")
    shown.pop("open", None)
    assert shown == ended
    assert sum(e["cat"] == "load" for e in phases["b"]) == sum(isinstance(a, LoadModel) for a in actions)
    for worker_event, name in ((WorkerJoined, "joined"), (WorkerLost, "lost")):
        assert sum(e["name"] == name for e in phases["i"]) == sum(isinstance(s.event, worker_event) for s in steps)
    (folder / "again.json").unlink(missing_ok=True)
    record(steps).write(folder / "again.json")
    assert (folder / "again.json").read_bytes() == (folder / "trace.json").read_bytes()


def test_the_slices_tell_what_was_measured(tmp_path: Path) -> None:
    steps = run(tmp_path / "run.log", seed=1, spec=PolicySpec(share_pct=50))
    phases = check(written(record(steps), tmp_path / "trace.json"))
    finished = {s.event.batch: s.event for s in steps if isinstance(s.event, BatchFinished)}
    actions = {a.batch: a for s in steps for a in s.actions if isinstance(a, RunBatch)}
    names = {e["pid"]: e["args"]["name"] for e in phases["M"] if e["name"] == "process_name"}
    assert set(names.values()) == {"requests", "gpu1 (gpu)", "gpu2 (gpu)", "gpu3 (gpu)"}
    for s in phases["X"]:
        args, action = s["args"], actions[s["args"]["batch"]]
        assert names[s["pid"]] == f"gpu{action.worker} (gpu)"
        assert (s["name"], args["items"], args["cause"]) == (action.stage, len(action.items), action.cause)
        assert args["expected_ms"] == action.expected_ns / 1e6
        assert (s["cat"] == "failed") == bool(args["failed"])
        if not args["failed"]:
            event = finished[action.batch]
            assert (ns(s["ts"]), ns(s["ts"]) + ns(s["dur"])) == (event.begin_ns, event.end_ns)
    lanes = Counter(pid for pid, _ in tracks(phases["X"]))
    assert set(lanes.values()) == {2}, "at half the device each, a worker has two lanes and reuses them"
    drained = {e["name"]: e["args"] for e in phases["C"]}  # the last value of each
    assert drained["open requests"] == {"plain": 0, "document": 0}
    assert all(args == {"items": 0} for name, args in drained.items() if name.startswith("queue "))


def test_arrows_follow_the_edges(tmp_path: Path) -> None:
    steps = run(tmp_path / "run.log", seed=1)
    phases = check(written(record(steps), tmp_path / "trace.json"))

    def stage_at(place: dict[str, Any]) -> str:
        at = ns(place["ts"])
        return next(
            s["name"]
            for s in phases["X"]
            if (s["pid"], s["tid"]) == (place["pid"], place["tid"]) and ns(s["ts"]) <= at < ns(s["ts"]) + ns(s["dur"])
        )

    ends = {e["id"]: e for e in phases["f"]}
    edges = {(s["name"], stage_at(s), stage_at(ends[s["id"]])) for s in phases["s"]}
    assert edges == {
        ("plain", "detect", "check"),
        ("plain", "detect", "crop"),
        ("plain", "check", "join"),
        ("plain", "crop", "join"),
        ("document", "detect", "crop"),
        ("document", "crop", "read"),
        ("document", "read", "join"),
        ("document", "detect", "check"),
        ("document", "check", "join"),
        ("document", "detect", "join"),  # no words: the check is left out and its place taken by what detect made
    }


def test_it_stops_at_its_limit_and_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = run(tmp_path / "run.log", seed=1)
    recorder = record(steps, max_events=200)
    trace = written(recorder, tmp_path / "trace.json")
    check(trace)
    assert 200 <= recorder.events < 260
    assert trace["otherData"]["stopped"].startswith("stopped after 2")
    assert capsys.readouterr().err.count("raise max_events") == 1


def test_arrows_are_the_first_to_go(tmp_path: Path) -> None:
    steps = run(tmp_path / "run.log", seed=1)
    recorder = record(steps, max_flows=5)
    phases = check(written(recorder, tmp_path / "trace.json"))
    assert len(phases["s"]) == 5
    assert len(phases["X"]) == sum(isinstance(a, RunBatch) for s in steps for a in s.actions)


def test_writing_does_not_disturb_recording(tmp_path: Path) -> None:
    steps = run(tmp_path / "run.log", seed=2)
    recorder = TraceRecorder(GRAPHS)
    for number, step in enumerate(steps):
        recorder.observe(step.event, step.actions)
        if number % 50 == 0:
            check(written(recorder, tmp_path / "half.json"))
    recorder.write(tmp_path / "whole.json")
    record(steps).write(tmp_path / "once.json")
    assert (tmp_path / "whole.json").read_bytes() == (tmp_path / "once.json").read_bytes()


def test_a_packed_trace_is_the_same_trace(tmp_path: Path) -> None:
    recorder = record(run(tmp_path / "run.log", seed=2))
    recorder.write(tmp_path / "trace.json")
    recorder.write(tmp_path / "a.json.gz")
    recorder.write(tmp_path / "b.json.gz")
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "trace.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_a_long_trace_is_kept_and_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = run(tmp_path / "run.log", seed=4)
    record(steps).write(tmp_path / "whole.json")
    monkeypatch.setattr("dovetail.tools.chrome._PIECE_BYTES", 2000)
    record(steps).write(tmp_path / "pieces.json")
    assert (tmp_path / "pieces.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_a_recorder_without_steps_writes_a_valid_file(tmp_path: Path) -> None:
    assert [e["ph"] for e in written(TraceRecorder(GRAPHS), tmp_path / "trace.json")["traceEvents"]] == ["M", "M"]


def test_models_that_load_are_spans_on_their_worker(tmp_path: Path) -> None:
    steps = run(tmp_path / "run.log", seed=1)
    loaded = next(s.event for s in steps if isinstance(s.event, ModelLoaded))
    phases = check(written(record(steps), tmp_path / "trace.json"))
    first = next(e for e in phases["b"] if e["name"] == f"load {loaded.stage}")
    end = next(e for e in phases["e"] if e["cat"] == "load" and e["id"] == first["id"])
    assert ns(end["ts"]) == loaded.at_ns
    assert first["pid"] != 1
