"""A lab that measures nothing: the test answers every job, so that only what is made of answers is looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dovetail.lab.experiment import Claim, Lab


class HandLab(Lab):
    """Answers jobs by a function of the test's own."""

    def __init__(self, seeds: Sequence[int], answer: Callable[[Any], Any], *, quick: bool = False) -> None:
        super().__init__(seeds, quick=quick)
        self._answer = answer
        #: What was asked for, by the title of the work.
        self.asked: dict[str, list[Any]] = {}

    def map(self, function: Callable[[Any], Any], jobs: Sequence[Any], what: str) -> list[Any]:
        """The answers of the test."""
        self.asked.setdefault(what, []).extend(jobs)
        return [self._answer(job) for job in jobs]

    def claimed(self, ident: str) -> Claim:
        """The claim of that name."""
        return next(claim for claim in self.claims if claim.id == ident)

    def expect(self, ident: str, measured: float, *, holds: bool) -> Claim:
        """The claim was made with this figure and judged so."""
        claim = self.claimed(ident)
        assert claim.measured == pytest.approx(measured), ident
        assert claim.holds is holds, f"{ident}: {claim.measured} {claim.goal}"
        return claim
