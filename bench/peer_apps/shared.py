"""What every peer runs: the same sessions, with one thread each. The environment says which, and where they are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnxruntime

SHAPE = (3, 128, 128)
#: "one" model, or a workflow of "three": clean, then kind and grade of what was cleaned.
WHICH = os.environ["PEER_APP"]
PORT = int(os.environ["PEER_PORT"])
#: Batches as others are given them: so many, or after so long.
MOST, WAIT_S = 8, 0.005
SLO_MS = int(os.environ["PEER_SLO_MS"])
#: Requests that may wait where a server can refuse more: about what can be answered within the objective.
QUEUE = int(os.environ.get("PEER_QUEUE", "16"))


def session(name: str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    path = Path(os.environ["PEER_MODELS"]) / f"{name}.onnx"
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def picture(body: bytes) -> np.ndarray:
    return np.frombuffer(body, np.float32).reshape(SHAPE)


def run(model: onnxruntime.InferenceSession, batch: np.ndarray) -> np.ndarray:
    return model.run(None, {"x": batch})[0]


class Whole:
    """All models in one process, a batch at a time."""

    def __init__(self) -> None:
        names = ("one",) if WHICH == "one" else ("clean", "kind", "grade")
        self.models = {name: session(name) for name in names}

    def __call__(self, batch: np.ndarray) -> np.ndarray:
        if WHICH == "one":
            return run(self.models["one"], batch)
        clean = run(self.models["clean"], batch)
        return np.concatenate([run(self.models["kind"], clean), run(self.models["grade"], clean)], axis=1)
