"""Pages, lines and posters to read, drawn from a seed.

The same seed gives the same picture, so a test knows what is written on it, and a page costs about 7 ms, so a load
generator can draw hundreds. Nothing here knows Dovetail.
"""

from __future__ import annotations

import functools
import io
import random
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

__all__ = ["Line", "Page", "Poster", "page", "poster", "text_line"]

PHRASES = (
    "The harbour was quiet at six.",
    "Invoice 4071 is due on Friday.",
    "Please sign both copies.",
    "Rain is expected after noon.",
    "She counted the boats twice.",
    "Total weight: 238 kilograms",
    "Keep this side up.",
    "We met near the old station.",
    "Platform 9 closes at 21:45",
    "A joint that needs no nails",
    "Two coffees and one tea",
    "The library opens at eight.",
    "Handle with dry hands only.",
    "Order number 55-3082",
    "Nobody had read the letter.",
    "Turn left after the bridge.",
    "Return to sender if damaged",
    "Minutes of the March meeting",
    "The clock is seven minutes slow.",
    "Every window faces the sea.",
    "Store below 25 degrees.",
    "Fresh bread from 7:30 daily",
    "The third drawer is locked.",
    "Thank you for waiting.",
)
CAPTIONS = ("A week by the sea", "Open air concert", "Fresh from the farm", "Visit the old mill")
SHADY_CAPTIONS = ("Casino night tonight", "Miracle cure inside", "Free crypto for all")


@dataclass(frozen=True)
class Page:
    """A sheet with a few lines of text."""

    pixels: np.ndarray  # uint8 [height, width, 3]
    lines: tuple[str, ...]  # from top to bottom of the upright page
    turned_deg: int  # how far the sheet was turned, counter-clockwise


@dataclass(frozen=True)
class Line:
    """One line of text, cut out."""

    pixels: np.ndarray  # uint8 [height, width, 3]
    text: str
    blur_px: float


@dataclass(frozen=True)
class Poster:
    """An uploaded picture file with a caption."""

    file: bytes  # PNG or JPEG
    caption: str


@functools.cache
def _font(size_px: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size_px)


def page(seed: int, *, turned_deg: int | None = None) -> Page:
    """A page of 3 to 9 lines, 640×480 to 900×700, turned in four cases of ten unless `turned_deg` says how."""
    rng = random.Random(seed)
    width = rng.randrange(640, 901, 20)
    height = width * 3 // 4 + rng.randrange(0, 26)
    size_px = rng.randrange(28, 39, 2) * width // 720
    pitch = size_px * 7 // 4
    lines = rng.sample(PHRASES, min(rng.randint(3, 9), (height - pitch // 2) // pitch))

    sheet = Image.new("RGB", (width, height), (rng.randint(236, 255),) * 3)
    pen, ink = ImageDraw.Draw(sheet), tuple(rng.randint(0, 70) for _ in range(3))
    top = rng.randrange(pitch // 2, height - pitch * len(lines) + 1)
    for row, line in enumerate(lines):
        left = rng.randint(width // 24, width // 9)
        pen.text((left, top + row * pitch), line, fill=ink, font=_font(size_px))
    drawn = rng.choice((0, 0, 0, 0, 0, 0, 90, 180, 180, 270))
    turned = drawn if turned_deg is None else turned_deg
    return Page(np.ascontiguousarray(np.rot90(np.asarray(sheet), turned // 90)), tuple(lines), turned)


def text_line(seed: int, *, blur_px: float | None = None) -> Line:
    """A line that is sharp in half of the cases and otherwise blurred and grainy, unless `blur_px` says how much."""
    rng = random.Random(seed)
    text = rng.choice(PHRASES)
    drawn = rng.choice((0.0, 0.0, 0.0, 1.0, 2.0, 2.5))
    blur = drawn if blur_px is None else blur_px
    font, margin = _font(30), 8
    _, top, right, bottom = font.getbbox(text)
    strip = Image.new("L", (int(right) + 2 * margin, int(bottom - top) + 2 * margin), 240)
    ImageDraw.Draw(strip).text((margin, margin - top), text, fill=40, font=font)
    if blur:
        strip = strip.filter(ImageFilter.GaussianBlur(blur))
    grey = np.asarray(strip, np.float32)
    if blur:
        grey = np.clip(grey + np.random.default_rng(seed).normal(0, 10, grey.shape), 0, 255)
    return Line(np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2), text, blur)


def poster(seed: int, *, shady: bool | None = None) -> Poster:
    """A landscape with a caption, as a PNG or JPEG file; in one case of four the caption is a shady offer."""
    rng = random.Random(seed)
    drawn = rng.random() < 0.25
    caption = rng.choice(SHADY_CAPTIONS if (drawn if shady is None else shady) else CAPTIONS)
    width, height = rng.randrange(480, 721, 40), rng.randrange(360, 541, 20)
    horizon = height * 2 // 3
    sky = Image.linear_gradient("L").resize((width, height)).point(lambda v: 255 - v // 3)
    scene = Image.merge("RGB", (sky.point(lambda v: v - 60), sky.point(lambda v: v - 20), sky))
    pen = ImageDraw.Draw(scene)
    sun = rng.randrange(width // 8, width * 7 // 8)
    pen.ellipse((sun - 40, horizon - 110, sun + 40, horizon - 30), fill=(255, 214, 90))
    hill = [(x, horizon - rng.randrange(0, 60)) for x in range(0, width + 1, width // 8)]
    pen.polygon([(0, height), *hill, (width, height)], fill=(38, rng.randint(70, 110), 62))
    pen.text((width // 16, height // 12), caption, fill=(20, 24, 48), font=_font(width // 14))
    file = io.BytesIO()
    scene.save(file, rng.choice(("PNG", "JPEG")))
    return Poster(file.getvalue(), caption)
