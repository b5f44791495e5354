"""The profiler: what it measures, what it takes from the store, and what is kept when it is interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from dovetail import App, stage, tensor, workflow
from dovetail import onnx as onnx_stage
from dovetail.errors import ProfileError
from dovetail.profile.machine import Identity, this_machine
from dovetail.profile.measure import FULL, QUICK
from dovetail.profile.profiler import SAMPLE_RUN, ProfileOutcome, ProfileRequest, profile
from dovetail.profile.record import wanted_points
from dovetail.profile.store import ProfileStore
from dovetail.units import MS

HERE = Identity("Xeon", 2, {"onnxruntime": "1.30.0", "numpy": "2.4.6", "python": "3.12"})
ANY = tensor("float32", -1)


def steady(run: Callable[[], object]) -> int:
    """A made-up clock on which everything takes 20 ms."""
    run()
    return 20 * MS


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles.sqlite")


class Watched:
    """An app of two Python stages that counts the batch sizes they are run with."""

    def __init__(self, size: int = 3) -> None:
        self.sizes: Counter[tuple[str, int]] = Counter()
        self.on_run: Callable[[str, int], None] = lambda name, size: None
        self.size = size

        @stage(batch=(1, 2))
        def first(xs: list[Any]) -> list[Any]:
            return self.ran("first", xs)

        @stage(batch=(1, 4))
        def second(xs: list[Any]) -> list[Any]:
            return self.ran("second", xs)

        @workflow(slo="1s", sample=lambda: {"x": np.ones(self.size, np.float32)})
        def wf(x: ANY):
            return second(first(x))

        self.app = App(wf)

    def ran(self, name: str, xs: list[Any]) -> list[Any]:
        self.sizes[name, len(xs)] += 1
        self.on_run(name, len(xs))
        return xs

    def profile(self, store: ProfileStore, request: ProfileRequest | None = None) -> list[ProfileOutcome]:
        self.sizes.clear()
        return list(profile(self.app, store, HERE, request, timer=steady))


def test_every_batch_size_is_measured_and_kept(store: ProfileStore) -> None:
    watched = Watched()
    outcomes = watched.profile(store)
    assert [(o.spec.name, o.measured, o.trouble) for o in outcomes] == [("first", 2, ""), ("second", 2, "")]
    assert [s.state for s in store.status(watched.app.specs, HERE)] == ["fresh", "fresh"]
    runs = FULL.warmups + FULL.least_cycles
    sample = 1
    assert watched.sizes == {
        ("first", 1): runs + sample, ("first", 2): runs, ("second", 1): runs + sample, ("second", 4): runs,
    }  # fmt: skip
    first, _ = store.entries(watched.app.specs, HERE)
    assert [(p.batch, p.cpus, p.mean_ns, p.runs) for p in first.points] == [(1, 1, 20 * MS, 5), (2, 1, 20 * MS, 5)]
    assert first.load_ns == 0, "a Python function has nothing to load"


def test_what_is_fresh_is_not_measured_again_unless_asked(store: ProfileStore) -> None:
    watched = Watched()
    watched.profile(store)
    assert [o.measured for o in watched.profile(store)] == [0, 0]
    assert [o.measured for o in watched.profile(store, ProfileRequest(again=True))] == [2, 2]


def test_stages_and_batch_sizes_can_be_chosen(store: ProfileStore) -> None:
    watched = Watched()
    (outcome,) = watched.profile(store, ProfileRequest(stages=("second",), batches=(4,)))
    assert (outcome.spec.name, outcome.measured) == ("second", 1)
    (outcome,) = watched.profile(store, ProfileRequest(batches=(2,)))
    assert outcome.spec.name == "first", "a stage without this batch size is left out"
    assert [o.measured for o in watched.profile(store)] == [1, 1]


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (ProfileRequest(stages=("frist",)), "no stage 'frist'; did you mean 'first'\\? there are: first, second"),
        (ProfileRequest(batches=(3,)), "no stage declares batch 3; declared are: 1, 2, 4"),
        (ProfileRequest(stages=("first",), batches=(4,)), "no stage declares batch 4; declared are: 1, 2"),
    ],
)
def test_what_does_not_exist_is_refused(request_: ProfileRequest, said: str, store: ProfileStore) -> None:
    with pytest.raises(ProfileError, match=said):
        Watched().profile(store, request_)
    assert not store.path.exists()


def test_other_items_make_the_profile_anew(store: ProfileStore) -> None:
    watched = Watched()
    watched.profile(store)
    watched.size = 5
    outcomes = watched.profile(store)
    assert [o.measured for o in outcomes] == [2, 2]
    assert outcomes[0].record is not None and outcomes[0].record.items == "float32[5]"


def test_quick_points_are_measured_again_by_a_full_run_only(store: ProfileStore) -> None:
    watched = Watched()
    assert [o.measured for o in watched.profile(store, ProfileRequest(rule=QUICK))] == [2, 2]
    assert [o.measured for o in watched.profile(store, ProfileRequest(rule=QUICK))] == [0, 0]
    assert [o.measured for o in watched.profile(store)] == [2, 2]
    assert [o.measured for o in watched.profile(store, ProfileRequest(rule=QUICK))] == [0, 0]


def test_an_interrupt_keeps_what_has_runs_enough(store: ProfileStore) -> None:
    watched = Watched()
    enough = FULL.warmups + FULL.least_cycles

    def interrupt(name: str, size: int) -> None:
        if watched.sizes["second", 4] == enough:  # batch 1, whose turn is before, has had its runs
            raise KeyboardInterrupt

    watched.on_run = interrupt
    with pytest.raises(KeyboardInterrupt):
        watched.profile(store)
    first, second = store.status(watched.app.specs, HERE)
    assert first.state == "fresh"
    assert second.reasons == ("batch 4 not measured",)
    watched.on_run = lambda name, size: None
    assert [o.measured for o in watched.profile(store)] == [0, 1]


def test_one_stage_that_fails_does_not_stop_the_others(store: ProfileStore) -> None:
    watched = Watched()

    def fail(name: str, size: int) -> None:
        if (name, size) == ("first", 2):
            raise ValueError("only one at a time")

    watched.on_run = fail
    first, second = watched.profile(store)
    assert first.measured == 0 and "'first' raised ValueError: only one at a time" in first.trouble
    assert second.measured == 2


def test_stages_that_cannot_be_fed_are_outcomes_with_their_trouble(store: ProfileStore) -> None:
    @stage(batch=1)
    def words(xs: list[Any]) -> list[Any]:
        return [[] for _ in xs]

    @stage(batch=1)
    def read(xs: list[Any]) -> list[Any]:
        return xs

    @workflow(slo="1s", sample=lambda: {"x": np.ones(1, np.float32)})
    def wf(x: ANY):
        return read.map(words(x))

    found = list(profile(App(wf), store, HERE, timer=steady))
    assert [(o.spec.name, o.measured, bool(o.trouble)) for o in found] == [("words", 1, False), ("read", 0, True)]
    with pytest.raises(ProfileError, match="nothing can be measured: the sample of workflow 'wf' does not reach it"):
        list(profile(App(wf), store, HERE, ProfileRequest(stages=("read",)), timer=steady))


def test_a_store_that_cannot_be_written_is_found_before_anything_is_measured(tmp_path: Path) -> None:
    watched = Watched()
    with pytest.raises(ProfileError, match="does not exist"):
        watched.profile(ProfileStore(tmp_path / "none" / "p.sqlite"))
    assert sum(watched.sizes.values()) == 2, "the sample run only"


def test_a_watcher_sees_the_sample_run_and_each_stage_from_nought_to_one(store: ProfileStore) -> None:
    seen: dict[str, list[float]] = {}
    watched = Watched()

    def watch(name: str, done: float) -> None:
        seen.setdefault(name, []).append(done)

    list(profile(watched.app, store, HERE, timer=steady, watch=watch))
    assert list(seen) == [SAMPLE_RUN, "first", "second"]
    assert all(done == sorted(done) and done[-1] == 1.0 for done in seen.values())


@pytest.mark.cpu
def test_a_real_model_is_measured_on_each_number_of_cores(tmp_path: Path, store: ProfileStore) -> None:
    weights = helper.make_tensor("w", TensorProto.FLOAT, [8, 8], np.eye(8, dtype=np.float32).ravel())
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "multiply.onnx")
    multiply = onnx_stage(tmp_path / "multiply.onnx", batch=(1, 4))

    @workflow(slo="1s")
    def wf(x):
        return multiply(x)

    here = this_machine()
    (outcome,) = profile(App(wf), store, here, ProfileRequest(rule=QUICK))
    assert outcome.record is not None and outcome.record.items == "float32[8]"
    assert [(p.batch, p.cpus) for p in outcome.record.points] == wanted_points(multiply.spec, here)
    assert all(p.mean_ns > 0 and p.runs >= QUICK.least_cycles for p in outcome.record.points)
    (entry,) = store.entries([multiply.spec], here)
    assert entry.load_ns > 0 and entry.memory_bytes == multiply.spec.weights_bytes > 0
