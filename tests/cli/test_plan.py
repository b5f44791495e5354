"""`dovetail plan` as a user meets it."""

import json

import pytest

from dovetail.cli import main


def plan(capsys, *args):
    code = main(["plan", *args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_it_shows_configurations_cost_neighbours_and_the_frontier(capsys, tmp_path):
    picture = tmp_path / "frontier.png"
    code, out, _ = plan(
        capsys, "esg/image-classification", "--rate", "20/s", "--device", "a100", "--plot", str(picture)
    )
    assert code == 0
    for word in ("super-resolution", "per 1,000 requests", "next faster", "next cheaper", "frontier"):
        assert word in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_json_has_the_whole_frontier_and_the_plan_is_on_it(capsys):
    code, out, _ = plan(capsys, "esg/depth-recognition", "--rate", "5", "--device", "a100", "--json")
    advice = json.loads(out)
    assert code == 0 and advice["feasible"]
    assert [advice["chosen"]["latency_ms"], advice["chosen"]["usd_per_1000"]] in advice["frontier"]
    latencies = [point[0] for point in advice["frontier"]]
    costs = [point[1] for point in advice["frontier"]]
    assert latencies == sorted(latencies) and costs == sorted(costs, reverse=True)
    assert advice["chosen"]["latency_ms"] <= advice["objective_ms"]
    assert advice["faster"]["latency_ms"] < advice["chosen"]["latency_ms"] < advice["cheaper"]["latency_ms"]


def test_an_objective_out_of_reach_is_exit_code_one_and_says_so(capsys):
    code, out, _ = plan(capsys, "esg/depth-recognition", "--rate", "5", "--device", "a100", "--slo", "50ms")
    assert code == 1
    assert "cannot be met" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("esg/nothing", "--rate", "5", "--device", "a100"), "no workflow 'esg/nothing'"),
        (("esg/depth-recognition", "--rate", "quick", "--device", "a100"), "write for example '50/s'"),
        (("esg/depth-recognition", "--rate", "0", "--device", "a100"), "above zero"),
        (("esg/depth-recognition", "--rate", "5", "--device", "b200"), "no device 'b200'"),
        (("esg/depth-recognition", "--rate", "5", "--slo", "5 lightyears", "--device", "a100"), "unknown unit"),
        (("esg/depth-recognition", "--rate", "5", "--store", "nowhere.sqlite"), "dovetail profile"),
    ],
)
def test_wrong_input_names_the_cause_and_the_remedy(capsys, arguments, said):
    code, out, err = plan(capsys, *arguments)
    assert code == 2
    assert said in err and not out
