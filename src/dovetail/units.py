"""Durations, rates and sizes: what people write, and the integers the house counts in.

Inside Dovetail time is integer nanoseconds and memory is integer bytes, so that a replay is exact on any
machine. Text such as ``"300ms"`` exists only at the edge and is turned into integers here.
"""

from __future__ import annotations

import re
from typing import Final

from .errors import DeclarationError

__all__ = ["MS", "SECOND", "US", "format_bytes", "format_ns", "parse_bytes", "parse_duration", "parse_rate"]

US: Final = 1_000
MS: Final = 1_000_000
SECOND: Final = 1_000_000_000

_TIME_UNITS = {"ns": 1, "us": US, "µs": US, "ms": MS, "s": SECOND, "min": 60 * SECOND, "h": 3600 * SECOND}
_BYTE_UNITS = {
    "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30,
}  # fmt: skip
_RATE_UNITS = {"/s": 1.0, "/min": 1 / 60, "/h": 1 / 3600}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]+)?)\s*([A-Za-zµ/]*)\s*")


def _parse(text: object, units: dict[str, float] | dict[str, int], what: str, example: str) -> float:
    if not isinstance(text, str):
        raise DeclarationError(
            f"{what} must be text with a unit such as {example!r}, not {text!r}; "
            f"a bare number would leave the unit open"
        )
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise DeclarationError(f"{what} {text!r} is not a number with a unit; write for example {example!r}")
    number, unit = match.groups()
    if not unit:
        raise DeclarationError(f"{what} {text!r} has no unit; write for example {example!r}")
    if unit not in units:
        known = ", ".join(units)
        raise DeclarationError(
            f"{what} {text!r} has the unknown unit {unit!r}; known units: {known} (for example {example!r})"
        )
    return float(number) * units[unit]


def parse_duration(text: object, what: str = "duration") -> int:
    """Nanoseconds of text such as ``"300ms"``, ``"1.5s"``, ``"2min"``; a positive amount."""
    ns = round(_parse(text, _TIME_UNITS, what, "300ms"))
    if ns <= 0:
        raise DeclarationError(f"{what} {text!r} must be longer than nothing; write for example '300ms'")
    return ns


def parse_bytes(text: object, what: str = "size") -> int:
    """Bytes of text such as ``"14GB"`` or ``"512MiB"``."""
    return round(_parse(text, _BYTE_UNITS, what, "14GB"))


def parse_rate(text: object, what: str = "rate") -> float:
    """Events per second of text such as ``"50/s"`` or ``"30/min"``; a bare number counts per second."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        rate = float(text)
    else:
        rate = _parse(text, _RATE_UNITS, what, "50/s")
    if rate <= 0:
        raise DeclarationError(f"{what} {text!r} must be above zero")
    return rate


def format_ns(ns: float) -> str:
    """A duration for people: ``"12.3 ms"``."""
    for size, unit in ((SECOND, "s"), (MS, "ms"), (US, "µs")):
        if abs(ns) >= size:
            value = ns / size
            return f"{value:.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"
    return f"{ns:.0f} ns"


def format_bytes(count: float) -> str:
    """A size for people: ``"14.0 GB"``."""
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"
