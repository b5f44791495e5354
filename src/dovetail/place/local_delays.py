"""Delays between workers that are processes of one machine and run models on its cores."""

from __future__ import annotations

from typing import Final

from ..predict.estimate import guessed_load_ns
from .settings import RouterSettings
from .transfer import Delays

__all__ = ["LOCAL_SETTINGS", "LocalDelays"]

#: Results lie in memory that all workers read; only a message goes its way (docs/results/live.md).
MESSAGE_NS: Final = 100_000

#: A load keeps a core from batches, so nothing is loaded that is not needed now, and turning memory over is charged
#: for what it does to others: with 100 instead of 400, `bench/memory.py` loaded a quarter more and took 25 % longer.
#: With hints there were more loads than by hash. One ingress knows what it has sent, so no worker has to refuse.
LOCAL_SETTINGS: Final = RouterSettings(hints=False, spares=0, bounces=0, ask_pct=(), toll_pct=400)


class LocalDelays(Delays):
    """Loads are slow, and results are everywhere at once."""

    def load_ns(self, nbytes: int) -> int:
        """File to session: what fetching a model takes, before one was seen."""
        return guessed_load_ns(nbytes)

    def save_ns(self, nbytes: int) -> int:
        """A model is dropped, not saved."""
        return 0

    def message_ns(self, nbytes: int) -> int:
        """However large it is, it stays where it is."""
        return MESSAGE_NS

    def result_ns(self, nbytes: int) -> int:
        """The same."""
        return MESSAGE_NS
