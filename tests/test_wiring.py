"""The registry: every policy runs by its name, in a simulation, from a log, and says what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from dovetail.arbiters import ARBITERS, find_arbiter, make_arbiter
from dovetail.cli import main
from dovetail.errors import DeclarationError, DovetailError, ProfileError
from dovetail.lab.rivals.aquatope import AquatopePlanner
from dovetail.predict import Estimator
from dovetail.profile.table import ProfileTable
from dovetail.record.log import LogWriter
from dovetail.state import NEVER_NS
from dovetail.tools.replay import replay
from dovetail.tools.simulate import ScenarioRun
from dovetail.units import MS, US
from dovetail.wiring import POLICIES, PolicySpec, find_policy, make_controller, make_policy
from dovetail.workflow.graph import StageSpec, chain

#: Two workflows that share a stage, one with a stage on the host, on two kinds of devices.
SCENARIO = """
requests = 120
seed = 3

[[workflows]]
name = "read"
slo = "200ms"
[[workflows.stages]]
name = "find"
batch = [1, 2, 4]
time = { batch = [1, 2, 4], ms = [8, 10, 14] }
[[workflows.stages]]
name = "cut"
host = true
time = { batch = [1], ms = [1] }
[[workflows.stages]]
name = "tell"
batch = [1, 8]
time = { batch = [1, 8], ms = [5, 20] }

[[workflows]]
name = "look"
slo = "80ms"
priority = 2
[[workflows.stages]]
name = "find"
batch = [1, 2, 4]
time = { batch = [1, 2, 4], ms = [8, 10, 14] }

[[devices]]
kind = "v100"
count = 2
host = 1
[[devices]]
kind = "t4"

[[arrivals]]
kind = "poisson"
workflow = "read"
rate = "40/s"
[[arrivals]]
kind = "poisson"
workflow = "look"
rate = "20/s"
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO)
    return path


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_runs_and_its_log_replays(
    name: str, scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promises 1 to 5, for all that can be named: `check` looks at the invariants after every step."""
    # What Aquatope finds is tested elsewhere; all of its rounds take seconds.
    monkeypatch.setitem(AquatopePlanner.__init__.__kwdefaults__, "rounds", 1)
    run = ScenarioRun(scenario, policy=name)
    with LogWriter(tmp_path / "run.log", run.header) as log:
        result = run.go([log.step], check=True)
    assert result.policy.name == name
    assert sum(line.requests for line in result.summaries) == 120
    assert replay(tmp_path / "run.log").same


@pytest.mark.parametrize("name", POLICIES)
def test_a_scenario_can_name_it(name: str, scenario: Path) -> None:
    scenario.write_text(f'{SCENARIO}\n[policy]\nname = "{name}"\n')
    assert ScenarioRun(scenario).policy == PolicySpec(name)


def test_an_unknown_name_lists_all_and_guesses(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(scenario), "--policy", "egs"]) == 2
    said = capsys.readouterr().err
    assert "did you mean 'esg'?" in said
    assert all(name in said for name in POLICIES)
    with pytest.raises(DeclarationError, match="did you mean 'fikit'"):
        find_arbiter("fikt")


@pytest.mark.parametrize("name", [name for name, entry in POLICIES.items() if entry.profiles])
def test_a_policy_that_plans_from_profiles_says_which_are_missing(name: str) -> None:
    graph = chain("w", 100 * MS, [StageSpec("a", "model", (1,)), StageSpec("b", "model", (1,))])
    with pytest.raises(ProfileError, match=f"'{name}' plans from profiles.*none of 'a', 'b'.*dovetail profile"):
        make_controller([graph], PolicySpec(name), (), 1)


def test_a_missing_extra_is_named(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DovetailError, match=r"policy 'aquatope' needs scikit-learn.*pip install 'dovetail\[lab\]'"):
        ScenarioRun(scenario, policy="aquatope")


def test_policies_that_may_share_workers_bind_at_once_when_they_do() -> None:
    for name, entry in POLICIES.items():
        several = make_policy(PolicySpec(name), Estimator(ProfileTable()), 1, home=1)
        assert (several.scheduler.bind_ns == NEVER_NS) == entry.shares, name
    alone = make_policy(PolicySpec("dovetail", lead_us=3), Estimator(ProfileTable()), 1)
    assert alone.scheduler.bind_ns == 3 * US


def test_settings_that_a_policy_does_not_have_are_no_part_of_a_spec() -> None:
    """Old logs have fewer fields; a misspelt one is refused."""
    old = msgspec.msgpack.encode({"name": "dovetail", "shares_pct": [50, 100]})
    assert msgspec.msgpack.decode(old, type=PolicySpec).space.shares_pct == (50, 100)
    with pytest.raises(msgspec.ValidationError, match="share_pc"):
        msgspec.convert({"share_pc": 50}, PolicySpec)


def test_neither_the_registry_nor_ours_loads_the_lab() -> None:
    code = (
        "import sys, dovetail.wiring as w\n"
        "from dovetail.profile.table import ProfileTable\n"
        "for name in ('first-come', 'by-class', 'dovetail'):\n"
        "    w.make_policy(w.PolicySpec(name), ProfileTable(), 1)\n"
        "print([m for m in sys.modules if m.startswith('dovetail.lab')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ARBITERS)
def test_every_arbiter_can_be_traced(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--policy", name, "--tasks", "1", "--high", "mobilenetv2", "--low", "resnet50"]
    assert main(["trace", *arguments, "--out", str(tmp_path), "--json"]) == 0
    assert '"lane' in capsys.readouterr().out or (tmp_path / "kernels.jsonl").stat().st_size > 0


def test_only_simulated_devices_can_be_shared_by_streams() -> None:
    assert find_policy("esg").profiles
    with pytest.raises(DeclarationError, match="'streams' is a way to share simulated devices"):
        make_arbiter("streams", {})
