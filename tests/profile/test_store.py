"""The profile store: what goes in comes out, what no longer holds is named, and no file surprises it."""

from __future__ import annotations

import sqlite3
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import ProfileError
from dovetail.profile import store as store_module
from dovetail.profile.machine import Identity
from dovetail.profile.record import Key, Measured, wanted_points
from dovetail.profile.store import APPLICATION_ID, ProfileStore
from dovetail.workflow.graph import StageSpec

HERE = Identity("Xeon", 2, {"onnxruntime": "1.30.0", "numpy": "2.4.6", "python": "3.12"})
DETECT = StageSpec("detect", "onnx", batch=(1, 4), model="abc", path="detect.onnx", weights_bytes=7_000_000)
CROP = StageSpec("crop", "python", batch=(1, 2), model="def")


def point(batch: int, cpus: int, mean_ns: int = 1_000_000) -> Measured:
    return Measured(batch, cpus, mean_ns, mean_ns, 2 * mean_ns, spread=0.05, error=0.01, runs=40)


def fill(store: ProfileStore, spec: StageSpec, identity: Identity = HERE) -> None:
    points = [point(batch, cpus, batch * 1_000_000) for batch, cpus in wanted_points(spec, identity)]
    store.put(Key.of(spec, identity), points, 5_000_000, memory_bytes=spec.weights_bytes, items="float32[3]")


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles.sqlite")


names = st.text(max_size=20)
counts = st.integers(1, 2**62)
keys = st.builds(
    Key,
    stage=names,
    kind=st.sampled_from(["cpu", "host"]),
    model=names,
    pad=names,
    cpu=names,
    cores=st.integers(1, 1024),
    libraries=st.lists(st.tuples(names, names), max_size=3).map(tuple),
)
ratios = st.floats(0, 1e6)
measured = st.builds(
    Measured, st.integers(1, 99), st.integers(1, 99), counts, counts, counts, ratios, ratios, counts, st.booleans()
)
grids = st.lists(measured, min_size=1, max_size=8, unique_by=lambda p: (p.cpus, p.batch))


