"""Which Dovetail this is: what logs are stamped with, and what `dovetail --version` says."""

__all__ = ["__version__"]

__version__ = "0.1.0"
