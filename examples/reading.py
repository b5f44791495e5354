"""What happens between the models that read text: one item in, one item out, numpy and Pillow only.

Sizes are pixels. A page is uint8 [height, width, 3]; a line is uint8 [48, width], grey; what a model takes is
float32 [3, height, width] in the scale it was trained with, three equal planes of grey. Grey costs a third of the
time and of the bytes between stages, and reads the same. Arguments may be read-only views and are never written
to. Nothing here knows Dovetail; `document`, `moderation` and `cascade` make stages of these functions.
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
    "planes",
    "reader_input",
    "transcribe",
    "turn_upright",
]

Scale = tuple[tuple[float, float, float], tuple[float, float, float]]
#: Mean and deviation of each channel in ImageNet, which the orientation model and the detector were trained with.
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Scale to -1…1, as the line models take it; nought is what they were padded with.
SIGNED = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

# 480 finds 12-pixel text on a page of 800 pixels and costs half of 640: all 137 lines of 25 generated pages at 416
# to 736, but 46 of 48 against 48 of 48 lines read right when the text is as small as that.
DETECTOR_LONG_SIDE = 480
# Threshold of the text map, least mean of a box, and how far a box grows: the detector was trained on
# shrunken text regions. Values of the model's own configuration (inference.yml, PostProcess).
TEXT_THRESHOLD, BOX_THRESHOLD, UNCLIP_RATIO = 0.2, 0.4, 1.4
LEAST_BOX_SIDE = 3
LINE_HEIGHT = 48
# Longer lines are squeezed. 960 is about 55 characters.
LINE_WIDTH_CAP = 960
#: The line classifier's width. It is shown the beginning of a line, not the whole of it squeezed.
HEAD_WIDTH = 192
WIDTH_STEP = 32
# The classifier must be this sure before a line is turned (PaddleOCR's cls_thresh).
TURN_LINE_ABOVE = 0.9


def planes(grey: np.ndarray, scale: Scale) -> np.ndarray:
    """A grey picture as a model takes it: (value / 255 - mean) / deviation, one plane per channel."""
    mean, deviation = (np.array(s, np.float32)[:, None, None] for s in scale)
    values = np.multiply(grey, 1 / (255 * deviation), dtype=np.float32)
    values -= mean / deviation
    return values


def turn_upright(page: np.ndarray, way: np.ndarray) -> np.ndarray:
    """The page turned back; `way` holds the probabilities that it lies 0, 90, 180, 270 degrees clockwise."""
    return np.rot90(page, int(np.argmax(way)))


def shrunk(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    """The picture in grey at this size."""
    grey = Image.fromarray(picture).convert("L")
    return np.asarray(grey.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0))


def detector_input(page: np.ndarray) -> np.ndarray:
    """The page with its long side at DETECTOR_LONG_SIDE and both sides multiples of 32, as the network needs."""
    height, width = page.shape[:2]
    ratio = DETECTOR_LONG_SIDE / max(height, width)
    sides = (max(WIDTH_STEP, round(side * ratio / WIDTH_STEP) * WIDTH_STEP) for side in (width, height))
    return planes(shrunk(page, *sides), IMAGENET)


def find_boxes(text_map: np.ndarray, height: int, width: int) -> np.ndarray:
    """Boxes (left, top, right, bottom) of the lines of a page of this size, int32 [n, 4] in reading order."""
    found = []
    rows, columns = text_map.shape
    for left, top, right, bottom in _components(text_map > TEXT_THRESHOLD).tolist():
        wide, high = right - left, bottom - top
        if min(wide, high) < LEAST_BOX_SIDE or text_map[top:bottom, left:right].mean() < BOX_THRESHOLD:
            continue
        grow = UNCLIP_RATIO * wide * high / (2 * (wide + high))
        found.append((left - grow, top - grow, right + grow, bottom + grow))
    if not found:
        return np.zeros((0, 4), np.int32)
    boxes = np.array(found) * (width / columns, height / rows, width / columns, height / rows)
    boxes = np.clip(np.rint(boxes), 0, (width, height, width, height)).astype(np.int32)
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
            root[run] = run = root[root[run]]
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
    """A picture of one line at the height that the line models take."""
    height, width = line.shape[:2]
    return shrunk(line, min(LINE_WIDTH_CAP, max(1, round(width * LINE_HEIGHT / height))), LINE_HEIGHT)


def cut_line(page: np.ndarray, box: np.ndarray) -> np.ndarray:
    """The line in this box of the page."""
    left, top, right, bottom = box.tolist()
    return line_picture(page[top:bottom, left:right])


def _filled_up(values: np.ndarray, width: int) -> np.ndarray:
    whole = np.zeros((*values.shape[:2], width), np.float32)
    whole[:, :, : values.shape[2]] = values
    return whole


def head_of_line(line: np.ndarray) -> np.ndarray:
    """What the line classifier takes: the beginning of the line."""
    return _filled_up(planes(line[:, :HEAD_WIDTH], SIGNED), HEAD_WIDTH)


def reader_input(line: np.ndarray, way: np.ndarray | None = None) -> np.ndarray:
    """What the reader takes: the line, turned if `way` (the probabilities of 0 and 180 degrees) says so."""
    if way is not None and way[1] > TURN_LINE_ABOVE:
        line = line[::-1, ::-1]
    return _filled_up(planes(line, SIGNED), -(-line.shape[1] // WIDTH_STEP) * WIDTH_STEP)


def load_alphabet(dictionary: Path) -> tuple[str, ...]:
    """The characters of the reader's classes: class 0 is no character, the last one a space."""
    return ("", *dictionary.read_text(encoding="utf-8").split("\n")[:-1], " ")


def transcribe(probabilities: np.ndarray, alphabet: tuple[str, ...]) -> tuple[str, float]:
    """Text and mean confidence of float32 [steps, classes]: the best class of each step, repeats and blanks dropped."""
    best = probabilities.argmax(axis=1)
    kept = best != 0
    kept[1:] &= best[1:] != best[:-1]
    steps = np.flatnonzero(kept)
    if not len(steps):
        return "", 0.0
    classes = best[steps]
    return "".join(alphabet[c] for c in classes.tolist()), float(probabilities[steps, classes].mean())
