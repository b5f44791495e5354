"""What was seen of one stage on one kind of device: first runs count only while there is nothing else."""

from __future__ import annotations

from dovetail.predict.sizes import SeenSizes
from dovetail.units import MS


def test_of_first_runs_the_shortest_counts_until_anything_else_was_seen() -> None:
    seen = SeenSizes()
    for took_ms in (90, 50, 70):
        seen.first(1, 1, 100, took_ms * MS)
    assert seen.estimate(1, 1, 100).mean_ns == 50 * MS
    seen.add(2, 1, 100, 12 * MS)
    assert seen.estimate(2, 1, 100).mean_ns == 12 * MS
    assert seen.estimate(1, 1, 100).mean_ns < 12 * MS, "of the first runs nothing is left, of other sizes neither"
    seen.first(1, 1, 100, 1 * MS)
    assert [(items, row.count) for items, _, _, row in seen.rows()] == [(2, 1)], "from now on they say nothing"


def test_what_was_restored_from_first_runs_alone_is_forgotten_in_the_same_way() -> None:
    before = SeenSizes()
    before.first(4, 1, 50, 80 * MS)
    after = SeenSizes()
    for items, cpus, share_pct, row in before.rows():
        after.put(items, cpus, share_pct, row)
    after.add(1, 1, 50, 5 * MS)
    assert [items for items, *_ in after.rows()] == [1]
