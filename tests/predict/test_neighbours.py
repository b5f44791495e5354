"""The estimator with neighbours, and the controller that tells it who ran beside whom."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import msgspec
import pytest

import dovetail.wiring
from dovetail.predict import Estimator, EstimatorState
from dovetail.predict.interference import Beside, Interference
from dovetail.predict.interference.kind import SAID
from dovetail.predict.neighbours import _FIRST
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.state import Config
from dovetail.tools.simulate import ScenarioRun
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec

A, B = (StageSpec(name, "model", (1,)) for name in "ab")
HALF = Config(1, 1, 50)
TABLE = ProfileTable([Entry(name, "gpu", points=(Point(1, 1, 10 * MS, 0.0, 1),)) for name in "ab"])


def test_without_interference_neighbours_change_nothing() -> None:
    plain = Estimator(TABLE)
    other = plain.load_of(B, "gpu", 1, HALF)
    assert not plain.knows_neighbours
    assert plain.run(A, "gpu", 1, HALF, [other]) == plain.run(A, "gpu", 1, HALF)
    plain.observe_run(A, "gpu", 1, HALF, 30 * MS, [Beside(other)])
    assert b"interference" not in msgspec.msgpack.encode(plain.state())


def test_neighbours_count_in_the_answer_and_are_taken_off_what_is_seen() -> None:
    knows = Estimator(TABLE, interference=Interference())
    assert knows.knows_neighbours
    other = knows.load_of(B, "gpu", 1, HALF)
    alone = knows.run(A, "gpu", 1, HALF)
    for _ in range(200):
        knows.observe_run(A, "gpu", 1, HALF, 20 * MS, [Beside(other)])
    assert knows.run(A, "gpu", 1, HALF).mean_ns == alone.mean_ns, "alone it takes as long as ever"
    beside = knows.run(A, "gpu", 1, HALF, [other])
    assert beside.mean_ns == pytest.approx(20 * MS, rel=0.05)
    assert beside.source == "profile"
    assert knows.observed_ratio("a", "gpu") == pytest.approx(1.0, abs=0.1), "the neighbour's part is taken off"


def test_a_stage_without_a_profile_is_learned_as_if_it_had_been_alone() -> None:
    knows, plain = Estimator(TABLE, interference=Interference()), Estimator(TABLE)
    stage, other = StageSpec("new", "model", (1,)), knows.load_of(B, "gpu", 1, HALF)
    for _ in range(100):
        for estimator in (knows, plain):
            estimator.observe_run(stage, "gpu", 1, HALF, 10 * MS)
            estimator.observe_run(stage, "gpu", 1, HALF, 16 * MS, [Beside(other)])
    assert knows.run(stage, "gpu", 1, HALF).mean_ns == pytest.approx(10 * MS, rel=0.05)
    assert plain.run(stage, "gpu", 1, HALF).mean_ns > 12 * MS
    assert knows.run(stage, "gpu", 1, HALF, [other]).mean_ns == pytest.approx(16 * MS, rel=0.1)


def test_what_was_learned_of_neighbours_is_part_of_the_state() -> None:
    knows = Estimator(TABLE, interference=Interference())
    other = knows.load_of(B, "gpu", 1, HALF)
    for _ in range(20):
        knows.observe_run(A, "gpu", 1, HALF, 20 * MS, [Beside(other)])
    data = msgspec.msgpack.encode(knows.state())
    again = Estimator(TABLE, msgspec.msgpack.decode(data, type=EstimatorState), interference=Interference())
    assert again.state() == knows.state()
    assert again.run(A, "gpu", 1, HALF, [other]) == knows.run(A, "gpu", 1, HALF, [other])
    assert knows.state().interference


SCENARIO = """
duration = "60s"
[contention]
beside = 1.3
[policy]
name = "dovetail"
[[workflows]]
name = "w"
slo = "1s"
stages = [{ name = "a", model = "resnet50" }]
[[workflows]]
name = "v"
slo = "1s"
stages = [{ name = "b", model = "vgg16" }]
[[devices]]
kind = "v100"
count = 1
[[arrivals]]
kind = "poisson"
workflow = "w"
rate = "60/s"
[[arrivals]]
kind = "poisson"
workflow = "v"
rate = "60/s"
"""


def test_the_controller_tells_who_ran_beside_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated device hides that neighbours cost 30 %; the predictor finds out."""
    made: list[Estimator] = []

    def make(*args: object, **named: object) -> Estimator:
        made.append(Estimator(*args, **named))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(dovetail.wiring, "Estimator", make)
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    run = ScenarioRun(path, seed=1)
    run.go()
    model = made[-1].interference
    assert model is not None
    (kind,) = model.kinds()
    assert kind.seen > 60
    weights = partial(model.slowdown, kind.name)
    loads = {load.model: load for load in kind._victims}
    assert set(loads) == {"a", "b"}
    for victim, other in (("a", "b"), ("b", "a")):
        assert weights(loads[victim], [loads[other]]) == pytest.approx(1.3, abs=0.06)


def test_what_a_server_said_is_held_against_what_came() -> None:
    """What is said when a batch begins cannot know who comes: one in ten took longer, and bounds have learned it."""
    knows = Estimator(TABLE, interference=Interference())
    other = knows.load_of(B, "gpu", 1, HALF)
    for n in range(400):
        took_ns = 26 * MS if n % 10 == 0 else 20 * MS
        knows.observe_run(A, "gpu", 1, HALF, took_ns, [Beside(other)], said_ns=20 * MS)
    assert knows.interference is not None
    margin = knows.interference.kind("gpu").margins[SAID]
    assert margin.bound(0.99) == pytest.approx(math.log(1.3))
    assert margin.bound(0.5) == pytest.approx(0.0)
    assert margin.coverage(0.95) == pytest.approx(0.95, abs=0.04)


def test_what_was_not_said_does_not_count() -> None:
    knows = Estimator(TABLE, interference=Interference())
    other = knows.load_of(B, "gpu", 1, HALF)
    for _ in range(50):
        knows.observe_run(A, "gpu", 1, HALF, 20 * MS, [Beside(other)])
    assert knows.interference is not None
    assert SAID not in knows.interference.kind("gpu").margins


@pytest.mark.parametrize(("took_ms", "of_interest"), [(10, _FIRST), (30, 2 * _FIRST)])
def test_every_batch_is_of_interest_while_little_was_seen_and_where_neighbours_are_felt(
    took_ms: int, of_interest: int
) -> None:
    knows = Estimator(TABLE, interference=Interference())
    other, curious = knows.load_of(B, "gpu", 1, HALF), 0
    for _ in range(2 * _FIRST):
        curious += knows.curious("gpu")
        knows.observe_run(A, "gpu", 1, HALF, took_ms * MS, [Beside(other)])
    assert curious == of_interest
