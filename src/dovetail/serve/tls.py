"""HTTPS: a certificate and its key, read when the server starts and again when it is told to."""

from __future__ import annotations

import ssl
from pathlib import Path

from ..errors import DeclarationError

__all__ = ["load_certificate", "tls_context"]


def tls_context(cert: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """How clients are spoken to; None: without encryption. The key may be in the same file as the certificate."""
    if cert is None:
        if key is not None:
            raise DeclarationError(f"--tls-key {key} needs --tls-cert, the certificate that it belongs to")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, cert, key)
    return context


def load_certificate(context: ssl.SSLContext, cert: Path, key: Path | None) -> None:
    """Take a certificate for all connections from now on. Nothing changes if it is not sound."""

    def no_password() -> str:
        raise DeclarationError(f"the key of {cert} is protected by a password; give one that is not")

    try:
        # Tried on a context of its own first: a failure must not leave the old certificate with the new key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, no_password)
        context.load_cert_chain(cert, key, no_password)
    except FileNotFoundError:
        missing = next(path for path in (cert, key) if path is not None and not path.exists())
        raise DeclarationError(f"there is no file {missing} (--tls-cert, --tls-key)") from None
    except ssl.SSLError as error:
        where = cert if key is None else f"{cert} and {key}"
        raise DeclarationError(f"{where} are no certificate with its key: {error.reason or error}") from None
    except OSError as error:
        raise DeclarationError(f"cannot read {cert} or its key: {error.strerror}") from None
