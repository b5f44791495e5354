"""Hash, Compass's simplest rival: a worker by chance for every task, and that is where it stays.

The original takes hash(task name + job key) modulo the number of workers (in the authors' simulator: a draw per
task). Here it is a hash of (seed, request, node) that is the same on every machine and in every run.
"""

from __future__ import annotations

from hashlib import blake2b

from ...control import Policy
from ...predict import Predictor
from ...state import Item, Request
from ...wiring import PolicySpec
from .routed import PlannedRouter, routed_policy

__all__ = ["HashRouter", "make", "pick"]


def pick(seed: int, request: int, node: int, count: int) -> int:
    """A number below `count`, spread evenly over requests and nodes."""
    digest = blake2b(f"{seed}/{request}/{node}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count


class HashRouter(PlannedRouter):
    """Spreads evenly; knows neither load nor models."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self._seed = seed

    def decide(self, request: Request, now_ns: int) -> dict[int, int]:
        """Every node on its own."""
        return hashed_plan(self, request, self._seed)

    def replace(self, item: Item, now_ns: int) -> int | None:
        """The same hash over those that are left."""
        return hashed_worker(self, item.request, item.node, self._seed)


def hashed_plan(router: PlannedRouter, request: Request, seed: int) -> dict[int, int]:
    """A worker by hash for every node that any member could run."""
    workers = ((n.index, hashed_worker(router, request, n.index, seed)) for n in request.graph.nodes)
    return {node: worker for node, worker in workers if worker is not None}


def hashed_worker(router: PlannedRouter, request: Request, node: int, seed: int) -> int | None:
    """The worker that the hash falls on, of those that could run the node."""
    able = router.able(request.graph.nodes[node].stage)
    return able[pick(seed, request.id, node, len(able))].id if able else None


def make(spec: PolicySpec, predictor: Predictor, cores: int, home: int) -> Policy:
    """Hash for the registry."""
    return routed_policy(spec, predictor, cores, home, lambda predictor: HashRouter(spec.seed))
