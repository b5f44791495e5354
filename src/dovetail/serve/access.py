"""Which key comes with a request, and what it is good for. The same for HTTP and gRPC.

Rules of this file
- Without a key file everybody may ask, and nobody is known.
- With one, only the server's health is told to whoever asks. Everything else needs a key: inference, and what clients
  must know for it, one whose scope is `infer`; what the server measures, one whose scope is `observe`; changing how
  it works, one whose scope is `admin`.
- A browser asks its user for a key and sends it as the password of HTTP's Basic scheme, with every request to this
  server from then on. So that scheme is taken for the dashboard alone, which changes nothing.
- Refusals do not tell whether a key exists.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from urllib.parse import unquote

from ..errors import Forbidden, Unauthorized
from .keys import Key, Keys

__all__ = ["HEALTH", "Access", "effective_class", "is_dashboard"]

#: Paths that need no key.
HEALTH = "/v2/health/"


class Access:
    """Keys, which may be replaced while requests come."""

    def __init__(self, keys: Keys | None = None, clock: Callable[[], float] = time.time) -> None:
        self.keys = keys
        self._clock = clock

    def of(self, method: str, path: str, headers: Mapping[str, str]) -> Key | None:
        """The key of an HTTP request, if keys are needed; raises `Unauthorized` or `Forbidden`."""
        if self.keys is None or path.startswith(HEALTH):
            return None
        key = self.identify(headers, browser=is_dashboard(path))
        match path.split("/")[1:]:
            case ["v2", "models", name, *rest] if name != "stats" or rest:
                self.permit(key, unquote(name), reads=method in ("GET", "HEAD"))
            case ["v2"] | ["v2", ""] | ["v2", "repository", "index"]:
                pass  # what a client must know
            case ["v2", "systemsharedmemory", *_]:
                self.use(key)
            case ["dashboard", "what-if"]:
                self.observe(key)  # it asks, though it is a POST
            case _ if method in ("GET", "HEAD"):
                self.observe(key)
            case _:
                self.administer(key)
        return key

    def identify(self, headers: Mapping[str, str], *, browser: bool = False) -> Key | None:
        """The key in `Authorization: Bearer KEY` or `X-Api-Key: KEY`; names of headers are lower case.

        With `browser`, one that was given as a password will do.
        """
        if self.keys is None:
            return None
        shown = headers.get("x-api-key", "")
        scheme, _, value = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            shown = value.strip()
        elif browser and scheme.lower() == "basic":
            shown = _password(value)
        if not shown:
            raise Unauthorized("this server needs a key: Authorization: Bearer dvt_...")
        key = self.keys.find(shown, self._clock())
        if key is None:
            raise Unauthorized("the key is not known here, or not good any more")
        return key

    def permit(self, key: Key | None, model: str, *, reads: bool = False) -> None:
        """Raises `Forbidden` if a key is not good for a model; `reads`: only what is known of it is asked."""
        if key is None or key.may_use(model) or (reads and "observe" in key.scopes):
            return
        raise Forbidden(f"this key is not for {model!r}")

    def use(self, key: Key | None) -> None:
        """Raises `Forbidden` if a key is good for no inference."""
        if key is not None and "infer" not in key.scopes:
            raise Forbidden("this key is not for inference")

    def observe(self, key: Key | None) -> None:
        """Raises `Forbidden` if a key does not let its owner see what the server measures."""
        if key is not None and "observe" not in key.scopes:
            raise Forbidden("this key is for inference; what the server measures needs one with the scope observe")

    def administer(self, key: Key | None) -> None:
        """Raises `Forbidden` if a key does not let its owner change how the server works."""
        if key is not None and "admin" not in key.scopes:
            raise Forbidden("changing how the server works needs a key with the scope admin")


def is_dashboard(path: str) -> bool:
    """Whether people look at this with a browser."""
    return path == "/" or path == "/dashboard" or path.startswith("/dashboard/")


def _password(value: str) -> str:
    """Of ``user:password`` in base64 (RFC 7617), or nothing; the user may be anything."""
    try:
        return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def effective_class(key: Key, model: str, own: int, claimed: int) -> int:
    """The class that a request with a key gets; `own` is its workflow's. Raises `Forbidden` if it claims too much."""
    highest = key.highest_class or own
    if not claimed:
        return max(own, highest)
    if claimed < highest:
        raise Forbidden(f"this key may claim class {highest} of {model!r} or a lower one, not class {claimed}")
    return claimed
