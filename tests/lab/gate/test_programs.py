"""Where a segment that is too long is divided."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dovetail.lab.gate.programs import SLIVER, divide_long
from dovetail.live.kernels.segments import choose_cuts


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=40),
    st.integers(1, 8),
    st.integers(1, 2000),
)
def test_a_segment_stays_too_long_only_where_no_cut_leaves_two_sides(
    nodes: list[tuple[int, bool]], segments: int, longest: int
) -> None:
    lengths, able = [length for length, _ in nodes], [can for _, can in nodes]
    before = choose_cuts(lengths, [0.0 if can else None for can in able], segments)
    cuts = divide_long(lengths, able, before, longest)
    assert set(before) <= set(cuts) and cuts == sorted(set(cuts))
    assert all(able[c] for c in cuts)
    for first, last in pairwise([0, *cuts, len(nodes)]):
        if sum(lengths[first:last]) > longest:
            sides = [min(sum(lengths[first:i]), sum(lengths[i:last])) for i in range(first + 1, last) if able[i]]
            assert all(side < max(1, SLIVER * longest) for side in sides)
