"""The index of rooms says what a look at every worker would say, whatever has happened before."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.place.own_workers import READ, SORT, Shop

from dovetail.place.fit import best_fit
from dovetail.state import NEVER_NS, Config
from dovetail.units import MS

SHARES = (10, 25, 40, 50, 75, 100)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([0, 4]))
def test_it_finds_the_tightest_worker_that_a_scan_would_find(seed: int, swaps: bool, cores: int) -> None:
    rng = random.Random(seed)
    shop = Shop(40 * MS)
    running = []
    coming: set[int] = set()  # workers that fetch the model for somebody who is there
    for step in range(80):
        shop.now_ns += MS
        match rng.randrange(6):
            case 0 if len(shop.cluster.workers) < 6:
                shop.join(step + 1, swaps=swaps, memory_bytes=1500 if swaps else 0, cores=cores)
            case 1 if shop.cluster.workers and rng.random() < 0.2:
                gone = rng.choice(list(shop.cluster.workers))
                for batch in [b for b in running if b.worker.id == gone]:
                    running.remove(batch)
                    shop.end(batch, done=False)
                shop.lose(gone)
                coming.discard(gone)
            case 2 if running:
                shop.end(running.pop(rng.randrange(len(running))), done=rng.random() < 0.8)
            case 3 if swaps and shop.cluster.workers:
                ident = rng.choice(list(shop.cluster.workers))
                stage, here = rng.choice([READ, SORT]), rng.random() < 0.6
                shop.load(ident, stage, here=here)
                coming -= {ident} if stage is READ and here else set()
            case _ if shop.cluster.workers:
                config = Config(1, rng.choice([1, 2]), rng.choice(SHARES))
                ident = rng.choice(list(shop.cluster.workers))
                # Sometimes where there is no room: it waits in line there.
                if shop.cluster.workers[ident].fits(config) or rng.random() < 0.2:
                    stage = rng.choice([READ, SORT])
                    coming |= {ident} if stage is READ and not shop.holds(ident, READ) else set()
                    running.append(shop.run(ident, stage, config, rng.randrange(1, 50) * MS))
        config = Config(1, rng.choice([1, 2]), rng.choice(SHARES))
        workers = shop.cluster.workers.values()
        coming &= {b.worker.id for b in running if b.queue.stage is READ}
        have = [w for w in workers if not swaps or "read" in w.resident]
        expected = best_fit(sorted(have, key=lambda w: w.id), config)
        found = shop.own._have["read"].tightest(config)
        assert (found and found.id) == (expected and expected.id)
        could = [w for w in workers if swaps and w not in have and w.id not in coming and w.fits(config)]
        assert {w.id for w in shop.own._could["read"].fitting(config, 99)} == {w.id for w in could}
        roomy = any(w.free_pct and w.free_cpus > 0 and not w.line for w in workers)
        assert shop.own.full(False) == (not roomy)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_among_few_workers_the_soonest_is_the_one_that_a_scan_would_find(seed: int) -> None:
    rng = random.Random(seed)
    shop = Shop(40 * MS)
    for ident in (1, 2, 3):
        shop.join(ident, swaps=False, preempts=True)
        for _ in range(rng.randrange(1, 4)):
            config = Config(1, 1, rng.choice(SHARES))
            shop.run(ident, READ, config, rng.randrange(1, 50) * MS, priority=rng.randrange(1, 4))
    config, priority = Config(1, 1, rng.choice(SHARES)), rng.randrange(1, 4)
    times = [w.room_at(config, priority, shop.now_ns) for w in shop.cluster.workers.values()]
    found = shop.own._have["read"].soonest(config, priority, shop.now_ns, 0)
    if found is None:
        assert min(times) > 10**15, "everybody has promised already what it has"
    else:
        assert found[1] == min(times) == found[0].room_at(config, priority, shop.now_ns)
    least = [w.room_at(Config(1, 1, 1), priority, shop.now_ns) for w in shop.cluster.workers.values()]
    lower = any(b.priority() > priority for b in shop.cluster.batches.values())
    assert shop.own.closed_to(READ, priority) == (min(least) == NEVER_NS and not lower), "nothing fits before an end"


def test_a_configuration_for_one_kind_of_device_finds_no_other() -> None:
    shop = Shop(40 * MS)
    for ident, kind in enumerate(["gpu", "fast", "gpu", "fast"], 1):
        shop.join(ident, swaps=False, kind=kind)
    group = shop.own._have["read"]

    def found(kind: str, share_pct: int = 50) -> list[int]:
        return [w.id for w in group.fitting(Config(1, 1, share_pct, kind=kind), 9)]

    assert found("") == [1, 2, 3, 4]
    assert found("fast") == [2, 4] and group.meant(Config(1, 1, 50, kind="fast")) == 2
    assert found("other") == [] and group.meant(Config(1, 1, 50)) == 4
    batch = shop.run(2, READ, Config(1, 1, 100, kind="fast"), 10 * MS)
    shop.run(4, READ, Config(1, 1, 100, kind="fast"), 30 * MS)
    assert found("fast") == [] and found("gpu") == [1, 3]
    soon = group.soonest(Config(1, 1, 50, kind="fast"), 1, shop.now_ns, 40 * MS)
    assert soon is not None and soon[0].id == 2, "the first of that kind to end, though others are free"
    shop.end(batch, done=True)
    shop.lose(2)
    assert found("fast") == [] and group.meant(Config(1, 1, 50, kind="fast")) == 1


def test_places_of_those_who_have_gone_are_given_anew_and_groups_keep_their_members() -> None:
    shop = Shop(40 * MS)
    for ident in range(1, 101):
        shop.join(ident, swaps=True, memory_bytes=1500)
        if ident % 2:
            shop.load(ident, READ, here=True)
    for ident in range(1, 96):
        shop.lose(ident)
    whole, half = Config(1, 1, 100), Config(1, 1, 50)
    have, could = shop.own._have["read"], shop.own._could["read"]
    assert len(have._rooms.workers) < 100, "places were given anew"
    assert (have.count, could.count) == (2, 3)
    assert {worker.id for worker in have.fitting(whole, 99)} == {97, 99}
    assert {worker.id for worker in could.fitting(whole, 99)} == {96, 98, 100}
    shop.run(97, READ, half, 10 * MS)
    assert {worker.id for worker in have.fitting(whole, 99)} == {99}
    shop.lose(99)
    assert have.count == 1 and have.fitting(whole, 99) == []


def promise_all(shop: Shop, ident: int, priority: int) -> None:
    """All that a worker has is taken, and promised to somebody in line."""
    shop.run(ident, READ, Config(1, 1, 100), 10 * MS, priority)
    shop.run(ident, READ, Config(1, 1, 100), 10 * MS, priority)


def test_where_nothing_can_be_stopped_what_is_promised_is_promised_to_all_classes() -> None:
    for preempts, expected in ((False, [True, True, True]), (True, [False, True, True])):
        shop = Shop(40 * MS)
        shop.join(1, swaps=False, preempts=preempts)
        group = shop.own._have["read"]
        assert not group.promised(2), "it is idle"
        promise_all(shop, 1, priority=2)
        assert [group.promised(priority) for priority in (1, 2, 3)] == expected


def test_before_the_next_end_somebody_may_have_room_only_where_classes_are_let_in() -> None:
    for preempts in (False, True):
        shop = Shop(40 * MS)
        for ident in (1, 2):
            shop.join(ident, swaps=False, preempts=preempts)
            shop.run(ident, READ, Config(1, 1, 100), 40 * ident * MS)
        next_ns = shop.own._have["read"].next_end_ns()
        assert next_ns == 0 if preempts else 0 < next_ns <= 40 * MS


def test_who_runs_a_lower_class_is_found_though_many_others_end_sooner() -> None:
    whole = Config(1, 1, 100)
    for preempts in (False, True):
        shop = Shop(40 * MS)
        for ident in range(1, 9):
            shop.join(ident, swaps=False, preempts=preempts)
            shop.run(ident, READ, whole, ident * MS, priority=1)
        shop.join(9, swaps=False, preempts=preempts)
        shop.run(9, READ, whole, 900 * MS, priority=3)
        found = shop.own._have["read"].soonest(whole, 2, shop.now_ns, 0)
        assert found is not None
        assert (found[0].id, found[1]) == ((9, shop.now_ns) if preempts else (1, 1 * MS))


def test_the_next_end_of_some_is_not_that_of_others() -> None:
    shop = Shop(40 * MS)
    for ident, stage, ends_ns in ((1, SORT, 8 * MS), (2, READ, 80 * MS)):
        shop.join(ident, swaps=True, memory_bytes=1500)
        shop.load(ident, stage)
        shop.run(ident, stage, Config(1, 1, 100), ends_ns)
    assert shop.own._have["sort"].next_end_ns() <= 8 * MS < 40 * MS < shop.own._have["read"].next_end_ns() <= 80 * MS


def test_of_those_that_end_at_the_same_time_the_one_that_joined_first_is_taken() -> None:
    shop = Shop(40 * MS)
    for ident in (1, 2, 3):
        shop.join(ident, swaps=False)
        shop.run(ident, READ, Config(1, 1, 100), 10 * MS)
    found = shop.own._have["read"].soonest(Config(1, 1, 50), 1, shop.now_ns, 0)
    assert found is not None and found[0].id == 1
