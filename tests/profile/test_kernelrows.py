"""What was learned of kernels, in the store: it comes back, adds up, ages out, and nothing in a file surprises."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.errors import ProfileError
from dovetail.profile import store as store_module
from dovetail.profile.kernelrows import MAX_ROW_BYTES, pack, unpack_cut, unpack_stats
from dovetail.profile.kernels import DRIFT_FACTOR, Cut, KernelStats, Spread, sequence_model, sequence_name
from dovetail.profile.machine import Identity
from dovetail.profile.record import Key, Measured
from dovetail.profile.store import _TABLES, APPLICATION_ID, ProfileStore

HERE = Identity("Xeon", 2, {"onnxruntime": "1.30.0", "numpy": "2.4.6", "python": "3.12"})
NAME = sequence_name("read", [(1, 3, 48, 320)], "b5bb9d8014a0f9b1d61e21e796d78dcc", "3c9d1f02")
PATIENT = settings(deadline=None, max_examples=40)


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles.sqlite")


def learned(name: str = NAME, runs: int = 6, length_ns: int = 1_000_000, kernels: int = 3) -> KernelStats:
    stats = KernelStats.empty(name, [f"k{i}" for i in range(kernels)])
    for _ in range(runs):
        for i in range(kernels):
            stats.observe(i, length_ns + i)
            stats.observe_gap(i - 1, 10, early=True)
    return stats


times = st.lists(st.integers(0, 2**62), max_size=30)


@st.composite
def statistics(draw: st.DrawFn) -> KernelStats:
    names = draw(st.lists(st.text(max_size=20), min_size=1, max_size=5))
    stats = KernelStats.empty(draw(st.text(min_size=1, max_size=30)), names, min_count=draw(st.integers(1, 9)))
    for i in range(len(names)):
        for ns in draw(times):
            stats.observe(i, ns)
        for ns in draw(times):
            stats.observe_gap(i, ns, early=draw(st.booleans()))
    stats.shares = draw(st.dictionaries(st.integers(0, len(names) - 1), st.integers(1, 100)))
    return stats


@PATIENT
@given(st.lists(statistics(), max_size=3, unique_by=lambda s: s.name))
def test_what_is_put_comes_back(several: list[KernelStats]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = ProfileStore(Path(folder, "p.sqlite"))
        store.put_kernels(several, HERE)
        assert store.kernels(HERE) == {stats.name: stats for stats in several}


@PATIENT
@given(times, times)
def test_observations_of_several_add_up_and_old_ones_fade(first: list[int], second: list[int]) -> None:
    kept, newer = Spread(), Spread()
    for ns in first:
        kept.add(ns)
    for ns in second:
        newer.add(ns)
    before = kept.count
    kept.absorb(newer)
    assert kept.count == before + newer.count
    for _ in range(100):
        kept.absorb(newer)
        assert kept.count == sum(kept.buckets.values()) <= 1024
        assert kept.squares >= 0
    if second:
        assert kept.mean_ns == pytest.approx(newer.mean_ns, rel=1.0, abs=max(first or [0]))


def test_what_two_workers_learned_adds_up(store: ProfileStore) -> None:
    for _ in range(3):
        store.put_kernels([learned(runs=4)], HERE)
    stats = store.kernels(HERE)[NAME]
    assert stats.seen == 12 and all(stats.known(i) for i in range(3))
    assert stats.launches_ahead
    store.put_kernels([learned(runs=4)], HERE, instead=True)
    assert store.kernels(HERE)[NAME].seen == 4


@pytest.mark.parametrize(
    "newer",
    [learned(length_ns=round(1_000_000 * DRIFT_FACTOR * 1.1)), learned(kernels=4)],
    ids=["other times", "other kernels"],
)
def test_what_has_changed_takes_the_place_of_what_was_known(newer: KernelStats, store: ProfileStore) -> None:
    store.put_kernels([learned(runs=500)], HERE)
    store.put_kernels([newer], HERE)
    stats = store.kernels(HERE)[NAME]
    assert (stats.kernels, stats.durations) == (newer.kernels, newer.durations)


def test_sequences_of_other_models_shapes_or_cuts_have_other_names() -> None:
    names = [
        sequence_name(stage, shapes, model, cut)
        for stage in ("read", "re[ad@x/")
        for shapes in ([(1, 2)], [(1,), (2,)], [(12,)])
        for model in ("a" * 64, "b" * 64)
        for cut in ("whole", "12345678")
    ]
    assert len(set(names)) == len(names)
    assert {sequence_model(name) for name in names} == {"a" * 16, "b" * 16}
    assert sequence_model("resnet50/b1") == ""


def other(**versions: str) -> Identity:
    return Identity(HERE.cpu, HERE.cores, HERE.libraries | versions)


@pytest.mark.parametrize(
    ("identity", "reasons"),
    [
        (other(onnxruntime="1.31.0"), ("onnxruntime 1.30.0 → 1.31.0",)),
        (Identity("EPYC", 8, HERE.libraries), ("machine Xeon, 2 cores → EPYC, 8 cores",)),
    ],
)
def test_statistics_of_other_machines_and_versions_are_stale_and_not_used(
    identity: Identity, reasons: tuple[str, ...], store: ProfileStore
) -> None:
    store.put_kernels([learned()], HERE, cuts=[Cut("m", ((1, 3),), 1)])
    (status,) = store.kernel_status(identity)
    assert (status.state, status.reasons) == ("stale", reasons)
    assert f"is stale: {reasons[0]}" in str(status)
    assert store.kernels(identity) == {} and store.cuts(identity) == {}
    store.put_kernels([learned(runs=1)], identity)
    assert store.kernels(identity)[NAME].seen == 1
    assert store.kernels(HERE)[NAME].seen == 6, "what is of another machine stays"


# -- files -----------------------------------------------------------------------------------------------------------


def first_schema(store: ProfileStore) -> Key:
    """A store as the first version made it, with a profile."""
    key = Key("detect", "cpu", "abc", "", HERE.cpu, HERE.cores, (("numpy", "2.4.6"),))
    db = sqlite3.connect(store.path, isolation_level=None)
    for statement in filter(str.strip, _TABLES.split(";")):
        db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("PRAGMA user_version = 1")
    row = (1, "detect", "cpu", "abc", "", "Xeon", 2, '[["numpy","2.4.6"]]', "f", 7, 8, "t")
    db.execute(f"INSERT INTO profile VALUES ({', '.join('?' * len(row))})", row)
    db.execute("INSERT INTO point VALUES (1, 1, 1, 5, 5, 5, 0.1, 0.1, 3, 0)")
    db.close()
    return key


def schema_of(store: ProfileStore) -> int:
    db = sqlite3.connect(store.path)
    (schema,) = db.execute("PRAGMA user_version").fetchone()
    db.close()
    return int(schema)


def test_a_store_of_the_first_schema_is_read_as_it_is_and_brought_up_when_written(store: ProfileStore) -> None:
    key = first_schema(store)
    before = store.path.read_bytes()
    record = store.get(key)
    assert record is not None and record.load_ns == 7
    assert store.kernels(HERE) == {} and store.cuts(HERE) == {}
    assert store.path.read_bytes() == before
    store.put(key, [Measured(2, 1, 5, 5, 5, 0.1, 0.1, 3)], 9, items="f")
    assert schema_of(store) == 4
    store.put_kernels([learned()], HERE)
    record = store.get(key)
    assert record is not None and [p.batch for p in record.points] == [1, 2]
    assert NAME in store.kernels(HERE)


def test_an_upgrade_that_fails_leaves_the_store_as_it_was(store: ProfileStore) -> None:
    key = first_schema(store)
    broken = learned()
    broken.durations.pop()
    with pytest.raises(ProfileError, match="cannot be kept: 3 kernels, 2 durations"):
        store.put_kernels([learned("other"), broken], HERE)
    assert schema_of(store) == 1
    assert store.get(key) is not None and store.kernels(HERE) == {}


def damaged(change: Callable[[KernelStats], object]) -> bytes:
    stats = learned()
    change(stats)
    return msgspec.msgpack.encode(stats)


DAMAGE = {
    "not msgpack": b"\xc1\xff\x00",
    "nothing": b"",
    "cut off": pack(learned())[:-20],
    "too large": b"\x00" * (MAX_ROW_BYTES + 1),
    "text": "text",
    "of another sequence": pack(learned("another")),
    "a count too many": damaged(lambda s: setattr(s.durations[0], "count", 7)),
    "a negative bucket": damaged(lambda s: s.gaps[0].buckets.update({-1: 1, 1: -1})),
    "a huge bucket": damaged(lambda s: s.gaps[3].buckets.update({1 << 20: 0})),
    "not a number": damaged(lambda s: setattr(s.durations[1], "mean_ns", float("nan"))),
    "no bound": damaged(lambda s: setattr(s.durations[1], "squares", float("inf"))),
    "a drift of its own": damaged(lambda s: setattr(s, "drift", float("inf"))),
    "never known": damaged(lambda s: setattr(s, "min_count", 0)),
    "a share too large": damaged(lambda s: s.shares.update({0: 101})),
    "a wait too few": damaged(lambda s: s.gaps.pop()),
}


@pytest.mark.parametrize("value", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_row_is_named_not_used_and_made_good_by_the_next(value: object, store: ProfileStore) -> None:
    store.put_kernels([learned(), learned("sound")], HERE)
    db = sqlite3.connect(store.path, isolation_level=None)
    db.execute("UPDATE kernels SET value = ? WHERE stage = ?", (value, NAME))
    db.close()
    states = {s.key.stage: s for s in store.kernel_status(HERE)}
    assert (states[NAME].state, states["sound"].state) == ("damaged", "fresh")
    assert states[NAME].reasons[0]
    assert list(store.kernels(HERE)) == ["sound"]
    store.put_kernels([learned(runs=2)], HERE)
    assert store.kernels(HERE)[NAME].seen == 2


@given(st.binary(max_size=300))
def test_no_bytes_are_a_surprise(data: bytes) -> None:
    for unpack in (unpack_stats, unpack_cut):
        with pytest.raises(ProfileError, match="not "):
            unpack(data)


def test_a_row_whose_libraries_cannot_be_read_is_stale(store: ProfileStore) -> None:
    store.put_kernels([learned()], HERE)
    db = sqlite3.connect(store.path, isolation_level=None)
    db.execute("UPDATE kernels SET libraries = '{'")
    db.close()
    assert [s.state for s in store.kernel_status(HERE)] == ["stale"]


def test_the_oldest_go_when_there_are_too_many(store: ProfileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MOST_SEQUENCES", 5)
    for i in range(8):
        store.put_kernels([learned(f"s{i}")], HERE)
    assert set(store.kernels(HERE)) == {f"s{i}" for i in range(3, 8)}
    monkeypatch.setattr(store_module, "MOST_BYTES", 2 * len(pack(learned("s8"))) + 10)
    store.put_kernels([learned("s8")], HERE)
    assert set(store.kernels(HERE)) == {"s7", "s8"}


# -- cuts ------------------------------------------------------------------------------------------------------------

CUT = Cut("model", ((1, 3),), 2, ((4, 9),), ((0, ((2, 3),), (1, 3)),))


def test_the_first_cut_of_a_model_stays_and_its_shapes_come_to_it(store: ProfileStore) -> None:
    store.put_kernels([], HERE, cuts=[CUT])
    more = msgspec.structs.replace(CUT, kernels=((0, ((2, 3),), (3,)), (0, ((1, 3),), (2, 3))))
    store.put_kernels([], HERE, cuts=[msgspec.structs.replace(CUT, at=((5,),)), more])
    kept = store.cuts(HERE)["model"]
    assert kept.at == CUT.at
    assert {shapes: ends for _, shapes, ends in kept.kernels} == {((2, 3),): (1, 3), ((1, 3),): (2, 3)}


def test_that_a_model_is_short_gives_way_when_batches_grow(store: ProfileStore) -> None:
    store.put_kernels([], HERE, cuts=[Cut("model", ((1, 3),), 1)])
    store.put_kernels([], HERE, cuts=[CUT])
    assert store.cuts(HERE)["model"] == CUT


@pytest.mark.parametrize(
    "cut",
    [
        Cut("", ((1, 3),), 1),
        Cut("m", ((1, 3),), 0),
        Cut("m", ((),), 1),
        Cut("m", ((1, 3),), 1, ((4, 4),)),
        Cut("m", ((1, 3),), 1, ((0, 4),)),
        Cut("m", ((1, 3),), 1, ((4,), (4,), (4,))),
        Cut("m", ((1, 3),), 1, ((4,),), ((1, ((1, 3),), (2,)),)),
        Cut("m", ((1, 3),), 1, ((4,),), ((0, ((1, 3),), (2, 1)),)),
        Cut("m", ((1, 3),), 1, ((4,),), ((0, ((1, 3),), ()),)),
    ],
)
def test_a_cut_that_is_none_is_refused(cut: Cut) -> None:
    with pytest.raises(ProfileError, match="not a model's cut: "):
        unpack_cut(msgspec.msgpack.encode(cut))


def test_all_can_be_forgotten(store: ProfileStore) -> None:
    store.put_kernels([learned(), learned("two")], HERE, cuts=[CUT])
    assert store.forget_kernels() == 2
    assert store.kernels(HERE) == {} and store.cuts(HERE) == {}
