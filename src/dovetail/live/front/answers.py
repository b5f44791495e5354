"""Open requests, and how each is answered: exactly once, with views of shared memory or with a reason.

An answer's blocks stay where they are until whoever was told has called `release`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ...control import Reject, Reply
from ..tensors.values import LiveRequest
from .memory import Memory

__all__ = ["Answers", "Result", "Tell"]


class Result(msgspec.Struct):
    """How a request ended. Outputs are views of shared memory: call `release` when they have been read."""

    outcome: str
    outputs: dict[str, Any]
    reason: str
    retry_after_ns: int
    latency_ns: int
    cost_usd: float
    release: Callable[[], None]


#: Is told the number of a request and how it ended.
Tell = Callable[[int, Result], None]


class Answers:
    """Requests by number, and whom to tell the end of each."""

    def __init__(self, memory: Memory, say: Callable[[str], None]) -> None:
        self.requests: dict[int, LiveRequest] = {}
        self._memory = memory
        self._say = say
        self._waiting: dict[int, Tell] = {}
        self._last = 0

    def open(self, request: LiveRequest, done: Tell) -> int:
        """One more request; its number."""
        ident = self.number()
        self.requests[ident] = request
        self._waiting[ident] = done
        return ident

    def number(self) -> int:
        """The next number, for a request that is answered already."""
        self._last += 1
        return self._last

    def end(self, action: Reply | Reject, latency_ns: int) -> None:
        """Answer a request as the controller says."""
        request = self.requests.pop(action.request)
        result = Result(action.outcome, {}, "", 0, latency_ns, action.cost_usd, _once(request.drop))
        if type(action) is Reply:
            try:
                result.outputs = request.results(self._memory.arenas)
            except Exception as error:  # what a worker wrote is not what the graph says
                result.outcome, result.reason = "failed", f"the result cannot be read: {error}"
        elif type(action) is Reject:
            result.reason, result.retry_after_ns = request.given_up or action.reason, action.retry_after_ns
        self._tell(action.request, request, result)

    def fail_all(self, reason: str) -> None:
        """Answer whatever is open, without asking anybody."""
        requests, self.requests = self.requests, {}
        for ident, request in requests.items():
            self._tell(ident, request, Result("failed", {}, reason, 0, 0, 0.0, _once(request.drop)))

    def _tell(self, ident: int, request: LiveRequest, result: Result) -> None:
        """The answer reads the request's blocks; whatever is wrong with it must not touch the others."""
        request.hold()
        request.close()
        done = self._waiting.pop(ident)
        try:
            done(ident, result)
        except Exception as error:
            result.release()
            self._say(f"the answer to request {ident} could not be given: {type(error).__name__}: {error}")


def _once(call: Callable[[], None]) -> Callable[[], None]:
    """A release that may be called again without harm."""
    done = False

    def release() -> None:
        nonlocal done
        if not done:
            done = True
            call()

    return release
