"""Flags: how their values are read, and which contradict each other. Both are refused before anything is done.

Rule of this file: a flag counts as given if its value is not the one it has when nobody writes it, so flags that are
looked at here have None, False or nothing as their default.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ..errors import DeclarationError

__all__ = ["given", "refuse", "seconds", "whole"]


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
