"""The routes of the Open Inference Protocol v2 with four of Triton's extensions, for a `Backend`.

Rules of this file
- Everything that a client can get wrong is found before the backend is asked, and answered with `{"error": ...}` that
  says what was expected.
- Names that Triton reserves keep their meaning (`priority`, `timeout`); ours are `slo_ms` and `tenant`. These two and
  `priority` may come as headers as well, and then the header wins: a gateway that sets it has the last word.
- The class in a header is known before the body. There may be room for one class and not for another.
- The status tells a client what to do: 400 to 415 change the request, 429 and 503 come back after `Retry-After`,
  504 it is too late, 500 tell us.

Sources: kserve/open-inference-protocol, inference_rest.md; Triton's docs/protocol/extension_*.md.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from urllib.parse import quote, unquote

from msgspec.structs import replace

from ..errors import BadRequest, Forbidden, QuotaExceeded
from .application import Cancel
from .backend import Backend, Call, Metric, ModelInfo
from .compression import CODINGS, INLINE_BYTES, Threads, accepted, compressed, inflated
from .framing import DEFAULT_LIMITS, HttpError, HttpRequest, HttpResponse, Limits
from .gate import Gate
from .http import HttpServer, serve
from .inference import Inference
from .keys import Key
from .oip_records import MAX_NAME_CHARS
from .oip_request import (
    Known,
    Upload,
    Wanted,
    call_of,
    claimed,
    file_type,
    inputs_of,
    parse,
    peek,
    read_raw,
    wanted_of,
)
from .oip_response import (
    HEADER_LENGTH,
    Question,
    as_refusal,
    config_of,
    http_of,
    index_of,
    json_of,
    metadata_of,
    ready_asked,
    region_asked,
    region_of,
    slice_of,
)
from .openapi import description
from .pages import Pages
from .shared_memory import Regions

__all__ = ["OpenInference", "start"]

MAX_JSON_BYTES = 2 << 20  # decoding holds up every other client, 5 to 15 ms per MiB; larger tensors go in binary
MAX_QUESTION_BYTES = 64 << 10  # of a body that is no inference
MAX_KNOWN = 256  # requests whose JSON is remembered: clients send the same each time
MAX_KNOWN_BYTES = 2048  # of one JSON
_QUESTIONS = ("index", "page", "register", "slice")  # what has a body and is no inference
_OUR_HEADERS = ("x-dovetail-slo-ms", "x-dovetail-tenant", "x-dovetail-priority")
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


class OpenInference:
    """The application that `http` serves."""

    def __init__(self, inference: Inference, max_body_bytes: int = DEFAULT_LIMITS.max_body_bytes) -> None:
        """`max_body_bytes` is for bodies that were compressed: how large they may be once they are unpacked."""
        self._inference = inference
        self._max_body_bytes = max_body_bytes
        self._threads = Threads()
        self._backend = inference.backend
        #: The dashboard, if there is one.
        self.pages: Pages | None = None
        #: What the front measures of itself.
        self.http_metrics: Callable[[], list[Metric]] = list
        #: (model, bytes of the body, JSON) -> what it means.
        self._known: dict[tuple[str, int, bytes], Known] = {}
        self.renew()

    def renew(self) -> None:
        """There are other models from now on."""
        names = [name for name in self._backend.models() if quote(name) == name]
        #: Path of an inference as clients write it -> model; as many as there are models, and no more.
        self._infer_paths = {f"/v2/models/{name}/infer": name for name in names}

    def vital(self, request: HttpRequest) -> bool:
        """Whether the server lives and is ready is told to whoever asks."""
        return request.path.startswith("/v2/health/") and request.content_length == 0

    def check(self, request: HttpRequest, nbytes: int) -> int:
        """Whether a body may be sent at all, and how urgent its request is."""
        expected = self._expected(request, nbytes)
        if expected is None:
            return 1
        info, json_bytes = expected
        try:
            claim = claimed(request.headers)
            priority = self._backend.claims(info.name, claim, request.who)
            if request.who is not None:
                self._backend.let_in(info.name, priority, request.who)
        except (BadRequest, QuotaExceeded) as error:
            raise as_refusal(error) from None
        request.known = info, json_bytes, claim, priority
        return priority or info.priority

    def body(self, request: HttpRequest, nbytes: int, begun: memoryview) -> Upload | Question | None:
        """Room for the body of an inference request; bodies that nobody asked for are thrown away."""
        if request.known is not None:  # from `check`
            info, json_bytes, claim, priority = request.known
        else:
            expected = self._expected(request, nbytes)
            if expected is None:
                if self._route(request)[1] in _QUESTIONS and nbytes <= MAX_QUESTION_BYTES:
                    return Question(nbytes)
                return None
            info, json_bytes = expected
            claim = priority = -1
        try:
            if claim < 0:
                claim = claimed(request.headers)
                priority = self._backend.claims(info.name, claim, request.who)
            if not claim and json_bytes <= len(begun) and self._backend.crowded():
                priority = self._backend.claims(info.name, peek(bytes(begun[:json_bytes])), request.who)
            return Upload(self._backend, info, nbytes, json_bytes, priority)
        except Exception as error:
            raise as_refusal(error) from None

    def _expected(self, request: HttpRequest, nbytes: int) -> tuple[ModelInfo, int] | None:
        """The model that a body is for, and how many of its bytes are JSON; None: nobody asked for it."""
        notes = request.notes
        if notes and notes[0] is self._infer_paths and request.content_length == nbytes:
            return self._backend.models()[notes[1]], notes[2]  # the same head as before
        info, action = self._route(request)
        if info is None or action != "infer":
            return None
        coding = request.headers.get("content-encoding", "identity").lower()
        if coding in CODINGS:
            return info, 0  # what is in it is not known yet
        if coding != "identity":
            raise HttpError(
                415,
                f"Content-Encoding {coding!r} is not supported; send gzip, deflate, or tensors as they are",
                ("Accept-Encoding", ", ".join(CODINGS)),
            )
        json_bytes = self._json_bytes(request, nbytes)
        if notes is not None and info.name in self._infer_paths.values() and request.content_length == nbytes:
            notes[:] = self._infer_paths, info.name, json_bytes
        return info, json_bytes

    def _json_bytes(self, request: HttpRequest, nbytes: int) -> int:
        """How many bytes of a body are JSON; none of a file."""
        given = request.headers.get(HEADER_LENGTH.lower())
        if given is None:
            given = "0" if file_type(request.headers) else str(nbytes)
        json_bytes = int(given) if given.isascii() and given.isdigit() and len(given) < 20 else nbytes + 1
        if json_bytes > nbytes:
            raise HttpError(400, f"{HEADER_LENGTH} must be a number within the body of {nbytes} bytes, got {given!r}")
        if json_bytes > MAX_JSON_BYTES:
            raise HttpError(413, f"{json_bytes} bytes of JSON are more than {MAX_JSON_BYTES}; send tensors in binary")
        return json_bytes

    def respond(
        self, request: HttpRequest, done: Callable[[HttpResponse | Exception], None]
    ) -> HttpResponse | Cancel:
        """Answers at once what needs no inference."""
        if isinstance(request.body, Upload):
            coding = request.headers["content-encoding"].lower() if "content-encoding" in request.headers else ""
            if coding in CODINGS:
                return self._unpack(request, request.body, coding, done)
            return self._infer(request, request.body, done)
        info, action = self._route(request)
        if action == "page" and self.pages is not None:
            return self.pages.respond(request, done)
        response = self._answer(request, info, action)
        # Not the rest: Triton's asyncio client says that it takes gzip, and then unpacks results only.
        coding = accepted(request.headers, response) if action in ("metrics", "openapi.json") else ""
        return compressed(response, coding) if coding else response

    def _answer(self, request: HttpRequest, info: ModelInfo | None, action: str) -> HttpResponse:
        """What needs no inference."""
        backend = self._backend
        if action == "metrics":
            return HttpResponse(200, [backend.metrics(self.http_metrics()).encode()], content_type=_METRICS)
        if action == "openapi.json":
            return json_of(description(backend.models(), self._inference.regions is not None))
        if action == "index":
            seen = {name: info for name, info in backend.models().items() if _may_see(request.who, name)}
            return json_of(index_of(seen, ready_asked(request.body)))
        if action == "slices":
            return json_of({"slices": backend.slices()})
        if action == "slice":
            return self._change_slice(request)
        if action == "infer":
            raise HttpError(400, 'an inference request needs a body: {"inputs": [...]}')
        if action == "live" or (action == "ready" and info is None):
            well = backend.live() if action == "live" else backend.ready()
            return json_of({action: well}, 200 if well else 503)
        if action == "stats":
            return json_of({"model_stats": backend.statistics(info.name if info else None)})
        if action in ("status", "register", "unregister"):
            return self._shared_memory(request, action)
        if info is None:
            return json_of(self._inference.metadata())
        if action == "ready":
            return json_of({"name": info.name, "ready": info.ready}, 200 if info.ready else 503)
        return json_of(config_of(info) if action == "config" else metadata_of(info))

    def _route(self, request: HttpRequest) -> tuple[ModelInfo | None, str]:
        """The model that a path names, if any, and what is wanted of it."""
        name = self._infer_paths.get(request.path)
        if name is not None and request.method == "POST":
            return self._backend.models()[name], "infer"
        info: ModelInfo | None = None
        match request.path.removesuffix("/").split("/")[1:]:
            case ["v2"]:
                action = "metadata"
            case [("metrics" | "openapi.json") as action]:
                pass
            case [] | ["dashboard", *_] if self.pages is not None:
                return None, "page"
            case ["v2", "health", ("live" | "ready") as action]:
                pass
            case ["v2", "models", "stats"]:
                action = "stats"
            case ["v2", "slices"]:
                action = "slices"
            case ["v2", "slices", _]:
                action = "slice"
            case ["v2", "repository", "index"]:
                action = "index"
            case ["v2", "repository", "models", name, ("load" | "unload")]:
                raise self._inference.refuse_loading()
            case ["v2", "systemsharedmemory", *rest]:
                action = region_of(request.path, rest)[1]
            case ["v2", ("trace" | "logging" | "cudasharedmemory"), *_] | [
                "v2",
                "models",
                _,
                "trace",
                *_,
            ]:
                raise HttpError(501, f"{request.path}: this extension is not supported; GET /v2 lists those that are")
            case ["v2", "models", name, *rest]:
                version = "".join(rest[1:2]) or "none" if rest[:1] == ["versions"] else ""
                info = self._inference.model(unquote(name), version)
                rest = rest[2:] if version else rest
                action = "/".join(rest) or "metadata"
                if action not in ("metadata", "ready", "config", "stats", "infer"):
                    raise HttpError(404, f"no such path: {request.path}")
            case _:
                raise HttpError(404, f"no such path: {request.path}")
        allowed = ("POST",) if action in ("infer", "index", "register", "slice", "unregister") else ("GET", "HEAD")
        if request.method not in allowed:
            raise HttpError(405, f"{request.method} is not allowed on {request.path}", ("Allow", ", ".join(allowed)))
        return info, action

    def _shared_memory(self, request: HttpRequest, action: str) -> HttpResponse:
        regions = self._inference.shared_memory()
        name, _ = region_of(request.path, request.path.removesuffix("/").split("/")[3:])
        if action == "status":
            return json_of(regions.status(name))
        if action == "unregister":
            regions.unregister(name)
        else:
            asked = region_asked(request.body)
            regions.register(name, asked.key, asked.offset, asked.byte_size)
        return json_of({})

    def _change_slice(self, request: HttpRequest) -> HttpResponse:
        client = unquote(request.path.removesuffix("/").rpartition("/")[2])
        try:
            return json_of(self._backend.change_slice(client, slice_of(request.body), request.who is not None))
        except (BadRequest, Forbidden) as error:
            raise as_refusal(error) from None

    def _infer(
        self, request: HttpRequest, upload: Upload, done: Callable[[HttpResponse | Exception], None]
    ) -> Cancel:
        """Reads a request and begins it."""
        try:
            call, wanted, binary = self._read(request, upload)
            call.asked_s, call.who, call.generation = request.asked_s, request.who, upload.info.generation
            if "traceparent" in request.headers:
                call.trace = request.headers["traceparent"][:MAX_NAME_CHARS]
            return self._inference.begin(
                upload, call, wanted, binary, lambda outcome: self._deliver(request, http_of(outcome), done)
            )
        except Exception as error:
            raise as_refusal(error) from None

    def _deliver(
        self,
        request: HttpRequest,
        response: HttpResponse | Exception,
        done: Callable[[HttpResponse | Exception], None],
    ) -> None:
        """Tell an answer, compressed if the client likes that better."""
        coding = ""
        if "accept-encoding" in request.headers and isinstance(response, HttpResponse):
            coding = accepted(request.headers, response)
        if isinstance(response, Exception) or not coding:
            done(response)
        elif sum(map(len, response.parts)) <= INLINE_BYTES:
            done(compressed(response, coding))
        else:
            self._threads.run(done, compressed, response, coding)

    def _unpack(
        self, request: HttpRequest, packed: Upload, coding: str, done: Callable[[HttpResponse | Exception], None]
    ) -> Cancel:
        """Reads a request that came compressed, and begins it when that is done."""
        cancels: list[Cancel] = []

        def unpacked(data: bytearray | Exception) -> None:
            try:
                if isinstance(data, Exception):
                    raise data
                if cancels:
                    raise HttpError(499, "the client has gone")
                json_bytes = self._json_bytes(request, len(data))
                request.body = upload = Upload(
                    self._backend, packed.info, len(data), json_bytes, claimed(request.headers)
                )
                packed.release()
                upload.view[:] = data
                cancels.append(self._infer(request, upload, done))
            except Exception as error:
                done(as_refusal(error))

        self._threads.run(unpacked, inflated, packed.view, coding, self._max_body_bytes)
        return lambda: cancels[0]() if cancels else cancels.append(lambda: None)

    def _read(self, request: HttpRequest, upload: Upload) -> tuple[Call, Wanted, bool]:
        """What is asked for, which outputs are wanted, and whether others go out in binary."""
        info, json_bytes = upload.info, upload.json_bytes
        if json_bytes == 0:
            header, inputs = read_raw(info, upload, request.headers)
            wanted, call = wanted_of(info, header), call_of(info, header, inputs, request.headers)
            return call, wanted, header.parameters["binary_data_output"] is True
        text = bytes(upload.view[:json_bytes])
        plain = json_bytes <= MAX_KNOWN_BYTES and request.headers.keys().isdisjoint(_OUR_HEADERS)
        key = (info.name, len(upload.view), text)
        known = self._known.get(key) if plain else None
        if known is not None and known.inputs is info.inputs and known.outputs is info.outputs:
            call = replace(known.call)
            call.inputs = {name: upload.ref(*where) for name, where in known.places}
            return call, known.wanted, known.binary
        header = parse(text)
        inputs = inputs_of(info, header, upload, self._inference.regions)
        wanted = wanted_of(info, header)
        call = call_of(info, header, inputs, request.headers)
        binary = bool(header.parameters.get("binary_data_output", False))
        in_place = len(upload.places) == len(inputs) and all(spec.datatype != "BOOL" for spec in info.inputs)
        if plain and in_place and not header.id:  # an id comes once
            if len(self._known) == MAX_KNOWN:
                self._known.clear()
            places = tuple(zip(inputs, upload.places, strict=True))
            empty = replace(call, inputs={})
            self._known[key] = Known(info.inputs, info.outputs, empty, places, wanted, binary)
        return call, wanted, binary


def _may_see(who: Key | None, model: str) -> bool:
    return who is None or who.may_use(model) or "observe" in who.scopes


async def start(
    backend: Backend,
    host: str = "127.0.0.1",
    port: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    gate: Gate | None = None,
    regions: Regions | None = None,
    pages: Pages | None = None,
    tls: ssl.SSLContext | None = None,
) -> HttpServer:
    """Serves `backend`, and `pages` for people; port 0 takes a free one.

    `gate` says who may ask; without keys, keep it on loopback.
    """
    application = OpenInference(Inference(backend, regions), limits.max_body_bytes)
    application.pages = pages
    server = await serve(application, host, port, limits, gate, tls)
    application.http_metrics = server.metrics
    return server
