"""The arena that the sessions of a process share."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import onnx
from dovetail.live.worker.footprint import anonymous_bytes
from dovetail.workflow.runners import OnnxRunner, shrink_arena
from examples import weights

pytestmark = pytest.mark.cpu


def test_what_a_batch_worked_in_is_given_back_and_the_next_one_has_the_same_answer() -> None:
    runner = OnnxRunner(onnx(weights.text_detector(), name="detect", batch=(1,)).spec)
    item = [[np.zeros((3, 640, 640), np.float32)]]
    (before,) = runner.run(item)
    working = anonymous_bytes()
    shrink_arena()
    # It works in some 30 MB.
    assert anonymous_bytes() < working - (8 << 20)
    (after,) = runner.run(item)
    assert np.array_equal(before, after)
