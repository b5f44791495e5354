"""The document example: its arithmetic without models, and real pages through the real ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from examples import pages, reading, weights


def drawn(height: int, width: int, *boxes: tuple[int, int, int, int]) -> np.ndarray:
    """A text map with these (left, top, right, bottom) filled."""
    text_map = np.zeros((height, width), np.float32)
    for left, top, right, bottom in boxes:
        text_map[top:bottom, left:right] = 0.9
    return text_map


def flood_fill_boxes(mask: np.ndarray) -> set[tuple[int, int, int, int]]:
    """Bounding boxes of the connected regions, the slow and obvious way."""
    left_over = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    boxes = set()
    while left_over:
        region, todo = [], [left_over.pop()]
        while todo:
            y, x = todo.pop()
            region.append((y, x))
            for near in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if near in left_over:
                    left_over.remove(near)
                    todo.append(near)
        ys, xs = zip(*region, strict=True)
        boxes.add((min(xs), min(ys), max(xs) + 1, max(ys) + 1))
    return boxes


@pytest.mark.parametrize("seed", range(6))
def test_components_are_those_of_a_flood_fill(seed):
    mask = np.random.default_rng(seed).random((17, 23)) < (0.2, 0.4, 0.5, 0.6, 0.8, 1.1)[seed]
    assert {tuple(box) for box in reading._components(mask).tolist()} == flood_fill_boxes(mask)


def test_boxes_grow_are_scaled_and_stay_on_the_page():
    boxes = reading.find_boxes(drawn(96, 128, (0, 40, 100, 50)), height=192, width=384)
    grow = 1.4 * 100 * 10 / (2 * 110)  # the shrunken core of a line has half its height
    assert boxes.dtype == np.int32
    assert boxes.tolist() == [[0, round((40 - grow) * 2), round((100 + grow) * 3), round((50 + grow) * 2)]]


def test_boxes_come_in_reading_order():
    text_map = drawn(200, 200, (10, 100, 90, 110), (110, 22, 190, 32), (10, 20, 90, 30), (110, 98, 190, 108))
    lefts_and_tops = [(left > 80, top > 80) for left, top, _, _ in reading.find_boxes(text_map, 200, 200).tolist()]
    assert lefts_and_tops == [(False, False), (True, False), (False, True), (True, True)]


def test_specks_and_faint_regions_are_no_lines():
    faint = drawn(64, 64, (4, 4, 40, 12)) * 0.3
    assert reading.find_boxes(faint, 64, 64).shape == (0, 4)
    assert reading.find_boxes(drawn(64, 64, (4, 4, 6, 6)), 64, 64).shape == (0, 4)
    assert reading.find_boxes(np.zeros((64, 64), np.float32), 64, 64).shape == (0, 4)


def test_noise_gives_a_bounded_number_of_lines():
    cells = np.kron(np.indices((60, 60)).sum(axis=0) % 2, np.ones((4, 4))).astype(np.float32)
    assert len(reading.find_boxes(cells, 240, 240)) == reading.MOST_LINES


def test_transcription_drops_repeats_and_blanks():
    alphabet = ("", "l", "o", "t", " ")
    steps = [1, 1, 0, 2, 2, 0, 0, 3, 0, 3, 0]
    probabilities = np.full((len(steps), 5), 0.05, np.float32)
    probabilities[np.arange(len(steps)), steps] = 0.8
    text, confidence = reading.transcribe(probabilities, alphabet)
    assert (text, confidence) == ("lott", pytest.approx(0.8))
    assert reading.transcribe(probabilities[[2, 5]], alphabet) == ("", 0.0)


def test_arguments_are_never_written_to():
    sheet = pages.page(0, turned_deg=90).pixels.copy()
    sheet.flags.writeable = False
    picture = reading.page_picture(sheet)
    upright = reading.turn_upright(sheet, np.float32([0, 0, 0, 1]))
    line = reading.cut_line(upright, np.int32([10, 10, 300, 60]))
    assert max(picture.shape) == reading.PAGE_LONG_SIDE
    assert {side % reading.SIDE_STEP for side in picture.shape} == {0}
    assert reading.thumbnail(picture).shape == (3, 224, 224)
    assert reading.detector_input(picture).shape == (3, *picture.shape)
    assert reading.head_of_line(line).shape == (3, 48, 192)
    as_is, turned = (reading.reader_input(line, np.float32(way)) for way in ([1, 0], [0.05, 0.95]))
    assert as_is.shape == turned.shape == (3, 48, 288)
    width = line.shape[1]
    np.testing.assert_array_equal(as_is[:, :, :width], turned[:, ::-1, width - 1 :: -1])
    assert not as_is[:, :, width:].any()


def test_the_same_seed_gives_the_same_page():
    first, again = pages.page(7), pages.page(7)
    np.testing.assert_array_equal(first.pixels, again.pixels)
    assert (first.lines, first.turned_deg) == (again.lines, again.turned_deg)
    sizes = [max(pages.page(seed).pixels.shape) for seed in range(12)]
    assert min(sizes) >= 640
    assert max(sizes) <= 900
    assert {len(pages.page(seed).lines) for seed in range(40)} <= set(range(3, 10))


def test_the_page_of_models_names_every_file(monkeypatch):
    told = Path(__file__).parents[2].joinpath("docs/models.md").read_text()
    asked = []
    monkeypatch.setattr(weights, "packaged", lambda *args, **hashes: asked.append((*args, *hashes.values())))
    for name in weights.__all__:
        getattr(weights, name)()
    assert len(asked) == len(weights.__all__)
    missing = [part for file in asked for part in file if part not in told]
    assert missing == []


@pytest.mark.cpu
def test_pages_are_read_exactly():
    from examples.document import document

    expected = read = exact = 0
    for seed in range(10):
        sheet = pages.page(seed)
        answer = document.local(page=sheet.pixels)
        assert answer["boxes"].shape == (len(answer["text"]), 4)
        expected += len(sheet.lines)
        read += len(answer["text"])
        exact += sum(a == b for a, b in zip(answer["text"], sheet.lines, strict=False))
    assert {pages.page(seed).turned_deg for seed in range(10)} >= {0, 180}
    assert read == expected
    assert exact >= 0.95 * expected  # all of them where this was written


@pytest.mark.cpu
@pytest.mark.parametrize("turned_deg", [0, 90, 180, 270])
def test_a_page_is_read_whichever_way_it_lies(turned_deg):
    from examples.document import document

    sheet = pages.page(3, turned_deg=turned_deg)
    assert tuple(document.local(page=sheet.pixels)["text"]) == sheet.lines


@pytest.mark.cpu
def test_the_quickstart_says_which_way_up_and_fits_on_a_screen():
    from examples import quickstart

    labels = {0: "upright", 90: "turned left", 180: "upside down", 270: "turned right"}
    for turned_deg, label in labels.items():
        answer = quickstart.which_way_up.local(image=pages.page(2, turned_deg=turned_deg).pixels)
        assert answer["label"] == label
        assert answer["odds"].sum() == pytest.approx(1, abs=1e-3)
    assert len(Path(quickstart.__file__).read_text().splitlines()) <= 40


@pytest.mark.cpu
def test_an_empty_page_has_no_text():
    from examples.document import document

    answer = document.local(page=np.full((480, 640, 3), 250, np.uint8))
    assert answer["text"] == []
    assert answer["boxes"].shape == (0, 4)


@pytest.mark.cpu
def test_a_batch_gives_what_its_items_give_alone():
    from dovetail.workflow.runners import make_runner
    from examples import document as app

    def run(stage, *columns):
        """The stage on all items at once, after checking it against the items one by one."""
        runner = make_runner(stage)
        together = runner.run(columns)
        alone = [runner.run([[value] for value in item])[0] for item in zip(*columns, strict=True)]
        same(together, alone, stage.name)
        return together

    def same(left, right, name):
        if isinstance(left, np.ndarray):
            np.testing.assert_allclose(left, right, rtol=1e-3, atol=1e-4, err_msg=name)
        elif isinstance(left, list | tuple):
            assert len(left) == len(right), name
            for a, b in zip(left, right, strict=True):
                same(a, b, name)
        else:
            assert left == right, name

    sheets = [pages.page(seed).pixels for seed in (0, 2, 5)]
    pictures, thumbnails = zip(*run(app.shrink, sheets), strict=True)
    ways = run(app.page_way, thumbnails)
    lines, heads, boxes = zip(
        *run(app.cut, sheets, ways, run(app.detect, run(app.straighten, pictures, ways))), strict=True
    )
    turned = run(
        app.turn, [line for page in lines for line in page], run(app.line_way, [h for page in heads for h in page])
    )
    reader, speller = make_runner(app.read), make_runner(app.spell)
    alone = [speller.run([reader.run([[line]])])[0] for line in turned]
    # Padding to the widest line changes the reader's probabilities a little, but not what is read.
    texts = iter(run(app.spell, reader.run([turned])))
    per_page = [[next(texts) for _ in page] for page in lines]
    assert [text for page in per_page for text in page] == alone
    run(app.join, per_page, boxes)
