"""The gRPC server beside the HTTP server: same thread, same event loop, same backend.

It is grpcio's asyncio server. The other one, with a thread for each open call, took less CPU for small calls (109
against 165 µs at 32 at a time, 228 against 240 µs one by one, on a Xeon of 2023). But a call waits there until a
thread is free: nobody could say whether it should be let in, or who goes first.

Rules of this file
- The number of calls and the size of a message are bounded.
- It listens where HTTP does, and ends with it: calls that have begun are answered first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from ..backend import Metric
from ..framing import Limits
from ..inference import Inference
from .service import Service
from .wire import MAX_HEAD_BYTES

__all__ = ["GrpcServer", "start"]

#: A client may ask whether the connection lives as often as this, without a call under way.
PING_MS = 10_000


class Certificate:
    """The certificate of the server, which grpcio asks for with every new connection."""

    def __init__(self, cert: Path, key: Path | None) -> None:
        self.read(cert, key)
        self.credentials = grpc.dynamic_ssl_server_credentials(self._now, lambda: self._now)

    def read(self, cert: Path, key: Path | None) -> None:
        """The key may be in the same file as the certificate."""
        pair = (key or cert).read_bytes(), cert.read_bytes()
        self._now = grpc.ssl_server_certificate_configuration([pair])


class GrpcServer:
    """A server that listens."""

    def __init__(self, server: Any, service: Service, port: int, certificate: Certificate | None) -> None:
        self._server, self._service, self.port, self._certificate = server, service, port, certificate

    def renew(self, cert: Path, key: Path | None) -> None:
        """Take a certificate for all connections from now on."""
        if self._certificate is not None:
            self._certificate.read(cert, key)

    def metrics(self) -> list[Metric]:
        """How it is."""
        return [
            ("dovetail_grpc_requests_total", "counter", "Answers of any code.", self._service.answers),
            ("dovetail_grpc_handling", "gauge", "Inferences that are being handled.", self._service.open),
        ]

    async def drain(self, grace_s: float) -> None:
        """Take no more calls, let those that have begun finish within a time, then end."""
        await self._server.stop(grace_s)
        await self._service.finished()


async def start(
    inference: Inference,
    host: str,
    port: int,
    limits: Limits,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
) -> GrpcServer:
    """Serve; port 0 takes a free one. Raises `OSError` if it cannot listen."""
    options = (
        ("grpc.max_receive_message_length", limits.max_body_bytes + MAX_HEAD_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.max_head_bytes),
        ("grpc.absolute_max_metadata_size", limits.max_head_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.max_connection_idle_ms", round(limits.idle_timeout_s * 1000)),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_MS),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", PING_MS),
        ("grpc.keepalive_permit_without_calls", 1),
    )
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=limits.max_connections)
    service = Service(inference, limits.body_timeout_s)
    server.add_generic_rpc_handlers(service.handlers())
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    certificate = None if tls_cert is None else Certificate(tls_cert, tls_key)
    try:
        if certificate is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, certificate.credentials)
    except RuntimeError as error:
        raise OSError(f"cannot bind to {address}") from error
    if not bound:
        raise OSError(f"cannot bind to {address}")
    await server.start()
    return GrpcServer(server, service, bound, certificate)
