"""Offers that were weighed: watching changes nothing, and what is told is what was decided."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.control import NEVER_NS, RunBatch
from dovetail.record.log import LogReader, LogWriter
from dovetail.schedule import Offer
from dovetail.schedule.offers import Considered
from dovetail.state import Config, Worker, WorkerSpec
from dovetail.tools.offers import _told, decisions
from dovetail.tools.simulate import ScenarioRun

SCENARIO = """
requests = 60
seed = 3
target = 0.01
[[workflows]]
catalogue = "esg/image-classification"
slo = "8s"
[[workflows]]
catalogue = "compass/question-answer"
slo = "6s"
[[devices]]
kind = "t4"
count = 2
memory = "6GB"
host = 1
[[arrivals]]
kind = "poisson"
workflow = "esg/image-classification"
rate = "6/s"
class = 2
[[arrivals]]
kind = "poisson"
workflow = "compass/question-answer"
rate = "3/s"
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offers")
    (folder / "what-if.toml").write_text(SCENARIO)
    run = ScenarioRun(folder / "what-if.toml")
    with LogWriter(folder / "run.log", run.header) as writer:
        run.go([writer.step])
    return folder / "run.log"


def test_every_batch_of_a_request_has_its_offers_and_the_first_was_taken(log: Path) -> None:
    with LogReader(log) as steps:
        sent = [(s.event.at_ns, a) for s in steps for a in s.actions if isinstance(a, RunBatch)]
    several = 0
    for request in sorted({item[0] for _, a in sent for item in a.items})[:20]:
        mine = {a.batch: a for _, a in sent if any(item[0] == request for item in a.items)}
        told, why_not = decisions(log, request, 10**15)
        assert why_not == "" and [d.batch for d in told] == list(mine)
        for decision in told:
            action, best = mine[decision.batch], decision.offers[0]
            assert (best.cpus, best.share_pct, best.items) == (action.cpus, action.share_pct, len(action.items))
            assert best.note.startswith("taken: ") and best.end_ns == best.fetch_ns + action.expected_ns
            assert decision.stage == action.stage
            several += len(decision.offers) > 1
    assert several, "often more than one way was weighed"


def test_a_fetch_is_part_of_what_was_weighed(log: Path) -> None:
    told = [d for request in range(1, 20) for d in decisions(log, request, 10**15)[0]]
    fetched = [d.offers[0] for d in told if d.offers[0].fetch_ns]
    assert fetched and all("fetches it first" in offer.note for offer in fetched)


def test_explain_shows_them(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "2", "--log", str(log)]) == 0
    out = capsys.readouterr().out
    assert "offers that were weighed" in out and "taken: " in out
    assert main(["explain", "2", "--log", str(log), "--json"]) == 0
    assert '"offers": [' in capsys.readouterr().out


def test_a_policy_without_a_choice_says_so(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = log.with_name("first.log")
    run = ScenarioRun(log.with_name("what-if.toml"), policy="first-come")
    with LogWriter(other, run.header) as writer:
        run.go([writer.step])
    assert decisions(other, 1, 10**15) == ([], "the policy 'first-come' makes one offer at a time")
    assert main(["explain", "1", "--log", str(other)]) == 0
    assert "offers are not told: the policy 'first-come' makes one offer at a time" in capsys.readouterr().out


def test_an_offer_that_was_not_taken_is_told_with_the_items_that_it_would_have_run() -> None:
    worker = Worker(1, WorkerSpec("gpu", "gpu", ("model",)))
    weighed = tuple(Offer(worker, Config(batch, 1, 10 * batch), 0) for batch in (1, 2, 4))
    action = RunBatch(1, 1, 1, "read", ((1, 0, 0),), 1, 10, 0, NEVER_NS, 5)
    told = _told(Considered("read", 0, 3, weighed), action)
    assert [offer.items for offer in told.offers] == [1, 2, 3], "three items waited"
