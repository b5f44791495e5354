"""The worker contract: everything at once. Memory, shares, kernels, classes, windows, and one or two ingresses."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.contract.observed import Key, Observed

from dovetail.control import BatchFailed, BatchFinished
from dovetail.units import MS

#: Batches of all ingresses.
BATCHES = 40


def play(worker: Observed, seed: int, ingresses: tuple[int, ...], classes: int, shares: tuple[int, ...]) -> None:
    """A worker is asked for a lot; the laws of `Observed` hold all the time, and every answer is as it has to be."""
    chance = random.Random(seed)
    kinds: dict[Key, str] = {}
    for _ in range(BATCHES):
        ingress = chance.choice(ingresses)
        kind = chance.choice(["plain"] * 8 + ["late", "later", "unknown"])
        options: dict[str, Any] = {
            "share_pct": chance.choice(shares),
            "priority": chance.randint(1, classes),
            "items": chance.randint(1, 4),
            "order": chance.randrange(2),
        }
        if kind == "late":
            options["latest_ns"] = worker.world.now_ns() - 1
        elif kind == "later":
            options["earliest_ns"] = worker.world.now_ns() + chance.randint(1, 20) * MS
        stages = ("quick", "quick", "slow", "a", "b", "c", "again")
        stage = "unknown" if kind == "unknown" else chance.choice(stages)
        kinds[worker.run(stage, ingress=ingress, **options)] = kind
        if chance.random() < 0.1:
            worker.load(chance.choice(["a", "b", "c"]), keep=False, ingress=ingress)
        if chance.random() < 0.1:
            worker.evict(chance.choice(["a", "b", "c", "slow"]), ingress)
    worker.until_answered()
    for key, kind in kinds.items():
        answer = worker.answers[key]
        if kind in ("plain", "later"):
            assert isinstance(answer, BatchFinished), answer
        else:
            assert isinstance(answer, BatchFailed)
            assert answer.reason == {"late": "too_late", "unknown": "not_loaded"}[kind]


@pytest.mark.parametrize("shares", [(100,), (100, 50, 30)], ids=["whole device", "shares"])
@pytest.mark.parametrize("classes", [1, 3], ids=["one class", "three classes"])
def test_every_batch_of_the_only_ingress_that_asks_is_answered_as_it_has_to_be(
    worker: Observed, classes: int, shares: tuple[int, ...]
) -> None:
    play(worker, 7, (worker.ingress,), classes, shares)


@pytest.mark.parametrize("shares", [(100,), (100, 50, 30)], ids=["whole device", "shares"])
@pytest.mark.parametrize("classes", [1, 3], ids=["one class", "three classes"])
def test_every_batch_of_every_ingress_is_answered_once_and_to_whom_it_belongs(
    shared: Observed, classes: int, shares: tuple[int, ...]
) -> None:
    play(shared, 11, (0, 1), classes, shares)
    assert {ingress for ingress, _ in shared.answers} == {0, 1}