@settings(max_examples=40, deadline=None)
@given(key=keys, points=grids, load_ns=counts, items=names)
def test_what_is_put_comes_back(key: Key, points: list[Measured], load_ns: int, items: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = ProfileStore(Path(folder, "p.sqlite"))
        store.put(key, points, load_ns, memory_bytes=3, items=items)
        record = store.get(key)
    assert record is not None
    assert (record.key, record.load_ns, record.memory_bytes, record.items) == (key, load_ns, 3, items)
    assert record.points == tuple(sorted(points, key=lambda p: (p.cpus, p.batch)))


@settings(max_examples=40, deadline=None)
@given(steps=st.dictionaries(st.integers(1, 64), st.integers(0, 10**9), min_size=1, max_size=6))
def test_an_entry_meets_the_points_and_rises_between_them(steps: dict[int, int]) -> None:
    spec = StageSpec("s", "python", batch=tuple(sorted(steps)), model="m")
    times: dict[int, int] = {}
    for batch in spec.batch:
        times[batch] = max(times.values(), default=1_000) + steps[batch]
    with tempfile.TemporaryDirectory() as folder:
        store = ProfileStore(Path(folder, "p.sqlite"))
        store.put(Key.of(spec, HERE), [point(b, 1, ns) for b, ns in times.items()], 0)
        (entry,) = store.entries([spec], HERE)
    assert all(entry.latency_ns(b, 1, 100) == ns for b, ns in times.items())
    between = [entry.latency_ns(n, 1, 100) for n in range(spec.batch[0], spec.batch[-1] + 1)]
    assert between == sorted(between)


def test_an_entry_is_what_the_scheduler_reads(store: ProfileStore) -> None:
    fill(store, DETECT)
    fill(store, CROP)
    detect, crop = store.entries([DETECT, CROP], HERE)
    assert (detect.stage, detect.kind, detect.load_ns, detect.memory_bytes) == ("detect", "cpu", 5_000_000, 7_000_000)
    assert [(p.batch, p.cpus) for p in detect.points] == [(1, 1), (4, 1), (1, 2), (4, 2)]
    assert detect.spread == 0.05 and "Xeon, 2 cores" in detect.source
    assert crop.kind == "host" and [(p.batch, p.cpus) for p in crop.points] == [(1, 1), (2, 1)]


def test_reading_a_store_that_is_not_there_makes_no_file(store: ProfileStore) -> None:
    assert store.entries([DETECT], HERE, allow_stale=True) == []
    (status,) = store.status([DETECT], HERE)
    assert (status.state, str(status)) == ("missing", "stage 'detect' has no profile on 'cpu'")
    assert not store.path.exists()


def newer(**versions: str) -> Identity:
    return Identity(HERE.cpu, HERE.cores, HERE.libraries | versions)


@pytest.mark.parametrize(
    ("spec", "identity", "reasons"),
    [
        (DETECT, newer(onnxruntime="1.31.0"), ("onnxruntime 1.30.0 → 1.31.0",)),
        (DETECT, newer(numpy="3.0", python="3.13"), ("numpy 2.4.6 → 3.0", "python 3.12 → 3.13")),
        (DETECT, Identity("EPYC", 8, HERE.libraries), ("machine Xeon, 2 cores → EPYC, 8 cores",)),
        (StageSpec("detect", "onnx", batch=(1, 4), model="other"), HERE, ("its model file changed",)),
        (StageSpec("detect", "onnx", batch=(1, 4), model="abc", pad=0), HERE, ("pad none → 0.0",)),
        (StageSpec("detect", "onnx", batch=(1, 4, 8, 16), model="abc"), HERE, ("batch 8, 16 not measured",)),
        (
            StageSpec("detect", "onnx", batch=(1, 8), model="other"),
            HERE,
            ("its model file changed", "batch 8 not measured"),
        ),
        (StageSpec("crop", "python", batch=(1, 2), model="other"), HERE, ("its function changed",)),
    ],
)
def test_a_stale_profile_is_left_out_and_says_what_changed(
    spec: StageSpec, identity: Identity, reasons: tuple[str, ...], store: ProfileStore
) -> None:
    fill(store, DETECT)
    fill(store, CROP)
    (status,) = store.status([spec], identity)
    assert (status.state, status.reasons) == ("stale", reasons)
    assert f"is stale: {'; '.join(reasons)}" in str(status)
    assert store.entries([spec], identity) == []
    (entry,) = store.entries([spec], identity, allow_stale=True)
    assert entry.points


def test_python_does_not_depend_on_onnxruntime_and_fewer_batch_sizes_are_fine(store: ProfileStore) -> None:
    fill(store, DETECT)
    fill(store, CROP)
    (status,) = store.status([CROP], newer(onnxruntime="1.31.0"))
    assert status.state == "fresh"
    (status,) = store.status([StageSpec("detect", "onnx", batch=(4,), model="abc")], HERE)
    assert status.state == "fresh"


def test_an_interrupted_profile_says_which_points_are_missing(store: ProfileStore) -> None:
    store.put(Key.of(DETECT, HERE), [point(1, 1), point(1, 2), point(4, 1)], 0)
    (status,) = store.status([DETECT], HERE)
    assert status.reasons == ("batch 4 on 2 core(s) not measured",)


def test_of_several_stale_profiles_the_one_with_the_fewest_changes_is_named(store: ProfileStore) -> None:
    fill(store, DETECT, Identity("EPYC", 2, HERE.libraries | {"numpy": "1.0"}))
    fill(store, DETECT, newer(onnxruntime="1.29.0"))
    fill(store, DETECT, Identity("EPYC", 2, HERE.libraries | {"numpy": "1.1"}))
    (status,) = store.status([DETECT], HERE)
    assert status.reasons == ("onnxruntime 1.29.0 → 1.30.0",)


def test_profiles_of_other_keys_stay(store: ProfileStore) -> None:
    fill(store, DETECT)
    fill(store, DETECT, newer(onnxruntime="1.31.0"))
    assert [s.state for s in store.status([DETECT], HERE)] == ["fresh"]


def test_catalogue_models_are_not_the_stores_business(store: ProfileStore) -> None:
    assert store.status([StageSpec("resnet", "model", model="resnet50")], HERE) == []


def test_points_join_those_already_there_unless_they_were_fed_other_items(store: ProfileStore) -> None:
    key = Key.of(CROP, HERE)
    store.put(key, [point(1, 1)], 0, items="float32[3]")
    store.put(key, [point(2, 1)], 0, items="float32[3]")
    record = store.get(key)
    assert record is not None and [p.batch for p in record.points] == [1, 2]
    store.put(key, [point(2, 1, 9)], 0, items="float32[4]")
    record = store.get(key)
    assert record is not None and [(p.batch, p.mean_ns) for p in record.points] == [(2, 9)]


def test_many_may_write_and_read_at_once(store: ProfileStore) -> None:
    def work(n: int) -> None:
        own = ProfileStore(store.path)
        for batch in range(1, 6):
            own.put(Key.of(DETECT, HERE), [point(batch, n)], 0)
            own.status([DETECT], HERE)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))
    record = store.get(Key.of(DETECT, HERE))
    assert record is not None and len(record.points) == 20


