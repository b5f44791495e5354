"""The calls of the Open Inference Protocol over gRPC. What they mean is said by `inference`, for HTTP as well.

Rules of this file
- Whether a call may be made at all is known before its message is read: messages are read by the handler, and within
  a time, although the protocol has one message per call.
- A call's deadline is its request's `timeout`. A client that goes away cancels its request.
- Memory lent for a request or an answer is given back exactly once, when neither the backend nor we read it any more.
- Answers of a stream keep the order of its requests. So many of one stream are under way at most; the others wait at
  the client.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from ..framing import HttpError
from ..inference import Inference
from ..oip_records import MAX_NAME_CHARS
from ..oip_request import call_of, claimed, inputs_of, wanted_of
from ..oip_response import Outputs, as_refusal, config_of, index_of, metadata_of
from .errors import as_status
from .messages import HEALTH, INFERENCE, filled, message_class
from .requests import header_of, response_bytes, uploaded
from .wire import split, streamed

__all__ = ["STREAMED_AT_ONCE", "Service"]

#: Requests of one stream that are under way [our choice].
STREAMED_AT_ONCE = 64
_Request, _Streamed = message_class("ModelInferRequest"), message_class("ModelStreamInferResponse")
_HEALTHY, _UNHEALTHY = 1, 2
#: Calls that we know and do not have, and what is said.
_LOGS = "this server's log is set by flags; neither trace nor log settings can be changed"
_REFUSED = {
    "RepositoryModelLoad": "",
    "RepositoryModelUnload": "",
    "TraceSetting": _LOGS,
    "LogSettings": _LOGS,
    "CudaSharedMemoryStatus": "there is no shared memory of CUDA devices",
    "CudaSharedMemoryRegister": "there is no shared memory of CUDA devices",
    "CudaSharedMemoryUnregister": "there is no shared memory of CUDA devices",
}


#: Questions that need no key, and those that any key is good for.
_OPEN, _ANY_KEY = {"ServerLive", "ServerReady"}, {"ServerMetadata"}


class Service:
    """Handlers of all calls."""

    def __init__(self, inference: Inference, message_timeout_s: float) -> None:
        """`message_timeout_s` is how long a client may take to send its message."""
        self._inference = inference
        self._message_timeout_s = message_timeout_s
        self._done = asyncio.Event()
        #: Requests that are under way.
        self.open = 0
        #: Calls that were answered, also with an error.
        self.answers = 0

    def handlers(self) -> tuple[Any, ...]:
        """For `grpc.aio.Server.add_generic_rpc_handlers`."""
        calls = {
            "ModelInfer": grpc.stream_unary_rpc_method_handler(self._model_infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._model_stream_infer),
            **{name: self._question(name, answer) for name, answer in self._questions().items()},
            **{name: grpc.unary_unary_rpc_method_handler(self._refusal(why)) for name, why in _REFUSED.items()},
        }
        health = {"Check": grpc.unary_unary_rpc_method_handler(self._health)}
        return (
            grpc.method_handlers_generic_handler(f"{INFERENCE}.GRPCInferenceService", calls),
            grpc.method_handlers_generic_handler(f"{HEALTH}.Health", health),
        )

    # -- questions ----------------------------------------------------------------------------------------------

    def _questions(self) -> dict[str, Callable[[Any], object]]:
        """What each call is answered, as JSON would say it."""
        asked, backend = self._inference, self._inference.backend
        return {
            "ServerLive": lambda _: {"live": backend.live()},
            "ServerReady": lambda _: {"ready": backend.ready()},
            "ServerMetadata": lambda _: asked.metadata(),
            "ModelReady": lambda q: {"ready": q.name in backend.models() and asked.model(q.name, q.version).ready},
            "ModelMetadata": lambda q: metadata_of(asked.model(q.name, q.version)),
            "ModelConfig": lambda q: {"config": config_of(asked.model(q.name, q.version))},
            "ModelStatistics": lambda q: {
                "model_stats": backend.statistics(asked.model(q.name, q.version).name if q.name else None)
            },
            "RepositoryIndex": lambda q: {"models": index_of(backend.models(), q.ready)},
            "SystemSharedMemoryStatus": lambda q: {
                "regions": {str(each["name"]): each for each in asked.shared_memory().status(q.name)}
            },
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
        }

    def _register(self, q: Any) -> object:
        self._inference.shared_memory().register(q.name, q.key, q.offset, q.byte_size)
        return {}

    def _unregister(self, q: Any) -> object:
        self._inference.shared_memory().unregister(q.name)
        return {}

    def _question(self, name: str, answer: Callable[[Any], object]) -> Any:
        async def handler(question: Any, context: Any) -> Any:
            self.answers += 1
            try:
                self._permit(name, question, context)
                return filled(f"{name}Response", answer(question))
            except Exception as error:
                await context.abort(*as_status(as_refusal(error)))

        return grpc.unary_unary_rpc_method_handler(
            handler,
            request_deserializer=message_class(f"{name}Request").FromString,
            response_serializer=message_class(f"{name}Response").SerializeToString,
        )

    def _permit(self, name: str, question: Any, context: Any) -> None:
        """Raises if keys are needed, and the one that came does not let its owner ask this."""
        if name in _OPEN:
            return
        access = self._inference.access
        key = access.identify(_headers(context))
        model = getattr(question, "name", "")
        if name.startswith("SystemSharedMemory"):
            access.use(key)
        elif model:
            access.permit(key, model, reads=True)
        elif name not in _ANY_KEY:
            access.observe(key)

    def _refusal(self, why: str) -> Callable[[bytes, Any], Any]:
        async def handler(_: bytes, context: Any) -> None:
            self.answers += 1
            error = HttpError(501, why) if why else self._inference.refuse_loading()
            await context.abort(*as_status(error))

        return handler

    async def _health(self, data: bytes, context: Any) -> bytes:
        try:
            asked = message_class("HealthCheckRequest", HEALTH).FromString(data).service
        except Exception:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is not a HealthCheckRequest")
        if asked in ("", f"{INFERENCE}.GRPCInferenceService"):
            status = _HEALTHY if self._inference.backend.ready() else _UNHEALTHY
        else:
            info = self._inference.backend.models().get(asked)
            if info is None:
                await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown service {asked!r}")
                raise AssertionError("abort raises") from None
            status = _HEALTHY if info.ready else _UNHEALTHY
        return bytes(message_class("HealthCheckResponse", HEALTH)(status=status).SerializeToString())

    # -- inferences ---------------------------------------------------------------------------------------------

    async def _model_infer(self, _: AsyncIterator[bytes], context: Any) -> bytes | None:
        """One message, one answer."""
        try:
            headers = _headers(context)
            claimed(headers)
            self._inference.access.identify(headers)
            data = await self._message(context)
            if data is None:
                raise HttpError(400, "an inference is one ModelInferRequest; none came")
            return await self._infer(data, headers, context.time_remaining())
        except Exception as error:
            await context.abort(*as_status(as_refusal(error)))
            return None
        finally:
            self.answers += 1

    async def _message(self, context: Any) -> bytes | None:
        """The next message of a client; None if it has sent all."""
        try:
            async with asyncio.timeout(self._message_timeout_s):
                data = await context.read()
        except TimeoutError:
            raise HttpError(408, "the message did not arrive in time") from None
        return None if data is grpc.aio.EOF else data

    async def _model_stream_infer(self, _: AsyncIterator[bytes], context: Any) -> None:
        """Many messages, each with an answer or the text of an error."""
        headers = _headers(context)
        answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(STREAMED_AT_ONCE)
        tasks: set[asyncio.Task[bytes]] = set()

        async def receive() -> None:
            while (data := await context.read()) is not grpc.aio.EOF:
                task = asyncio.ensure_future(self._streamed(data, headers, context.time_remaining()))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                await answers.put(task)
            await answers.put(None)

        receiving = asyncio.ensure_future(receive())
        try:
            while (task := await answers.get()) is not None:
                await context.write(await task)
            await receiving
        finally:
            receiving.cancel()
            for task in tasks:
                task.cancel()
            self.answers += 1

    async def _streamed(self, data: bytes, headers: dict[str, str], left_s: float | None) -> bytes:
        try:
            return streamed(await self._infer(data, headers, left_s))
        except Exception as error:
            code, text, _ = as_status(as_refusal(error))
            return bytes(_Streamed(error_message=f"[{code.name}] {text}").SerializeToString())

    async def _infer(self, data: bytes, headers: dict[str, str], left_s: float | None) -> bytes:
        """What one request is answered; raises what it is refused with."""
        head, raw = split(data)
        try:
            message = _Request.FromString(head)
        except Exception as error:  # protobuf's own
            raise HttpError(400, f"this is not a ModelInferRequest: {error}") from None
        inference = self._inference
        key = inference.access.identify(headers)
        inference.access.permit(key, message.model_name)
        info = inference.model(message.model_name, message.model_version)
        header, tensors = header_of(message, raw)
        call = call_of(info, header, {}, headers)
        if left_s is not None:
            left_us = max(1, int(left_s * 1e6))
            call.timeout_us = min(left_us, call.timeout_us or left_us)
        call.who, call.generation = key, info.generation
        call.trace = headers.get("traceparent", "")[:MAX_NAME_CHARS]
        priority = inference.backend.claims(info.name, call.priority, key)
        inference.backend.let_in(info.name, priority, key)
        upload = uploaded(inference.backend, info, tensors, priority)
        ended: asyncio.Future[Outputs | Exception] = asyncio.get_running_loop().create_future()
        try:
            call.inputs = inputs_of(info, header, upload, inference.regions)
            cancel = inference.begin(upload, call, wanted_of(info, header), True, ended.set_result)
        except BaseException:
            upload.release()
            raise
        self.open += 1
        del data, head, raw, tensors, message  # the copy in shared memory is all that is needed
        try:
            outcome = await asyncio.shield(ended)
        except asyncio.CancelledError:
            cancel()
            ended.add_done_callback(lambda _: self._finish(upload, ended.result()))
            raise
        try:
            if isinstance(outcome, Exception):
                raise outcome
            return response_bytes(outcome)
        finally:
            self._finish(upload, outcome)

    def _finish(self, upload: Any, outcome: Outputs | Exception) -> None:
        if isinstance(outcome, Outputs) and outcome.release is not None:
            outcome.release()
        upload.release()
        self.open -= 1
        if not self.open:
            self._done.set()

    async def finished(self) -> None:
        """Wait until no request is under way any more, also of clients that are gone."""
        while self.open:
            self._done.clear()
            await self._done.wait()


def _headers(context: Any) -> dict[str, str]:
    return {name: value for name, value in context.invocation_metadata() or () if isinstance(value, str)}
