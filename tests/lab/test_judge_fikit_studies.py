"""What the studies beside the experiment on kernels make of their outcomes, made by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lab.hand import HandLab
from tests.lab.kernel_cells import LOWEST, factor, outcome

from dovetail.lab.experiments import fikit_recorded, fikit_studies
from dovetail.lab.experiments.fikit_world import PAIRS, POLICIES, Job, Outcome
from dovetail.lab.kernels.device import TaskResult
from dovetail.lab.kernels.hosts import HOSTS
from dovetail.units import MS

SEEDS = (1, 2)
Answer = Callable[[Job], object]


def cells(answer: Callable[[Job], Outcome]) -> fikit_studies.Cells:
    return {
        (host, policy): [[answer(Job(high, low, host, policy, seed, 3)) for high, low in PAIRS] for seed in SEEDS]
        for host in HOSTS
        for policy in POLICIES
    }


def rates(job: Job, **by_policy: float) -> Outcome:
    return outcome(low_rate=by_policy.get(job.policy, 0.4), low=by_policy.get(job.policy, 1.0))


def test_ours_is_held_against_the_bound_and_neighbours_against_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fikit_studies, "lowest_low", "bound")
    monkeypatch.setattr(fikit_studies, "most_left", lambda _job: 0.5)

    class Bounds(HandLab):
        def map(self, function, jobs, what):  # type: ignore[no-untyped-def]
            if function == "bound":  # no plan gives more than these rates: time per work is 1 / rate
                return [1 / (0.5 if factor(job) == LOWEST else 0.4) for job in jobs]
            return [outcome(low_rate=0.4) for _ in jobs]

    lab = Bounds(SEEDS, lambda job: job)
    fikit_studies.bound(lab, 3, cells(lambda job: rates(job, fifo=0.8, ours=0.42, parts=0.45)))
    # One at a time we give 0.4 of the time: 0.8 of what is possible for the lowest pair, all of it for the others.
    claim = lab.expect("low.bound", 0.8, holds=False)
    # Against one queue's 0.8 no plan gives more than 0.625 for one pair and 0.5 for the others.
    assert "is 0.500 of what one queue gives for the lowest pair" in claim.text
    assert f"below 0.86 for {len(PAIRS)} of {len(PAIRS)} pairs" in claim.text
    lab.expect("low.beside", 0.42 / 0.4, holds=True)


def test_in_parts_the_lowest_of_all_is_held_against_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fikit_studies, "most_left", lambda job: 0.5 if job.host == "sync" else 0.4)

    def answer(job: Job) -> Outcome:
        # Under one queue the low client has 0.5, so 0.86 of it is left with host 'sync' only.
        return rates(job, fifo=0.5, slices=0.4, parts=0.47 if job.host == "sync" else 0.4)

    lab = HandLab(SEEDS, lambda job: outcome(low=0.47 * (2.0 if job.grain_ns > fikit_studies.GRAIN_NS else 1.02)))
    fikit_studies.parts(lab, 3, cells(answer))
    claim = lab.expect("low.left", 0.94, holds=False)
    assert f"in 0 of them, of what one queue gives in {2 * len(PAIRS)}" in claim.text
    possible = lab.expect("low.parts.fifo.possible", 0.5 / 0.47, holds=True)
    assert f"lowest of those {len(PAIRS)} (pair, host)" in possible.text
    cost = lab.expect("low.parts.cost", 100 * (1 - 1 / 1.02), holds=True)
    assert "50.0 %" in cost.text, "of larger parts"


def test_low_times_are_as_even_as_under_fikit_or_not() -> None:
    variations = {"fikit": 0.2, "ours": 0.1, "parts": 0.3}
    lab = HandLab(SEEDS, lambda job: [TaskResult(1, n * 10, n * 10 + 5) for n in range(4)])
    fikit_studies.stability(lab, cells(lambda job: outcome(low_variation=variations.get(job.policy, 0.5))))
    lab.expect("stability.ours", 0.5, holds=True)
    lab.expect("stability.parts", 1.5, holds=False)
    assert "fikit 0.200, ours 0.100, parts 0.300" in lab.claimed("stability.ours").text


def test_where_high_tasks_come_seldom_the_lowest_of_all_pairs_and_hosts_counts() -> None:
    def answer(job: Job) -> Outcome:
        assert job.think in fikit_studies.RESTS
        low = {"slices": 0.9, "fifo": 0.8}.get(job.policy, 1.0) * (factor(job) if job.host == "sync" else 1.5)
        return outcome(
            low=low if job.policy in ("slices", "fifo") else 1.0, high=4.0 if job.policy == "fifo" else 2.0
        )

    lab = HandLab(SEEDS, answer)
    fikit_studies.loads(lab, 3, cells(lambda job: outcome(low=0.1 if job.policy == "fifo" else 1.0)))
    lab.expect("low.slices.seldom", 0.9, holds=True)
    claim = lab.expect("low.fifo.seldom", 0.8, holds=False)
    assert "12.5% of the time instead of 25%" in claim.text
    assert "they are 2 times as fast" in claim.text
    lab.expect("low.fifo.seldom.parts", 0.8, holds=False)


def test_wrong_beliefs_and_other_gaps_are_judged_by_the_worst_of_them() -> None:
    def answer(job: Job) -> Outcome:
        if job.policy == "ours" and job.duration_error == 0.5:
            return outcome(high=1.06 if job.learn else 1.09)
        if job.policy == "ours" and job.gap_scale == 4.0:
            return outcome(high=1.08)
        return outcome(high=1.5 if job.policy == "fikit" and job.gap_error == 1.5 else 1.02)

    lab = HandLab(SEEDS, answer)
    fikit_studies.sensitivity(lab, 3)
    claim = lab.expect("errors.ours", 1.06, holds=True)
    assert "(under FIKIT: 1.500)" in claim.text
    lab.expect("errors.ours-not-learning", 1.09, holds=False)
    lab.expect("gaps", 1.08, holds=False)


@pytest.mark.parametrize(("told", "points", "holds"), [(1.01, 3.0, True), (1.038, 0.2, False), (1.06, -2.0, False)])
def test_what_hints_save_is_what_is_lost_without_less_what_is_lost_with_them(
    told: float, points: float, holds: bool
) -> None:
    lab = HandLab(SEEDS, lambda job: outcome(high=told if job.hints else 1.04, low=1.1 if job.hints else 1.0))
    fikit_studies.hints(lab, 3)
    claim = lab.expect("hints", points, holds=holds)
    assert "low-priority tasks take 10.00 % longer" in claim.text


def test_ageing_is_judged_by_the_longest_wait_beyond_its_time_and_by_its_mean_cost() -> None:
    def answer(job: Job) -> Outcome:
        beyond = 2.5 if job.low == PAIRS[7][1] else 1.0
        return outcome(
            high=1.04 if job.ageing_ns == 10 * MS else 3.0,
            low_wait_ns=10 * MS + round(beyond * MS),
            longest_low_ns=1 * MS,
        )

    lab = HandLab(SEEDS, answer)
    fikit_studies.ageing(lab, 6)
    lab.expect("ageing.bound", 2.5, holds=False)
    lab.expect("ageing.cost", 1.04, holds=True)


def recorded(tmp_path: Path, real: Callable[[Job], Outcome], made: Callable[[Job], Outcome]) -> HandLab:
    """The claims on measured sequences, if the files are there."""
    folder = tmp_path / "orion_kernels"
    folder.mkdir()
    for file in fikit_recorded.FILES.values():
        (folder / file).touch()
    lab = HandLab(SEEDS, real)
    lab._data = tmp_path
    fikit_recorded.recorded(lab, 3, cells(made))
    return lab


def test_measured_sequences_are_judged_by_their_worst_host_and_by_how_far_made_ones_are_off(tmp_path: Path) -> None:
    def real(job: Job) -> Outcome:
        return outcome(high=1.1 if job.policy == "ours" and job.host == "sync" else 1.0, low=0.9)

    def made(job: Job) -> Outcome:
        return outcome(high=1.0, low=1.08 if job.policy == "slices" else 0.9)

    lab = recorded(tmp_path, real, made)
    lab.expect("recorded.high", 1.1, holds=False)
    lab.expect("recorded.low", 1.0, holds=True)
    # Slices over ours is 1 where it was measured and 1.2 where it was made.
    lab.expect("recorded.off", 100 * (1 - 1 / 1.2), holds=False)


def test_without_the_measurements_nothing_is_claimed(tmp_path: Path) -> None:
    lab = HandLab(SEEDS, lambda job: outcome())
    fikit_recorded.recorded(lab, 3, cells(lambda job: outcome()))
    assert lab.claims == []
    assert [left.id for left in lab.left_out] == list(fikit_recorded.CLAIMS)
