"""Rival scalers, rule by rule."""

from __future__ import annotations

import pytest

from dovetail.lab.experiments.scaling_world import ScalingWorld
from dovetail.lab.rivals.fast_gshare_scaler import FastGShareScaler
from dovetail.lab.rivals.has_gpu import HasGpu
from dovetail.lab.rivals.slicing import Pod
from dovetail.lab.rivals.static_peak import StaticPeak
from dovetail.lab.rivals.target_ongoing import TargetOngoing
from dovetail.predict import Estimator
from dovetail.scale.points import ScalePoint
from dovetail.units import MS, SECOND

WORLD = ScalingWorld("resnet50", 300 * MS)
PREDICTOR = Estimator(WORLD.table())
#: 20 requests a second of a quarter; 50 of the whole device, which is less for each part of it.
HALF = ScalePoint(25, 1, 50 * MS, 20)
WHOLE = ScalePoint(100, 1, 20 * MS, 10)


def fast_gshare() -> FastGShareScaler:
    rival = FastGShareScaler(PREDICTOR, WORLD.graph(), most=4)
    rival.points = [HALF, WHOLE]
    return rival


def test_fast_gshare_takes_whole_pods_of_the_best_point_and_the_least_above_the_rest() -> None:
    pods = fast_gshare().decide([], 49.0, 0, 0)
    assert [(p.point.share_pct, p.quota_pct) for p in pods] == [(25, 100), (25, 100), (25, 60)]
    assert sum(p.per_s for p in pods) == pytest.approx(52)
    assert fast_gshare().decide([Pod(HALF, 100, 1)], 10.0, 0, 0) == [Pod(HALF, 100, 1)], "it has enough"


def test_fast_gshare_removes_the_least_efficient_beyond_its_band() -> None:
    have = [Pod(HALF, 100, 1), Pod(WHOLE, 40, 2)]
    assert fast_gshare().decide(have, 33.0, 0, 0) == have, "within a fifth"
    assert fast_gshare().decide(have, 10.0, 0, 0) == [Pod(HALF, 100, 1)]
    assert fast_gshare().decide([Pod(HALF, 100, 1)], 0.0, 0, 0) == [Pod(HALF, 100, 1)], "the last one stays"


def test_has_gpu_raises_quotas_by_tenths_before_it_adds_a_pod() -> None:
    rival = HasGpu(PREDICTOR, WORLD.graph(), most=4)
    rival.points = [HALF]
    first = rival.decide([], 1.0, 0, 0)
    assert first == [Pod(HALF, 20)]
    more = rival.decide([Pod(HALF, 20, 1)], 10.0, 0, SECOND)
    assert more == [Pod(HALF, 70, 1)], "11 predicted, 0.9 of what 70 % yield"
    pods = rival.decide([Pod(HALF, 70, 1)], 30.0, 0, 2 * SECOND)
    assert pods[0].quota_pct == 100 and len(pods) == 2
    assert rival.decide(pods, 1.0, 0, 3 * SECOND) == pods, "not so soon after"
    for _ in range(40):
        rival.decide(pods, 1.0, 0, 4 * SECOND)
    less = rival.decide(pods, 1.0, 0, 30 * SECOND)
    assert sum(p.quota_pct for p in less) == sum(p.quota_pct for p in pods) - 10


def test_target_ongoing_waits_before_it_changes_anything() -> None:
    rival = TargetOngoing(PREDICTOR, WORLD.graph(), most=4, speed=10.0)
    rival.points = [HALF]
    one = rival.decide([], 0.0, 0, 0)
    assert one == [Pod(HALF, 100)]
    have = [Pod(HALF, 100, 1)]
    assert rival.decide(have, 0.0, 6, 4 * SECOND) == have
    assert rival.decide(have, 0.0, 6, 5 * SECOND) == have
    assert len(rival.decide(have, 0.0, 6, 7 * SECOND)) == 3, "two ongoing for each, wanted for three seconds"
    many = [Pod(HALF, 100, n) for n in (1, 2, 3)]
    assert rival.decide(many, 0.0, 0, 20 * SECOND) == many
    assert rival.decide(many, 0.0, 0, 79 * SECOND) == many
    assert rival.decide(many, 0.0, 0, 81 * SECOND) == many[:1]


def test_no_scaling_has_what_the_peak_needs_and_keeps_it() -> None:
    rival = StaticPeak(PREDICTOR, WORLD.graph(), most=4, peak_per_s=35.0)
    rival.points = [HALF]
    pods = rival.decide([], 0.0, 0, 0)
    assert sum(p.per_s for p in pods) >= 35
    have = [Pod(HALF, 88, n) for n in (1, 2)]
    assert rival.decide(have, 500.0, 99, SECOND) == have
