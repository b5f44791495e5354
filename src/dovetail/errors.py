"""Every error a user can meet. Each message names the cause and what to do about it.

Rule of this file: an error class exists when a caller would treat it differently, not for every cause.
"""

from __future__ import annotations

__all__ = [
    "BadRequest",
    "CatalogueError",
    "DeclarationError",
    "DovetailError",
    "Forbidden",
    "LogError",
    "ModelError",
    "Overloaded",
    "ProfileError",
    "QuotaExceeded",
    "ScenarioError",
    "Unauthorized",
]


class DovetailError(Exception):
    """Base of all errors that Dovetail raises on purpose."""


class DeclarationError(DovetailError):
    """A stage or workflow was declared in a way that cannot work; raised while declaring."""


class ModelError(DovetailError):
    """A model file is missing, is not what it should be, or cannot be fetched."""


class CatalogueError(DovetailError):
    """The catalogue has no device, model or workflow of that name."""


class ProfileError(DovetailError):
    """A profile is missing, stale or does not cover what is asked of it."""


class ScenarioError(DovetailError):
    """A scenario file is broken; the message names its line or key."""


class LogError(DovetailError):
    """A run log cannot be read, or a replay of it gave other actions."""


class BadRequest(DovetailError):
    """A request that no retry can repair; the reason goes back to the client."""


class Forbidden(BadRequest):
    """A request for what its client may not have; the reason goes back to the client."""


class Unauthorized(DovetailError):
    """A request without a key, or with one that is not good."""


class Overloaded(DovetailError):
    """There is no room now; the client may come back after `retry_after_ms`."""

    def __init__(self, reason: str, retry_after_ms: int) -> None:
        super().__init__(reason)
        self.retry_after_ms = retry_after_ms
        #: The number by which the log knows the request that was turned away; 0 if it does not.
        self.request = 0


class QuotaExceeded(Overloaded):
    """A tenant has had what it may have for now; others may still be let in."""
