"""Where? Which worker runs a batch, and which models stay in its memory. Pure; see `plan` for the rules."""

from .protocol import Placer

__all__ = ["Placer"]
