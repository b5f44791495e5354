"""No test waits for ever: whoever takes longer than this fails where it stands, and the next one has its turn.

A wait inside a test has its own, shorter bound; this one is for what nobody thought of.
"""

from __future__ import annotations

import faulthandler
import signal
from collections.abc import Iterator
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about what is tested.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

#: The longest test (the blocks of the README) takes a minute or two on an idle machine, and a multiple on a busy one.
PATIENCE_SECONDS = 600.0
#: Whoever catches the failure and goes on is failed again, and at last the whole run is ended with all stacks.
AGAIN_SECONDS, LAST_SECONDS = 10.0, 700.0


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    pytest.fail(f"a test may take {PATIENCE_SECONDS:g} s", pytrace=True)


def _bounded() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_SECONDS, AGAIN_SECONDS)
    faulthandler.dump_traceback_later(LAST_SECONDS, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Fixtures count, too."""
    return (yield from _bounded())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """The test itself."""
    return (yield from _bounded())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """And what is cleared away."""
    return (yield from _bounded())
