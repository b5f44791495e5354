"""A mapped stage may have several outputs: each is the list of that output of every element."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from tests.live import mapped_app
from tests.live.support import Live, item

from dovetail import stage, workflow
from dovetail.errors import DeclarationError


def test_alone():
    got = mapped_app.each.local(x=item(3))
    assert got["low"].tolist() == [0 + 1 + 2] * 3
    assert [d.tolist() for d in got["differences"]] == [[10 - 0] * 3, [20 - 1] * 3, [30 - 2] * 3]
    got = mapped_app.shown.local(x=item(2))
    assert set(got) == {"low", "high"}
    assert [h[0] for h in got["high"]] == [10, 20]


@pytest.mark.cpu
def test_live_is_as_alone():
    with closing(Live("tests.live.mapped_app:app")) as live:
        for count in (0, 1, 5):
            for flow in (mapped_app.each, mapped_app.shown):
                result = live.ask(flow.name, count, objective_ns=60 * 10**9)
                assert result.outcome == "ok", result.reason
                expected = flow.local(x=item(count))
                assert set(result.outputs) == set(expected)
                for name, value in expected.items():
                    np.testing.assert_equal(result.outputs[name], value)
        live.check_clean()


def test_such_lists_do_not_stand_for_the_outputs_of_a_step():
    @stage
    def test(items):
        return items

    with pytest.raises(DeclarationError, match="both must have the same"):

        @workflow(slo="1s")
        def mixed(x: mapped_app.ITEM):
            return mapped_app.bounds.when(test(x), otherwise=mapped_app.bounds.map(mapped_app.split(x)))(x)
