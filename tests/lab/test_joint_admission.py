"""With the goal of cost queues are held on purpose: who is let in must not take that for a crowd."""

from __future__ import annotations

from dovetail.lab.experiments.joint_runs import Job, seconds, simulate
from dovetail.lab.experiments.joint_world import Setting


def test_below_capacity_few_are_refused_for_those_who_will_overtake_them() -> None:
    setting = Setting(16, 14.336, 0.9)
    outcome = simulate(Job(setting, "dovetail", 101, seconds(setting, quick=True)))
    assert outcome.first_hit_rate >= 0.99
    assert outcome.hit_rate >= 0.9
