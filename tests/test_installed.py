"""What `pip install dovetail` gives: a wheel in a fresh environment serves, simulates, and names what it lacks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import onnx_models
from tests.serve.support import HOST, until

pytestmark = pytest.mark.cpu
PROJECT = Path(__file__).resolve().parents[1]
#: Of everything that is run here.
PATIENCE_SECONDS = 120.0
#: What pip says when there is no index to ask, or no answer from it.
UNREACHABLE = ("Connection", "Temporary failure in name resolution", "timed out", "No matching distribution found")
#: Packages of the extras.
EXTRAS = ("matplotlib", "PIL", "sklearn", "scipy", "torch")

APP = """
from dovetail import onnx, workflow

double = onnx("double.onnx", batch=(1, 2))

@workflow(slo="2s")
def twice(x):
    return double(x)
"""
SCENARIO = """
requests = 50
[[workflows]]
name = "look"
slo = "100ms"
stages = [{ name = "find", model = "resnet50" }]
[[devices]]
kind = "v100"
[[arrivals]]
kind = "poisson"
workflow = "look"
rate = "20/s"
"""


def pip(*words: object) -> None:
    """Run pip, for a while at most; where it cannot reach an index, say so and leave the test out."""
    command = [sys.executable, "-m", "pip", *map(str, words), "--quiet", "--timeout", "15", "--retries", "1"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"pip gave no answer within {PATIENCE_SECONDS:g} s: {' '.join(command)}")
    if done.returncode:
        if any(word in done.stderr for word in UNREACHABLE):
            pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
        pytest.fail(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")


class Installed:
    """The fresh environment, and a folder with an application and a scenario."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        pip("wheel", "--no-deps", "--wheel-dir", folder, PROJECT)
        (wheel,) = folder.glob("*.whl")
        # Without a pip of its own, which takes seconds; the one outside installs into it.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, timeout=60)
        self.bin = folder / "env" / "bin"
        constraints = PROJECT / "constraints.txt"
        pip("--python", self.bin / "python", "install", "--no-compile", "--constraint", constraints, wheel)
        onnx_models.double(folder / "double.onnx")
        (folder / "app.py").write_text(APP)
        (folder / "scenario.toml").write_text(SCENARIO)

    @property
    def environment(self) -> dict[str, str]:
        """Nothing of the project is on the path."""
        return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / words[0]), *words[1:]]
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def served(installed: Installed) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`dovetail serve app:twice`, and what it has said so far."""
    errors = installed.folder / "serve.log"
    with errors.open("w") as sink:
        process = subprocess.Popen(
            [installed.bin / "dovetail", "serve", "app:twice", "--port", "0"],
            cwd=installed.folder,
            env=installed.environment,
            stderr=sink,
            text=True,
        )
    said: list[str] = []

    def ready() -> bool:
        said[:] = errors.read_text().splitlines()
        return process.poll() is not None or any(line.startswith('{"ready"') for line in said)

    until(ready)
    yield process, said
    process.kill()
    process.wait(PATIENCE_SECONDS)


def test_it_has_what_serving_needs_and_nothing_of_the_extras(installed: Installed) -> None:
    there = f"[name for name in {EXTRAS} if util.find_spec(name)]"
    code = f"import dovetail; from importlib import util; print({there}); print(dovetail.__file__)"
    found = installed.run("python", "-c", code).stdout.splitlines()
    assert found[0] == "[]"
    assert Path(found[1]).is_relative_to(installed.folder)


def test_it_serves(served: tuple[subprocess.Popen[str], list[str]]) -> None:
    process, said = served
    assert process.poll() is None, said
    port = json.loads(next(line for line in said if line.startswith('{"ready"')))["port"]
    tensor = {"name": "x", "shape": [3], "datatype": "FP32", "data": [1, 2, 3]}
    body = json.dumps({"inputs": [tensor]}).encode()
    with urllib.request.urlopen(f"http://{HOST}:{port}/v2/models/twice/infer", body, PATIENCE_SECONDS) as answer:
        (output,) = json.load(answer)["outputs"]
    assert output["data"] == [2, 4, 6]
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0


def test_it_helps_and_simulates(installed: Installed) -> None:
    assert "simulate" in installed.run("dovetail", "--help").stdout
    for policy in ("by-class", "esg"):
        done = installed.run("dovetail", "simulate", "scenario.toml", "--policy", policy)
        assert (done.returncode, "look" in done.stdout) == (0, True), done.stderr


def test_a_trace_is_written_without_its_picture(installed: Installed) -> None:
    done = installed.run("dovetail", "trace", "--tasks", "1", "--out", "trace")
    assert done.returncode == 0, done.stderr
    assert "pip install 'dovetail[plot]'" in done.stderr
    assert sorted(p.name for p in (installed.folder / "trace").iterdir()) == ["kernels.jsonl", "lanes.json.gz"]


@pytest.mark.parametrize(
    ("command", "what", "package", "extra"),
    [
        ("simulate scenario.toml --plot out", "--plot", "matplotlib", "plot"),
        ("plan esg/image-classification --rate 5/s --device v100 --plot x.png", "--plot", "matplotlib", "plot"),
        ("demo", "dovetail demo", "pillow", "plot"),
        ("reproduce foundation", "dovetail reproduce foundation", "matplotlib", "lab"),
        ("simulate scenario.toml --policy aquatope", "the policy 'aquatope'", "scikit-learn", "lab"),
    ],
)
def test_what_is_missing_is_named_before_anything_is_done(
    installed: Installed, command: str, what: str, package: str, extra: str
) -> None:
    done = installed.run("dovetail", *command.split())
    assert (done.returncode, done.stdout) == (2, "")
    said = f"{what} needs {package}, which is not installed; run: pip install 'dovetail[{extra}]'"
    assert said in done.stderr
    assert "Traceback" not in done.stderr
