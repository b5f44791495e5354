"""What a refusal is in gRPC: its code, and when to come back. Statuses are HTTP's, and decided for both at once."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from ..framing import HttpError
from .messages import HEALTH, message_class

__all__ = ["CODES", "as_status", "trailers"]

_LOG = logging.getLogger(__name__)
_CODE = grpc.StatusCode
#: HTTP status -> code of gRPC.
CODES = {
    400: _CODE.INVALID_ARGUMENT,
    401: _CODE.UNAUTHENTICATED,
    403: _CODE.PERMISSION_DENIED,
    404: _CODE.NOT_FOUND,
    408: _CODE.CANCELLED,
    413: _CODE.INVALID_ARGUMENT,
    415: _CODE.INVALID_ARGUMENT,
    429: _CODE.RESOURCE_EXHAUSTED,
    499: _CODE.CANCELLED,
    500: _CODE.INTERNAL,
    501: _CODE.UNIMPLEMENTED,
    503: _CODE.UNAVAILABLE,
    504: _CODE.DEADLINE_EXCEEDED,
}


def as_status(error: BaseException) -> tuple[Any, str, tuple[tuple[str, str | bytes], ...]]:
    """Code, text and trailing metadata; what a client should not know goes to the log."""
    if not isinstance(error, HttpError):
        _LOG.error("a call failed unexpectedly", exc_info=error)
        return _CODE.INTERNAL, "internal error; the server's log has the cause", ()
    code = CODES.get(error.status, _CODE.UNKNOWN)
    return code, str(error), trailers(code, error)


def trailers(code: Any, error: HttpError) -> tuple[tuple[str, str | bytes], ...]:
    """When to come back, in the ways that clients of gRPC know, and the number of the request.

    `grpc-retry-pushback-ms` is what the retries of gRPC's own clients wait for. `grpc-status-details-bin` holds a
    google.rpc.RetryInfo.
    """
    given = {name.lower(): value for name, value in error.headers}
    request = error.more.get("dovetail_request")
    found: list[tuple[str, str | bytes]] = [] if request is None else [("dovetail-request", str(request))]
    if "retry-after-ms" in given:
        after_ms = int(given["retry-after-ms"])
        info = message_class("RetryInfo", HEALTH)()
        info.retry_delay.seconds, info.retry_delay.nanos = after_ms // 1000, after_ms % 1000 * 1_000_000
        status = message_class("Status", HEALTH)(code=code.value[0], message=str(error))
        status.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=info.SerializeToString())
        found += [
            ("retry-after-ms", str(after_ms)),
            ("grpc-retry-pushback-ms", str(after_ms)),
            ("grpc-status-details-bin", status.SerializeToString()),
        ]
    return tuple(found)
