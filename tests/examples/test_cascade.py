"""The cascade example: the larger reader runs only where the smaller one is unsure, and then pays."""

from __future__ import annotations

import numpy as np
import pytest

from examples import pages

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def read_line():
    from examples.cascade import careful_line

    return careful_line.local


@pytest.mark.parametrize("seed", range(5))
def test_a_sharp_line_is_read_by_the_tiny_model_alone(read_line, seed):
    line = pages.text_line(seed, blur_px=0.0)
    answer = read_line(line=line.pixels)
    assert (answer["text"], answer["model"]) == (line.text, "tiny")
    assert answer["confidence"] >= 0.96


def test_blurred_lines_are_read_by_the_small_model_and_better(read_line):
    from dovetail.workflow.runners import make_runner
    from examples import cascade as app

    tiny, lines = make_runner(app.read), [pages.text_line(seed, blur_px=2.5) for seed in range(10)]
    answers = [read_line(line=line.pixels) for line in lines]
    scaled = make_runner(app.scale_line).run([[line.pixels for line in lines]])
    quick = [app.reading.transcribe(p, app.ALPHABET)[0] for p in tiny.run([scaled])]
    right_with_tiny = sum(text == line.text for text, line in zip(quick, lines, strict=True))
    right = sum(answer["text"] == line.text for answer, line in zip(answers, lines, strict=True))
    assert {answer["model"] for answer in answers} == {"small"}
    assert right >= right_with_tiny + 5


def test_a_blank_line_has_no_text(read_line):
    answer = read_line(line=np.full((48, 200, 3), 240, np.uint8))
    assert answer["text"] == ""
    assert answer["confidence"].tolist() == [0.0]


def test_a_batch_gives_what_its_items_give_alone():
    from dovetail.workflow.runners import make_runner
    from examples import cascade as app

    lines = [pages.text_line(seed).pixels for seed in range(6)]
    scaled = make_runner(app.scale_line).run([lines])
    decide = make_runner(app.decide)
    for reader in (make_runner(app.read), make_runner(app.read_carefully)):
        together = [text for text, _, _ in decide.run([reader.run([scaled])])]
        alone = [decide.run([reader.run([[item]])])[0][0] for item in scaled]
        assert together == alone
