"""Live systems, one per module of tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.live.support import Live


@pytest.fixture(scope="module")
def shared_live() -> Iterator[Live]:
    live = Live()
    yield live
    live.close()


@pytest.fixture
def live(shared_live: Live) -> Iterator[Live]:
    """The module's system; whatever the test did, nothing of it may be left."""
    shared_live.said.clear()
    shared_live.steps.clear()
    yield shared_live
    shared_live.check_clean()
