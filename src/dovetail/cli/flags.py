"""Flags: how their values are read, and which contradict each other. Both are refused before anything is done.

Rule of this file: a flag counts as given if its value is not the one it has when nobody writes it, so flags that are
looked at here have None, False or nothing as their default.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from ..errors import DeclarationError
from ..units import parse_bytes, parse_duration

__all__ = [
    "ANY_SECONDS", "SIZE", "TIME_NS", "bounds", "given", "patience", "port", "refuse", "seconds", "some_bytes",
    "whole",
]  # fmt: skip


def given(args: argparse.Namespace, flag: str) -> bool:
    """Whether the user wrote this flag."""
    value = getattr(args, flag.removeprefix("--").replace("-", "_"))
    return value is not None and value is not False and value != () and value != []


def refuse(args: argparse.Namespace, *flags: str, because: str) -> None:
    """Raise if one of these flags was given: `because` says what it does not go with, and what to do."""
    for flag in flags:
        if given(args, flag):
            raise DeclarationError(f"{flag}: {because}")


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Reads a whole number from `least` on, or up to `most`."""
    bounds = f"from {least} on" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number {bounds}")
        return int(text)

    return read


def bounds(text: str) -> tuple[int, int]:
    """Reads a whole number from 1 on, or two as in 0..3: that many at the least and at the most."""
    low, dots, high = text.partition("..")
    try:
        found = whole(0)(low), whole(1)(high if dots else low)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a whole number from 1 on, or two of them such as 1..3 or 0..3"
        ) from None
    if found[0] > found[1]:
        raise argparse.ArgumentTypeError(f"{text!r}: {found[0]} at the least are more than {found[1]} at the most")
    return found


def seconds(least: float, most: float, what: str) -> Callable[[str], float]:
    """Reads a number of seconds within these bounds."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} must be {what}")
        return value

    return read


def _refusing(read: Callable[[str], int]) -> Callable[[str], int]:
    """What refuses a declaration, as a flag's type."""

    def checked(text: str) -> int:
        try:
            return read(text)
        except DeclarationError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


#: Read a duration or 0 in nanoseconds, a number of bytes, and one of seconds.
TIME_NS = _refusing(lambda text: 0 if text == "0" else parse_duration(text))
SIZE = _refusing(parse_bytes)
ANY_SECONDS = seconds(0, sys.float_info.max, "a number of seconds from 0 on")


def some_bytes(text: str) -> int:
    """Reads a number of bytes above 0."""
    if not SIZE(text):
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0")
    return SIZE(text)


def port(text: str) -> int:
    """Reads the number of a port; 0 is any."""
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} must be a port from 0 to 65535")
    return int(text)


def patience(text: str) -> float:
    """Reads a number of seconds above 0."""
    if not ANY_SECONDS(text):
        raise argparse.ArgumentTypeError(f"{text!r} must be above 0: no batch ends at once")
    return float(text)
