"""What the experiment on ESG makes of its results: each judgement on small tables, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.lab.hand import HandLab

from dovetail.lab.experiments import esg
from dovetail.lab.experiments.esg_world import Outcome
from dovetail.lab.rivals import unverified as u
from dovetail.record.ledger import Summary

SETTINGS = tuple(u.SETTINGS)
APPS = ("a", "b", "c", "d")
#: (setting, policy, seed) -> hit rate and dollars, of all applications or of one.
Table = Callable[[str, str, int], tuple[float, float]]


def outcome(
    hit_rate: float, usd: float, plan_p99_us: float = 100.0, cells: dict[str, tuple[float, float]] | None = None
) -> Outcome:
    rows = cells or dict.fromkeys(APPS, (hit_rate, usd))
    summaries = [
        Summary(name, 1, 10, {}, 1.0, 1.0, 1.0, 1.0, 1.0, hit, 1.0, cost) for name, (hit, cost) in rows.items()
    ]
    return Outcome(summaries, hit_rate, usd, 1.0, plan_p99_us, 10)


def by(table: Table, seeds: int) -> Callable[[str, str], list[Outcome]]:
    return lambda setting, policy: [outcome(*table(setting, policy, seed)) for seed in range(seeds)]


def lab(seeds: int = 2) -> HandLab:
    return HandLab(range(seeds), lambda job: job)


def test_what_is_gained_on_a_rival_is_the_ratio_of_means_over_the_settings_less_one() -> None:
    hits = dict(zip(SETTINGS, (0.9, 0.8, 0.7), strict=True))

    def table(setting: str, policy: str, seed: int) -> tuple[float, float]:
        if policy == "dovetail":
            return hits[setting], 2.0
        if policy == "esg":
            return 0.8, 2.5
        # The rival of the second seed is better and cheaper than that of the first.
        return (0.4, 3.0) if seed == 0 else (0.5, 2.0)

    found = lab()
    esg._against_rivals(found, by(table, 2))
    # 0.8 over 0.4 is 100 % more, over 0.5 it is 60 %: 80 % in the mean.
    found.expect("dovetail.hits.orion", 80.0, holds=True)
    found.expect("dovetail.cost.orion", 25.0, holds=True)  # 50 % and nothing
    found.expect("esg.hits.orion", 80.0, holds=True)
    claim = found.expect("esg.cost.orion", 0.0, holds=False)  # 20 % dearer, and 20 % cheaper: not 47 %
    assert claim.published == 47.0
    assert len(found.claims) == 2 * 2 * len(esg.RIVALS)


def test_being_below_a_rival_is_not_held_to_be_above() -> None:
    found = lab()
    esg._against_rivals(found, by(lambda _s, policy, _n: (0.5, 3.0) if policy == "dovetail" else (0.8, 2.0), 2))
    found.expect("dovetail.hits.infless", -37.5, holds=False)
    found.expect("dovetail.cost.infless", -100 / 3, holds=False)


def against_esg(ours: dict[str, tuple[float, float]], theirs: dict[str, tuple[float, float]]) -> HandLab:
    """The first setting has these cells; in the others both are the same everywhere."""

    def outcomes(setting: str, policy: str) -> list[Outcome]:
        if setting != SETTINGS[0]:
            return [outcome(0.9, 1.0)] * 2
        return [outcome(0.0, 0.0, cells=ours if policy == "dovetail" else theirs)] * 2

    found = lab()
    esg._against_esg(found, outcomes)
    return found


def test_cells_are_counted_where_we_are_worse_dearer_and_at_least_as_good_in_both() -> None:
    found = against_esg(
        # Better and cheaper; better and dearer; worse and cheaper; worse and dearer.
        {"a": (0.9, 1.0), "b": (0.9, 1.1), "c": (0.7, 0.5), "d": (0.6, 3.0)},
        {"a": (0.8, 2.0), "b": (0.8, 1.0), "c": (0.8, 1.0), "d": (0.8, 2.0)},
    )
    worse = found.expect("dovetail.hits.esg", 2, holds=False)
    assert "(of 12)" in worse.text and "largest gap 20.00 points" in worse.text
    dearer = found.expect("dovetail.cost.esg", 2, holds=False)
    assert "largest excess 50.00 %" in dearer.text
    found.expect("dovetail.cost-in-time.esg", 1, holds=False)  # only the last: 1.1 / 0.9 is less than 1.0 / 0.8
    # In the first alone, and in all eight where both are the same: being as good counts.
    found.expect("dovetail.both.esg", 9, holds=True)


def test_better_in_either_is_not_better_in_both() -> None:
    ours = dict.fromkeys(APPS, (0.9, 1.1))
    found = against_esg(ours, dict.fromkeys(APPS, (0.8, 1.0)))
    found.expect("dovetail.both.esg", 8, holds=True)
    found.expect("dovetail.hits.esg", 0, holds=True)
    assert "largest gap 0.00" in found.claimed("dovetail.hits.esg").text
    found.expect("dovetail.cost.esg", 4, holds=False)


def test_a_majority_of_cells_is_asked_for() -> None:
    def outcomes(_setting: str, policy: str) -> list[Outcome]:
        mine = {"a": (0.9, 1.0), "b": (0.9, 1.0), "c": (0.7, 1.0), "d": (0.7, 1.0)}
        return [outcome(0.0, 0.0, cells=mine if policy == "dovetail" else dict.fromkeys(APPS, (0.8, 1.0)))]

    found = lab(1)
    esg._against_esg(found, outcomes)
    found.expect("dovetail.both.esg", 6, holds=False)  # of twelve, seven are a majority


def test_a_cell_is_the_mean_of_its_seeds() -> None:
    def outcomes(_setting: str, policy: str) -> list[Outcome]:
        hits = (0.7, 0.9) if policy == "dovetail" else (0.78, 0.8)
        return [outcome(0.0, 0.0, cells=dict.fromkeys(APPS, (hit, 1.0))) for hit in hits]

    found = lab()
    esg._against_esg(found, outcomes)
    found.expect("dovetail.hits.esg", 0, holds=True)


def test_planning_time_is_that_of_the_worst_run_of_all_settings() -> None:
    def outcomes(setting: str, policy: str) -> list[Outcome]:
        return [
            outcome(1.0, 1.0, plan_p99_us=9_000.0 if policy == "esg" else 500.0 + 100 * SETTINGS.index(setting))
        ] * 2

    found = lab()
    esg._planning_time(found, outcomes)
    found.expect("dovetail.planning", 0.7, holds=True)
    found.expect("esg.planning", 9.0, holds=True)


@pytest.mark.parametrize(("ours", "points", "holds"), [(0.85, 5.0, True), (0.75, -5.0, False)])
def test_on_fewer_nodes_we_are_compared_with_the_best_of_the_others(ours: float, points: float, holds: bool) -> None:
    policies = ["dovetail", "esg", "orion", "infless"]
    hits = {"dovetail": ours, "esg": 0.8, "orion": 0.6, "infless": 0.3}
    found = HandLab((1, 2), lambda job: outcome(hits[job.policy], 1.0))
    esg._scarcity(found, 60.0, policies)
    for nodes in esg.FEWER_NODES[1:]:
        claim = found.expect(f"dovetail.scarce.{nodes}", points, holds=holds)
        assert "above esg, the best of the others" in claim.text
    assert f"dovetail.scarce.{esg.FEWER_NODES[0]}" not in {claim.id for claim in found.claims}


def test_all_of_it_is_put_together_from_the_runs_of_each_policy_setting_and_seed() -> None:
    def answer(job: esg.Job) -> Outcome:
        better = job.policy == "dovetail"
        return outcome(0.9 if better else 0.45, 1.0 if better else 1.5)

    found = HandLab((11, 12), answer, quick=True)
    esg.run(found)
    found.expect("dovetail.hits.aquatope", 100.0, holds=True)
    found.expect("dovetail.cost.aquatope", 50.0, holds=True)
    found.expect("dovetail.both.esg", 12, holds=True)
    found.expect("dovetail.scarce.10", 45.0, holds=True)
    assert {job.seed for job in found.asked["policies in ESG's three settings"]} == {11, 12}
    assert not any(job.policy == "aquatope" for job in found.asked["fewer nodes"])
