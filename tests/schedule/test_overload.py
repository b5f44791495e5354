"""What users get under any load, simulated: goodput does not fall, the high class is kept, nothing is refused early.

The policy knows no profile here: it learns from its first batches, like a server that was just installed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.control.actions import Reject, Reply
from dovetail.control.events import RequestArrived
from dovetail.record.ledger import Summary
from dovetail.tools.simulate import ScenarioRun

HEAD = """
duration = "{seconds}s"
warmup = "4s"
profiled = false
noise = {{ spread = 0.1 }}
policy = {{ name = "{policy}", goal = "time" }}
"""
#: 77 per second on a device of two cores.
ONE = """
[[workflows]]
name = "one"
slo = "200ms"
stages = [{ name = "net", time = { batch = [1, 8], ms = [13, 100] }, batch = [1, 2, 4, 8], weights = "40MB" }]
[[devices]]
kind = "cpu"
cores = 2
"""
#: Pages with host stages and a fan-out: 24 per second.
PAGES = """
[[workflows]]
name = "one"
slo = "600ms"
fanout = { detect = { mean = 5.0, kind = "geometric", max = 20 } }
stages = [
  { name = "shrink", host = true, time = { batch = [1], ms = [5] } },
  { name = "way", after = ["shrink"], time = { batch = [1, 8], ms = [6, 45] }, batch = [1, 2, 4, 8] },
  { name = "detect", after = ["way"], time = { batch = [1, 4], ms = [20, 78] }, batch = [1, 2, 4] },
  { name = "read", after = ["detect"], time = { batch = [1, 16], ms = [4, 45] }, batch = [1, 4, 8, 16], map = true },
  { name = "join", after = ["read"], host = true, time = { batch = [1], ms = [1] } },
]
[[devices]]
kind = "cpu"
cores = 2
host = 1
"""
CAPACITY = {ONE: 77.0, PAGES: 24.0}
ARRIVALS = """
[[arrivals]]
workflow = "one"
kind = "poisson"
rate = {rate}
class = {level}
"""


def outcomes(tmp_path: Path, text: str, load: float, *, policy: str = "dovetail") -> dict[int, Summary]:
    """What became of each class at so many times the capacity; a quarter is of class 1."""
    rate = CAPACITY[text] * load
    arrivals = ARRIVALS.format(rate=rate / 4, level=1) + ARRIVALS.format(rate=rate * 3 / 4, level=2)
    path = tmp_path / "scenario.toml"
    path.write_text(HEAD.format(seconds=24, policy=policy) + text + arrivals)
    return {row.priority: row for row in ScenarioRun(path).go(check=load < 1).summaries}


@pytest.mark.parametrize("text", [ONE, PAGES], ids=["one", "pages"])
def test_goodput_does_not_fall_when_more_is_asked_and_the_high_class_is_kept(tmp_path, text):
    goodput = {}
    for load in (1.2, 1.5, 2.0, 3.0):
        rows = outcomes(tmp_path, text, load)
        goodput[load] = sum(row.goodput_per_s for row in rows.values())
        assert rows[1].hit_rate >= 0.99, f"class 1 alone is {load / 4:.0%} of the capacity"
    assert min(goodput.values()) >= 0.9 * max(goodput.values())
    assert max(goodput.values()) >= 0.9 * CAPACITY[text]


@pytest.mark.parametrize("text", [ONE, PAGES], ids=["one", "pages"])
def test_nothing_is_refused_or_late_while_there_is_room(tmp_path, text):
    for load, most in ((0.5, 0.0), (0.8, 0.002)):  # at four fifths a rush of arrivals may fill the queue once
        for row in outcomes(tmp_path, text, load).values():
            assert row.hit_rate >= 1 - most


SURGE = """
[[arrivals]]
workflow = "one"
kind = "steps"
steps = [["8s", {before}], ["8s", {after}]]
class = {level}
"""


def test_when_a_surge_begins_few_are_let_in_and_given_up_half_done(tmp_path):
    """Who would be overtaken by the higher class is refused at once, and not after half of the work."""
    rate = CAPACITY[PAGES]
    arrivals = [
        SURGE.format(before=rate * part / 2, after=rate * part * 3, level=level)
        for level, part in ((1, 0.25), (2, 0.75))
    ]
    path = tmp_path / "scenario.toml"
    path.write_text(
        HEAD.replace('warmup = "4s"\n', "").format(seconds=16, policy="dovetail") + PAGES + "".join(arrivals)
    )
    came: dict[int, int] = {}
    given_up = answered = 0

    def watch(event, actions):
        nonlocal given_up, answered
        if isinstance(event, RequestArrived):
            came[event.request] = event.at_ns
        for action in actions:
            given_up += isinstance(action, Reject) and event.at_ns > came[action.request]
            answered += isinstance(action, Reply) and action.priority == 2

    ScenarioRun(path).go([watch])
    assert answered > 50
    assert given_up < 0.45 * answered, (given_up, answered)


def test_the_comparison_is_with_a_policy_that_does_collapse(tmp_path):
    """If even the plainest policy kept its goodput here, the tests above would show nothing."""
    path = tmp_path / "plain"
    path.mkdir()
    text = HEAD.replace(', goal = "time"', "").format(seconds=24, policy="by-class") + ONE
    (path / "s.toml").write_text(text + ARRIVALS.format(rate=154, level=1))
    (row,) = ScenarioRun(path / "s.toml").go().summaries
    assert row.hit_rate < 0.1


#: Two objectives on shared devices that are hardly busy, a host stage, and a fork whose percentile cannot be had.
IDLE = """
duration = "20s"
[[workflows]]
name = "tag"
slo = "120ms"
stages = [
  { name = "prepare", host = true, time = { batch = [1], ms = [2] } },
  { name = "first", after = ["prepare"], model = "resnet50" },
  { name = "second", after = ["first"], model = "mobilenet_v3_large" },
]
[[devices]]
kind = "a100"
count = 2
host = 1
""" + "".join(
    f"""
[[arrivals]]
workflow = "tag"
kind = "poisson"
rate = 60
class = {level}
"""
    for level in (1, 2)
)
MIXED = """
duration = "20s"
warmup = "4s"
[[workflows]]
catalogue = "esg/image-classification"
slo = "400ms"
[[workflows]]
catalogue = "esg/depth-recognition"
slo = "3700ms"
[[workflows]]
catalogue = "esg/background-elimination"
slo = "4400ms"
[[devices]]
kind = "a100"
count = 16
host = 4
""" + "".join(
    f"""
[[arrivals]]
workflow = "esg/{name}"
kind = "poisson"
rate = {rate}
"""
    for name, rate in (("image-classification", 40), ("depth-recognition", 5), ("background-elimination", 5))
)
FORK = """
duration = "60s"
warmup = "5s"
[[workflows]]
catalogue = "compass/translation"
slo = "1460ms"
[[devices]]
kind = "t4"
count = 20
host = 4
[[arrivals]]
workflow = "compass/translation"
kind = "poisson"
rate = 3
"""


@pytest.mark.parametrize(("text", "least"), [(IDLE, 1.0), (MIXED, 0.99), (FORK, 0.99)], ids=["idle", "mixed", "fork"])
def test_on_a_cluster_that_is_hardly_busy_everybody_is_in_time(tmp_path, text, least):
    path = tmp_path / "scenario.toml"
    path.write_text(text + '[policy]\nname = "dovetail"\n')
    for row in ScenarioRun(path).go().summaries:
        assert row.hit_rate >= least, row.workflow
