"""Packing: the authors' examples, every order of arrival, and the laws of what is placed."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.scale.packing import Packing, Place, Room, Slice, best_area_fit, lower_bound, place_all

#: FaST-GShare's example (Model_Share.ipynb of YukioZzz/FaST): quota in thousandths by share in per cent, in order.
EXAMPLE = [(400, 12), (400, 24), (600, 12), (200, 12), (400, 24), (600, 12), (400, 12)]
PLACED = [(0, 0), (400, 0), (0, 24), (0, 12), (600, 24), (0, 36), (0, 48)]
#: The paper's mix: four ResNet, two RNNT, two BERT; 98.4 % of one GPU.
MIX = [(400, 12)] * 4 + [(400, 24)] * 2 + [(600, 50)] * 2


def test_the_authors_example_is_placed_as_they_place_it() -> None:
    room = Room()
    places = [room.insert(Slice(*size)) for size in EXAMPLE]
    assert [(p.x, p.y) for p in places if p is not None] == PLACED
    assert set(room.free) == {(200, 12, 200, 12), (800, 0, 200, 24), (0, 60, 1000, 40), (400, 48, 600, 52)}
    assert room.insert(Slice(400, 48)) == Place(400, 48, 400, 48)
    assert set(room.free) == {
        (200, 12, 200, 12), (800, 0, 200, 24), (0, 96, 1000, 4), (0, 60, 400, 40), (800, 48, 200, 52),
    }  # fmt: skip


def test_the_first_placement_leaves_two_maximal_rectangles() -> None:
    room = Room()
    room.insert(Slice(300, 40))
    assert set(room.free) == {(0, 40, 1000, 60), (300, 0, 700, 100)}


def orders() -> list[tuple[tuple[int, int], ...]]:
    return sorted(set(permutations(MIX)))


def test_the_mix_of_the_paper_fits_one_device_in_every_order_of_arrival() -> None:
    distinct = orders()
    assert len(distinct) == 420
    fit = 0
    for order in distinct:
        packing = Packing()
        for number, size in enumerate(order):
            packing.add(str(number), Slice(*size))
        packing.validate()
        fit += len(packing.devices) == 1
    assert fit == 420


def test_by_best_area_fit_alone_it_does_so_in_138_of_420() -> None:
    assert sum(best_area_fit(Slice(*size) for size in order) == 1 for order in orders()) == 138


sizes = st.tuples(st.integers(1, 10).map(lambda n: n * 100), st.sampled_from([6, 12, 24, 50, 60, 80, 100]))


@settings(max_examples=150, deadline=None)
@given(st.lists(sizes, min_size=1, max_size=14), st.randoms(use_true_random=False), st.booleans())
def test_whatever_comes_goes_and_grows_nothing_overlaps_and_nothing_is_lost(given, chance, repack) -> None:  # type: ignore[no-untyped-def]
    packing, there = Packing(repack), {}
    for number, size in enumerate(given):
        name = str(number)
        there[name] = Slice(*size)
        packing.add(name, there[name])
        packing.validate()
        if there and chance.random() < 0.3:
            gone = chance.choice(sorted(there))
            packing.remove(gone)
            del there[gone]
            packing.validate()
        if there and chance.random() < 0.3:
            other = chance.choice(sorted(there))
            size = Slice(chance.randint(1, 10) * 100, chance.choice([6, 24, 60]))
            if packing.resize(other, size, most=len(packing.devices)) is not None:
                there[other] = size
            packing.validate()
        held = {name: Slice(p.width, p.height) for places in packing.devices for name, p in places.items()}
        assert held == there
        assert len(packing.devices) >= lower_bound(list(there.values()))


@settings(max_examples=100, deadline=None)
@given(st.lists(sizes, min_size=1, max_size=12))
def test_no_more_devices_than_without_placing_anew_for_one(given: list[tuple[int, int]]) -> None:
    """What best-area-fit gets onto one device, placing anew does as well."""
    if best_area_fit(Slice(*size) for size in given) == 1:
        packing = Packing()
        for number, size in enumerate(given):
            packing.add(str(number), Slice(*size))
        assert len(packing.devices) == 1


def test_among_devices_the_fullest_that_has_room_is_taken() -> None:
    packing = Packing()
    packing.add("a", Slice(1000, 60))
    packing.add("b", Slice(1000, 80))
    assert packing.add("c", Slice(1000, 20)) == 1 and packing.add("d", Slice(1000, 20)) == 0


def test_a_slice_that_cannot_grow_anywhere_stays_as_it_was() -> None:
    packing = Packing()
    packing.add("a", Slice(1000, 60))
    packing.add("b", Slice(1000, 40))
    before = [dict(places) for places in packing.devices]
    assert packing.resize("b", Slice(1000, 50), most=1) is None and packing.devices == before
    packing.validate()
    assert packing.add("c", Slice(10, 1), most=1) is None
    assert packing.resize("b", Slice(1000, 50)) == 1


def test_more_than_a_device_is_refused() -> None:
    with pytest.raises(ValueError, match="larger than a device"):
        Packing().add("a", Slice(1001, 10))
    with pytest.raises(ValueError, match="is none"):
        Room().insert(Slice(0, 10))
    packing = Packing()
    packing.add("a", Slice(1, 1))
    with pytest.raises(ValueError, match="there is a slice"):
        packing.add("a", Slice(1, 1))


def test_the_lower_bound_counts_area_and_what_no_two_of_fit() -> None:
    assert lower_bound([Slice(*size) for size in MIX]) == 1
    assert lower_bound([Slice(600, 60)] * 3) == 3, "area alone would say two"
    assert lower_bound([Slice(1000, 34)] * 3) == 2
    assert lower_bound([]) == 0


def test_what_has_too_much_area_is_not_tried() -> None:
    assert place_all({"a": Slice(1000, 60), "b": Slice(1000, 41)}) is None
    assert place_all({}) == {}
