"""`dovetail plan` as a user meets it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.predict import EstimatorState
from dovetail.predict.state import LearnedRun
from dovetail.profile import catalogue
from dovetail.profile.machine import Identity, this_machine
from dovetail.profile.record import Key, Measured, wanted_points
from dovetail.profile.store import ProfileStore
from dovetail.record.learned import rows_of
from dovetail.units import MS
from dovetail.workflow.app import load_target
from dovetail.workflow.graph import StageSpec

PROJECT = Path(__file__).parents[2]
#: A model and two Python stages, one of them mapped.
APP = "tests.cli.planned:app"
CHAIN = f"{APP}/chained"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty directory, so that no store is there by chance."""
    monkeypatch.chdir(tmp_path)


def plan(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["plan", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def planned(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code, out, _ = plan(capsys, *args, "--json")
    return code, json.loads(out)


def profiled(store: ProfileStore, spec: StageSpec, identity: Identity, spread: float = 0.1) -> None:
    """10 ms for an item of the model and 2 ms in Python, a fifth less in batches, half as much on two cores."""
    each = (2 if spec.on_host else 10) * MS
    times = {(b, c): each * b // c * (4 if b > 1 else 5) // 5 for b, c in wanted_points(spec, identity)}
    points = [Measured(b, c, ns, ns, ns, spread, 0.01, 50) for (b, c), ns in times.items()]
    store.put(Key.of(spec, identity), points, 0, items="float32[3]")


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    """All stages of the application are profiled."""
    found = ProfileStore("mine.sqlite")
    for spec in load_target(APP).specs:
        profiled(found, spec, this_machine())
    return found


def test_it_shows_configurations_cost_neighbours_and_the_frontier(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "frontier.png"
    code, out, _ = plan(
        capsys, "esg/image-classification", "--rate", "20/s", "--device", "a100", "--plot", str(picture)
    )
    assert code == 0
    for word in ("super-resolution", "per 1,000 requests", "next faster", "next cheaper", "frontier"):
        assert word in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_it_prints_what_the_manual_shows(capsys: pytest.CaptureFixture[str]) -> None:
    manual = (PROJECT / "docs" / "plan.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^```sh\ndovetail (plan .*)\n```$", manual, re.MULTILINE)
    (shown,) = re.findall(r"^```\n(esg.*? devices busy\n)```$", manual, re.MULTILINE | re.DOTALL)
    assert main(command.split()) == 0
    assert capsys.readouterr().out.startswith(shown)


@pytest.mark.parametrize("workflow", catalogue.workflows())
def test_the_chosen_plan_is_a_point_of_the_frontier_and_is_marked_there(
    capsys: pytest.CaptureFixture[str], workflow: str
) -> None:
    given = (workflow, "--rate", "5", "--device", "a100")
    code, advice = planned(capsys, *given)
    chosen = advice["chosen"]
    assert code == 0 and advice["feasible"]
    assert advice["frontier"][advice["chosen_at"]] == [chosen["percentile_ms"], chosen["usd_per_1000"]]
    times, costs = zip(*advice["frontier"], strict=True)
    assert list(times) == sorted(times) and list(costs) == sorted(costs, reverse=True)
    assert chosen["percentile_ms"] <= advice["objective_ms"]
    for other, sign in ((advice["faster"], 1), (advice["cheaper"], -1)):
        if other is not None:
            assert [other["percentile_ms"], other["usd_per_1000"]] in advice["frontier"]
            assert sign * (chosen["percentile_ms"] - other["percentile_ms"]) > 0
    _, out, _ = plan(capsys, *given)
    marked = [line.split() for line in out.splitlines() if line.split()[-1:] == ["chosen"]]
    assert [row[:2] for row in marked] == [[f"{chosen['percentile_ms']:.1f}", f"{chosen['usd_per_1000']:.4g}"]]


def test_expected_is_the_mean_and_a_percentile_is_called_one(
    capsys: pytest.CaptureFixture[str], store: ProfileStore
) -> None:
    given = (CHAIN, "--rate", "1", "--store", "mine.sqlite", "--device", "cpu:1")
    code, advice = planned(capsys, *given)
    chosen = advice["chosen"]
    assert code == 0
    assert [step["batch"] for step in chosen["steps"]] == [1, 1]
    assert chosen["expected_ms"] == pytest.approx(2 + 10)
    # Each time scatters by a tenth: the percentile is above the mean, and below that of all being slow at once.
    assert 12 < chosen["percentile_ms"] < 12 * 1.3
    _, out, _ = plan(capsys, *given)
    assert f"expected: 12 ms on average, 99.0% of requests within {chosen['percentile_ms']:.0f} ms" in out
    assert "99.0% within ms" in out


def test_the_expected_time_has_half_the_wait_for_a_batch_and_the_percentile_most_of_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, advice = planned(capsys, "esg/image-classification", "--rate", "20/s", "--device", "a100", "--slo", "420ms")
    chosen = advice["chosen"]
    batched = [step for step in chosen["steps"] if step["batch"] > 1]
    assert batched and all(step["fill_ms"] == pytest.approx(50 * (step["batch"] - 1) / 2) for step in batched)
    total = sum(step["run_ms"] + step["fill_ms"] for step in chosen["steps"])
    assert chosen["expected_ms"] == pytest.approx(total)
    assert chosen["expected_ms"] < chosen["percentile_ms"]


def test_a_fork_takes_as_long_as_its_longest_way(capsys: pytest.CaptureFixture[str]) -> None:
    _, advice = planned(capsys, "compass/translation", "--rate", "0.01", "--device", "a100")
    steps = {step["node"]: step["run_ms"] + step["fill_ms"] for step in advice["chosen"]["steps"]}
    middle = max(steps["marian"], steps["mt5-a"], steps["mt5-b"])
    assert advice["chosen"]["expected_ms"] == pytest.approx(steps["opt"] + middle + steps["aggregate"])


def test_an_objective_out_of_reach_is_exit_code_one_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = plan(capsys, "esg/depth-recognition", "--rate", "5", "--device", "a100", "--slo", "50ms")
    assert code == 1
    assert "the objective cannot be met: even the fastest plan keeps 99.0% of requests within" in out


def test_nothing_is_invented_for_a_stage_that_nobody_has_measured(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = plan(capsys, CHAIN, "--rate", "5")
    assert code == 3
    assert "there is no plan: nobody knows how long prepare, work take" in out
    assert "frontier" not in out and "expected" not in out
    assert f"dovetail plan: measure prepare, work: dovetail profile {APP}\n" in err
    assert "million multiply-accumulates suggest about" in out, "a guess is shown, and is not used"


def test_json_says_what_is_unknown_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    code, advice = planned(capsys, CHAIN, "--rate", "5", "--store", "none.sqlite")
    assert code == 3
    assert advice["chosen"] is None and advice["feasible"] is None and advice["frontier"] == []
    assert [(s["stage"], s["kind"], s["basis"]) for s in advice["stages"]] == [
        ("prepare", "host", "unknown"),
        ("work", "cpu", "unknown"),
    ]
    assert advice["remedies"] == [f"measure prepare, work: dovetail profile {APP} --store none.sqlite"]


def test_each_stage_says_whether_it_was_measured_learned_or_assumed(capsys: pytest.CaptureFixture[str]) -> None:
    prepare, work = (next(s for s in load_target(APP).specs if s.name == name) for name in ("prepare", "work"))
    identity, store = this_machine(), ProfileStore("profiles.sqlite")
    profiled(store, prepare, identity)
    code, advice = planned(capsys, CHAIN, "--rate", "5")
    assert code == 3 and [s["basis"] for s in advice["stages"]] == ["measured", "unknown"]
    state = EstimatorState(runs=(LearnedRun("work", "cpu", 1, 1, 100, 40, 8 * MS, 0.0),))
    store.put_learned(rows_of(state, [work], identity))
    code, advice = planned(capsys, CHAIN, "--rate", "5", "--device", "cpu:1")
    assert code == 0
    assert [s["basis"] for s in advice["stages"]] == ["measured", "learned"]
    assert advice["stages"][1]["why"] == "seen 40 times while serving"
    assert [step["basis"] for step in advice["chosen"]["steps"]] == ["measured", "learned"]
    _, out, err = plan(capsys, CHAIN, "--rate", "5", "--device", "cpu:1")
    assert "the whole is learned" in out
    assert "dovetail plan: profile store profiles.sqlite, in the current directory" in err
    code, advice = planned(capsys, CHAIN, "--rate", "5", "--device", "v100")
    assert code == 0 and [s["basis"] for s in advice["stages"]] == ["measured", "assumed"]
    assert advice["stages"][1]["why"].startswith("taken to be like resnet50; catalogue, ")


def test_a_stale_profile_is_not_used_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    here, store = this_machine(), ProfileStore("mine.sqlite")
    other = Identity("another processor", here.cores, here.libraries)
    for spec in load_target(APP).specs:
        profiled(store, spec, other)
    code, _, err = plan(capsys, CHAIN, "--rate", "5", "--store", "mine.sqlite")
    assert code == 3
    assert "the profile of stage 'work' on 'cpu' is stale: machine another processor" in err


def test_steps_on_the_host_have_the_catalogues_times(capsys: pytest.CaptureFixture[str]) -> None:
    _, advice = planned(capsys, "compass/translation", "--rate", "2/s", "--device", "t4")
    host = next(s for s in advice["stages"] if s["kind"] == "host")
    assert (host["basis"], host["why"]) == ("assumed", "catalogue's step on the host")
    (entry,) = [s for s in catalogue.workflow("compass/translation").stages if not s.model]
    assert advice["chosen"]["steps"][-1]["run_ms"] == pytest.approx(entry.host_ms)


def test_what_is_taken_for_granted_is_said(capsys: pytest.CaptureFixture[str], store: ProfileStore) -> None:
    given = (f"{APP}/listed", "--rate", "1", "--store", "mine.sqlite", "--device", "cpu:1")
    _, advice = planned(capsys, *given)
    assert any(n.startswith("lists are taken to have 1 element(s): work") for n in advice["notes"])
    _, more = planned(capsys, *given, "--fanout", "6")
    assert any(n.startswith("lists are taken to have 6 element(s): work") for n in more["notes"])
    assert more["chosen"]["usd_per_1000"] > 2 * advice["chosen"]["usd_per_1000"]
    # One request a second, 8 ms for each item of a batch of four, one batch after the other.
    assert [step["batch"] for step in more["chosen"]["steps"]] == [1, 4]
    assert more["chosen"]["steps"][1]["run_ms"] == pytest.approx(2 * 32)
    assert more["devices"] == pytest.approx(6 * 0.008) and advice["devices"] == pytest.approx(0.008)
    code, _, err = plan(capsys, CHAIN, "--rate", "1", "--fanout", "3")
    assert code == 2 and "--fanout: no stage of 'chained' is mapped over a list" in err
    _, advice = planned(capsys, "esg/depth-recognition", "--rate", "5", "--device", "a100")
    assert any("no spread is known of these, so their times count as exact" in n for n in advice["notes"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("esg/nothing", "--rate", "5", "--device", "a100"), "no workflow 'esg/nothing'"),
        (("esg/depth-recognition", "--rate", "quick", "--device", "a100"), "write for example '50/s'"),
        (("esg/depth-recognition", "--rate", "0", "--device", "a100"), "above zero"),
        (("esg/depth-recognition", "--rate", "5", "--device", "b200"), "no device 'b200'"),
        (("esg/depth-recognition", "--rate", "5", "--slo", "5 lightyears", "--device", "a100"), "unknown unit"),
        (("esg/depth-recognition", "--rate", "5", "--percentile", "99"), "must be above 0.5 and below 1"),
        (("esg/depth-recognition", "--rate", "5", "--store", "a.sqlite"), "--store: a workflow of the catalogue has"),
        ((APP, "--rate", "5"), f"say which workflow: {APP}/chained, {APP}/listed, {APP}/forked"),
    ],
)
def test_wrong_input_names_the_cause_and_the_remedy(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    try:
        code = main(["plan", *arguments])
    except SystemExit as exit:  # argparse's way
        assert isinstance(exit.code, int)
        code = exit.code
    captured = capsys.readouterr()
    assert code == 2
    assert said in captured.err and not captured.out


def test_models_of_the_catalogue_run_on_its_devices_only(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = plan(capsys, "esg/depth-recognition", "--rate", "5")
    assert code == 3
    assert "choose one of its devices, such as --device a100" in err


def test_a_model_like_none_of_the_catalogue_is_unknown_on_its_devices(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = plan(capsys, "tests.cli.without_like:app", "--rate", "5", "--device", "v100")
    assert code == 3
    assert "unlike: say which model of the catalogue it is like: onnx(..., like='resnet50')" in err


@pytest.mark.parametrize("rate", ["0.5", "7"])
@pytest.mark.parametrize("target", [CHAIN, f"{APP}/listed", f"{APP}/forked"])
def test_a_point_of_the_frontier_costs_what_its_configurations_cost(
    capsys: pytest.CaptureFixture[str], store: ProfileStore, target: str, rate: str
) -> None:
    _, advice = planned(capsys, target, "--rate", rate, "--store", "mine.sqlite", "--device", "cpu:1")
    usd_per_core_hour = catalogue.unit_prices().usd_per_vcpu_hour
    plans = [p for p in (advice["chosen"], advice["faster"], advice["cheaper"]) if p is not None]
    for one in plans:
        each_ms = sum(step["run_ms"] / step["batch"] for step in one["steps"])
        assert one["usd_per_1000"] == pytest.approx(each_ms / 3600 * usd_per_core_hour)
