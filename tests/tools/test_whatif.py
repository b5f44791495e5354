"""What if: the answer is the simulator's, from the present, and changes as it should."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.record.recorded import header, run

from dovetail.errors import DovetailError
from dovetail.record.follow import Follower
from dovetail.record.window import Window
from dovetail.tools import whatif
from dovetail.tools.whatif import Question, WhatIf
from dovetail.wiring import PolicySpec

SPEC = PolicySpec("first-come")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some seconds of processor time are for people who ask."""
    monkeypatch.setattr(whatif, "MOST_REQUESTS", 600)


def window(tmp_path: Path, part: float = 1.0, count: int = 200, rate: float = 150.0) -> Window:
    """A run up to some moment, of which the beginning was not seen."""
    steps = run(tmp_path / "run.log", seed=3, count=count, rate=rate, spec=SPEC)
    graphs = header(SPEC).graphs
    before = Follower(graphs)
    first = len(steps) // 10
    for step in steps[:first]:
        before.step(step.event, step.actions)
    seen = Window(graphs, before.present())
    for step in steps[first : round(len(steps) * part)]:
        seen.add(step)
    return seen


def test_the_present_is_repeated_and_every_request_ends(tmp_path: Path) -> None:
    seen = window(tmp_path, 0.8)
    waiting = len(seen.now.requests)
    assert waiting
    told = WhatIf(header(SPEC), seen).ask(Question())
    requests = sum(row.requests for row in told.same)
    arrived = sum(type(step.event).__name__ == "RequestArrived" for step in seen.steps())
    laps = told.seconds / (seen.now.now_ns - seen.begin.now_ns) * 1e9
    assert requests == pytest.approx(waiting + arrived * laps, rel=0.1)
    assert all(sum(row.outcomes.values()) == row.requests for row in (*told.same, *told.other))
    assert told.devices == {"gpu": 2}  # the third was lost
    assert [row.requests for row in told.same] == [row.requests for row in told.other]


def test_more_requests_are_worse_and_more_devices_are_better(tmp_path: Path) -> None:
    asked = WhatIf(header(SPEC), window(tmp_path))
    more = asked.ask(Question(rate=4.0))
    helped = asked.ask(Question(rate=4.0, devices={"gpu": 8}))
    half = asked.ask(Question(rate=0.5))

    def hits(rows):
        return sum(row.outcomes["ok"] for row in rows) / sum(row.requests for row in rows)

    assert hits(more.other) < hits(more.same) - 0.1
    assert hits(helped.other) > hits(more.other) + 0.1
    assert helped.other_devices == {"gpu": 8}
    count = sum(row.requests for row in more.same)
    assert sum(row.requests for row in more.other) == pytest.approx(4 * count, rel=0.1)
    whole = sum(row.requests for row in half.same)
    assert sum(row.requests for row in half.other) == pytest.approx(whole / 2, rel=0.25)


def test_the_same_question_has_the_same_answer(tmp_path: Path) -> None:
    asked = WhatIf(header(SPEC), window(tmp_path, count=60))
    assert asked.ask(Question(rate=1.5)) == asked.ask(Question(rate=1.5))


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (Question(rate=0.0), "above 0"),
        (Question(rate=1e9), "at most 20"),
        (Question(devices={"tpu": 1}), "no device of kind 'tpu'; kinds are: gpu"),
        (Question(devices={"gpu": 0}), "from 1 to 64"),
    ],
)
def test_questions_that_make_no_sense_are_refused(tmp_path: Path, question: Question, message: str) -> None:
    with pytest.raises(DovetailError, match=message):
        WhatIf(header(SPEC), window(tmp_path, count=30)).ask(question)


def test_too_few_requests_say_nothing(tmp_path: Path) -> None:
    graphs = header(SPEC).graphs
    empty = Window(graphs, Follower(graphs).present())
    with pytest.raises(DovetailError, match="only 0 requests came"):
        WhatIf(header(SPEC), empty).ask(Question())