def test_an_empty_file_is_an_empty_store(store: ProfileStore) -> None:
    store.path.touch()
    assert store.get(Key.of(DETECT, HERE)) is None
    fill(store, DETECT)
    assert store.get(Key.of(DETECT, HERE)) is not None


def test_a_store_that_cannot_be_written_can_be_read(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(store, DETECT)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    before = sorted(store.path.parent.iterdir())
    assert len(store.entries([DETECT], HERE)) == 1
    assert sorted(store.path.parent.iterdir()) == before == [store.path]


def test_a_file_that_is_not_sqlite_is_refused(store: ProfileStore) -> None:
    store.path.write_text("batch,ms\n" * 200)
    for use in (store.create, lambda: store.status([DETECT], HERE)):
        with pytest.raises(ProfileError, match=r"profiles\.sqlite: that is not an SQLite file; choose another"):
            use()


def test_another_programs_database_is_refused_and_not_touched(store: ProfileStore) -> None:
    db = sqlite3.connect(store.path)
    db.execute("CREATE TABLE bookmarks (url TEXT)")
    db.close()
    before = store.path.read_bytes()
    with pytest.raises(ProfileError, match="not a profile store: it holds the table 'bookmarks'"):
        fill(store, DETECT)
    assert store.path.read_bytes() == before


def test_a_marked_but_empty_database_of_another_program_is_refused(store: ProfileStore) -> None:
    db = sqlite3.connect(store.path)
    db.execute("PRAGMA user_version = 3")
    db.close()
    with pytest.raises(ProfileError, match="another program's"):
        store.create()


@pytest.mark.parametrize(("schema", "age"), [(99, "a newer"), (0, "an older")])
def test_a_store_of_another_schema_is_refused_by_name(schema: int, age: str, store: ProfileStore) -> None:
    db = sqlite3.connect(store.path)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {schema}")
    db.close()
    with pytest.raises(ProfileError, match=rf"of {age} dovetail \(schema {schema}, this one reads 1 to 4\)"):
        store.status([DETECT], HERE)


def test_places_where_no_file_can_be_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"the directory .*none does not exist; create it"):
        ProfileStore(tmp_path / "none" / "p.sqlite").create()
    with pytest.raises(ProfileError, match="that is a directory; name a file"):
        ProfileStore(tmp_path).create()


def test_a_damaged_file_is_explained(store: ProfileStore) -> None:
    fill(store, DETECT)
    whole = store.path.read_bytes()
    store.path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(ProfileError, match="the file is damaged; delete it"):
        store.status([DETECT], HERE)


def test_a_lock_that_does_not_go_away_is_explained(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create()
    monkeypatch.setattr(store_module, "LOCK_TIMEOUT_S", 0.01)
    db = sqlite3.connect(store.path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    try:
        assert store.get(Key.of(DETECT, HERE)) is None, "readers do not wait for a writer"
        with pytest.raises(ProfileError, match="another process has kept it locked"):
            fill(store, DETECT)
    finally:
        db.close()
