"""JIT, Compass's rival without a plan worth the name: a worker by hash, and a better one when the inputs are there.

After Cascade's branch `experiment_navigator_comparison`: the initial plan is Hash's; a task whose worker has anything
to do is moved to the least of wait and fetch. Joins are moved as well: there the receiver gathers all inputs, decides
once and sends them on; here an item is routed when all its inputs are there, which comes to the same but for the
detour of the inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...control import Policy
from ...predict import Predictor
from ...state import Request
from ...wiring import PolicySpec
from .compass import CompassForm, CompassRouter
from .hashed import hashed_plan
from .routed import routed_policy

__all__ = ["JIT_FORM", "JitRouter", "make"]

JIT_FORM: Final = CompassForm(threshold=0.0, pin_joins=False)


class JitRouter(CompassRouter):
    """Hash's plan with Compass's adjustment at every hand-over."""

    def __init__(
        self,
        predictor: Predictor,
        form: CompassForm = JIT_FORM,
        *,
        home: int = 0,
        in_bytes: Mapping[tuple[str, str], int] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(predictor, form, home=home, in_bytes=in_bytes)
        self._seed = seed

    def decide(self, request: Request, now_ns: int) -> dict[int, int]:
        """Every node on its own, by hash."""
        return hashed_plan(self, request, self._seed)


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """JIT for the registry."""
    return routed_policy(
        spec, predictor, cores, home, lambda predictor: JitRouter(predictor, home=home, seed=spec.seed)
    )
