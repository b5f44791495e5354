"""The dashboard's paths: a page, what it consists of, and what it asks.

    GET  /dashboard                     the page; `/` leads there
    GET  /dashboard/events              server-sent events: `banner` once, then `tick` (record.sight)
    GET  /dashboard/state               one tick
    GET  /dashboard/requests/REQUEST    the story of a request, by its number or the client's id
    POST /dashboard/what-if             {"rate": 2, "devices": {"cpu": 2}}: the simulator's answer

Rules of this file: everything is from this package; the page may load nothing from anywhere else, nor be framed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from urllib.parse import unquote

from .application import Cancel
from .framing import HttpError, HttpRequest, HttpResponse
from .watch import Watch

__all__ = ["Pages"]

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),
)


class Pages:
    """Answers what is below `/dashboard`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._files: dict[str, HttpResponse] = {}

    def respond(
        self, request: HttpRequest, done: Callable[[HttpResponse | Exception], None]
    ) -> HttpResponse | Cancel:
        """As `Application.respond`."""
        path = request.path.removesuffix("/")
        if path in ("", "/"):
            return HttpResponse(307, [], (("Location", "/dashboard"),), content_type="text/plain")
        asks = path == "/dashboard/what-if"
        allowed = ("POST",) if asks else ("GET", "HEAD")
        if request.method not in allowed:
            raise HttpError(405, f"{request.method} is not allowed on {request.path}", ("Allow", ", ".join(allowed)))
        match path.split("/")[2:]:
            case []:
                return self._file("index.html")
            case ["events"]:
                return self._watch.stream()
            case ["state"]:
                return self._watch.state(done)
            case ["requests", ident] if ident:
                return self._watch.ask("story", unquote(ident).encode(), done)
            case ["what-if"]:
                return self._watch.ask("what-if", bytes(request.body.view) if request.body else b"{}", done)
            case [name]:
                return self._file(name)
            case _:
                raise HttpError(404, f"no such path: {request.path}")

    def _file(self, name: str) -> HttpResponse:
        if name not in self._files:
            file = resources.files(__package__) / "dashboard" / name
            kind = _TYPES.get(name.rpartition(".")[2])
            if kind is None or name.startswith(".") or not file.is_file():
                raise HttpError(404, f"no such path: /dashboard/{name}")
            self._files[name] = HttpResponse(
                200, [file.read_bytes()], _HEADERS, content_type=f"{kind}; charset=utf-8"
            )
        return self._files[name]
