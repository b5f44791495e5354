"""Arguments and results of batches: each value decoded once, results stored whole or not at all, with patience."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from dovetail.errors import DovetailError
from dovetail.live.links.wire import Argument, Run
from dovetail.live.tensors.arena import Arena, ArenaFull
from dovetail.live.tensors.codec import UnsupportedValue, decode, encode
from dovetail.live.worker.executor import Values, counts
from dovetail.state import RunBatch

MIB = 1 << 20


@pytest.fixture
def arena():
    with Arena.create(1, 4 * MIB) as made:
        yield made


@pytest.fixture
def values(arena):
    return Values({1: arena}, arena)


def batch(*columns):
    decided = RunBatch(1, 1, 1, "stage", tuple((i, 0, 0) for i in range(len(columns[0]))), 1, 100, 0, 0, 0)
    return Run(decided, [list(c) for c in columns], [()] * len(columns[0]), [])


def test_arguments_are_values_parts_elements_and_gathered_lists(arena, values):
    pair = encode((np.arange(3), [10, 20, 30]), arena)
    one, two = encode(1, arena), encode(2, arena)
    message = batch(
        [Argument((pair,), (1,)), Argument((pair,), (1,), element=2), Argument((pair,), (1, 0))],
        [Argument((one, two), gather=True), Argument((), ()), Argument((), (), gather=True)],
    )
    assert values.columns(message) == [[[10, 20, 30], 30, 10], [[1, 2], None, []]]


def test_a_value_that_many_items_use_is_decoded_once(arena, values):
    shared = encode([np.zeros(5), np.ones(5)], arena)
    first, second = values.columns(batch([Argument((shared,)), Argument((shared,))]))[0]
    assert first is second


def test_results_are_stored_whole_or_not_at_all(arena, values):
    assert [decode(r, {1: arena}) for r in values.store([1, "two", [3.0]])] == [1, "two", [3.0]]
    before = arena.used_bytes
    with pytest.raises(UnsupportedValue):
        values.store([1, 2, object()])
    with pytest.raises(ArenaFull):
        values.store([np.zeros(MIB, np.uint8)] * 4)
    assert arena.used_bytes == before


def test_results_wait_until_there_is_room(arena, values):
    held = values.store([np.zeros(3 * MIB, np.uint8)])
    stored = []
    lane = threading.Thread(target=lambda: stored.extend(values.store([np.ones(2 * MIB, np.uint8)], wait_s=60)))
    lane.start()
    values.free([held[0].offset])
    lane.join(60)
    assert decode(stored[0], {1: arena})[0] == 1


def test_what_can_never_fit_does_not_wait(values):
    values.store([1])
    with pytest.raises(DovetailError, match=r"a batch of 2 take 6\.3 MB.*larger --arena"):
        values.store([np.zeros(3 * MIB, np.uint8), {"deep": [np.zeros(3 * MIB, np.uint8)]}], wait_s=3600)


def test_counts_are_lengths_and_truths_of_the_outputs_that_are_asked_for():
    assert counts([[1, 2], True, ([1], None)], [(-1,), (-1,), (0, 1)]) == (2, 1, 1, 0)
    assert counts([1, 2], [(), ()]) == ()
