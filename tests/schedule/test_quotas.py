"""Admission knows quotas: whoever would wait too long for its own client's tokens is refused, and nobody else."""

from __future__ import annotations

import pytest

from dovetail.control import Controller, RequestArrived
from dovetail.control.validate import validate
from dovetail.device import GapArbiter, GapSettings, TokenAccount, TokenSettings
from dovetail.predict import Estimator
from dovetail.profile.table import Entry, Point, ProfileTable
from dovetail.record.ledger import Ledger
from dovetail.schedule import PlannerSettings
from dovetail.sim import SimDevice, Simulation
from dovetail.state import WorkerSpec
from dovetail.units import MS, SECOND
from dovetail.wiring import own_policy
from dovetail.workflow.graph import StageSpec, chain

RUN_NS = 10 * MS
SPEC = WorkerSpec("gpu", "gpu", ("model",))


def played(quotas: dict[str, int], every: dict[str, int], slo_ns: int, *, strict: bool) -> dict[str, dict[str, int]]:
    """Outcomes by workflow if requests of each come every so many ns for some seconds."""
    stages = {name: StageSpec(name, "model", (1,), share_pct=100, quota_pct=q) for name, q in quotas.items()}
    table = ProfileTable([Entry(name, "gpu", points=(Point(1, 1, RUN_NS, 0.0, 1),)) for name in stages])
    predictor = Estimator(table)
    policy = own_policy(predictor, PlannerSettings(goal="time", limits=strict))
    graphs = [chain(name, slo_ns, [stage]) for name, stage in stages.items()]
    controller = Controller(graphs, policy)
    times = sorted((at, i) for i, name in enumerate(stages) for at in range(MS, 6 * SECOND, every[name]))
    requests = (RequestArrived(at, 0, number, graph) for number, (at, graph) in enumerate(times, 1))
    ledger = Ledger([(g.name, g.slo_ns) for g in graphs])
    simulation = Simulation(controller, ledger, requests, [lambda *_: validate(controller)])
    account = TokenAccount(TokenSettings(mode="strict" if strict else "conserving"))
    arbiter = GapArbiter({}, GapSettings(order="slack"), account=account, learn=False)
    simulation.join(SimDevice(1, SPEC, controller.stages, table, simulation.schedule, arbiter=arbiter))
    simulation.run()
    return {line.workflow: {o: n for o, n in line.outcomes.items() if n} for line in ledger.summary()}


@pytest.mark.parametrize("quota_pct", [10, 20, 50])
def test_beyond_a_limit_requests_are_refused_and_the_others_are_in_time(quota_pct: int) -> None:
    got = played({"slow": quota_pct}, {"slow": RUN_NS}, SECOND, strict=True)["slow"]
    # Without the rule 11, 36 and 141 of 600 were in time, and 61, 105 and 207 were late. Without what is to be paid
    # for after a batch, 60 were late with a quota of 10 %.
    assert got["ok"] >= 0.95 * sum(got.values()) * quota_pct / 100, got
    assert got.get("late", 0) * 20 <= got["ok"], got


def test_alone_a_quota_that_is_no_limit_refuses_nobody() -> None:
    got = played({"slow": 10}, {"slow": 12 * MS}, SECOND, strict=False)["slow"]
    assert set(got) == {"ok"}


def test_beside_another_who_uses_all_of_its_quota_only_the_own_quota_counts() -> None:
    got = played({"small": 20, "large": 80}, {"small": 20 * MS, "large": RUN_NS}, SECOND, strict=False)
    # Without the rule 45 of 300 were in time, and 42 were late.
    small, asked = got["small"], sum(got["small"].values())
    assert small["ok"] >= 0.8 * asked * 20 / 50 and small.get("late", 0) < small["ok"] // 4, got
