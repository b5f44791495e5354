"""Simulated lists and conditions: right on average, the same for the same request whenever it is asked."""

from __future__ import annotations

import pytest

from dovetail.errors import DeclarationError
from dovetail.sim.branching import Branches, FanOut, plan_draws
from dovetail.workflow.graph import Graph, Node, Port, Source, StageSpec

DETECT = StageSpec("detect", "model", (1,), ("lines", "heads", "unsure"))
READ = StageSpec("read", "model", (1,))


def pages() -> Graph:
    """detect gives lines, heads and a doubt; lines and heads are read together, doubtful pages are read again."""
    return Graph(
        "pages",
        1,
        1,
        (DETECT, READ),
        (
            Node("detect", "detect", (Source(-1),)),
            Node("read", "read", (Source(0, 0), Source(0, 1)), mapped=True),
            Node("read#2", "read", (Source(0, 0),), when=Source(0, 2)),
        ),
        inputs=(Port("page", "BYTES", (1,)),),
    )


def over_input() -> Graph:
    return Graph(
        "lines",
        1,
        1,
        (READ,),
        (Node("read", "read", (Source(-1),), mapped=True),),
        inputs=(Port("lines", "BYTES", (1,)),),
    )


@pytest.mark.parametrize(
    ("fan_out", "mean", "variance"),
    [
        (FanOut(mean=6.0), 6.0, 6.0),
        (FanOut(mean=0.3), 0.3, 0.3),
        (FanOut(mean=0.0), 0.0, 0.0),
        (FanOut(mean=900.0), 900.0, 900.0),
        (FanOut(mean=4.0, kind="geometric"), 4.0, 20.0),
        (FanOut(mean=3.0, kind="fixed"), 3.0, 0.0),
    ],
)
def test_lengths_have_the_distribution_asked_for(fan_out: FanOut, mean: float, variance: float) -> None:
    draws = plan_draws(over_input(), {"lines": fan_out}, {})
    branches = Branches(1, [draws], lambda request: 0)
    counts = [branches.input_counts(request, 0)[0] for request in range(1, 40_001)]
    found = sum(counts) / len(counts)
    assert found == pytest.approx(mean, rel=0.02)
    assert sum((c - found) ** 2 for c in counts) / len(counts) == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("kind", ["poisson", "geometric", "fixed"])
def test_nothing_is_longer_than_the_maximum(kind: str) -> None:
    draws = plan_draws(over_input(), {"lines": FanOut(mean=6.0, kind=kind, max=4)}, {})  # type: ignore[arg-type]
    branches = Branches(1, [draws], lambda request: 0)
    counts = [branches.input_counts(request, 0)[0] for request in range(2000)]
    assert max(counts) == 4


def test_lists_of_one_stage_are_as_long_as_each_other_and_conditions_are_apart() -> None:
    draws = plan_draws(pages(), {"detect": FanOut(mean=3.0)}, {"detect.unsure": 0.3})
    branches = Branches(1, [draws], lambda request: 0)
    rows = [branches.counts([(request, 0, 0)]) for request in range(1, 20_001)]
    assert all(lines == heads for lines, heads, _ in rows)
    assert sum(unsure for *_, unsure in rows) / len(rows) == pytest.approx(0.3, rel=0.03)
    doubtful = [lines for lines, _, unsure in rows if unsure]
    assert sum(doubtful) / len(doubtful) == pytest.approx(3.0, rel=0.05), "the doubt should not depend on the length"


def test_a_count_does_not_depend_on_when_it_is_asked_for() -> None:
    draws = plan_draws(pages(), {"detect": FanOut(mean=3.0)}, {"detect": 0.3})
    branches = Branches(5, [draws], lambda request: 0)
    together = branches.counts([(request, 0, 0) for request in (7, 8, 9)])
    assert together == branches.counts([(7, 0, 0)]) + branches.counts([(8, 0, 0)]) + branches.counts([(9, 0, 0)])
    assert together == Branches(5, [draws], lambda request: 0).counts([(request, 0, 0) for request in (7, 8, 9)])
    others = [Branches(seed, [draws], lambda request: 0).counts([(7, 0, 0)]) for seed in range(30)]
    assert len(set(others)) > 5
    assert branches.counts([(7, 1, 0), (7, 1, 1)]) == (), "the results of read are not counted"


def test_a_list_may_be_as_long_as_another() -> None:
    graph = Graph(
        "two",
        1,
        1,
        (READ, StageSpec("crop", "model", (1,)), StageSpec("find", "model", (1,))),
        (
            Node("find", "find", (Source(-1),)),
            Node("crop", "crop", (Source(0),)),
            Node("read", "read", (Source(0), Source(1)), mapped=True),
        ),
        inputs=(Port("page", "BYTES", (1,)),),
    )
    draws = plan_draws(graph, {"find": FanOut(mean=3.0), "crop": "find"}, {})
    branches = Branches(1, [draws], lambda request: 0)
    assert all(branches.counts([(r, 0, 0)]) == branches.counts([(r, 1, 0)]) for r in range(200))


@pytest.mark.parametrize(
    ("fanout", "condition", "message"),
    [
        ({}, {"detect.unsure": 0.3}, r"'detect' gives a list .* fanout = \{ detect = \{ mean = 5.0 \} \}"),
        ({"detect": FanOut(mean=1.0)}, {}, r"'detect' decides .* condition = \{ detect = 0.5 \}"),
        (
            {"detect": FanOut(mean=1.0), "read": FanOut(mean=1.0)},
            {"detect": 0.5},
            "'read' gives no list .*are: detect",
        ),
        ({"detect": "read"}, {"detect": 0.5}, "is to be that of 'read', which has no mean"),
    ],
)
def test_rules_that_are_missing_or_too_many_are_refused(
    fanout: dict[str, FanOut | str], condition: dict[str, float], message: str
) -> None:
    with pytest.raises(DeclarationError, match=message):
        plan_draws(pages(), fanout, condition)
