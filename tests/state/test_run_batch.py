"""Numbers of batches and steps where a device serves several ingresses."""

from __future__ import annotations

import pytest

from dovetail.state.run_batch import NEVER_NS, cause_of, task_of


@pytest.mark.parametrize("step", [0, 1, (1 << 48) - 1])
def test_a_step_is_told_to_the_ingress_whose_it_was_and_to_nobody_else(step: int) -> None:
    for ingress in (0, 1, 7):
        number = task_of(ingress, step)
        assert cause_of(number, ingress) == step
        assert cause_of(number, ingress + 1) == 0


def test_batches_of_several_ingresses_have_numbers_of_their_own() -> None:
    numbers = {task_of(ingress, batch) for ingress in range(3) for batch in (0, 1, (1 << 48) - 1)}
    assert len(numbers) == 9
    assert task_of(0, 5) == 5, "a lone ingress is known by its own numbers"


def test_a_time_that_never_comes_is_after_all_others_and_fits_the_log() -> None:
    a_century_ns = 100 * 366 * 86400 * 10**9
    assert a_century_ns < NEVER_NS < 1 << 63
