"""What workers say beside their results: that a batch was the first of its kind, and what memory they have."""

import pytest

from dovetail.control import (
    BatchFinished,
    Controller,
    MemoryChanged,
    ModelLoaded,
    Policy,
    RequestArrived,
    RunBatch,
    WorkerJoined,
)
from dovetail.control.validate import validate
from dovetail.place import OwnWorkers
from dovetail.plan import Space
from dovetail.predict import Estimator
from dovetail.profile.table import ProfileTable
from dovetail.scale import LoadEverything
from dovetail.schedule import Dovetail, PlannerSettings
from dovetail.state import Config, WorkerSpec
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec, chain

STAGES = [StageSpec(name, "model", (1,), model=name, weights_bytes=1000) for name in ("a", "b")]


def served(memory_bytes: int = 0) -> tuple[Controller, Estimator]:
    """One worker that nothing is known of."""
    predictor = Estimator(ProfileTable())
    planner = Dovetail(predictor, OwnWorkers(predictor), PlannerSettings(space=Space(shares_pct=(100,))))
    graphs = [chain(stage.name, SECOND, [stage]) for stage in STAGES]
    built = Controller(graphs, Policy(planner, LoadEverything(), predictor))
    built.step(WorkerJoined(0, 0, 1, WorkerSpec("gpu", "gpu", ("model",), memory_bytes=memory_bytes)))
    return built, predictor


def run(built: Controller, number: int, at_ns: int, took_ns: int, *, first: bool) -> RunBatch:
    """A request of the first workflow alone."""
    (batch,) = [a for a in built.step(RequestArrived(at_ns, 0, number, 0)) if isinstance(a, RunBatch)]
    end_ns = at_ns + took_ns
    built.step(BatchFinished(end_ns, batch.cause, batch.batch, at_ns, end_ns, first=first))
    validate(built)
    return batch


@pytest.mark.parametrize(("first", "expected_ms"), [(True, 10), (False, 205)])
def test_the_first_batch_of_a_stage_in_a_worker_does_not_count_once_there_is_another(first, expected_ms):
    built, predictor = served()
    for stage in STAGES:
        built.step(ModelLoaded(0, 0, 1, stage.name, 1000))
    begun = run(built, 1, 0, 400 * MS, first=first)
    config = Config(1, begun.cpus, begun.share_pct)
    assert predictor.run(STAGES[0], "gpu", 1, config).mean_ns == 400 * MS, "better than a guess"
    run(built, 2, SECOND, 10 * MS, first=False)
    assert predictor.run(STAGES[0], "gpu", 1, config).mean_ns == expected_ms * MS


def test_a_worker_that_has_more_memory_now_fetches_without_an_eviction():
    built, _ = served(memory_bytes=1500)
    worker = built.workers[1]
    own = built.policy.scheduler._where
    assert worker.swaps
    built.step(ModelLoaded(0, 0, 1, "a", 1000))
    assert own._free_bytes(worker) == 500
    built.step(MemoryChanged(1, 0, 1, 2500))
    assert own._free_bytes(worker) == 1500
    built.step(MemoryChanged(2, 0, 7, 2500))  # a worker that is gone
    validate(built)
