"""`place`: the router that `dovetail` grew out of, by itself: one item at a time on a whole device, none refused.

It is kept for comparison: what `dovetail` adds are batches, shares, plans and admission.
"""

from __future__ import annotations

from ...control import Policy
from ...place import SharedWorkers
from ...place.local_delays import LOCAL_SETTINGS, LocalDelays
from ...predict import Predictor
from ...wiring import PolicySpec
from .routed import Router, routed_policy

__all__ = ["make"]


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """It for the registry."""
    delays, settings = (LocalDelays(), LOCAL_SETTINGS) if spec.near else (None, None)

    def router(predictor: Predictor) -> Router:
        return SharedWorkers(predictor, settings, ingress=home, home=home, delays=delays)

    return routed_policy(spec, predictor, cores, home, router)
