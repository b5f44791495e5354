"""The executor of a device, in the process of the test: what it tells the machine, and whom it answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tests import onnx_models
from tests.live.in_process import PATIENCE_SECONDS, InProcess

from dovetail.device import TokenAccount
from dovetail.live.links.wire import Done, Loaded, Loading, Standing
from dovetail.live.tensors.arena import Arena
from dovetail.live.worker.models import Models
from dovetail.profile.kernels import Cut
from dovetail.units import MS

pytestmark = pytest.mark.cpu


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena.create(1, 1 << 20) as made:
        yield made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return onnx_models.slow(tmp_path / "long.onnx", products=4, side=64)


def cut_of(worker: InProcess, *ends: int) -> Cut:
    """The model in kernels that end after these of its segments."""
    kernels = ((0, ((1, 3),), ends),) if ends else ()
    return Cut(worker.stage.model, ((1, 3),), 1, ((1, 2),), kernels)


def test_the_kernels_of_a_batch_are_known_before_it_begins_once_one_like_it_has_run(path: Path, arena: Arena) -> None:
    worker = InProcess(path, arena, load=False)
    worker = InProcess(path, arena, cuts=[cut_of(worker, 1, 2, 3)])
    machine = worker.executor._machine
    work = worker.take(1)
    first = machine.task(1)
    assert work is not None and first is not None and first.kernels == 1, "nothing is known yet"
    work()
    worker.wait(Done)
    work = worker.take(2)
    second = machine.task(2)
    assert work is not None and second is not None
    assert second.kernels == 3 and second.kernel == 0
    assert second.sequence in worker.executor._predictor.kernels
    work()
    worker.wait(Done)
    assert worker.executor._predictor.kernels[second.sequence].seen == 2


def test_what_was_expected_of_a_batch_is_put_right_when_it_begins(
    path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = InProcess(path, arena, load=False)
    worker = InProcess(path, arena, cuts=[cut_of(worker, 1, 2, 3)])
    monkeypatch.setattr(Models, "expected", lambda self, message: ("another", ("x", "y")))
    work = worker.take(1)
    task = worker.executor._machine.task(1)
    assert work is not None and task is not None and task.kernels == 2
    work()
    worker.wait(Done)
    assert task.kernels == 3 and task.sequence.startswith("long[")
    assert worker.executor._predictor.kernels["another"].seen == 0


def test_where_all_are_of_one_class_nobody_is_told_of_whole_batches(path: Path, arena: Arena) -> None:
    worker = InProcess(path, arena, kernels="auto")
    worker.run(2)
    assert not worker.executor._predictor.kernels
    work = worker.take(7, priority=2)
    assert work is not None
    work()
    worker.wait(Done)
    (stats,) = worker.executor._predictor.kernels.values()
    assert stats.seen == 1 and len(stats.kernels) == 1


def test_of_the_highest_class_nobody_is_told_of_whole_batches(path: Path, arena: Arena) -> None:
    """It costs them a step of the machine each, and nobody ever asks."""
    worker = InProcess(path, arena, kernels="auto", lowest={"again": 2})
    worker.run(2)
    work = worker.take(7)
    assert work is not None and worker.executor._machine._alone is not None
    work()
    worker.wait(Done)
    assert not worker.executor._predictor.kernels


@pytest.mark.parametrize("mode", ["conserving", "strict"])
def test_quotas_are_kept_as_the_worker_is_told(path: Path, arena: Arena, mode: str) -> None:
    account = InProcess(path, arena, load=False, quotas=mode).executor._machine.dispatch.account
    assert isinstance(account, TokenAccount) and account.settings.mode == mode


def test_a_client_that_moves_owes_at_its_new_worker_what_it_used_too_much_at_the_old_one(
    path: Path, arena: Arena
) -> None:
    """It is told when the last batch has ended, so that nothing of its use is left out."""
    old, new = (InProcess(path, arena, quotas="strict", kernels="never") for _ in range(2))
    work = old.take(1, quota_pct=1)
    assert work is not None
    old.executor.told(Standing("long", 2), 0, time.monotonic_ns())
    assert not [m for m in old.answers if isinstance(m, Standing)], "a batch of it is here"
    work()
    standing = old.wait(Standing)
    assert (standing.client, standing.to, standing.request_pct, standing.limit_pct) == ("long", 2, 1, 1)
    assert standing.saved_ns < MS, "one per cent of a window, less what the batch took"
    new.executor.told(standing, 0, time.monotonic_ns())
    account = new.executor._machine.dispatch.account
    assert isinstance(account, TokenAccount) and account.active
    assert account.standing("long", 0).saved_ns == standing.saved_ns
    assert account.may_start("long", 100, 0) == (standing.saved_ns >= MS // 2), "it has to repay that first"


def test_an_order_that_comes_while_the_model_is_loaded_for_a_batch_is_answered_and_so_is_the_batch_s_load(
    path: Path, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was told that a load begins has a limit of time for it, so that its end must be told by that name."""
    go_on = Event()
    load = Models.load

    def held(self: Models, weights: str) -> Any:
        assert go_on.wait(PATIENCE_SECONDS)
        return load(self, weights)

    monkeypatch.setattr(Models, "load", held)
    worker = InProcess(path, arena, load=False)
    assert worker.take(1, "again") is None
    assert worker.wait(Loading).stage == "again"
    worker.load("long", cause=7)
    go_on.set()
    ended = [worker.wait(Loaded) for _ in range(2)]
    assert {(m.stage, m.cause) for m in ended} == {("again", 1), ("long", 7)}
    assert all(m.load_ns > 0 for m in ended)
