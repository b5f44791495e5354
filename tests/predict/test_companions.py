"""Who ran beside whom."""

from __future__ import annotations

from dovetail.predict.companions import MOST, Companions, running_on
from dovetail.predict.interference import Beside, Load, fetch
from dovetail.state import Worker, WorkerSpec

A, B, C = Load("a"), Load("b"), Load("c")


def test_a_batch_is_told_of_when_all_who_were_there_at_its_end_are_through() -> None:
    found: Companions[str] = Companions()
    assert found.ended(1, "a", A, 100, 200, {2, 3}) == []
    assert found.ended(1, "b", B, 150, 260, {3}) == []
    told = found.ended(1, "c", C, 190, 300, ())
    assert told == [
        ("a", [Beside(B, 50, 160), Beside(C, 90, 200)]),
        ("b", [Beside(A, -50, 50), Beside(C, 40, 150)]),
        ("c", [Beside(A, -90, 10), Beside(B, -40, 70)]),
    ]


def test_one_after_the_other_are_no_neighbours_and_workers_do_not_meet() -> None:
    found: Companions[str] = Companions()
    assert found.ended(1, "a", A, 0, 10, ()) == [("a", [])]
    assert found.ended(1, "b", B, 10, 20, ()) == [("b", [])]
    assert found.ended(2, "c", C, 5, 15, ()) == [("c", [])]


def test_who_is_gone_is_not_waited_for() -> None:
    found: Companions[str] = Companions()
    assert found.ended(1, "a", A, 0, 10, {7}) == []
    # 7 has failed; 8 began later and still runs, but ran when b ended, not when a did.
    assert found.ended(1, "b", B, 5, 20, {8}) == [("a", [Beside(B, 5, 20)])]
    found.lost(1)
    assert found.ended(1, "c", C, 15, 30, ()) == [("c", [])]


def test_what_is_kept_is_bounded() -> None:
    found: Companions[int] = Companions()
    told = 0
    for number in range(1000):
        told += len(found.ended(1, number, A, number, number + 5, {-1}))
    assert told == 1000 - MOST
    assert len(found._workers[1].past) <= 2 * MOST


def test_a_model_that_was_fetched_meanwhile_is_a_neighbour_and_nothing_is_told_of_it() -> None:
    found: Companions[str] = Companions()
    model = fetch("m", 100)
    assert found.ended(1, "a", A, 100, 200, {-1}) == [], "a model is on its way, and who knows since when"
    assert found.fetched(1, model, 150, 250, {2}) == [("a", [Beside(model, 50, 150)])]
    assert found.ended(1, "b", B, 240, 300, ()) == [("b", [Beside(model, -90, 10)])]
    assert found.fetched(1, model, 300, 400, ()) == [], "nobody was there"
    assert found.ended(1, "c", C, 350, 450, ()) == [("c", [])]


def test_who_runs_and_whether_models_are_on_their_way() -> None:
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",)))
    assert running_on(worker, 10) == []
    worker.loading["m"] = 1
    assert len(running_on(worker, 10)) == 1
