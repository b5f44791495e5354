"""May this upload be shown? Three looks at once, one verdict: `dovetail serve examples.moderation:app`.

file ─┬ sample_bytes ─ file_kind ───────────────────────────────────────┬ judge ─ verdict, reasons, nudity
      └ open_picture ─┬ centre ─ nudity ────────────────────────────────┤
                      └ spread ─ detect ─ captions ─ fill ─ read ─ spell ┘
The text branch shares its models, and so its batches, with `document` if both are served together.
"""

import io
import json
import re

import numpy as np
from PIL import Image

from dovetail import App, onnx, stage, tensor, workflow

from . import reading, weights
from .document import detect, read, spell
from .pages import poster

file_kind = onnx(weights.file_kind(), name="file_kind", batch=(1, 4, 8), like="squeezenet1_0")
nudity = onnx(weights.nudity(), name="nudity", batch=(1, 2, 4, 8), like="resnet50")
MAGIKA = json.loads(weights.file_kind_config().read_text())

PICTURE_KINDS = {"png", "jpeg", "gif", "webp", "bmp", "tiff"}
BLOCKED_WORDS = {"casino", "crypto", "miracle"}
NUDITY_REJECT, NUDITY_REVIEW = 0.8, 0.2  # the bounds that OpenNSFW's authors suggest
PICTURE_SIDE_CAP = 1024
BGR_MEAN = np.array([104, 117, 123], np.float32)  # OpenNSFW was trained on BGR values with this taken off
BLANK = np.full((reading.SIDE_STEP, reading.SIDE_STEP, 3), 255, np.uint8)

VERDICT = {"verdict": tensor("bytes", 1), "reasons": tensor("bytes", -1), "nudity": tensor("float32", 1)}


@stage
def sample_bytes(files):
    """What Magika takes: the first and last kilobyte of the file, blanks stripped."""
    size, block, filler = MAGIKA["beg_size"], MAGIKA["block_size"], MAGIKA["padding_token"]
    samples = []
    for file in files:
        values = np.full(2 * size, filler, np.int32)
        first = np.frombuffer(bytes(file[:block]).lstrip()[:size], np.uint8)
        last = np.frombuffer(bytes(file[-block:]).rstrip()[-size:], np.uint8)
        values[: len(first)] = first
        values[2 * size - len(last) :] = last
        samples.append(values)
    return samples


@stage(outputs=("picture", "readable"))
def open_picture(files):
    """The picture, at most PICTURE_SIDE_CAP a side; a blank one in place of what cannot be opened."""
    opened = []
    for file in files:
        try:
            with Image.open(io.BytesIO(file)) as image:
                image.draft("RGB", (PICTURE_SIDE_CAP, PICTURE_SIDE_CAP))
                image.thumbnail((PICTURE_SIDE_CAP, PICTURE_SIDE_CAP))
                opened.append((np.asarray(image.convert("RGB")), True))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
            opened.append((BLANK, False))
    return opened


@stage
def centre(pictures):
    """What OpenNSFW takes: the middle 224×224 of the picture at 256×256."""
    values = []
    for picture in pictures:
        image = Image.fromarray(picture).resize((256, 256), Image.Resampling.BILINEAR, reducing_gap=2.0)
        values.append(np.asarray(image)[16:240, 16:240, ::-1] - BGR_MEAN)
    return values


@stage
def spread(pictures):
    """What the text detector takes."""
    return [reading.detector_input(reading.page_picture(p)) for p in pictures]


@stage
def captions(pictures, text_maps):
    """The lines of text in each picture."""
    pairs = zip(pictures, text_maps, strict=True)
    return [[reading.cut_line(p, box) for box in reading.find_boxes(m[0], *p.shape[:2])] for p, m in pairs]


@stage(batch=(1, 4, 8, 16))
def fill(lines):
    """What the reader takes."""
    return [reading.reader_input(line) for line in lines]


@stage(outputs=tuple(VERDICT))
def judge(kinds, readables, nudities, texts):
    """The verdict (accept, review or reject), why, and how likely the picture shows nudity."""
    return [_judge(*looks) for looks in zip(kinds, readables, nudities, texts, strict=True)]


def _judge(kind_odds, readable, nudity_odds, lines):
    kind, nude = MAGIKA["target_labels_space"][int(np.argmax(kind_odds))], float(nudity_odds[1])
    reject, review = [], []
    if kind not in PICTURE_KINDS:
        reject.append(f"not a picture but {kind}")
    elif not readable:
        reject.append("damaged")
    if nude > NUDITY_REJECT:
        reject.append("nudity")
    elif nude > NUDITY_REVIEW:
        review.append("perhaps nudity")
    words = re.findall(r"\w+", " ".join(lines).lower())
    review += [f"says {word}" for word in sorted(BLOCKED_WORDS.intersection(words))]
    verdict = "reject" if reject else "review" if review else "accept"
    return verdict, reject + review, np.array([nude], np.float32)


@workflow(slo="500ms", priority=2, sample=lambda: {"file": poster(1).file})
def moderate(file: tensor("bytes", 1)) -> VERDICT:
    picture, readable = open_picture(file)
    kind = file_kind(sample_bytes(file))
    nude = nudity(centre(picture))
    text = spell.map(read.map(fill.map(captions(picture, detect(spread(picture))))))
    return judge(kind, readable, nude, text)


app = App(moderate)
