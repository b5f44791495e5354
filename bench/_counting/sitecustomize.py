"""Counts calls of functions in a process that `front_calls.py` has started: SIGRTMIN begins, SIGRTMAX ends.

Python imports a module of this name by itself where it lies on the path. Every thread has a profile of its own.
"""

from __future__ import annotations

import cProfile
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = os.environ.get("COUNTS_FOLDER", "")
#: Of each thread.
profiles: dict[int, cProfile.Profile] = {}
counting = threading.Event()


def _enable() -> None:
    profile = profiles[threading.get_ident()] = cProfile.Profile(builtins=True)
    profile.enable()


def _begin(_number: int, _frame: FrameType | None) -> None:
    counting.set()
    _enable()


def _in_thread(_frame: FrameType, _event: str, _arg: Any) -> None:
    if counting.is_set():
        sys.setprofile(None)
        _enable()


def _write(_number: int, _frame: FrameType | None) -> None:
    counting.clear()
    time.sleep(0.05)
    for ident, profile in profiles.items():
        profile.create_stats()
        profile.dump_stats(Path(FOLDER, f"{os.getpid()}-{ident}.prof"))
    Path(FOLDER, f"{os.getpid()}.done").touch()


if FOLDER:
    signal.signal(signal.SIGRTMIN, _begin)
    signal.signal(signal.SIGRTMAX, _write)
    threading.setprofile(_in_thread)
