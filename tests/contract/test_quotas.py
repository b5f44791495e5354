"""The worker contract: clients with quotas get their parts of the time, and every batch is answered."""

from __future__ import annotations

import random

import pytest
from tests.contract.observed import Observed
from tests.contract.worlds import SETUPS, params

from dovetail.control import BatchFinished


@pytest.mark.parametrize("setup", params(s for s in SETUPS if s.kind == "simulated"), indirect=True)
def test_whoever_asks_for_more_is_done_first(worker: Observed) -> None:
    """Nine batches each, 75 % against 25 %. In virtual time: all of them are there before the first has ended."""
    # Names of their own: who was served before may be owed something, or owe it.
    much, little = f"much of {worker.ingress}", f"little of {worker.ingress}"
    asked = {much: 75, little: 25}
    keys = {
        client: [worker.run("slow", share_pct=100, quota_pct=pct, client=client) for _ in range(9)]
        for client, pct in asked.items()
    }
    worker.until_answered()
    end_quotas(worker, *asked)
    begins = {client: sorted(worker.answers[key].begin_ns for key in of) for client, of in keys.items()}
    assert sum(begin < begins[much][-1] for begin in begins[little]) in (2, 3), "three of the one for each other"


def end_quotas(worker: Observed, *clients: str) -> None:
    """The worker serves other tests, too: the last word of each client is that it asks for nothing."""
    for client in clients:
        worker.run("quick", client=client, quota_pct=100)
    worker.until_answered()


def test_every_batch_of_clients_with_quotas_is_answered(worker: Observed) -> None:
    chance = random.Random(3)
    asked = {"a": 60, "b": 30, "c": 10, "d": 100}
    keys = []
    for _ in range(16):
        client = chance.choice(list(asked))
        share_pct, stage = chance.choice((100, 50, 30)), chance.choice(["slow", "quick", "a"])
        options = {"priority": chance.randint(1, 2), "client": client, "quota_pct": asked[client]}
        keys.append(worker.run(stage, share_pct=share_pct, **options))
    worker.until_answered()
    end_quotas(worker, *asked)
    assert all(isinstance(worker.answers[key], BatchFinished) for key in keys)


def test_one_that_asks_for_little_and_is_alone_has_everything(worker: Observed) -> None:
    keys = [worker.run("slow", share_pct=100, quota_pct=5, client="little") for _ in range(4)]
    worker.until_answered()
    end_quotas(worker, "little")
    assert all(isinstance(worker.answers[key], BatchFinished) for key in keys)
