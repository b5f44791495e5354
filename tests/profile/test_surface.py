"""Which points of a grid are measured, and what the surface through them says in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.profile.surface import Grid, Place, SlicePoint, fit_surface, next_place

GRID = Grid((1, 2, 4, 8, 16), (25, 50, 75, 100), (10, 15, 20, 30, 45, 70, 100))


def point(place: Place, per_s: float) -> SlicePoint:
    return SlicePoint(*place, per_s, 1, 2, 3, 4, 10)


def measured(truth: Callable[[int, int, int], float], most: int = 40, grid: Grid = GRID) -> dict[Place, float]:
    """All points in the order in which they are asked for."""
    found: dict[Place, float] = {}
    while (place := next_place(grid, found, most)) is not None:
        assert place not in found and len(found) < max(most, len(grid.corners))
        found[place] = truth(*place)
    return found


def straight(batch: int, share: int, quota: int) -> float:
    return 3.0 * batch**0.7 * share**0.5 * quota


def bent(batch: int, share: int, quota: int) -> float:
    """More share is of no use above a half, and a batch above four."""
    return min(batch, 4) * min(share, 50) * quota


def test_corners_come_first_and_a_straight_surface_needs_little_more() -> None:
    places = list(measured(straight))
    assert set(places[:8]) == set(GRID.corners) and len(GRID.corners) == 8
    assert len(places) == 8 + 3 + 2, "one in the middle of each axis, and two inside"
    assert places[-2:] == GRID.inside


def test_it_is_refined_where_it_bends_and_only_there() -> None:
    places = list(measured(bent))
    interior = places[8:-2]
    on_quota = [p for p in interior if p in GRID.line(2)]
    on_batch, on_share = ({p[i] for p in interior if p in GRID.line(i)} for i in (0, 1))
    assert len(on_quota) == 1 and on_batch >= {4, 2, 8} and on_share == {50, 75}


def test_the_furthest_off_is_refined_first() -> None:
    def truth(batch: int, share: int, quota: int) -> float:
        return (100.0 if batch <= 4 else 10.0) * (1.0 if share < 100 else 1.2)

    places = list(measured(truth))
    assert places.index((8, 100, 100)) < places.index((16, 75, 100))


def test_the_surface_goes_through_its_points_and_says_how_far_it_is_off() -> None:
    found = measured(straight)
    surface = fit_surface(GRID, [point(*item) for item in found.items()])
    assert surface is not None
    for place in [*found, (4, 75, 20), (2, 25, 45)]:
        assert surface.at(*place) == pytest.approx(straight(*place), rel=1e-6)
    assert set(surface.errors) == set(GRID.inside) and surface.worst < 1e-6
    assert surface.at(32, 100, 100) == surface.at(16, 100, 100), "beyond the grid: its edge"


def test_what_it_was_not_fitted_to_is_its_error() -> None:
    found = measured(straight)
    inside = GRID.inside[0]
    points = [point(place, 1.25 * value if place == inside else value) for place, value in found.items()]
    surface = fit_surface(GRID, points)
    assert (
        surface is not None and surface.errors[inside] == pytest.approx(0.25) and surface.worst == pytest.approx(0.25)
    )


def test_before_all_corners_are_there_is_no_surface() -> None:
    assert fit_surface(GRID, [point(place, 1.0) for place in GRID.corners[1:]]) is None


def test_another_quantity_has_a_surface_too() -> None:
    points = [point(place, 1.0) for place in GRID.corners]
    surface = fit_surface(GRID, points, lambda p: p.p95_ns)
    assert surface is not None and surface.at(4, 50, 30) == pytest.approx(2.0) and surface.worst == 0.0


@pytest.mark.parametrize(
    "grid", [Grid((1,), (50, 100), (10, 100)), Grid((3,), (100,), (100,)), Grid((1, 2), (100,), (10,))]
)
def test_an_axis_may_have_one_value(grid: Grid) -> None:
    found = measured(straight, grid=grid)
    surface = fit_surface(grid, [point(*item) for item in found.items()])
    assert surface is not None
    assert all(surface.at(*place) == pytest.approx(value) for place, value in found.items())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.integers(8, 30), st.data())
def test_whoever_is_interrupted_goes_on_where_he_was(stop: int, most: int, data: st.DataObject) -> None:
    """The next point follows from those that there are, whatever was measured; never more than were asked for."""
    values: dict[Place, float] = {}

    def truth(*place: int) -> float:
        at = (place[0], place[1], place[2])
        return values.setdefault(at, data.draw(st.floats(0.01, 1e4), label=str(at)))

    whole = measured(truth, most)
    begun = dict(list(whole.items())[:stop])
    while (place := next_place(GRID, begun, most)) is not None:
        begun[place] = truth(*place)
    assert begun == whole and len(whole) <= most
    surface = fit_surface(GRID, [point(*item) for item in whole.items()])
    assert surface is not None
    on_lines = {place for axis in range(3) for place in GRID.line(axis)} | set(GRID.corners)
    assert all(surface.at(*p) == pytest.approx(v) for p, v in whole.items() if p in on_lines)
