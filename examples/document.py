"""Read a page that may lie on its side: `dovetail serve examples.document:app`.

page ─ shrink ─ page_way ─ straighten ─ detect ─ cut ─┬─ line_way ─ turn ─ read ─ spell ─┬─ join ─ text, boxes
                                                      └──────── one per line … ──────────┘
Lines of different pages share batches. Each stage is sent only what it needs: the page itself goes to two of them.
"""

import numpy as np

from dovetail import App, onnx, stage, tensor, workflow

from . import reading, weights
from .pages import page as example_page

# Nobody has measured these models on a GPU. `like` names one of the catalogue that stands in for each on a simulated
# or emulated device: of about its kind and weight, so that the shape of the curve is plausible. No more than that.
page_way = onnx(weights.page_way(), name="page_way", batch=(1, 2, 4, 8), like="mobilenet_v3_large")
detect = onnx(weights.text_detector(), name="detect", batch=(1, 2, 4), like="regnet_x_8gf")
line_way = onnx(weights.line_way(), name="line_way", batch=(1, 4, 8, 16), like="shufflenet_v2_x0_5")
read = onnx(weights.tiny_reader(), name="read", batch=(1, 4, 8, 16), pad=0.0, like="resnet50")
ALPHABET = reading.load_alphabet(weights.tiny_alphabet())

#: Boxes are left, top, right, bottom on the page after it was turned upright.
TEXT = {"text": tensor("bytes", -1), "boxes": tensor("int32", -1, 4)}


@stage(outputs=("picture", "thumbnail"))
def shrink(pages):
    """The page as small as the detector may see it, and what the page classifier takes."""
    pictures = [reading.page_picture(p) for p in pages]
    return [(p, reading.thumbnail(p)) for p in pictures]


@stage
def straighten(pictures, ways):
    """What the detector takes, turned upright."""
    return [reading.detector_input(reading.turn_upright(p, w)) for p, w in zip(pictures, ways, strict=True)]


@stage(outputs=("lines", "heads", "boxes"))
def cut(pages, ways, text_maps):
    """The lines of each page, the beginnings of the lines, and where they are."""
    found = []
    for page, way, text_map in zip(pages, ways, text_maps, strict=True):
        upright = reading.turn_upright(page, way)
        boxes = reading.find_boxes(text_map[0], *upright.shape[:2])
        lines = [reading.cut_line(upright, box) for box in boxes]
        found.append((lines, [reading.head_of_line(line) for line in lines], boxes))
    return found


@stage(batch=(1, 4, 8, 16))
def turn(lines, ways):
    """What the reader takes, turned if the line is upside down."""
    return [reading.reader_input(line, way) for line, way in zip(lines, ways, strict=True)]


@stage(batch=(1, 4, 8, 16))
def spell(probabilities):
    """The text of each line."""
    return [reading.transcribe(p, ALPHABET)[0] for p in probabilities]


@stage(outputs=tuple(TEXT))
def join(texts, boxes):
    """The lines in which something could be read."""
    found = [np.array([bool(t) for t in lines], bool) for lines in texts]
    return [([t for t in lines if t], b[f]) for lines, b, f in zip(texts, boxes, found, strict=True)]


@workflow(slo="600ms", priority=1, sample=lambda: {"page": example_page(1).pixels})
def document(page: tensor("uint8", -1, -1, 3)) -> TEXT:
    picture, thumbnail = shrink(page)
    way = page_way(thumbnail)
    lines, heads, boxes = cut(page, way, detect(straighten(picture, way)))
    text, boxes = join(spell.map(read.map(turn.map(lines, line_way.map(heads)))), boxes)
    return {"text": text, "boxes": boxes}


app = App(document)
