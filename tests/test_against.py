"""`bench/against.py`: what it reads from a bench, and how it judges a figure. Nothing is measured here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from bench import against

#: A tree with one bench that says what it is told, and the sources that it would import.
BENCH = """
import dovetail, json, sys
assert "--json" in sys.argv
print(json.dumps({"per_s": {"dovetail, batch 1": {"median": dovetail.SPEED}}, "ratio": 1.0, "noise": 3}))
"""


def tree(folder: Path, speed: float) -> Path:
    (folder / "src" / "dovetail").mkdir(parents=True)
    (folder / "src" / "dovetail" / "__init__.py").write_text(f"SPEED = {speed}\n")
    (folder / "bench").mkdir()
    (folder / "bench" / "simulator.py").write_text(BENCH)
    return folder


def test_numbers_go_by_their_path_rounds_by_their_median_and_rows_by_what_they_are() -> None:
    said = {
        "machine": "some",
        "quick": True,
        "us": {"plan": {"p50": {"median": 3, "least": 1, "most": 9}}},
        "figures": {"path": [5, 1, 3]},
        "rows": [{"what": "high", "with": 2.5}, {"other": 1}],
    }
    assert dict(against.leaves(said)) == {"us/plan/p50": 3, "figures/path": 3, "rows/high/with": 2.5}


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ([100, 100, 100], [80, 82, 81], "WORSE"),
        ([100, 100, 100], [90, 99, 70], "in every round"),
        ([100, 100, 100], [101, 80, 80], ""),
        ([100, 100, 100], [120, 130, 125], ""),
        ([100, 100], [50, 50], ""),
    ],
)
def test_a_figure_is_worse_beyond_its_spread(old: list[float], new: list[float], verdict: str) -> None:
    """Of a figure of which more is better, and turned round of one of which less is."""
    assert against.compare("simulator", "ratio", old, new).verdict == verdict
    slow, slower = [1 / value for value in old], [1 / value for value in new]
    assert against.compare("live", "figures/path", slow, slower).verdict == verdict


def test_trees_take_turns_and_the_exit_status_says_which_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast = tree(tmp_path / "slow", 50), tree(tmp_path / "fast", 100)
    for here, base, status in ((slow, fast, 1), (fast, slow, 0)):
        monkeypatch.setattr(against, "HERE", here)
        monkeypatch.setattr(sys, "argv", ["against.py", str(base), "simulator", "--json"])
        assert against.main() == status
        figures = {f["figure"]: f for f in json.loads(capsys.readouterr().out)["figures"]}
        assert figures.keys() == {"per_s/dovetail, batch 1", "ratio"}
        assert figures["per_s/dovetail, batch 1"]["ratio"] == (0.5 if status else 2.0)


def test_rounds_that_were_kept_count_in_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow, fast, kept = tree(tmp_path / "slow", 50), tree(tmp_path / "fast", 100), tmp_path / "rounds"
    monkeypatch.setattr(against, "HERE", slow)
    words = ["against.py", str(fast), "simulator", "--json", "--keep", str(kept), "--rounds"]
    for rounds, status, all_rounds in (("2", 0, 2), ("1", 1, 3)):  # two are too few to judge by
        monkeypatch.setattr(sys, "argv", [*words, rounds])
        assert against.main() == status
        figures = json.loads(capsys.readouterr().out)["figures"]
        assert {f["rounds"] for f in figures} == {all_rounds}
    assert len(kept.read_text().splitlines()) == 3


def test_a_tree_without_sources_and_a_bench_that_breaks_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tree(tmp_path / "whole", 1)
    monkeypatch.setattr(against, "HERE", whole)
    monkeypatch.setattr(sys, "argv", ["against.py", str(tmp_path), "simulator"])
    assert against.main() == 2
    assert "has no sources of dovetail" in capsys.readouterr().err
    broken = tree(tmp_path / "broken", 1)
    (broken / "bench" / "simulator.py").write_text("raise SystemExit('--json is not for me')")
    monkeypatch.setattr(sys, "argv", ["against.py", str(broken), "simulator"])
    assert against.main() == 2
    assert "simulator in" in (said := capsys.readouterr().err) and "is not for me" in said


def test_a_tree_whose_bench_knows_no_json_is_measured_by_this_trees(tmp_path: Path) -> None:
    other = tree(tmp_path, 1)
    assert against.script(other, "simulator") == other / "bench" / "simulator.py"
    assert against.script(other, "memory") == against.HERE / "bench" / "memory.py"
