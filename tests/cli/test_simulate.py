"""`dovetail simulate` and `dovetail catalogue` as a user runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.record.log import LogReader
from dovetail.tools.replay import replay

PROJECT = Path(__file__).parents[2]
EXAMPLES = sorted((PROJECT / "examples" / "scenarios").glob("*.toml"))
MANUAL = PROJECT / "docs" / "simulate.md"

SCENARIO = """
seed = 3
duration = "20s"
warmup = "2s"

[[workflows]]
catalogue = "esg/image-classification"
slo = "2s"

[[devices]]
kind = "v100"
count = 2

[[arrivals]]
workflow = "esg/image-classification"
class = 1
kind = "poisson"
rate = 2

[[arrivals]]
workflow = "esg/image-classification"
class = 2
kind = "poisson"
rate = 1

[policy]
name = "by-class"

[noise]
spread = 0.05
"""


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A scenario that two V100s can do."""
    monkeypatch.chdir(tmp_path)
    Path("scenario.toml").write_text(SCENARIO)
    return "scenario.toml"


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["simulate", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_table_goes_to_stdout_and_the_speed_to_stderr(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = simulate(capsys, scenario)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["workflow", "class", "requests"]
    assert [line.split()[:2] for line in lines[2:4]] == [
        ["esg/image-classification", "1"],
        ["esg/image-classification", "2"],
    ]
    assert lines[-2].startswith("by-class, seed 3, ")
    assert lines[-1] == "met: 95% of the requests of each class within the objective"
    assert "requests/s" in err
    assert "requests/s" not in out


def test_json_has_the_same_bytes_each_time_and_sorted_keys(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    first = simulate(capsys, scenario, "--json")
    second = simulate(capsys, scenario, "--json")
    assert first[:2] == second[:2]
    found = json.loads(first[1])
    assert list(found) == sorted(found)
    assert found["seed"] == 3
    assert found["policy"]["name"] == "by-class"
    assert found["met"] is True
    assert [line["priority"] for line in found["summaries"]] == [1, 2]
    assert [device["name"] for device in found["devices"]] == ["v100-0", "v100-1"]
    assert all(0 < device["busy"] < 1 for device in found["devices"])
    assert 17 < found["simulated_s"] < 25
    assert sum(line["requests"] for line in found["summaries"]) < 60, "the warm-up is left out"


def test_seed_and_policy_can_be_given(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = json.loads(simulate(capsys, scenario, "--json", "--seed", "1")[1])
    two = json.loads(simulate(capsys, scenario, "--json", "--seed", "2", "--policy", "first-come")[1])
    assert (one["seed"], one["policy"]["name"]) == (1, "by-class")
    assert (two["seed"], two["policy"]["name"]) == (2, "first-come")
    assert one["summaries"] != two["summaries"]


def test_the_exit_code_says_whether_the_objective_held(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tight.toml").write_text(SCENARIO.replace('slo = "2s"', 'slo = "550ms"'))
    code, out, _ = simulate(capsys, "tight.toml")
    assert code == 1
    assert out.splitlines()[-1].startswith("missed: 95%")
    Path("easy.toml").write_text("target = 0.1\n" + SCENARIO.replace('slo = "2s"', 'slo = "550ms"'))
    assert simulate(capsys, "easy.toml")[0] == 0


def test_a_log_replays_and_has_every_step(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = simulate(capsys, scenario, "--json", "--log", "run.log", "--check")
    assert code == 0
    assert "wrote the log run.log" in err
    with LogReader(Path("run.log")) as log:
        assert sum(1 for _ in log) == json.loads(out)["events"]
    assert replay(Path("run.log")).same


def test_traces_and_plots_are_written(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = simulate(capsys, scenario, "--trace", "trace.json", "--plot", "new/plots")
    assert code == 0
    assert json.loads(Path("trace.json").read_text())["traceEvents"]
    assert {p.name for p in Path("new/plots").iterdir()} == {"latency.png", "timeline.png"}
    assert "ui.perfetto.dev" in err


def test_watching_a_run_does_not_change_it(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = simulate(capsys, scenario, "--json")[1]
    watched = simulate(capsys, scenario, "--json", "--check", "--log", "l", "--trace", "t", "--plot", "p")[1]
    assert plain == watched


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "cannot read the scenario nowhere.toml: No such file"),
        (["scenario.toml", "--policy", "firstcome"], "there is no policy 'firstcome'; did you mean 'first-come'?"),
        (["scenario.toml", "--log", "no/where/run.log"], "cannot write"),
        (["scenario.toml", "--trace", "no/where/t.json"], "cannot write to no/where/t.json: No such file"),
        (["scenario.toml", "--plot", "scenario.toml"], "cannot write to scenario.toml: File exists"),
        (["policy.toml"], "policy.toml:28: policy.share_pc: there is no such key; did you mean 'share_pct'?"),
        (["stuck.toml"], "requests were never answered, because in the end no worker held stage 'esg/srgan'"),
        (["early.toml"], "no request arrived after the warm-up"),
    ],
)
@pytest.mark.usefixtures("scenario")
def test_wrong_input_is_named_and_nothing_is_printed(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("policy.toml").write_text(SCENARIO.replace('name = "by-class"', 'name = "by-class"\nshare_pc = 3'))
    Path("stuck.toml").write_text(SCENARIO.replace("count = 2", 'count = 2\nleave = "5s"'))
    Path("early.toml").write_text(SCENARIO.replace('duration = "20s"', 'duration = "2.001s"'))
    code, out, err = simulate(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("dovetail simulate: ")
    assert message in err
    assert "Traceback" not in err


def test_a_wrong_seed_is_refused(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["simulate", scenario, "--seed", "-1"])
    assert exit_.value.code == 2
    assert "must be a whole number" in capsys.readouterr().err


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_run(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shortened, with all invariants checked; so short a run may miss an objective that the whole one meets."""
    text = path.read_text().replace("requests = 100_000", "requests = 2_000")
    for seconds in ("120s", "300s", "600s"):
        text = text.replace(f'duration = "{seconds}"', 'duration = "30s"')
    assert text != path.read_text()
    (tmp_path / path.name).write_text(text.replace('warmup = "20s"', 'warmup = "5s"'))
    code, out, err = simulate(capsys, str(tmp_path / path.name), "--check")
    assert code in (0, 1), err
    assert "busy: " in out


def test_the_scenarios_of_the_manual_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```toml\n(.*?)^```", MANUAL.read_text(), re.MULTILINE | re.DOTALL)
    whole, workflow, contention, cluster = blocks
    rest = '[[devices]]\nkind = "v100"\nhost = 1\n[[arrivals]]\nworkflow = "tag"\nkind = "poisson"\nrate = 5\n'
    several = whole.replace('"by-class"', '"place"') + cluster
    for text in (whole, whole + contention, several, f'duration = "9s"\n{workflow}{rest}'):
        (tmp_path / "s.toml").write_text(text)
        code, out, err = simulate(capsys, str(tmp_path / "s.toml"), "--check")
        assert code == 0, out + err


def test_the_catalogue_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue"]) == 0
    out = capsys.readouterr().out
    assert "resnet50 " in out
    assert "v100 " in out
    assert "compass/translation " in out
    assert main(["catalogue", "devices"]) == 0
    assert "resnet50 " not in capsys.readouterr().out


def test_the_catalogue_as_json_says_times_and_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "models", "--json", "--device", "t4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["models"]
    resnet = next(m for m in found["models"] if m["name"] == "resnet50")
    assert resnet["device"] == "t4"
    assert resnet["evidence"]["basis"] == "scaled"
    assert resnet["ms"]["1"] > 0


def test_the_catalogue_knows_no_such_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["catalogue", "--device", "v10"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "no device 'v10'. Did you mean 'v100'?" in said.err


PLACED = Path("examples/scenarios/placement.toml")


def test_several_ingresses_give_the_same_bytes_each_time(capsys: pytest.CaptureFixture[str]) -> None:
    first = simulate(capsys, str(PLACED), "--json")
    assert first[0] == 0, first[2]
    assert simulate(capsys, str(PLACED), "--json")[1] == first[1]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (("[cluster]", "[cluster]"), ("--policy", "by-class"), "the policy 'by-class' has its workers to itself"),
        (("host = 4", "host = 3"), (), "there are 3 for 4; add some to a device: host = 4"),
        (("ingresses = 4", "ingresses = 0"), (), "cluster.ingresses"),
        (('push = "10ms"', "push = 10"), (), "cluster.push"),
        (("[cluster]", "[cluster]"), ("--log", "never.log"), "--log tells of one controller"),
    ],
)
def test_what_several_ingresses_cannot_do_is_said(
    change: tuple[str, str],
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scenario = tmp_path / "placed.toml"
    scenario.write_text(PLACED.read_text().replace(*change))
    code, out, err = simulate(capsys, str(scenario), *options)
    assert (code, out) == (2, "")
    assert message in err
    assert not Path("never.log").exists()


@pytest.mark.parametrize("policy", ["dovetail", "place", "compass", "jit", "heft", "hash"])
def test_a_run_whose_models_do_not_fit_replays_and_explains(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario, log = tmp_path / "placed.toml", tmp_path / "run.log"
    text = PLACED.read_text().replace("ingresses = 4", "ingresses = 1").replace('"120s"', '"30s"')
    scenario.write_text(text.replace('memory = "8GB"', 'memory = "6GB"').replace('"20s"', '"1s"'))
    code, _, err = simulate(capsys, str(scenario), "--policy", policy, "--log", str(log), "--check")
    assert code in (0, 1), err
    assert main(["replay", str(log)]) == 0
    assert "same: " in capsys.readouterr().out
    assert main(["explain", "--log", str(log), "30"]) == 0
    told = capsys.readouterr().out
    assert "sent to t4-" in told


@pytest.mark.parametrize(
    ("policy", "setting"),
    [
        ("dovetail", "share_pct = 50"),
        ("dovetail", "share_pct = 100"),
        ("dovetail", "batch = { net = 2 }"),
        ("by-class", "percentile = 0.9"),
        ("first-come", "goal = 'cost'"),
        ("esg", "percentile = 0.99"),
        ("place", "share_pct = 50"),
        ("place", "lead_us = 5"),
        ("compass", "seed = 0"),
    ],
)
def test_a_setting_that_the_policy_does_not_look_at_is_refused_even_if_it_is_the_usual_one(
    policy: str, setting: str, scenario: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(scenario).write_text(SCENARIO.replace('name = "by-class"', f'name = "{policy}"\n{setting}'))
    code, out, err = simulate(capsys, scenario)
    name = setting.partition(" ")[0]
    assert (code, out) == (2, "")
    assert f"scenario.toml:28: policy.{name}: the policy '{policy}' does not look at it; leave it out" in err


def test_of_settings_for_another_policy_one_is_told(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(scenario).write_text(SCENARIO.replace('name = "by-class"', 'name = "by-class"\nshare_pct = 50'))
    _, _, err = simulate(capsys, scenario, "--policy", "dovetail")
    assert "note: the policy 'dovetail' does not look at share_pct, which is the scenario's" in err


def test_what_is_known_and_what_nobody_can_meet_is_said(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = simulate(capsys, scenario)
    assert "note: how long stages take: of 3, 3 from the catalogue or the scenario" in err
    assert "nobody can meet" not in err
    Path(scenario).write_text(SCENARIO.replace('slo = "2s"', 'slo = "20ms"'))
    code, _, err = simulate(capsys, scenario)
    assert code == 1
    assert "note: nobody can meet the objective of 'esg/image-classification', 20 ms: its fastest plan takes" in err
    Path(scenario).write_text("profiled = false\n" + SCENARIO)
    _, _, err = simulate(capsys, scenario)
    assert "note: the policy is not told how long stages take (profiled = false)" in err


def test_a_state_table_that_nobody_reads_is_told(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(scenario).write_text(SCENARIO + '\n[cluster]\npush = "5ms"\n')
    _, _, err = simulate(capsys, scenario)
    assert "note: a sole ingress needs no state table: cluster.push is not looked at" in err


def test_a_recorded_setting_that_another_policy_does_not_look_at_is_told(
    scenario: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(scenario).write_text(SCENARIO.replace('name = "by-class"', 'name = "by-class"\nshare_pct = 50'))
    simulate(capsys, scenario, "--log", "run.log")
    code, _, err = simulate(capsys, "--recorded", "run.log", "--policy", "dovetail")
    assert code == 0
    assert "the policy 'dovetail' does not look at share_pct, with which the run was recorded" in err
    code, _, err = simulate(capsys, "--recorded", "run.log")
    assert code == 0 and "does not look at" not in err
