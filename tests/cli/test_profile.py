"""`dovetail profile` as a user meets it: what is on stdout, what is on stderr, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.predict import EstimatorState
from dovetail.predict.state import LearnedRun
from dovetail.profile.kernels import KernelStats, sequence_name
from dovetail.profile.machine import Identity, this_machine
from dovetail.profile.store import ProfileStore
from dovetail.record.learned import rows_of
from dovetail.units import MS
from dovetail.workflow.app import load_target
from dovetail.workflow.graph import StageSpec

APP = """
import numpy as np
from dovetail import App, stage, tensor, workflow

@stage(batch=(1, 2))
def split(xs):
    return [list(x) for x in xs]

@stage(batch=(1, 4))
def double(xs):
    return [2 * x for x in xs]

@workflow(slo="1s", sample=lambda: {"x": np.ones(LENGTH, np.float32)})
def wf(x: tensor("float32", -1)):
    return double.map(split(x))

app = App(wf)
"""
# Five runs, then somebody presses Ctrl-C.
TIRED = """
runs = 0

def tired(xs):
    global runs
    runs += 1
    if runs > 5:
        raise KeyboardInterrupt
    return xs

app = App(wf)
"""
_numbers = count()


@pytest.fixture
def make_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes an application into the working directory; gives its target."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "120")
    made: list[str] = []

    def make(length: int = 3, **replaced: str) -> str:
        name = f"profiled_app_{next(_numbers)}"
        text = APP.replace("LENGTH", str(length))
        for old, new in replaced.items():
            text = text.replace(old, new)
        Path(f"{name}.py").write_text(text)
        made.append(name)
        return f"{name}:app"

    yield make
    for name in made:
        sys.modules.pop(name, None)


def test_a_table_for_each_stage_and_a_store_beside_the_application(
    make_app: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_app()
    assert main(["profile", target, "--quick"]) == 0
    out, _ = capsys.readouterr()
    assert "split on host, fed with float32[3]" in out
    assert "double on host, fed with float32" in out
    assert out.count("1.00x") >= 2 and out.count("*") == 2
    assert "4 points measured, 0 already there; in profiles.sqlite" in out
    assert Path("profiles.sqlite").exists()
    assert main(["profile", target, "--quick"]) == 0
    assert "0 points measured, 4 already there" in capsys.readouterr().out


def test_json_has_every_point(make_app: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", make_app(), "--quick", "--json", "--stage", "double", "--batch", "4"]) == 0
    found = json.loads(capsys.readouterr().out)
    (stage,) = found["stages"]
    assert (stage["stage"], stage["measured"], stage["trouble"]) == ("double", 1, "")
    assert [(p["batch"], p["cpus"]) for p in stage["points"]] == [(4, 1)]
    assert found["identity"]["cores"] >= 1 and found["store"] == "profiles.sqlite"


def test_status_measures_nothing_and_its_exit_code_says_whether_profiles_hold(
    make_app: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_app()
    assert main(["profile", target, "--status", "--store", "here.sqlite"]) == 1
    out, err = capsys.readouterr()
    assert out.count("missing") == 2 and err == f"run: dovetail profile {target} --store here.sqlite\n"
    assert not Path("here.sqlite").exists()
    main(["profile", target, "--quick", "--store", "here.sqlite"])
    assert main(["profile", target, "--status", "--store", "here.sqlite"]) == 0
    assert capsys.readouterr().out.count("fresh") == 2


def test_status_names_what_changed(make_app: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["profile", make_app(), "--quick"])
    changed = make_app(**{"2 * x": "x + x", "batch=(1, 2)": "batch=(1, 2, 8)"})
    capsys.readouterr()
    assert main(["profile", changed, "--status", "--json"]) == 1
    split, double = json.loads(capsys.readouterr().out)["stages"]
    # The batch sizes stand in the function's source, too.
    assert split["reasons"] == ["its function changed", "batch 8 not measured"]
    assert double["reasons"] == ["its function changed"]
    assert main(["profile", changed, "--status", "--stage", "double"]) == 1
    assert "split" not in capsys.readouterr().out


def test_a_stage_that_could_not_be_measured_is_named_and_the_exit_code_is_1(
    make_app: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", make_app(length=0), "--quick"]) == 1
    out, err = capsys.readouterr()
    assert "split on host" in out
    assert "stage 'double' was not measured: the sample of workflow 'wf' does not reach it: its list is empty" in err


def test_an_interrupt_says_where_the_measurements_are(
    make_app: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_app(**{"return [2 * x for x in xs]": "return tired(xs)", "app = App(wf)": TIRED})
    assert main(["profile", target, "--quick"]) == 130
    out, err = capsys.readouterr()
    assert "split on host" in out
    assert "interrupted; what was measured is in profiles.sqlite, the same command goes on" in err
    assert main(["profile", target, "--status"]) == 1
    assert capsys.readouterr().out.count("fresh") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--stage", "duoble"], "there is no stage 'duoble'; did you mean 'double'?"),
        (["--stage", "duoble", "--status"], "there is no stage 'duoble'"),
        (["--batch", "3"], "no stage declares batch 3"),
        (["--store", "none/p.sqlite"], "does not exist; create it"),
        (["--store", "text.txt"], "that is not an SQLite file"),
        (["--store", "text.txt", "--status"], "that is not an SQLite file"),
    ],
)
def test_wrong_input_is_explained_on_stderr_with_exit_code_2(
    options: list[str], said: str, make_app: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_app()
    Path("text.txt").write_text("not a database, and long enough to be sure of it" * 20)
    assert main(["profile", target, *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("dovetail profile: ") and said in err


def kernels_of(store: ProfileStore, model: str, *, cores: int = 0) -> str:
    """Puts what is known of two kernels of a model; the name of the sequence."""
    name = sequence_name("read", [(1, 3)], model, "3c9d1f02")
    stats = KernelStats.empty(name, ["a", "b"])
    for _ in range(6):
        stats.observe(0, MS)
        stats.observe(1, 3 * MS)
    here = this_machine()
    store.put_kernels([stats], Identity(here.cpu, cores or here.cores, here.libraries))
    return name


def test_kernels_shows_what_was_learned_and_whether_it_holds(
    make_app: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["profile", "--kernels"]) == 0
    assert "nothing is known of kernels; serve two classes" in capsys.readouterr().out
    assert not Path("profiles.sqlite").exists()
    target = make_app()
    store = ProfileStore("profiles.sqlite")
    ours = kernels_of(store, next(iter(load_target(target).specs)).model)
    other = kernels_of(store, "another", cores=999)
    assert main(["profile", "--kernels"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if "@" in line}
    assert rows[ours][1:9] == ["cpu", "2", "6", "3", "ms", "4", "ms", "fresh"]
    assert "stale" in rows[other] and "machine" in rows[other]
    assert main(["profile", target, "--kernels", "--json"]) == 0
    (only,) = json.loads(capsys.readouterr().out)["sequences"]
    assert (only["sequence"], only["kernels"], only["seen"], only["state"]) == (ours, 2, 6, "fresh")
    assert (only["longest_ns"], only["total_ns"]) == (3 * MS, 4 * MS)
    assert main(["profile", "--kernels", "--forget"]) == 0
    assert "forgot the kernels of 2 sequence(s)" in capsys.readouterr().out
    assert store.kernel_status(this_machine()) == []


def test_a_target_is_needed_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile"]) == 2
    assert "which application?" in capsys.readouterr().err
    assert main(["profile", "examples.quickstart:app", "--forget"]) == 2
    assert "--forget lets go of what --kernels or --learned shows" in capsys.readouterr().err
    assert main(["profile", "--kernels", "--learned"]) == 2
    assert "show different things" in capsys.readouterr().err


def test_learned_shows_run_and_load_times_and_whether_they_hold(
    make_app: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["profile", "--learned"]) == 0
    assert "nothing was learned of times yet; serve with --store profiles.sqlite" in capsys.readouterr().out
    assert not Path("profiles.sqlite").exists()
    target = make_app()
    specs = load_target(target).specs
    store = ProfileStore("profiles.sqlite")
    runs = (
        LearnedRun("double", "host", 4, 1, 100, 9, 5 * MS, 0.0),
        LearnedRun("split", "host", 1, 1, 100, 2, MS, 0.0),
    )
    store.put_learned(rows_of(EstimatorState(runs=runs), specs, this_machine()))
    other = StageSpec("elsewhere", "python", model="x")
    there = Identity("Z80", 1, this_machine().libraries)
    row = EstimatorState(runs=(LearnedRun("elsewhere", "host", 1, 1, 100, 1, MS, 0.0),))
    store.put_learned(rows_of(row, [other], there))
    assert main(["profile", "--learned"]) == 0
    rows = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if " host " in line}
    assert rows["double"][1:12] == ["host", "4", "1", "100", "%", "9", "5", "ms", "22", "%", "fresh"]
    assert "stale" in rows["elsewhere"] and "machine" in rows["elsewhere"]
    assert main(["profile", target, "--learned", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["learned"]
    assert {(f["what"], f["items"], f["mean_ns"], f["state"]) for f in found} == {
        ("double", 4, 5 * MS, "fresh"),
        ("split", 1, MS, "fresh"),
    }
    assert main(["profile", "--learned", "--forget"]) == 0
    assert "forgot the times of 3 stage(s) and model(s)" in capsys.readouterr().out
    assert store.learned() == []


def test_batch_sizes_that_are_no_numbers_are_refused(
    make_app: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    for sizes in ("x", "0", "1,,2"):
        with pytest.raises(SystemExit, match="2"):
            main(["profile", make_app(), "--batch", sizes])
        assert "must be whole numbers, as 1,4,8" in capsys.readouterr().err
