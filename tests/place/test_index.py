"""The index: exactly what a look at every worker would find, and bounded memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dovetail.place.index import Candidate, Group, Need, WorkerIndex, start_at

MODELS = {"a": 10, "b": 20, "c": 35, "d": 35}
State = tuple[int, frozenset[str], int]
models = st.sampled_from(sorted(MODELS))
states = st.tuples(st.integers(0, 60), st.frozensets(models), st.integers(0, 60))


def scanned(index: WorkerIndex, need: Need, near: dict[int, int], skip: set[int]) -> Candidate | None:
    """The rule of the index's file, worker by worker."""
    found = []
    for worker, known in index.workers.items():
        if worker in skip:
            continue
        start = max(known.free_ns, need.now_ns, near.get(worker, need.arrive_ns))
        fetch = toll = 0
        if need.weights and need.weights not in known.resident:
            fits = need.weights_bytes <= known.free_bytes
            fetch, toll = (need.fits_ns, 0) if fits else (need.evicts_ns, need.toll_ns)
        start = start + fetch if need.fetch_from_ns < 0 else max(start, need.fetch_from_ns + fetch)
        found.append(Candidate(start + toll, fetch, worker, start))
    return min(found, default=None)


@st.composite
def needs(draw: st.DrawFn, now_ns: int) -> tuple[Need, dict[int, int], set[int]]:
    arrive = now_ns + draw(st.integers(0, 30))
    weights = draw(st.sampled_from(["", *sorted(MODELS)]))
    fits = draw(st.integers(1, 20)) if weights else 0
    need = Need(
        now_ns,
        arrive,
        weights,
        MODELS.get(weights, 0),
        fits,
        fits + draw(st.integers(0, 20)) if weights else 0,
        draw(st.integers(0, 15)),
        now_ns if draw(st.booleans()) else -1,
    )
    near = draw(st.dictionaries(st.integers(1, 12), st.integers(now_ns, arrive), max_size=3))
    return need, near, draw(st.sets(st.integers(1, 12), max_size=4))


class Against(RuleBasedStateMachine):
    """Random updates, joins, losses and questions; every answer is compared with the scan."""

    @initialize(first=st.dictionaries(st.integers(1, 12), states, max_size=8))
    def begin(self, first: dict[int, State]) -> None:
        self.index = WorkerIndex()
        self.now_ns = 1
        for worker, state in first.items():
            self.index.put(worker, *state)

    @rule(worker=st.integers(1, 12), state=states)
    def put(self, worker: int, state: State) -> None:
        free, resident, room = state
        self.index.put(worker, free and self.now_ns + free - 10, resident, room)

    @rule(worker=st.integers(1, 12))
    def drop(self, worker: int) -> None:
        self.index.drop(worker)

    @rule(sizes=st.lists(st.sampled_from(sorted(MODELS.values())), min_size=1))
    def know(self, sizes: list[int]) -> None:
        self.index.know(sizes)

    @rule(by_ns=st.integers(0, 25))
    def time_passes(self, by_ns: int) -> None:
        self.now_ns += by_ns

    @precondition(lambda self: self.index.workers)
    @rule(data=st.data(), spread=st.integers(0, 1000))
    def ask(self, data: st.DataObject, spread: int) -> None:
        need, near, skip = data.draw(needs(self.now_ns))
        best = self.index.best(need, near, spread, skip)
        expected = scanned(self.index, need, near, skip)
        if expected is None or best is None:
            assert best is expected
            return
        assert (best.score_ns, best.fetch_ns) == (expected.score_ns, expected.fetch_ns)
        assert best.worker not in skip
        # What it says of the worker is true of the worker.
        true = start_at(self.index.workers[best.worker], best.worker, need, near.get(best.worker, need.arrive_ns))
        assert (true.score_ns, true.fetch_ns, true.start_ns) == (best.score_ns, best.fetch_ns, best.start_ns)

    @rule(
        weights=st.sampled_from(["", *sorted(MODELS)]), spread=st.integers(0, 1000), skip=st.sets(st.integers(1, 12))
    )
    def look_for_somebody(self, weights: str, spread: int, skip: set[int]) -> None:
        found = self.index.someone(weights, spread, skip)
        if found is not None:
            assert found not in skip and (not weights or weights in self.index.workers[found].resident)
        elif not weights:
            assert self.index.workers.keys() <= skip

    @rule(weights=models, spread=st.integers(0, 100))
    def look_for_room(self, weights: str, spread: int) -> None:
        worker = self.index.idle_with_room(MODELS[weights], self.now_ns, spread, weights)
        if worker is not None:
            known = self.index.workers[worker]
            assert known.free_ns <= self.now_ns and known.free_bytes >= MODELS[weights]
            assert weights not in known.resident

    @invariant()
    def groups_hold_who_they_should(self) -> None:
        if not hasattr(self, "index"):
            return
        for number, group in enumerate(self.index.buckets):
            check(group, {w for w, k in self.index.workers.items() if k.bucket == number})
        for weights, group in self.index.holders.items():
            check(group, {w for w, k in self.index.workers.items() if weights in k.resident})


def check(group: Group, members: set[int]) -> None:
    assert {*group.busy, *group.idle} == members and len(group) == len(members)
    assert {w: i for i, w in enumerate(group.idle)} == group.place
    assert {(f, w) for w, f in group.busy.items()} <= set(group.heap)


TestAgainstTheScan = Against.TestCase
TestAgainstTheScan.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_nobody_is_found_among_nobody() -> None:
    assert WorkerIndex().best(Need(5, 5, "a", 10, 1, 2)) is None


def test_heaps_do_not_grow_with_the_number_of_updates() -> None:
    index = WorkerIndex()
    index.know(MODELS.values())
    for turn in range(5_000):
        index.put(1 + turn % 10, 1_000_000 - 7 * turn, {"a", "b"}, 30 + turn % 3)
    groups = [*index.buckets, *index.holders.values()]
    assert sum(len(g.heap) for g in groups) <= sum(2 * len(g) + 33 for g in groups)


def test_all_who_are_free_get_their_turn_and_nobody_else() -> None:
    index = WorkerIndex()
    for worker in range(1, 11):
        index.put(worker, 0 if worker <= 6 else 100, {"a"}, 0)
    need = Need(50, 50, "a", 10, 5, 10)
    found = [index.best(need, spread=n) for n in range(60)]
    assert {c.worker for c in found if c is not None} == set(range(1, 7))


def test_a_size_that_was_never_declared_is_learned_when_it_is_asked_for() -> None:
    index = WorkerIndex()
    index.put(1, 0, (), 30)
    index.put(2, 0, (), 20)
    assert index.best(Need(0, 0, "x", 25, 5, 10)) == Candidate(5, 5, 1, 5)


@given(st.integers(0, 50), st.integers(0, 50))
def test_candidates_sort_by_start_then_by_what_must_be_fetched(a: int, b: int) -> None:
    assert Candidate(a, 0, 9, a) < Candidate(a, 1, 1, a) and Candidate(a, b, 1, a) < Candidate(a + 1, 0, 1, a)


def test_a_candidate_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Candidate(1, 0, 1, 1).worker = 3  # type: ignore[misc]


def test_who_is_free_and_who_is_busy_both_belong_to_their_group() -> None:
    group = Group()
    group.put(1, 50)
    group.put(2, 0)
    assert 1 in group and 2 in group and 3 not in group and len(group) == 2
    group.drop(1)
    assert 1 not in group
