"""What a connection needs from what is served, and how far a connection has come. Data and protocols only."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from .framing import HttpRequest, HttpResponse

__all__ = ["Application", "Buffer", "Cancel", "Phase"]

Cancel = Callable[[], object]


class Buffer(Protocol):
    """Memory for one request body."""

    @property
    def view(self) -> memoryview: ...
    def release(self) -> None: ...


class Application(Protocol):
    """What is served. `check`, `body` and `respond` may refuse with `HttpError`."""

    def check(self, request: HttpRequest, nbytes: int) -> int:
        """How urgent a request is whose body of `nbytes` is about to come: 1 is the most. Nothing is reserved."""

    def body(self, request: HttpRequest, nbytes: int, begun: memoryview) -> Buffer | None:
        """Memory of exactly `nbytes` for the body that follows; None: it is read and thrown away.

        `begun` is what has come of it so far, to be looked at and not to be kept.
        """

    def renew(self) -> None:
        """What is served has changed."""

    def vital(self, request: HttpRequest) -> bool:
        """Whether it is answered even if there are too many clients."""

    def respond(
        self, request: HttpRequest, done: Callable[[HttpResponse | Exception], None]
    ) -> HttpResponse | Cancel:
        """The answer, or a call that cancels it, used when the client goes away.

        In the second case `done` is called with the answer or an error, once, be it cancelled or not, and perhaps
        before this returns.
        """


class Phase(enum.Enum):
    HEAD = enum.auto()
    BODY = enum.auto()
    CHUNKS = enum.auto()
    HANDLING = enum.auto()
    SENDING = enum.auto()
    STREAMING = enum.auto()
    CLOSING = enum.auto()
