"""What the experiment on kernels makes of its pairs: each judgement on outcomes made by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.lab.hand import HandLab
from tests.lab.kernel_cells import HIGHEST, LOWEST, MEDIAN, factor, outcome, pairs_of

from dovetail.lab.experiments import fikit
from dovetail.lab.experiments.fikit_world import PAIRS, POLICIES, Job, Outcome
from dovetail.lab.kernels.hosts import HOSTS

#: Way of sharing -> completion times of the high and of the low client.
VALUES = {**dict.fromkeys(POLICIES, (1.0, 1.0)), "slices": (3.0, 0.9), "fifo": (4.0, 0.8)}


def judged(answer: Callable[[Job], Outcome], *parts: Callable[[HandLab, fikit.Cells], None]) -> HandLab:
    lab = HandLab((1, 2), answer)
    cells = fikit._pairs(lab)
    for part in parts:
        part(lab, cells)  # type: ignore[arg-type]
    return lab


def test_high_times_are_default_over_ours_and_the_lowest_and_the_median_of_all_pairs_and_hosts() -> None:
    lab = judged(lambda job: pairs_of(VALUES, job), fikit._high)
    for mode in ("preemptive", "together"):
        lowest = lab.expect(f"high.{mode}.slices.lowest", 3.0 * LOWEST, holds=True)
        assert f"the highest is {3.0 * HIGHEST:.3g}" in lowest.text
        assert f"lowest of {len(HOSTS) * len(PAIRS)} (pair, host)" in lowest.text
        lab.expect(f"high.{mode}.slices.median", 3.0 * MEDIAN, holds=True)
        lab.expect(f"high.{mode}.fifo.lowest", 4.0 * LOWEST, holds=True)
    lab.expect("high.fifo.sync", 4.0 * MEDIAN, holds=True)


def test_a_default_that_is_hardly_slower_does_not_hold() -> None:
    lab = judged(lambda job: pairs_of({**VALUES, "slices": (1.3, 1.0)}, job), fikit._high)
    lab.expect("high.preemptive.slices.lowest", 1.3, holds=False)
    lab.expect("high.preemptive.slices.median", 1.3 * MEDIAN, holds=False)


def test_one_host_is_judged_by_its_own_pairs() -> None:
    def answer(job: Job) -> Outcome:
        return outcome({"slices": 2.0 if job.host == "sync" else 6.0}.get(job.policy, 1.0))

    lab = judged(answer, fikit._high)
    lab.expect("high.slices.sync", 2.0, holds=False)
    lab.expect("high.slices.ahead", 6.0, holds=True)
    lab.expect("high.preemptive.slices.lowest", 2.0, holds=True)
    lab.expect("high.preemptive.slices.median", 6.0, holds=True)


def test_beside_others_high_tasks_are_judged_by_the_median_of_a_host_and_by_the_worst_of_all() -> None:
    def answer(job: Job) -> Outcome:
        worst = job.host == "host" and factor(job) == HIGHEST
        return outcome(1.2 if worst and job.policy == "ours" else 1.04)

    lab = judged(answer, fikit._high)
    for host in HOSTS:
        lab.expect(f"exclusive.{host}", 1.04, holds=True)
    lab.expect("exclusive.worst", 1.2, holds=False)
    lab.expect("exclusive.worst.parts", 1.04, holds=True)


def test_low_times_are_default_over_ours_and_the_lowest_counts() -> None:
    lab = judged(lambda job: pairs_of(VALUES, job, end_ns=1000), fikit._low)
    lowest = lab.expect("low.slices.lowest", 0.9, holds=True)
    assert "of which 0.0 are below 0.86" in lowest.text
    lowest = lab.expect("low.fifo.lowest", 0.8, holds=False)
    assert f"of which {len(HOSTS):.1f} are below 0.86" in lowest.text, "one pair of each host: 0.8, then 0.88"
    lab.expect("low.fifo.median", 0.8 * MEDIAN, holds=True)
    lab.expect("low.parts.slices.lowest", 0.9, holds=True)
    lab.expect("together.slices", 1.0, holds=True)


def test_the_end_of_both_is_default_over_ours() -> None:
    ends = {"slices": 1000, "fifo": 900, "ours": 1000}
    lab = judged(lambda job: outcome(end_ns=ends.get(job.policy, 500)), fikit._low)
    lab.expect("together.slices", 1.0, holds=True)
    lab.expect("together.fifo", 0.9, holds=False)


@pytest.mark.parametrize(("ours", "points", "holds"), [(0.62, 12.0, True), (0.48, -2.0, False)])
def test_the_device_is_busier_under_ours_than_without_filling(ours: float, points: float, holds: bool) -> None:
    lab = judged(lambda job: outcome(busy={"ours": ours, "tasks": 0.5}.get(job.policy, 0.9)), fikit._low)
    lab.expect("busy", points, holds=holds)


def test_fikit_and_the_rivals_are_over_ours() -> None:
    values = {**VALUES, "fikit": (0.98, 1.5), "priority": (1.4, 0.9), "orion": (0.99, 1.2), "ours": (1.0, 1.0)}
    lab = judged(lambda job: pairs_of(values, job), fikit._against_fikit)
    lab.expect("fikit.low", 1.5, holds=True)
    lab.expect("fikit.high", 0.98, holds=True)
    lab.expect("rivals.priority", 1.4, holds=True)
    lab.expect("rivals.priority.low", 0.9, holds=False)
    lab.expect("rivals.orion", 0.99, holds=False)
    lab.expect("rivals.orion.low", 1.2, holds=True)


def test_only_hosts_that_leave_gaps_count_against_fikit() -> None:
    def answer(job: Job) -> Outcome:
        return outcome(low=9.0 if job.policy == "fikit" and job.host == "ahead" else 1.0)

    judged(answer, fikit._against_fikit).expect("fikit.low", 1.0, holds=True)


def test_the_longest_wait_is_that_of_the_worst_pair_and_host_in_longest_kernels() -> None:
    def answer(job: Job) -> Outcome:
        worst = job.host == "sync" and job.low == "bert-large"
        return outcome(worst_wait_ns=120 if worst else 50, longest_low_ns=100)

    lab = judged(answer, fikit._waits)
    lab.expect("wait.kernels", 1.2, holds=False)
    lab.expect("wait.longest", 0.5, holds=True)
