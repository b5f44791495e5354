"""The live part of the experiment on interference: what is recorded of batches that share cores, and what of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from tests.lab.hand import HandLab

from dovetail.lab.experiments import interference_live as live
from dovetail.lab.experiments import interference_machine as machine
from dovetail.lab.experiments import interference_worth as worth
from dovetail.lab.experiments.interference_world import CHANGES
from dovetail.lab.rivals.interference import RIVALS, Sample
from dovetail.predict.interference import Beside, Load
from dovetail.units import MS


def course(scatter: float, count: int = 280) -> list[Sample]:
    """Batches of four models beside one other, which costs each of them its own part, and scatter."""
    rng = random.Random(1)
    found = []
    for _ in range(count):
        victim, other = (Load(f"m{rng.randrange(4)}", 1, 50) for _ in range(2))
        slow = (1 + 0.1 * int(victim.model[1])) * rng.lognormvariate(0, scatter)
        beside = (Beside(other),)
        found.append(Sample("cpu", victim, 10 * MS, round(10 * MS * slow), beside, beside))
    return found


def judged(scatter: float) -> HandLab:
    lab = HandLab((1,), lambda job: job, quick=True)
    live.judge(lab, {change: course(scatter) for change in CHANGES})
    return lab


def test_what_can_be_known_is_known_and_what_scatters_fails() -> None:
    lab = judged(0.02)
    for ident in ("median", "p95"):
        assert lab.claimed(f"live.stationary.{ident}").holds
    for change in CHANGES:
        assert lab.claimed(f"live.{change.replace(' ', '-')}.back").holds
    assert not judged(0.3).claimed("live.stationary.median").holds
    assert not judged(0.3).claimed("live.stationary.p95").holds


def test_what_the_machine_itself_scatters_is_said() -> None:
    lab = HandLab((1,), lambda job: job, quick=True)
    alone = Sample("cpu", Load("m0", 1, 50), 10 * MS, 12 * MS, (), ())
    live.judge(lab, {change: [*course(0.02), alone] for change in CHANGES})
    assert "4 batches that were alone were off their time alone by 20.0 %" in lab.claims[0].text
    assert "no batch was alone" in judged(0.02).claims[0].text


def with_new(slow_at_first: float, later: float) -> list[Sample]:
    """A course in which everything scatters by 2 % before a model comes on, and by this from then on."""
    before, after = course(0.02, 180), course(slow_at_first, 280)[180:230] + course(later, 280)[230:]
    return [*before, *after]


def test_a_new_model_is_judged_by_the_median_of_all_models_that_were_new() -> None:
    lab = HandLab((1,), lambda job: job, quick=True)
    calm, wild = with_new(0.02, 0.02), with_new(0.3, 0.3)
    live.judge_new(lab, {"a": calm, "b": calm, "c": wild})
    claim = lab.claimed("live.new-models.back")
    assert claim.holds and claim.measured < 1.5, "two of three came back"
    assert "c " in claim.text.split("Each: ")[1], "and the one that did not is named"
    lab = HandLab((1,), lambda job: job, quick=True)
    live.judge_new(lab, {"a": calm, "b": wild, "c": wild, "d": course(0.02, 100)})
    assert not lab.claimed("live.new-models.back").holds
    assert [left.id for left in lab.left_out] == ["live.new-models.d"]


def test_a_machine_that_was_too_slow_is_left_out() -> None:
    lab = HandLab((1,), lambda job: job, quick=True)
    live.judge(lab, {change: course(0.02, 200) for change in CHANGES})
    assert not lab.claims
    assert [left.id for left in lab.left_out] == ["live"]


class _Kernels:
    """Kernels that do nothing, and how often they were called."""

    def __init__(self, count: int) -> None:
        self.called = [0] * count

    def begin(self) -> Sequence[Callable[[], object]]:
        return [lambda n=n: self.call(n) for n in range(len(self.called))]  # type: ignore[misc]

    def call(self, number: int) -> None:
        self.called[number] += 1


@pytest.mark.parametrize("change", CHANGES)
def test_every_batch_runs_all_its_kernels_and_knows_who_was_there(change: machine.Change) -> None:
    made = machine.Machine({}, 0)
    everything = {**machine.NEW, **{f"{n}": (*machine.NEW[n], *machine.LARGER.get(n, ())) for n in machine.NEW}}
    kernels = {
        (name, items): [_Kernels(3) for _ in range(9)] for name, sizes in everything.items() for items in sizes
    }
    made.free = cast(Any, {key: list(row) for key, row in kernels.items()})
    made.solo_ns = dict.fromkeys(kernels, 20_000.0)
    run = machine._Run(made, machine.Course(1, change, 40, 40), lambda done: None)
    batches = run.go()
    assert len(batches) == 80
    for batch in batches:
        assert batch.begin_ns < batch.end_ns
        assert {id(other) for other, _ in batch.known} <= {id(other) for other in batch.met}
        assert all(batch in other.met for other in batch.met)
    for row in kernels.values():
        for one in row:
            assert max(one.called) - min(one.called) <= 1, "all of a batch, but for one that was given up at the end"
    samples = machine._samples(made, batches)
    assert {sample.slots for sample in samples[-10:]} == {8 if change == "more at once" else 4}
    later = {sample.victim.model for sample in samples[60:]}
    assert ("file_kind" in later) is (change == "new model")
    assert "file_kind" not in {sample.victim.model for sample in samples[:20]}


def outcome(missed: float, goodput: float) -> worth.Outcome:
    return worth.Outcome({1: missed, 2: 10.0}, goodput, {1: missed, 2: 3.0})


@pytest.mark.parametrize(("missed", "goodput", "holds"), [(0.5, 7.0, True), (3.0, 4.0, False)])
def test_what_predictions_buy_is_judged_against_nobody_and_against_the_best(
    missed: float, goodput: float, holds: bool
) -> None:
    rivals = {"none": outcome(20.0, 4.0), "ours": outcome(missed, goodput)}
    lab = HandLab((1, 2), lambda job: rivals.get(job.rival, outcome(1.0, 6.0)))
    worth.bought(lab)
    lab.expect("worth.first-class", missed, holds=holds)
    lab.expect("worth.first-class.best", missed / 1.0, holds=holds)
    lab.expect("worth.goodput", goodput / 4.0, holds=holds)
    lab.expect("worth.goodput.best", goodput / 6.0, holds=holds)
    assert {job.rival for job in lab.asked["what predictions buy"]} == set(RIVALS) - {"boosting"}


@pytest.mark.parametrize(("missed", "better"), [(1.0, 1), (0.1, 0)])
def test_a_rival_is_better_only_if_it_is_within_seeds(missed: float, better: int) -> None:
    """Seeds differ by far more than predictors; within seeds one rival is always a little better, or never."""

    def of(job: worth.Worth) -> worth.Outcome:
        luck = job.seed % 7
        own = {"ours": missed, "sgd": 0.5}.get(job.rival, 2.0)
        # A little of chance, so that there is an interval.
        return outcome(own + luck + 0.01 * (job.seed % 3), 6.0 - 0.1 * own - luck / 10)

    lab = HandLab((1, 2), of)
    worth.bought(lab)
    lab.expect("worth.first-class.paired", better, holds=not better)
    lab.expect("worth.goodput.paired", better, holds=not better)
    assert {job.seed for job in lab.asked["what predictions buy"]} == {1, 2, *worth.MORE_SEEDS}
    assert "sgd" in lab.claimed("worth.goodput.paired").text
    alone = HandLab((1,), of)
    worth.bought(alone)
    assert not any("paired" in claim.id for claim in alone.claims), "one seed has no interval"
