"""What the experiment on graphs makes of its results: each judgement on small tables, worked out by hand."""

from __future__ import annotations

import pytest
from tests.lab.hand import HandLab

from dovetail.lab.experiments import graphs
from dovetail.lab.experiments.graphs import ESG, HEAD_ROOM, OURS
from dovetail.lab.experiments.graphs_world import Outcome

RIVALS = (ESG, "orion")
#: Hit rate and dollars, graph by graph.
Cells = list[tuple[float, float]]


def runs(cells: Cells, seeds: int = 2) -> list[list[Outcome]]:
    return [[Outcome(100, hit, 0.0, usd)] * seeds for hit, usd in cells]


def judged(ours: Cells, esg: Cells, orion: Cells, roomy: Cells | None = None) -> HandLab:
    lab = HandLab((1, 2), lambda job: job)
    graphs.judge(lab, {OURS: runs(ours), ESG: runs(esg), "orion": runs(orion), HEAD_ROOM: runs(roomy or esg)}, RIVALS)
    return lab


def test_graphs_are_counted_on_which_the_best_rival_has_more_hits() -> None:
    lab = judged(
        [(0.9, 1.0), (0.9, 1.0), (0.9, 1.0)],
        [(0.9, 1.0), (0.95, 1.0), (0.8, 1.0)],
        [(0.8, 9.0), (0.7, 9.0), (0.92, 9.0)],
    )
    claim = lab.expect("graphs.hits", 2, holds=False)  # the first is as good, and that is enough
    assert "(of 3)" in claim.text and "largest gap 5.00 points" in claim.text


def test_as_many_hits_as_the_best_are_enough_and_a_cheap_rival_without_hits_is_none() -> None:
    lab = judged([(0.9, 1.0)], [(0.9, 1.0)], [(0.2, 0.1)])
    lab.expect("graphs.hits", 0, holds=True)
    lab.expect("graphs.cost", 0, holds=True)
    lab.expect("graphs.hits.head-room", 0, holds=True)
    lab.expect("graphs.cost.head-room", 0, holds=True)


def test_costs_are_compared_with_esg_alone_and_graph_by_graph() -> None:
    lab = judged(
        [(1.0, 1.1), (1.0, 0.5), (1.0, 2.0)],
        [(0.9, 1.0), (0.9, 1.0), (0.9, 2.0)],
        [(0.9, 0.1), (0.9, 0.1), (0.9, 0.1)],
    )
    claim = lab.expect("graphs.cost", 1, holds=False)
    assert "largest excess 10.00 %" in claim.text
    # 10 % dearer, 50 % cheaper and the same: 40 % of three.
    lab.expect("graphs.saving.esg", 40 / 3, holds=True)


def test_answers_in_time_are_what_cost_is_for() -> None:
    # A tenth dearer and in time a quarter more often; as dear and as often; half as dear, a third as often.
    lab = judged(
        [(1.0, 1.1), (0.8, 2.0), (0.3, 0.5)],
        [(0.8, 1.0), (0.8, 2.0), (0.9, 1.0)],
        [(0.1, 9.0)] * 3,
    )
    lab.expect("graphs.cost", 1, holds=False)
    claim = lab.expect("graphs.cost-in-time", 1, holds=False)
    assert "largest excess 50.00 %" in claim.text


def test_who_has_nobody_in_time_is_dearer_than_anybody() -> None:
    lab = judged([(0.5, 9.0)], [(0.0, 0.1)], [(0.0, 0.1)])
    lab.expect("graphs.cost-in-time", 0, holds=True)


def test_head_room_is_judged_by_itself() -> None:
    lab = judged([(0.9, 1.0)] * 2, [(0.8, 2.0)] * 2, [(0.8, 2.0)] * 2, roomy=[(0.95, 0.9), (0.9, 1.0)])
    lab.expect("graphs.hits", 0, holds=True)
    assert "largest gap 5.00 points" in lab.expect("graphs.hits.head-room", 1, holds=False).text
    lab.expect("graphs.cost", 0, holds=True)
    lab.expect("graphs.cost.head-room", 1, holds=False)
    lab.expect("graphs.gain.head-room", -2.5, holds=False)


def test_gains_are_means_over_graphs_and_being_below_is_not_held_to_be_above() -> None:
    lab = judged([(0.9, 1.0), (0.5, 2.0)], [(0.8, 1.0), (0.5, 1.0)], [(1.0, 1.0), (0.6, 1.0)])
    lab.expect("graphs.gain.esg", 5.0, holds=True)
    lab.expect("graphs.gain.orion", -10.0, holds=False)
    lab.expect("graphs.saving.esg", -50.0, holds=False)


def test_a_graph_is_the_mean_of_its_seeds() -> None:
    lab = HandLab((1, 2), lambda job: job)
    mine = [[Outcome(100, 0.7, 0.0, 1.0), Outcome(100, 0.9, 0.0, 3.0)]]
    theirs = [[Outcome(100, 0.79, 0.0, 1.9)] * 2]
    graphs.judge(lab, {OURS: mine, ESG: theirs, "orion": theirs, HEAD_ROOM: theirs}, RIVALS)
    lab.expect("graphs.hits", 0, holds=True)
    lab.expect("graphs.cost", 1, holds=False)
    assert lab.claimed("graphs.gain.esg").spread is not None


@pytest.mark.parametrize("quick", [True, False])
def test_all_of_it_is_put_together_from_the_runs_of_each_policy_and_graph(quick: bool) -> None:
    def answer(job: graphs.Job) -> list[Outcome]:
        mine = job.policy == OURS
        return [Outcome(600, 1.0 if mine else 0.9, 0.0, 1.0 if mine else 1.25)] * len(job.seeds)

    lab = HandLab((11, 12), answer, quick=quick)
    graphs.run(lab)
    lab.expect("graphs.hits", 0, holds=True)
    lab.expect("graphs.saving.esg", 20.0, holds=True)
    asked = lab.asked["policies on random graphs"]
    assert {job.graph for job in asked} == set(graphs.QUICK_GRAPHS if quick else range(20))
    assert ("aquatope" in {job.policy for job in asked}) is not quick
    assert [left.id for left in lab.left_out] == (["graphs.gain.aquatope"] if quick else [])
    assert all(job.seeds == (11, 12) for job in asked)


def test_what_is_reported_was_not_tuned_on() -> None:
    assert not set(graphs.GRAPHS) & set(range(1000, 1020))
    assert not set(graphs.SEEDS) & set(range(101, 106))
