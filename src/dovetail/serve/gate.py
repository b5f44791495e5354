"""Who may ask: names under which the server answers, and pages of other sites, which may not.

Rules of this file
- A name in `Host` that is not ours is refused: a page whose name points to this address could else read the answers
  of a server that only listens on loopback (DNS rebinding). Addresses are no names, and always ours.
- A browser says in `Origin` and `Sec-Fetch-Site` which site asks. Other sites are refused unless they are allowed.
- Where there are keys, every request but those for the server's health needs one (`access`).
- What is refused says which flag allows it.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from ..errors import Forbidden, Unauthorized
from .access import Access, is_dashboard
from .framing import HttpError, HttpRequest
from .oip_response import as_refusal

__all__ = ["ANY", "Gate", "is_loopback"]

#: Stands for every name or site.
ANY = "*"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]*)(?::[0-9]+)?")


def is_loopback(host: str) -> bool:
    """Whether who binds to this is reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Gate:
    """Looks at a head before anything is done for it; `hosts` and `origins` are allowed beside our own."""

    def __init__(
        self,
        bound: str = "",
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        access: Access | None = None,
    ) -> None:
        self.access = access or Access()
        self.allow(bound, hosts, origins)

    def allow(self, bound: str, hosts: Iterable[str], origins: Iterable[str]) -> None:
        """Names and sites that are allowed from now on."""
        ours = ["localhost", socket.gethostname(), bound, *hosts]
        self._hosts = {name.lower().rstrip(".") for name in ours if name}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    def check(self, request: HttpRequest) -> None:
        """Raises `HttpError` if the request is none of ours; notes whose it is."""
        self._check_names(request)
        try:
            request.who = self.access.of(request.method, request.path, request.headers)
        except Unauthorized as error:
            if is_dashboard(request.path):
                raise HttpError(401, str(error), ("WWW-Authenticate", 'Basic realm="dovetail"')) from None
            raise as_refusal(error) from None
        except Forbidden as error:
            raise as_refusal(error) from None

    def _check_names(self, request: HttpRequest) -> None:
        host = request.headers.get("host", "")
        if host and not self._is_ours(host):
            raise HttpError(421, f"this server is not known as {host!r}; start it with --allow-host to make it so")
        origin = request.headers.get("origin")
        if ANY in self._origins:
            return
        if origin is not None:
            if origin.lower() not in self._origins and origin.lower() not in self._own_origins(host):
                raise HttpError(403, f"pages of {origin!r} may not ask; --allow-origin allows them")
        elif request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise HttpError(403, "pages of other sites may not ask; --allow-origin allows them")

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host.lower())
        if match is None:
            return False
        name = match[1].rstrip(".")
        if ANY in self._hosts or name in self._hosts or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def _own_origins(self, host: str) -> tuple[str, str]:
        return f"http://{host.lower()}", f"https://{host.lower()}"
