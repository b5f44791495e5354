"""Rival policies behind the protocols of the five answers; one file each.

The first entry is the simplest honest one: first come first served with a fixed configuration.
"""

from .first_come import FirstComePlanner, FirstFitPlacer, LoadEverything

__all__ = ["FirstComePlanner", "FirstFitPlacer", "LoadEverything"]
