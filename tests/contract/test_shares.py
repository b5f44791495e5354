"""The worker contract: shares of what runs at a time never add up to more than the device, whatever else there is."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from tests.contract.observed import Key, Observed
from tests.contract.worlds import SETUPS, params

from dovetail.control import BatchFinished
from dovetail.state.run_batch import task_of


def assert_within_the_device(worker: Observed, shares: Mapping[Key, int]) -> None:
    """Of one class, so that none is stopped in between and begin and end say when it ran."""
    runs = [(worker.answers[key].begin_ns, worker.answers[key].end_ns, share) for key, share in shares.items()]
    for begin_ns, _, _ in runs:
        assert sum(share for other_ns, end_ns, share in runs if other_ns <= begin_ns < end_ns) <= 100


def test_shares_never_add_up_to_more_than_the_device(worker: Observed) -> None:
    wanted = [60, 60, 30, 40, 100, 10, 10, 90, 50, 50]
    shares = {worker.run("slow" if i % 3 else "quick", share_pct=pct): pct for i, pct in enumerate(wanted)}
    worker.until_answered()
    assert all(isinstance(worker.answers[key], BatchFinished) for key in shares)
    assert_within_the_device(worker, shares)


def test_nor_do_they_if_models_come_and_go_meanwhile(worker: Observed) -> None:
    chance = random.Random(5)
    shares: dict[Key, int] = {}
    for _ in range(24):
        share_pct = chance.choice((100, 60, 50, 30, 10))
        shares[worker.run(chance.choice(["quick", "a", "b", "c", "slow"]), share_pct=share_pct)] = share_pct
    worker.until_answered()
    assert_within_the_device(worker, shares)


def test_nor_do_they_if_two_ingresses_ask(shared: Observed) -> None:
    chance = random.Random(11)
    shares: dict[Key, int] = {}
    for i in range(24):
        share_pct = chance.choice((100, 60, 50, 30, 10))
        key = shared.run(chance.choice(["quick", "a", "b", "slow"]), share_pct=share_pct, ingress=i % 2)
        shares[key] = share_pct
    shared.until_answered()
    assert_within_the_device(shared, shares)


@pytest.mark.parametrize("setup", params(s for s in SETUPS if s.kind == "live"), indirect=True)
def test_nor_do_they_kernel_by_kernel_where_classes_stop_each_other(shared: Observed) -> None:
    """By what the worker writes down of every kernel: begin and end of a batch that was stopped do not tell."""
    chance = random.Random(13)
    shares: dict[int, int] = {}
    for i in range(40):
        share_pct, stage = chance.choice((100, 100, 60, 50, 30)), chance.choice(["quick", "slow", "slow", "a"])
        options = {"priority": chance.randint(1, 4), "follows": chance.random() < 0.3, "ingress": i % 2}
        ingress, number = shared.run(stage, items=chance.randint(1, 3), share_pct=share_pct, **options)
        shares[task_of(ingress, number)] = share_pct
        if chance.random() < 0.3:
            shared.hear()
    shared.until_answered()
    last = shared.run("quick")
    shared.until_answered()
    records = [r for r in shared.world.kernels(task_of(*last)) if r.task in shares]  # type: ignore[attr-defined]
    assert {r.task for r in records} == set(shares)
    for record in records:
        together = [r for r in records if r.begin_ns <= record.begin_ns < r.end_ns]
        assert sum(shares[r.task] for r in together) <= 100, together


@pytest.mark.parametrize("setup", params(s for s in SETUPS if s.kind == "simulated"), indirect=True)
def test_what_fits_beside_each_other_runs_beside_each_other(worker: Observed) -> None:
    """Where nothing else keeps the clock: a real one may be busy with something else."""
    worker.answer("slow")
    first, second = worker.run("slow", share_pct=50), worker.run("slow", share_pct=50)
    worker.until_answered()
    assert worker.answers[first].begin_ns == worker.answers[second].begin_ns
