"""Of workers with room the tightest is taken, unless another has better company."""

from __future__ import annotations

from tests.predict.together import estimator

from dovetail.place import OwnWorkers
from dovetail.predict.progress import look_again
from dovetail.state import Batch, Cluster, Config, Item, Request, Worker, WorkerSpec, compile_graphs
from dovetail.units import MS, SECOND
from dovetail.workflow.graph import StageSpec, chain

A, B, C = (StageSpec(name, name, (1,), model=name) for name in "abc")
HALF = Config(1, 1, 50)


def chosen(pairs: dict[tuple[str, str], float], *runs: tuple[StageSpec, int] | None) -> int:
    """Where `a` goes, with half of a device, if these run on the workers with these shares."""
    graphs, queues = compile_graphs([chain("flow", SECOND, [A, B, C])], lambda _graph, node: node.stage)
    predictor = estimator(pairs, "a", "b", "c")
    own, cluster = OwnWorkers(predictor), Cluster(queues, ["a", "b", "c"])
    own.bind(cluster)
    for ident, run in enumerate(runs, 1):
        worker = cluster.workers[ident] = Worker(ident, WorkerSpec(f"gpu{ident}", "gpu", ("model",)))
        own.joined(worker)
        for stage in (A, B, C):
            cluster.hold(stage.name, worker)
            own.holds(worker, stage.weights, True, 0)
        if run is not None:
            item = Item(Request(ident, graphs[0], 1, 0, SECOND, 0), 0, 0, 0)
            batch = Batch(ident, queues[run[0].name], worker, Config(1, 1, run[1]), [item], 0, 10 * MS)
            worker.enter(batch)
            look_again(predictor, worker, 0)
            own.started(batch, 0)
    spot = own.ready(A, HALF, 0)
    assert spot is not None
    return spot.worker.id


def test_where_nobody_hurts_the_tightest_is_taken() -> None:
    assert chosen({}, None, (B, 40), (C, 50)) == 3
    assert chosen({("a", "c"): 1.01}, None, (B, 40), (C, 50)) == 3, "a per cent makes no difference"


def test_a_pair_that_hurts_is_kept_apart_if_another_has_room() -> None:
    assert chosen({("a", "c"): 1.4}, None, (B, 40), (C, 50)) == 2
    assert chosen({("c", "a"): 1.4}, None, (B, 40), (C, 50)) == 2, "what the others lose counts as well"
    assert chosen({("a", "c"): 1.4, ("a", "b"): 1.4}, None, (B, 40), (C, 50)) == 1
    assert chosen({("a", "c"): 1.4, ("a", "b"): 1.2}, (B, 40), (C, 50)) == 1


def test_where_there_is_no_other_it_begins_all_the_same() -> None:
    assert chosen({("a", "c"): 1.4}, (C, 50)) == 1
