"""Fixed replicas: every model has a place, nothing is overfull, and what is busy has more of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.rivals.support import curve, market

from dovetail.lab.rivals.replicas import Replicas, place_replicas
from dovetail.state import Cluster, Worker, WorkerSpec
from dovetail.units import MS
from dovetail.workflow.graph import StageSpec, chain


def test_every_model_has_one_before_any_has_two() -> None:
    # The largest goes first: had the small ones been doubled before, it would have found no room.
    placed = place_replicas({"small": 1, "large": 6}, {"small": 9.0, "large": 1.0}, {1: 7, 2: 7})
    assert placed == {"small": (2, 1), "large": (1, 2)}


def test_the_busiest_model_gets_the_room_that_is_left() -> None:
    placed = place_replicas({"a": 4, "b": 4}, {"a": 1.0, "b": 3.0}, {1: 4, 2: 4, 3: 4})
    assert {model: len(workers) for model, workers in placed.items()} == {"a": 1, "b": 2}


def test_a_replica_goes_to_the_worker_with_the_least_work() -> None:
    placed = place_replicas({"a": 4, "b": 3, "c": 3}, {"a": 5.0, "b": 1.0, "c": 1.0}, {1: 10, 2: 6})
    assert placed["a"][0] == 1, "the worker with most room, while nobody works"
    assert placed["b"][0] == placed["c"][0] == 2, "two little ones do less than the large one"


def test_a_model_that_fits_nowhere_is_left_to_all() -> None:
    assert place_replicas({"a": 9}, {"a": 1.0}, {1: 4, 2: 4}) == {"a": (1, 2)}


@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 9)), min_size=1, max_size=6),
    st.lists(st.integers(5, 20), min_size=1, max_size=5),
)
def test_no_worker_is_overfull_and_none_has_a_model_twice(models: list[tuple[int, float]], rooms: list[int]) -> None:
    sizes = {f"m{i}": size for i, (size, _) in enumerate(models)}
    work = {f"m{i}": busy for i, (_, busy) in enumerate(models)}
    placed = place_replicas(sizes, work, dict(enumerate(rooms)))
    assert all(workers and len(set(workers)) == len(workers) for workers in placed.values())
    homeless = {m for m, workers in placed.items() if sum(sizes[m] <= rooms[w] for w in workers) < len(workers)}
    for worker, room in enumerate(rooms):
        held = sum(sizes[m] for m, workers in placed.items() if worker in workers and m not in homeless)
        # A model for which there was no room any more is with everybody, and swapped.
        everywhere = sum(sizes[m] for m, ws in placed.items() if len(ws) == len(rooms) and m not in homeless)
        assert held - everywhere <= room


def counts(demand: dict[str, float]) -> dict[str, int]:
    """Replicas of two equal models, each of one workflow, on three workers that hold one model each."""
    specs = {name: StageSpec(name, "model", (1,), weights_bytes=4) for name in ("a", "b")}
    graphs = {f"w{name}": chain(f"w{name}", 100 * MS, [spec]) for name, spec in specs.items()}
    cluster = Cluster({}, list(specs))
    for ident in (1, 2, 3):
        cluster.workers[ident] = Worker(ident, WorkerSpec("gpu", "gpu", ("model",), memory_bytes=4))
        for name in specs:
            cluster.hold(name, cluster.workers[ident])
    replicas = Replicas(market({"a": curve({1: 10}), "b": curve({1: 10})}), 50, demand)
    return {name: len(replicas.of(spec, cluster, graphs)) for name, spec in specs.items()}


def test_how_often_a_workflow_is_called_counts() -> None:
    assert counts({"wa": 5.0, "wb": 1.0}) == {"a": 2, "b": 1}
    assert counts({"wa": 1.0, "wb": 5.0}) == {"a": 1, "b": 2}
