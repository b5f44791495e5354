"""The experiment on kernels with measured sequences, where those are not at hand."""

from __future__ import annotations

from dovetail.lab.experiment import Lab
from dovetail.lab.experiments.fikit_recorded import CLAIMS, recorded


def test_without_measurements_it_says_what_is_left_out_and_why() -> None:
    lab = Lab([1])
    recorded(lab, 1, {})
    assert [left.id for left in lab.left_out] == list(CLAIMS)
    assert all("DOVETAIL_DATA" in left.reason for left in lab.left_out)
    assert not lab.claims
