"""What happens between the models that read text: one item in, one item out, numpy and Pillow only.

Sizes are pixels. A page is uint8 [height, width, 3]; a line is uint8 [48, width], grey; what a model takes is
float32 [3, height, width] in the scale it was trained with, three equal planes of grey. Grey is a third of the bytes
between stages and reads as well as colour (137 of 137 lines either way). Arguments may be read-only views and are
never written to. Nothing here knows Dovetail; `document`, `moderation` and `cascade` make stages of these functions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

__all__ = [
    "cut_line",
    "detector_input",
    "find_boxes",
    "head_of_line",
    "line_picture",
    "load_alphabet",
    "page_picture",
    "reader_input",
    "thumbnail",
    "transcribe",
    "turn_upright",
]

Scale = tuple[tuple[float, float, float], tuple[float, float, float]]
#: Mean and deviation of each channel in ImageNet, which the page models were trained with.
IMAGENET: Scale = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: To -1…1, as the line models take it; nought is what they were padded with.
SIGNED: Scale = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

THUMBNAIL_SIDE = 224
# Half the work of 640. Of the 137 lines on pages 0 to 24 all are read at 480, 640 and 736, but 130 at 416; of 48
# lines in 12-pixel letters on 800-pixel pages 47 at 480 and 48 at 640.
PAGE_LONG_SIDE = 480
SIDE_STEP = 32  # the detector halves its input five times
# Threshold of the text map, least mean of a box, and by how much a box grows, as the detector marks only the core of
# a line: the model's own settings (inference.yml in its wheel).
TEXT_THRESHOLD, BOX_THRESHOLD, UNCLIP_RATIO = 0.2, 0.4, 1.4
LEAST_BOX_SIDE = 3
MOST_LINES = 100  # the largest are kept, so that a page of noise does not become thousands of items
LINE_HEIGHT = 48
# Longer lines are squeezed: 10 of 10 lines of 83 characters are read at 960, none at 640.
LINE_WIDTH_CAP = 960
# The line classifier sees the beginning of the line: surer than on the whole line squeezed (least probability of the
# right answer over 85 lines both ways up 0.9996 against 0.58).
HEAD_WIDTH = 192
TURN_LINE_ABOVE = 0.9  # how sure the classifier must be; PaddleOCR's default


def _planes(grey: np.ndarray, scale: Scale) -> np.ndarray:
    """A grey picture as a model takes it: (value / 255 - mean) / deviation, one plane per channel."""
    mean, deviation = (np.array(part, np.float32)[:, None, None] for part in scale)
    values = np.multiply(grey, 1 / (255 * deviation), dtype=np.float32)
    values -= mean / deviation
    return values


def _resized(picture: Image.Image, width: int, height: int) -> np.ndarray:
    return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0))


def page_picture(page: np.ndarray) -> np.ndarray:
    """The page in grey, its long side at PAGE_LONG_SIDE and both sides multiples of SIDE_STEP."""
    height, width = page.shape[:2]
    ratio = PAGE_LONG_SIDE / max(height, width) / SIDE_STEP
    sides = (max(1, round(side * ratio)) * SIDE_STEP for side in (width, height))
    return _resized(Image.fromarray(page).convert("L"), *sides)


def thumbnail(picture: np.ndarray) -> np.ndarray:
    """What the page classifier takes: the whole page, squeezed to a square."""
    return _planes(_resized(Image.fromarray(picture), THUMBNAIL_SIDE, THUMBNAIL_SIDE), IMAGENET)


def turn_upright(page: np.ndarray, way: np.ndarray) -> np.ndarray:
    """The page turned back; `way` holds the probabilities that it was turned by 0, 90, 180, 270 degrees clockwise."""
    return np.rot90(page, int(np.argmax(way)))


def detector_input(picture: np.ndarray) -> np.ndarray:
    """What the detector takes."""
    return _planes(picture, IMAGENET)


def find_boxes(text_map: np.ndarray, height: int, width: int) -> np.ndarray:
    """Boxes (left, top, right, bottom) of the lines of a page of this size, int32 [n, 4] in reading order."""
    found = []
    for left, top, right, bottom in _components(text_map > TEXT_THRESHOLD).tolist():
        wide, high = right - left, bottom - top
        if min(wide, high) < LEAST_BOX_SIDE or text_map[top:bottom, left:right].mean() < BOX_THRESHOLD:
            continue
        grow = UNCLIP_RATIO * wide * high / (2 * (wide + high))
        found.append((left - grow, top - grow, right + grow, bottom + grow))
    found.sort(key=lambda box: (box[0] - box[2]) * (box[3] - box[1]))  # largest first
    scale = (width / text_map.shape[1], height / text_map.shape[0]) * 2
    boxes = np.rint(np.array(found[:MOST_LINES]).reshape(-1, 4) * scale)
    boxes = np.clip(boxes, 0, (width, height) * 2).astype(np.int32)
    boxes = boxes[(boxes[:, :2] < boxes[:, 2:]).all(axis=1)]
    return boxes[_reading_order(boxes)]


def _components(mask: np.ndarray) -> np.ndarray:
    """Bounding boxes (left, top, right, bottom) of the connected regions of a mask, int [n, 4].

    A region is a set of runs: stretches of ones in a row. Runs are found all at once, neighbours in the next row by
    binary search, and only the few hundred joins are done one by one.
    """
    height, width = mask.shape
    pitch = width + 1  # one blank column keeps the runs of neighbouring rows apart
    flat = np.zeros(height * pitch + 1, np.int8)
    flat[1:].reshape(height, pitch)[:, :width] = mask
    edges = np.diff(flat, append=0)
    start, end = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    first = np.searchsorted(end, start + pitch, side="right").tolist()
    last = np.searchsorted(start, end + pitch, side="left").tolist()
    root = list(range(len(start)))

    def find(run: int) -> int:
        while root[run] != run:
            root[run] = root[root[run]]
            run = root[run]
        return run

    for run in range(len(root)):
        for below in range(first[run], last[run]):
            a, b = find(run), find(below)
            root[max(a, b)] = min(a, b)
    label = np.array([find(run) for run in range(len(root))], dtype=np.intp)

    boxes = np.tile(np.array([width, height, 0, 0]), (len(root), 1))
    np.minimum.at(boxes[:, 0], label, start % pitch)
    np.minimum.at(boxes[:, 1], label, start // pitch)
    np.maximum.at(boxes[:, 2], label, (end - 1) % pitch + 1)
    np.maximum.at(boxes[:, 3], label, start // pitch + 1)
    return boxes[np.unique(label)]


def _reading_order(boxes: np.ndarray) -> list[int]:
    """Top to bottom; boxes whose middles are within half a line of each other are one row, left to right."""
    middle = (boxes[:, 1] + boxes[:, 3]) / 2
    half = (boxes[:, 3] - boxes[:, 1]) / 2
    rows: list[list[int]] = []
    for box in np.argsort(middle, kind="stable").tolist():
        if rows and middle[box] - middle[rows[-1][0]] < half[rows[-1][0]]:
            rows[-1].append(box)
        else:
            rows.append([box])
    return [box for row in rows for box in sorted(row, key=lambda b: boxes[b, 0])]


def line_picture(line: np.ndarray) -> np.ndarray:
    """A line in grey, at the height that the line models take."""
    height, width = line.shape[:2]
    wanted = min(LINE_WIDTH_CAP, max(1, round(width * LINE_HEIGHT / height)))
    return _resized(Image.fromarray(line).convert("L"), wanted, LINE_HEIGHT)


def cut_line(page: np.ndarray, box: np.ndarray) -> np.ndarray:
    """The line in this box of the page."""
    left, top, right, bottom = box.tolist()
    return line_picture(page[top:bottom, left:right])


def _filled_up(line: np.ndarray, width: int) -> np.ndarray:
    whole = np.zeros((3, LINE_HEIGHT, width), np.float32)
    whole[:, :, : line.shape[1]] = _planes(line, SIGNED)
    return whole


def head_of_line(line: np.ndarray) -> np.ndarray:
    """What the line classifier takes: the beginning of the line."""
    return _filled_up(line[:, :HEAD_WIDTH], HEAD_WIDTH)


def reader_input(line: np.ndarray, way: np.ndarray | None = None) -> np.ndarray:
    """What the reader takes: the line, turned if `way` (the probabilities of 0 and 180 degrees) says so."""
    if way is not None and way[1] > TURN_LINE_ABOVE:
        line = line[::-1, ::-1]
    return _filled_up(line, -(-line.shape[1] // SIDE_STEP) * SIDE_STEP)


def load_alphabet(dictionary: Path) -> tuple[str, ...]:
    """The characters of the reader's classes: class 0 is no character, the last one a space."""
    return ("", *dictionary.read_text(encoding="utf-8").split("\n")[:-1], " ")


def transcribe(probabilities: np.ndarray, alphabet: tuple[str, ...]) -> tuple[str, float]:
    """Text and mean confidence: the best class of each step of [steps, classes], without repeats and blanks."""
    best = probabilities.argmax(axis=1)
    kept = best != 0
    kept[1:] &= best[1:] != best[:-1]
    steps = np.flatnonzero(kept)
    if not len(steps):
        return "", 0.0
    classes = best[steps]
    return "".join(alphabet[c] for c in classes.tolist()), float(probabilities[steps, classes].mean())
