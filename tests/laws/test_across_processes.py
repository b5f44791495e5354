"""Law 5 across processes: a whole scenario gives the same bytes whatever the interpreter's hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCENARIO = """
seed = 7
duration = "4s"

[[workflows]]
name = "pages"
slo = "80ms"
fanout = { detect = { mean = 3.0, kind = "geometric", max = 9 } }
condition = { join = 0.4 }
stages = [
  { name = "detect", time = { batch = [1, 4], ms = [6.0, 12.0] } },
  { name = "read", time = { batch = [1, 8], ms = [2.0, 6.0] }, after = ["detect"], map = true },
  { name = "spell", time = { batch = [1, 8], ms = [0.5, 1.0] }, after = ["read"], map = true, host = true },
  { name = "join", time = { batch = [1], ms = [0.2] }, after = ["spell"], host = true },
  { name = "careful", time = { batch = [1, 4], ms = [9.0, 20.0] }, after = ["join"], when = "join" },
]

[[workflows]]
catalogue = "esg/image-classification"

[[devices]]
kind = "v100"
count = 2
host = 2

[[devices]]
kind = "a100"
join = "1s"
leave = "3s"

[[arrivals]]
workflow = "pages"
kind = "gamma"
rate = 60
cv = 2.0
timeout = "150ms"

[[arrivals]]
workflow = "esg/image-classification"
class = 2
kind = "poisson"
rate = 4

[policy]
name = "by-class"
share_pct = 50

[noise]
spread = 0.2
"""


def run(scenario: Path, log: Path, hash_seed: str) -> tuple[bytes, bytes]:
    """What it printed, and the log of all events and actions."""
    command = [sys.executable, "-m", "dovetail", "simulate", scenario.name, "--json", "--check", "--log", log.name]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, cwd=scenario.parent, env=environment, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.stdout, log.read_bytes()


def test_the_same_seed_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    """Fan-out, conditions, noise, two classes, deadlines, a device that comes and goes; invariants at every step."""
    scenario = tmp_path / "scenario.toml"
    scenario.write_text(SCENARIO)
    first = run(scenario, tmp_path / "first.log", "1")
    second = run(scenario, tmp_path / "second.log", "2")
    assert first == second
    assert b'"expired"' in first[0]
    assert len(first[1]) > 10_000
