"""Which models are to run in kernels: by classes, and by batches that are too long for their quota."""

from __future__ import annotations

import pytest

from dovetail.live.worker.cut_wish import CutWish
from dovetail.units import MS

#: 15 % of a window of 100 ms.
LONG_NS, SHORT_NS = 16 * MS, 15 * MS


def wish(mode: str = "auto", quota_pct: int = 15) -> CutWish:
    return CutWish(mode, {"slow": 1, "quick": 1}, 1, {"slow": quota_pct, "quick": 25})  # type: ignore[arg-type]


def test_a_stage_whose_batches_are_longer_than_its_quota_of_a_window_is_wanted_in_kernels() -> None:
    w = wish()
    assert not w.saw("slow", 1) and not w.wanted(["slow"]) and not w.several
    w.took("slow", LONG_NS)
    assert not w.saw("slow", 1), "the machine may be slow for a moment"
    w.took("slow", LONG_NS)
    assert w.saw("quick", 1), "said once, whatever comes next"
    assert w.wanted(["slow"]) and w.wanted(["quick", "slow"]) and not w.wanted(["quick"]) and w.several
    assert not w.saw("slow", 1)
    for _ in range(3):
        w.took("slow", SHORT_NS)
    assert w.wanted(["slow"]), "in kernels it is no longer than whole: it stays as it is"


def test_only_batches_in_a_row_that_are_too_long_count() -> None:
    w = wish()
    for took_ns in (LONG_NS, SHORT_NS, LONG_NS, SHORT_NS):
        w.took("slow", took_ns)
        assert not w.saw("slow", 1) and not w.wanted(["slow"])


@pytest.mark.parametrize("quota_pct", [0, 16, 100])
def test_without_a_quota_or_with_one_that_is_enough_a_model_stays_whole(quota_pct: int) -> None:
    w = wish(quota_pct=quota_pct)
    for _ in range(5):
        w.took("slow", LONG_NS)
    assert not w.wanted(["slow"]) and not w.several


def test_the_highest_of_several_classes_stays_whole_however_long_its_batches_are() -> None:
    """Else a batch of it would be stopped half-way, in favour of a lower class, because its quota is used up."""
    w = wish()
    w.saw("quick", 2)
    for _ in range(3):
        w.took("slow", LONG_NS)
    assert not w.wanted(["slow"]) and w.wanted(["quick"])


def test_a_lower_class_is_wanted_in_kernels_as_soon_as_it_is_seen() -> None:
    w = wish()
    assert w.saw("slow", 2) and w.wanted(["slow"]) and not w.wanted(["quick"]) and w.several
    assert not w.saw("slow", 2)


@pytest.mark.parametrize(("mode", "always"), [("always", True), ("never", False)])
def test_a_mode_overrides_what_is_seen(mode: str, always: bool) -> None:
    w = wish(mode)
    for _ in range(3):
        w.took("slow", LONG_NS)
        w.saw("slow", 2)
    assert w.wanted(["slow"]) is w.wanted(["quick"]) is always and w.several is always


def test_a_model_that_takes_too_much_memory_in_kernels_stays_whole() -> None:
    w = wish()
    w.saw("slow", 2)
    assert not w.wanted(["slow"], heavy=True)
