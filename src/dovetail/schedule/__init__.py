"""The scheduler's policies. So far the simplest honest one: first come first served with a fixed configuration."""

from .first_come import FirstComePlanner, FirstFitPlacer, LoadEverything

__all__ = ["FirstComePlanner", "FirstFitPlacer", "LoadEverything"]
