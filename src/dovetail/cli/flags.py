"""Flags that contradict each other: refused with the reason, before anything is done.

Rule of this file: a flag counts as given if its value is not the one it has when nobody writes it, so flags that are
looked at here have None, False or nothing as their default.
"""

from __future__ import annotations

import argparse

from ..errors import DeclarationError

__all__ = ["given", "refuse"]


def given(args: argparse.Namespace, flag: str) -> bool:
    """Whether the user wrote this flag."""
    value = getattr(args, flag.removeprefix("--").replace("-", "_"))
    return value is not None and value is not False and value != () and value != []


def refuse(args: argparse.Namespace, *flags: str, because: str) -> None:
    """Raise if one of these flags was given: `because` says what it does not go with, and what to do."""
    for flag in flags:
        if given(args, flag):
            raise DeclarationError(f"{flag}: {because}")
