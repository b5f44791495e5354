"""What was learned of times from one server to the next: kept by what it depends on, and looked over before use."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import ProfileError
from dovetail.predict import Estimator, EstimatorState
from dovetail.predict.state import LearnedLoad, LearnedRun
from dovetail.profile.machine import Identity
from dovetail.profile.record import Key, LearnedRow
from dovetail.profile.store import ProfileStore
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.record.learned import judge_learned, known_state, learned_figures, rows_of
from dovetail.state import Config
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

HERE = Identity("Xeon", 2, {"onnxruntime": "1.30.0", "numpy": "2.4.6", "python": "3.12"})
READ = StageSpec("read", "onnx", (1, 4), model="abc", weights_bytes=7_000_000)
CROP = StageSpec("crop", "python", (1, 8), model="def")
SPECS = (READ, CROP)
RUNS = (
    LearnedRun("crop", "host", 1, 1, 100, 3, 2 * MS, 0.0),
    LearnedRun("crop", "host", 8, 1, 100, 9, 9 * MS, 1.5),
    LearnedRun("read", "cpu", 1, 2, 100, 40, 5 * MS, 7.0),
)
STATE = EstimatorState(runs=RUNS, loads=(LearnedLoad("abc", "cpu", 2, 80 * MS, 0.0),))


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles.sqlite")


def kept(store: ProfileStore, identity: Identity = HERE, specs: tuple[StageSpec, ...] = SPECS) -> EstimatorState:
    return known_state(judge_learned(store.learned(), identity, specs))


def same(one: EstimatorState, other: EstimatorState) -> bool:
    return (set(one.runs), set(one.loads)) == (set(other.runs), set(other.loads))


def test_what_was_learned_comes_back_and_answers_the_same(store: ProfileStore) -> None:
    assert store.learned() == [] and not kept(store)
    store.put_learned(rows_of(STATE, SPECS, HERE))
    assert same(kept(store), STATE)
    first, then = Estimator(ProfileTable(), STATE), Estimator(ProfileTable(), kept(store))
    for items in (1, 3, 8, 20):
        for stage, kind in ((READ, "cpu"), (CROP, "host")):
            assert first.run(stage, kind, items, Config(8, 1, 100)) == then.run(stage, kind, items, Config(8, 1, 100))
    assert then.load("abc", 1, "cpu").mean_ns == 80 * MS


def test_the_newer_takes_the_place_of_the_older(store: ProfileStore) -> None:
    store.put_learned(rows_of(STATE, SPECS, HERE))
    more = EstimatorState(runs=(LearnedRun("crop", "host", 1, 1, 100, 4, 3 * MS, 0.0),))
    store.put_learned(rows_of(more, SPECS, HERE))
    assert [run for run in kept(store).runs if run.stage == "crop"] == list(more.runs)
    assert [run for run in kept(store).runs if run.stage == "read"] == [RUNS[2]], "others stay"


@pytest.mark.parametrize(
    ("identity", "specs", "said"),
    [
        (Identity("Xeon", 4, HERE.libraries), SPECS, "machine"),
        (Identity("Xeon", 2, HERE.libraries | {"python": "3.13"}), SPECS, "python 3.12 → 3.13"),
        (HERE, (READ, msgspec.structs.replace(CROP, model="xyz")), "its function changed"),
    ],
)
def test_what_was_learned_of_something_else_is_stale_and_not_used(
    identity: Identity, specs: tuple[StageSpec, ...], said: str, store: ProfileStore
) -> None:
    store.put_learned(rows_of(STATE, SPECS, HERE))
    assert not any(run.stage == "crop" for run in kept(store, identity, specs).runs)
    reasons = [s.reasons for s in judge_learned(store.learned(), identity, specs) if s.key.stage == "crop"]
    assert said in str(reasons)


def test_stages_of_other_applications_are_left_alone(store: ProfileStore) -> None:
    store.put_learned(rows_of(STATE, SPECS, HERE))
    assert rows_of(STATE, (CROP,), HERE) == [r for r in rows_of(STATE, SPECS, HERE) if r.key.stage == "crop"]
    assert {run.stage for run in kept(store, specs=(CROP,)).runs} == {"crop"} and not kept(store, specs=(CROP,)).loads
    assert len(judge_learned(store.learned(), HERE)) == 3, "all are shown where nobody says of what"
    assert all(status.state == "fresh" for status in judge_learned(store.learned(), HERE))


def bad(**changed: object) -> bytes:
    return msgspec.msgpack.encode(EstimatorState(runs=(msgspec.structs.replace(RUNS[0], **changed),)))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        "text",
        bad(count=-1),
        bad(mean_ns=-1),
        bad(squares=float("nan")),
        bad(share_pct=101),
        bad(items=0),
        bad(stage="read"),
        msgspec.msgpack.encode({"version": 99}),
        msgspec.msgpack.encode({"runs": [[1, 2]]}),
    ],
)
def test_a_damaged_row_is_named_and_not_used(value: object, store: ProfileStore) -> None:
    store.put_learned(rows_of(STATE, SPECS, HERE))
    db = sqlite3.connect(store.path)
    with db:
        db.execute("UPDATE learned SET value = ? WHERE stage = 'crop'", (value,))
    db.close()
    (status,) = [s for s in judge_learned(store.learned(), HERE, SPECS) if s.key.stage == "crop"]
    assert status.state == "damaged" and status.reasons
    assert {run.stage for run in kept(store).runs} == {"read"}
    store.put_learned(rows_of(STATE, SPECS, HERE))
    assert same(kept(store), STATE), "the next makes it good"


@given(st.binary(max_size=200))
def test_no_bytes_are_a_surprise(value: bytes) -> None:
    for status in judge_learned([LearnedRow(Key.of(CROP, HERE), 1, value)], HERE, SPECS):
        assert status.state == "damaged" or not status.runs


def test_what_no_reader_would_take_is_not_written() -> None:
    with pytest.raises(ProfileError, match="what was learned of 'crop' cannot be kept"):
        rows_of(EstimatorState(runs=(msgspec.structs.replace(RUNS[0], count=-1),)), SPECS, HERE)


def test_figures_stand_beside_the_profile() -> None:
    found = judge_learned(rows_of(STATE, SPECS, HERE), HERE, SPECS)
    table = ProfileTable([Entry("read", "cpu", points=(Point(1, 2, 4 * MS, 0.1, 9),))])
    figures = {(f["what"], f["items"]): f for status in found for f in learned_figures(status, table)}
    assert figures["read", 1]["mean_ns"] == 5 * MS and figures["read", 1]["profile_ns"] == 4 * MS
    assert figures["crop", 8]["seen"] == 9 and figures["crop", 8]["profile_ns"] == 0
    assert figures["load of abc", 0]["mean_ns"] == 80 * MS
    assert all(f["spread"] > 0 and f["state"] == "fresh" for f in figures.values())


def test_a_store_of_the_second_schema_is_read_and_brought_up_when_written(store: ProfileStore) -> None:
    store.create()
    db = sqlite3.connect(store.path, isolation_level=None)
    db.execute("DROP TABLE learned")
    db.execute("DROP TABLE slices")
    db.execute("PRAGMA user_version = 2")
    db.close()
    assert store.learned() == [] and store.kernels(HERE) == {}
    store.put_learned(rows_of(STATE, SPECS, HERE))
    assert same(kept(store), STATE)
    assert store.forget_learned() == 3 and store.learned() == []
