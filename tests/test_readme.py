"""The README keeps its word: its commands run in the order in which they stand there, and its figures are right.

Shell blocks (```sh) are run by bash in an empty directory, Python blocks in this process. With three liberties:
`make demo` is run shorter, a server takes a free port and is stopped at the end, an experiment is run with `--quick`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall(README)
PURE = ("state", "plan", "place", "scale", "predict", "device", "schedule", "control")
PORT = "8000"
#: Command -> what is run in its place; None: only its target is looked for in the Makefile.
STAND_INS: dict[str, str | None] = {
    "make demo": "dovetail demo --seconds 6",
    "make setup": None,
    "make test": None,
    "make check": None,
    "make bench": None,
}


def environment() -> dict[str, str]:
    """As a user has it who stands in the project, with the virtual environment first on the path."""
    tools = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT), "NO_COLOR": "1"}


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


class Reader:
    """Somebody who follows the README from top to bottom."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "examples").symlink_to(PROJECT / "examples")
        self.port = free_port()
        self.servers: list[subprocess.Popen[str]] = []

    def shell(self, script: str) -> None:
        for command, other in STAND_INS.items():
            script = re.sub(rf"^{command}$", other or "true", script, flags=re.MULTILINE)
        script = re.sub(r"^(dovetail reproduce \w+)$", r"\1 --quick", script, flags=re.MULTILINE)
        script = script.replace(PORT, self.port)
        if script.startswith("dovetail serve"):
            self.serve(script)
            return
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            cwd=self.directory,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
        assert done.stdout, f"{script} printed nothing"

    def serve(self, script: str) -> None:
        server = subprocess.Popen(
            script.split(), cwd=self.directory, env=environment(), stderr=subprocess.PIPE, text=True
        )
        self.servers.append(server)
        assert server.stderr is not None
        said = []
        for line in server.stderr:
            said.append(line)
            if line.startswith("{"):
                assert json.loads(line)["ready"] is True
                return
        pytest.fail(f"{script} did not become ready: {''.join(said)}")

    def stop(self) -> list[int]:
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
        codes = []
        for server in self.servers:
            assert server.stderr is not None
            server.stderr.read()
            server.stderr.close()
            codes.append(server.wait(60))
        return codes


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.stop()


@pytest.mark.cpu
def test_every_block_runs(reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    for language, block in BLOCKS:
        if language == "sh":
            reader.shell(block)
        else:
            exec(compile(block.replace(PORT, reader.port), "README.md", "exec"), {"__name__": "readme"})
    assert "'dovetail_outcome': " in capsys.readouterr().out  # the answer to the client's request
    codes = reader.stop()
    assert codes == [0] * len(codes)
    reader.servers.clear()
    assert (reader.directory / "out" / "demo.log").is_file()


def simulated(directory: Path, text: str, *options: str) -> str:
    """What `dovetail simulate` prints of a scenario."""
    (directory / "what-if.toml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["dovetail", "simulate", "what-if.toml", *options],
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def test_the_simulation_prints_what_the_readme_shows(tmp_path: Path) -> None:
    (scenario,) = re.findall(r"^cat > what-if.toml <<'END'\n(.*?)^END$", README, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(
        r"^dovetail simulate what-if.toml\n```\n\n```\n(.*?)^```$", README, re.MULTILINE | re.DOTALL
    )
    assert simulated(tmp_path, scenario) == shown
    assert "With one T4 it prints `missed`" in README and "needs five" in README

    def with_devices(count: int) -> str:
        return re.sub(r"^count = \d+$", f"count = {count}", scenario, flags=re.MULTILINE)

    assert "\nmissed: " in simulated(tmp_path, with_devices(1))
    verdicts = [simulated(tmp_path, with_devices(n), "--policy", "first-come").splitlines()[-1] for n in (4, 5)]
    assert [verdict.split(":")[0] for verdict in verdicts] == ["missed", "met"]


def test_every_command_in_prose_is_a_command() -> None:
    from dovetail.cli import VERBS

    for verb in re.findall(r"(?:^|`)dovetail ([\w-]+)", README, re.MULTILINE):
        assert verb in VERBS, f"README mentions dovetail {verb}"
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([a-z][a-z ]*)", README, re.MULTILINE):
        for word in target.split():
            assert re.search(rf"^{word}:", makefile, re.MULTILINE), f"README mentions make {word}"


def test_ci_runs_what_the_readme_says() -> None:
    assert "make check test" in (PROJECT / ".ci" / "run").read_text(encoding="utf-8")
    assert "`.ci/run` calls `make check test`" in README


def test_the_size_of_the_pure_part_is_about_right() -> None:
    (stated,) = re.findall(r"The pure part .* is about ([\d,]+) lines", README)
    lines = sum(
        len(path.read_text(encoding="utf-8").splitlines())
        for package in PURE
        for path in (PROJECT / "src" / "dovetail" / package).rglob("*.py")
    )
    assert int(stated.replace(",", "")) == pytest.approx(lines, rel=0.15)


def test_every_package_is_on_the_map() -> None:
    (drawn,) = re.findall(r"^## Map of the source\n\n```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    packages = {path.parent.name for path in (PROJECT / "src" / "dovetail").glob("*/__init__.py")}
    assert packages <= set(re.findall(r"(\w+)/", drawn))
    assert len(drawn.splitlines()) <= 10
