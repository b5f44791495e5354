"""Which ingress wants which model to stay: a model goes when the last of them has dropped it, or is gone."""

from __future__ import annotations

from collections.abc import Iterable

from ...workflow.graph import StageSpec
from .executor import BadMessage

__all__ = ["Orders"]


class Orders:
    """Orders of all ingresses of one worker."""

    def __init__(self, stages: Iterable[StageSpec]) -> None:
        self._weights = {stage.name: stage.weights for stage in stages}
        #: Weights -> who wants them, and the stage by which each has asked.
        self._wanted: dict[str, dict[int, str]] = {}

    def check(self, stage: str) -> str:
        """The weights of a stage that this worker was told of."""
        weights = self._weights.get(stage)
        if weights is None:
            raise BadMessage(f"nobody has told this worker of a stage {stage!r}")
        return weights

    def keep(self, ingress: int, stage: str) -> None:
        """An ingress wants the model of a stage to stay."""
        self._wanted.setdefault(self.check(stage), {})[ingress] = stage

    def drop(self, ingress: int, stage: str) -> bool:
        """An ingress wants it gone; whether it may, since no other one wants it to stay."""
        weights = self.check(stage)
        wanted = self._wanted.get(weights, {})
        wanted.pop(ingress, None)
        if wanted:
            return False
        self._wanted.pop(weights, None)
        return True

    def leave(self, ingress: int) -> list[str]:
        """An ingress is gone; stages whose models nobody else wants to stay."""
        mine = [wanted[ingress] for wanted in self._wanted.values() if ingress in wanted]
        return [stage for stage in mine if self.drop(ingress, stage)]
