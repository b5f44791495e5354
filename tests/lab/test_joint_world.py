"""The world of the joint experiment: what is offered, how often, and what is told of it."""

from __future__ import annotations

import msgspec
import pytest

from dovetail.lab.experiments import joint, joint_runs
from dovetail.lab.experiments.joint_runs import (
    ABLATIONS,
    ALONE,
    HIGH,
    LOW,
    OURS,
    STEP,
    Job,
    Search,
    make_policy,
    search,
    simulate,
)
from dovetail.lab.experiments.joint_world import WARMUP_S, WORKFLOWS, Outcome, Setting, World, burst_steps
from dovetail.units import SECOND

SMALL = Setting(4, 8.0, 0.5)


def test_models_do_not_fit_and_half_of_the_work_is_of_each_family() -> None:
    world = World(SMALL)
    sizes = {s.weights: s.weights_bytes for g in world.graphs for s in g.stages}
    assert sum(sizes.values()) > 1.5 * joint.USABLE_GB * 1e9 > 1.5 * joint.SCARCE_GB * 1e9
    assert max(sizes.values()) < joint.SCARCE_GB * 1e9, "every model fits alone"
    work = [world.rates_per_s[i] * world._least_work_ns(g) for i, g in enumerate(world.graphs)]
    esg = sum(w for w, g in zip(work, world.graphs, strict=True) if g.name.startswith("esg/"))
    assert esg / sum(work) == pytest.approx(0.5, abs=0.1)


def test_load_is_in_parts_of_what_the_cards_can_do_at_most() -> None:
    world = World(SMALL)
    busy = sum(r * world._least_work_ns(g) for r, g in zip(world.rates_per_s, world.graphs, strict=True)) / SECOND
    assert busy == pytest.approx(0.5 * 4)
    more = World(msgspec.structs.replace(SMALL, devices=10, load_of=4))
    assert more.rate_per_s == pytest.approx(world.rate_per_s), "the load of four cards, on ten"


def test_objectives_are_the_catalogues_multiples_of_the_fastest_way() -> None:
    for graph in (world := World(SMALL)).graphs:
        factor = 3 if graph.name.startswith("esg/") else 5
        assert graph.slo_ns == pytest.approx(factor * world._fastest_ns(graph))


def test_requests_come_as_often_as_said_a_third_in_class_1_and_all_policies_meet_the_same() -> None:
    world = World(Setting(16, 8.0, 1.0))
    found = list(world.arrivals(7, 60.0))
    assert len(found) == pytest.approx(60 * world.rate_per_s, rel=0.1)
    assert sum(a.priority == 1 for a in found) / len(found) == pytest.approx(1 / 3, abs=0.05)
    assert {a.graph for a in found} == set(range(len(WORKFLOWS)))
    assert found == list(World(Setting(16, 8.0, 1.0)).arrivals(7, 60.0))


def test_bursts_are_of_all_workflows_together_and_the_mean_rate_is_the_same() -> None:
    steps = burst_steps(3, 40_000.0)
    assert sum(ns for ns, _ in steps) == 40_000 * SECOND
    assert sum(ns * factor for ns, factor in steps) / sum(ns for ns, _ in steps) == pytest.approx(1.0, abs=0.05)
    assert {factor for _, factor in steps} == {0.5, 2.5}
    assert burst_steps(3, 10.0) != burst_steps(4, 10.0)


@pytest.mark.parametrize("policy", [OURS, *joint.RIVALS, *(f"without {what}" for what in ABLATIONS)])
def test_every_policy_runs_and_every_request_is_counted_once(policy: str) -> None:
    seconds = WARMUP_S + 3.0
    found = simulate(Job(SMALL, policy, 101, seconds))
    counted = [a for a in World(SMALL).arrivals(101, seconds) if a.at_ns >= WARMUP_S * SECOND]
    assert sum(s.requests for s in found.summaries) == len(counted)
    first = sum(s.requests for s in found.summaries if s.priority == 1)
    assert first == sum(a.priority == 1 for a in counted), "true classes, whatever the policy was told"
    assert found.goodput == pytest.approx(found.hit_rate * len(counted) / 3.0)
    assert 0 <= found.hit_rate <= 1
    assert found.loads > 0, "memory is empty at first"


def test_class_1_alone_meets_the_same_requests_of_class_1_and_no_others() -> None:
    seconds = WARMUP_S + 3.0
    found = simulate(Job(SMALL, ALONE, 101, seconds))
    counted = [a for a in World(SMALL).arrivals(101, seconds) if a.at_ns >= WARMUP_S * SECOND]
    assert {s.priority for s in found.summaries if s.requests} == {1}
    assert sum(s.requests for s in found.summaries) == sum(a.priority == 1 for a in counted) > 0


def test_what_is_paid_is_the_cards_and_not_their_use() -> None:
    found = simulate(Job(SMALL, OURS, 101, WARMUP_S + 3.0))
    ok = found.goodput * 3.0
    assert found.usd_per_1000 == pytest.approx(1000 * 4 * World(SMALL).card.usd_per_hour * 3 / 3600 / ok)


def test_replicas_are_placed_for_the_rates_of_the_world() -> None:
    world = World(SMALL)
    for name in ("triton", "ray-serve"):
        planner = make_policy(world, name, 1).scheduler
        assert planner.replicas._demand == dict(zip(WORKFLOWS, world.rates_per_s, strict=True))  # type: ignore[attr-defined]


@pytest.mark.parametrize("enough", [LOW, 18, HIGH, HIGH + STEP])
def test_the_fewest_cards_are_found_by_halving(monkeypatch: pytest.MonkeyPatch, enough: int) -> None:
    asked: list[int] = []

    def simulated(job: Job) -> Outcome:
        asked.append(job.setting.devices)
        hit_rate = 0.95 if job.setting.devices >= enough else 0.94
        return Outcome([], 1.0, hit_rate, 1.0, 0.5, 1, 1.0)

    monkeypatch.setattr(joint_runs, "simulate", simulated)
    assert search(Search(joint.PRICED[0], OURS, 1, 20.0)) == enough
    assert all(LOW <= devices <= HIGH for devices in asked)
    assert len(asked) <= 6
