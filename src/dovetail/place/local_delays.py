"""Delays between workers that are processes of one machine and run models on its cores."""

from __future__ import annotations

from typing import Final

from .settings import RouterSettings
from .transfer import Delays

__all__ = ["ONE_MACHINE", "OneMachine"]

#: A model is read from a file and prepared by the processor. Measured with onnxruntime 1.31 and the models of the
#: examples (0.6 to 24 MB) on a shared virtual machine: 46 to 110 ms for those below 7 MB, 170 to 240 ms above 20 MB.
LOAD_NS: Final = 60_000_000
LOAD_NS_PER_BYTE: Final = 6
#: Results lie in memory that all workers read; only a message goes its way (docs/results/live.md).
MESSAGE_NS: Final = 100_000

#: A load keeps a core from batches, so nothing is loaded that is not needed now, and turning memory over is charged
#: for what it does to others: with 100 instead of 400, `bench/memory.py` loaded a quarter more and took 25 % longer.
#: With hints there were more loads than by hash. One ingress knows what it has sent, so no worker has to refuse.
ONE_MACHINE: Final = RouterSettings(hints=False, spares=0, bounces=0, ask_pct=(), toll_pct=400)


class OneMachine(Delays):
    """Loads are slow, and results are everywhere at once."""

    def load_ns(self, nbytes: int) -> int:
        """File to session: what fetching a model takes."""
        return LOAD_NS + nbytes * LOAD_NS_PER_BYTE if nbytes > 0 else 0

    def save_ns(self, nbytes: int) -> int:
        """A model is dropped, not saved."""
        return 0

    def message_ns(self, nbytes: int) -> int:
        """However large it is, it stays where it is."""
        return MESSAGE_NS

    def result_ns(self, nbytes: int) -> int:
        """The same."""
        return MESSAGE_NS
