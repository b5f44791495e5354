"""What a refused request is told: a time that is not absurd, and after which there is room."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.control import Action, Event, Reject, Reply
from dovetail.serve.oip_response import _come_back
from dovetail.tools.simulate import ScenarioRun
from dovetail.units import MS, SECOND

#: One device that does 100 items a second one by one, and somewhat more in batches; two classes, a host stage.
WORLD = """
requests = {requests}
noise = {{ spread = {spread} }}
profiled = {profiled}
policy = {{ goal = "{goal}" }}
[[workflows]]
name = "one"
slo = "200ms"
stages = [
  {{ name = "cut", host = true, time = {{ batch = [1], ms = [1] }} }},
  {{ name = "net", after = ["cut"], time = {{ batch = [1, 8], ms = [10, 60] }}, batch = [1, 4, 8] }},
]
[[devices]]
kind = "cpu"
host = 1
"""
POISSON = """
[[arrivals]]
workflow = "one"
kind = "poisson"
rate = {rate}
class = {level}
"""
RECORDED = """
[[arrivals]]
workflow = "one"
kind = "file"
path = "times.csv"
"""


def refusals(path: Path, text: str) -> tuple[list[Reject], dict[int, str]]:
    """What was refused, and the outcome of each request that came after the beginning."""
    path.write_text(text)
    rejects: list[Reject] = []
    later: dict[int, str] = {}

    def watch(event: Event, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Reject):
                rejects.append(action)
            if isinstance(action, Reject | Reply) and action.arrived_ns:
                later[action.request] = action.outcome

    ScenarioRun(path).go([watch])
    return rejects, later


@pytest.mark.parametrize("goal", ["time", "cost"])
@pytest.mark.parametrize("profiled", ["true", "false"])
@pytest.mark.parametrize("load", [1.5, 4.0, 20.0])
def test_the_time_is_never_absurd(tmp_path: Path, goal: str, profiled: str, load: float) -> None:
    text = WORLD.format(requests=1500, spread=0.2, profiled=profiled, goal=goal)
    text += POISSON.format(rate=load * 25, level=1) + POISSON.format(rate=load * 75, level=2)
    rejects, _ = refusals(tmp_path / "s.toml", text)
    assert rejects
    # Work of at most so many objectives is let in, so that there is room again after so many.
    assert all(0 < r.retry_after_ns < 2 * SECOND for r in rejects if r.outcome == "shed")


@pytest.mark.parametrize("goal", ["time", "cost"])
def test_whoever_comes_back_when_the_header_says_is_let_in_and_in_time(tmp_path: Path, goal: str) -> None:
    """Sixty come at once; of those who were refused one comes back after the whole seconds of `Retry-After`."""
    text = WORLD.format(requests=1000, spread=0.0, profiled="true", goal=goal) + RECORDED
    burst = ["time", *["0.0"] * 60]
    times = tmp_path / "times.csv"
    times.write_text("\n".join(burst) + "\n")
    rejects, _ = refusals(tmp_path / "s.toml", text)
    first = next(r for r in rejects if "would wait" in r.reason)
    headers = dict(_come_back(-(-first.retry_after_ns // MS)))
    times.write_text("\n".join([*burst, headers["Retry-After"]]) + "\n")
    _, later = refusals(tmp_path / "s.toml", text)
    assert list(later.values()) == ["ok"]
