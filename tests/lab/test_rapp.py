"""RaPP's surface: numbers that made a surface are found again, and the simulated device keeps to them."""

from __future__ import annotations

import pytest

from dovetail.lab.experiments.rapp import Cell, fit_surface, halves, launches_ms

LAUNCHES = {quota: 4.0 + 120.0 / quota for quota in range(10, 101, 10)}
KERNELS = {1: (1.0, 0.5), 8: (2.0, 3.0)}


def surface() -> list[Cell]:
    return [
        Cell(batch, share, quota, max(LAUNCHES[quota], floor + work * 100 / share))
        for batch, (floor, work) in KERNELS.items()
        for share in range(5, 101, 5)
        for quota in LAUNCHES
    ]


def test_half_of_the_cells_say_what_the_other_half_is() -> None:
    fitted, others = halves(surface())
    assert len(fitted) == len(others) == len(surface()) // 2 and not set(fitted) & set(others)
    found = fit_surface(fitted)
    errors = [
        abs(max(found.launches_ms[c.quota_pct], found.device_ms(c.batch, c.share_pct)) / c.ms - 1) for c in others
    ]
    assert max(errors) < 0.1 and sum(errors) / len(errors) < 0.03


@pytest.mark.parametrize("quota_pct", [10, 30, 70, 100])
def test_launches_take_as_long_on_the_simulated_device(quota_pct: int) -> None:
    assert launches_ms((50.0, quota_pct)) == pytest.approx(50.0, rel=0.02)
