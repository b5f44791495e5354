"""What the experiment that everything rests on makes of its runs, made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.hand import HandLab

from dovetail.lab.experiments import foundation, foundation_profiles
from dovetail.lab.queueing import Queueing


def waits(factors: dict[int, float], load: float) -> HandLab:
    """The claims when all waits are those of theory times a factor by seed."""
    theory = {}
    for system in foundation.systems(load, foundation.QUICK[1]).values():
        theory[_key(system.queue)] = system.wait_s
    lab = HandLab(tuple(factors), lambda job: tuple(factors[job.seed] * w for w in theory[_key(job)]), quick=True)
    foundation.queues(lab)
    return lab


def _key(queue: Queueing) -> tuple[object, ...]:
    return (queue.loads, queue.exponential, queue.cv, queue.servers, queue.stations)


@pytest.mark.parametrize(
    ("factors", "deviation", "holds"),
    [
        ({1: 1.02, 2: 1.0}, 1.0, True),
        ({1: 0.98, 2: 1.0}, -1.0, True),
        ({1: 1.05, 2: 1.03}, 4.0, False),
        ({1: 0.9}, -10, False),
    ],
)
def test_waits_may_be_off_theory_by_a_little_in_either_direction(
    factors: dict[int, float], deviation: float, holds: bool
) -> None:
    lab = waits(factors, foundation.QUICK[0])
    for ident in ("mm1", "md1", "mg1", "mm2", "tandem", "classes.1", "classes.2"):
        lab.expect(f"queue.{ident}", deviation, holds=holds)


def test_every_request_that_is_elsewhere_counts() -> None:
    for each, holds in ((0, True), (1, False)):
        lab = HandLab((1, 2, 3), lambda _job, each=each: each, quick=True)
        foundation.exactness(lab)
        lab.expect("queue.exact", 3 * each, holds=holds)


def test_throughput_is_judged_by_the_largest_error_of_either_sign() -> None:
    def answer(cell: foundation.Saturated) -> float:
        return cell.expected_per_s * (0.99 if (cell.model, cell.batch, cell.share_pct) == ("vgg19", 4, 50) else 1.002)

    lab = HandLab((1,), answer, quick=True)
    foundation.saturation(lab)
    lab.expect("stage.saturation", 1.0, holds=False)
    lab = HandLab((1,), lambda cell: cell.expected_per_s * 1.004, quick=True)
    foundation.saturation(lab)
    lab.expect("stage.saturation", 0.4, holds=True)


def test_every_request_without_exactly_one_outcome_counts() -> None:
    lab = HandLab((1, 2), lambda job: (job.seed - 1, {"ok": 10, "late": job.seed}))
    foundation.conservation(lab)
    claim = lab.expect("promise.one-outcome", 1, holds=False)
    assert "(20 ok, 3 late)" in claim.text
    assert all(job.check for jobs in lab.asked.values() for job in jobs), "every invariant is checked"


def test_every_seed_that_differs_and_every_step_that_is_decided_otherwise_counts() -> None:
    lab = HandLab((1, 2, 3), lambda seed: (int(seed == 2), 10 if seed == 3 else 0))
    foundation.determinism(lab)
    lab.expect("promise.same-bytes", 1, holds=False)
    lab.expect("promise.replay", 10, holds=False)
    lab = HandLab((1, 2, 3), lambda seed: (0, 0))
    foundation.determinism(lab)
    assert all(claim.holds for claim in lab.claims)


@pytest.mark.parametrize("bend", [1.0, 1.5])
def test_curves_are_judged_by_their_mean_error_on_rows_of_the_whole_quota(bend: float, tmp_path: Path) -> None:
    rows = ["model,batch,sm_pct,quota_pct,latency_ms"]
    for batch in (1, 8):
        for share in (10, 20, 50, 100):
            ms = max(2.0, 100 * batch / share) * (bend if share == 20 else 1.0)
            rows += [f"resnet50,{batch},{share},100,{ms}", f"resnet50,{batch},{share},50,99999"]
    (tmp_path / "rapp").mkdir()
    (tmp_path / "rapp" / foundation_profiles.RAPP_FILE[1]).write_text("\n".join([*rows, "nobody,1,10,100,7"]))
    lab = HandLab((1,), lambda job: job)
    lab._data = tmp_path
    foundation.profiles(lab)
    (claim,) = lab.claims
    assert "over 1 vision models" in claim.text
    assert claim.holds is (bend == 1.0), "points on a curve have no error, and one that is half off has"
