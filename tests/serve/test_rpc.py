"""What only gRPC has: streams, deadlines, trailers, messages on the wire."""

from __future__ import annotations

import queue
import re
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.support import HOST, Server, until

import dovetail.serve.rpc
from dovetail.errors import BadRequest
from dovetail.serve.framing import Limits
from dovetail.serve.rpc.errors import CODES
from dovetail.serve.rpc.messages import HEALTH, INFERENCE, message_class
from dovetail.serve.rpc.wire import MAX_FIELDS, MAX_HEAD_BYTES, joined, split, streamed

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.grpc as triton
    from tritonclient.grpc import model_config_pb2, service_pb2
    from tritonclient.utils import InferenceServerException

CPU = pytest.mark.cpu
PATIENCE_S = 20
Request, Response = message_class("ModelInferRequest"), message_class("ModelInferResponse")


# -- messages -----------------------------------------------------------------------------------------------------


def declared(name: str) -> list[Any]:
    """All messages of one of our files, nested ones, too."""
    text = (Path(dovetail.serve.rpc.__file__).parent / name).read_text()
    package = re.search(r"^package (.+);", text, re.MULTILINE)[1]  # type: ignore[index]
    return [message_class(each, package).DESCRIPTOR for each in re.findall(r"^message (\w+)", text, re.MULTILINE)]


def fields(message: Any) -> dict[str, tuple[Any, ...]]:
    found = {}
    for field in message.fields:
        nested = field.message_type or field.enum_type
        found[field.name] = (field.number, field.type, field.is_repeated, nested and nested.name)
    return found


def test_numbers_are_those_of_the_public_protocol() -> None:
    """Whatever we declare has the number and the type that Triton's client has."""
    theirs = {**service_pb2.DESCRIPTOR.message_types_by_name, **model_config_pb2.DESCRIPTOR.message_types_by_name}

    def compare(ours: Any, other: Any) -> None:
        assert fields(ours).items() <= fields(other).items(), ours.name
        for nested in ours.nested_types:
            compare(nested, other.nested_types_by_name[nested.name])

    messages = declared("open_inference.proto")
    assert len(messages) > 30
    for message in messages:
        compare(message, theirs[message.name])


def test_the_stubs_are_those_of_the_files() -> None:
    """Every line that declares a field is in the descriptors, and the other way round."""
    for name in ("open_inference.proto", "status.proto"):
        text = (Path(dovetail.serve.rpc.__file__).parent / name).read_text()
        written = re.findall(r"^ +(?:repeated )?(?:map<.*>|[\w.]+) (\w+) = (\d+);", text, re.MULTILINE)

        def all_of(message: Any) -> list[tuple[str, str]]:
            if message.GetOptions().map_entry:
                return []
            own = [(field.name, str(field.number)) for field in message.fields]
            return own + [each for nested in message.nested_types for each in all_of(nested)]

        assert sorted(written) == sorted(each for message in declared(name) for each in all_of(message))


TENSORS = st.lists(st.binary(max_size=300), max_size=5)


@given(TENSORS, st.text(max_size=20), st.randoms())
def test_tensors_are_taken_out_wherever_they_are(tensors: list[bytes], ident: str, random: Any) -> None:
    parts = [Request(raw_input_contents=[tensor]).SerializeToString() for tensor in tensors]
    others = [Request(id=ident).SerializeToString(), Request(model_name="m").SerializeToString()]
    whole = list(parts)
    for other in others:
        whole.insert(random.randint(0, len(whole)), other)
    head, raw = split(b"".join(whole))
    assert [bytes(each) for each in raw] == tensors
    message = Request.FromString(head)
    assert (message.id, message.model_name, len(message.raw_input_contents)) == (ident, "m", 0)


@given(st.binary(max_size=200))
def test_noise_is_split_or_refused_as_protobuf_does(data: bytes) -> None:
    """Whatever we take, protobuf takes as well or refuses for its content; what it takes, we take, but for groups."""
    try:
        head, raw = split(data)
    except BadRequest:
        return
    try:
        theirs = Request.FromString(data)
    except DecodeError:
        with pytest.raises(DecodeError):
            Request.FromString(head)
        return
    assert [bytes(each) for each in raw] == list(theirs.raw_input_contents)
    theirs.ClearField("raw_input_contents")
    assert Request.FromString(head) == theirs


@given(TENSORS)
def test_an_answer_is_what_protobuf_reads(tensors: list[bytes]) -> None:
    head = Response(id="7").SerializeToString()
    data = joined(head, [[memoryview(each[:3]), each[3:]] for each in tensors])
    assert Response.FromString(data) == Response(id="7", raw_output_contents=tensors)
    wrapped = message_class("ModelStreamInferResponse").FromString(streamed(data))
    assert wrapped.infer_response.raw_output_contents == tensors


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x3a\x05abc", "ends within a field"),
        (b"\x3a", "ends within a field"),
        (b"\x3a" + b"\xff" * 11, "more than 10 bytes"),
        (b"\x3a" + b"\xff" * 9 + b"\x01", "ends within a field"),
        (b"\x0b", "kind 3"),
        (b"\x0f", "kind 7"),
        (b"\x39\x01", "ends within a field"),
        (b"\x18\x01" * (MAX_FIELDS + 1), f"more than {MAX_FIELDS} fields"),
        (b"\x1a\x81\x80\x80\x01" + b"x" * (MAX_HEAD_BYTES + 1), "send tensors raw"),
    ],
)
def test_bad_messages(data: bytes, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        split(data)


# -- calls --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def everything() -> Iterator[Server]:
    server = Server(everything=True)
    yield server
    server.stop()


@pytest.fixture
def channel(everything: Server) -> Iterator[Any]:
    with grpc.insecure_channel(f"{HOST}:{everything.grpc.port}") as channel:
        yield channel
    until(everything.everything_returned)


def call(channel: Any, name: str, data: bytes = b"", **options: Any) -> bytes:
    service = f"{INFERENCE}.GRPCInferenceService" if "/" not in name else ""
    path = f"/{service}/{name}" if service else f"/{name}"
    return bytes(channel.unary_unary(path)(data, timeout=options.pop("timeout", PATIENCE_S), **options))


def infer_bytes(model: str, value: Any = (1, 2), **more: Any) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [2]}
    raw = [np.array(value, np.float32).tobytes()]
    return bytes(Request(model_name=model, inputs=[tensor], raw_input_contents=raw, **more).SerializeToString())


def refused(channel: Any, name: str, data: bytes = b"", **options: Any) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, name, data, **options)
    return caught.value


@CPU
def test_when_to_come_back(channel: Any) -> None:
    """In our own words, in those of gRPC's retries, and in Google's."""
    error = refused(channel, "ModelInfer", infer_bytes("shed"))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    trailers = {each.key: each.value for each in error.trailing_metadata()}
    assert (trailers["retry-after-ms"], trailers["grpc-retry-pushback-ms"]) == ("1500", "1500")
    status = message_class("Status", HEALTH).FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (8, error.details())
    assert status.details[0].type_url == "type.googleapis.com/google.rpc.RetryInfo"
    delay = message_class("RetryInfo", HEALTH).FromString(status.details[0].value).retry_delay
    assert (delay.seconds, delay.nanos) == (1, 500_000_000)
    trailers = {each.key for each in refused(channel, "ModelInfer", infer_bytes("expired")).trailing_metadata()}
    assert "retry-after-ms" not in trailers


def test_every_status_has_a_code() -> None:
    source = "".join(path.read_text() for path in Path(dovetail.serve.rpc.__file__).parent.parent.glob("o*.py"))
    source += (Path(dovetail.serve.rpc.__file__).parent.parent / "shared_memory.py").read_text()
    used = {int(each) for each in re.findall(r"HttpError\((\d+)", source)} | {429, 499, 500, 504}
    assert used - {405} <= CODES.keys()  # a method is HTTP's own


@CPU
def test_deadlines(everything: Server, channel: Any) -> None:
    call(channel, "ModelInfer", infer_bytes("late"), timeout=15)
    assert 0 < everything.backend.calls[-1].timeout_us <= 16_000_000
    call(channel, "ModelInfer", infer_bytes("late", parameters={"timeout": {"int64_param": 1000}}), timeout=15)
    assert everything.backend.calls[-1].timeout_us == 1000


@CPU
@pytest.mark.parametrize("how", ["cancelled", "deadline"])
def test_who_goes_away_cancels(everything: Server, channel: Any, how: str) -> None:
    backend = everything.backend
    backend.entered.clear()
    backend.cancelled.clear()
    stub = channel.unary_unary(f"/{INFERENCE}.GRPCInferenceService/ModelInfer")
    future = stub.future(infer_bytes("wait"), timeout=PATIENCE_S if how == "cancelled" else 0.5)
    assert backend.entered.wait(PATIENCE_S)
    if how == "cancelled":
        future.cancel()
    assert backend.cancelled.wait(PATIENCE_S)
    until(lambda: everything.grpc.metrics()[1][3] == 0)


@CPU
def test_stream(everything: Server) -> None:
    """Answers come in the order of the requests; one that is refused does not end the stream."""
    answers: queue.Queue[Any] = queue.Queue()
    with triton.InferenceServerClient(f"{HOST}:{everything.grpc.port}") as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for index in range(100):
            value = triton.InferInput("x", [2], "FP32")
            value.set_data_from_numpy(np.full(2, index, np.float32))
            client.async_stream_infer("shed" if index == 50 else "late", [value], request_id=str(index))
        for index in range(100):
            result, error = answers.get(timeout=PATIENCE_S)
            if index == 50:
                assert isinstance(error, InferenceServerException) and "RESOURCE_EXHAUSTED" in str(error)
            else:
                assert error is None and result.get_response().id == str(index)
                np.testing.assert_array_equal(result.as_numpy("y"), np.full(2, index, np.float32))
        client.stop_stream()
    until(everything.everything_returned)


@CPU
def test_a_stream_that_is_broken_off(everything: Server, channel: Any) -> None:
    backend = everything.backend
    backend.entered.clear()
    backend.cancelled.clear()
    stub = channel.stream_stream(f"/{INFERENCE}.GRPCInferenceService/ModelStreamInfer")
    end = threading.Event()

    def requests() -> Iterator[bytes]:
        yield infer_bytes("wait")
        end.wait(PATIENCE_S)

    answers = stub(requests(), timeout=PATIENCE_S)
    assert backend.entered.wait(PATIENCE_S)
    answers.cancel()
    end.set()
    assert backend.cancelled.wait(PATIENCE_S)


@CPU
def test_health_of_grpc(channel: Any) -> None:
    def check(service: str) -> int:
        data = message_class("HealthCheckRequest", HEALTH)(service=service).SerializeToString()
        answer = call(channel, f"{HEALTH}.Health/Check", data)
        return int(message_class("HealthCheckResponse", HEALTH).FromString(answer).status)

    assert [check(name) for name in ("", f"{INFERENCE}.GRPCInferenceService", "late", "asleep")] == [1, 1, 1, 2]
    with pytest.raises(grpc.RpcError) as caught:
        check("absent")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert refused(channel, f"{HEALTH}.Health/Check", b"\xff").code() is grpc.StatusCode.INVALID_ARGUMENT


@CPU
@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("TraceSetting", grpc.StatusCode.UNIMPLEMENTED, "set by flags"),
        ("LogSettings", grpc.StatusCode.UNIMPLEMENTED, "set by flags"),
        ("CudaSharedMemoryStatus", grpc.StatusCode.UNIMPLEMENTED, "CUDA"),
        ("RepositoryModelLoad", grpc.StatusCode.INVALID_ARGUMENT, "when the server starts"),
        ("RepositoryModelUnload", grpc.StatusCode.INVALID_ARGUMENT, "when the server starts"),
        ("Nonsense", grpc.StatusCode.UNIMPLEMENTED, "not found"),
    ],
)
def test_what_is_not_there_is_refused(channel: Any, name: str, code: Any, says: str) -> None:
    error = refused(channel, name)
    assert error.code() is code and says in error.details()


@CPU
@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xff", "ends within a field"),
        (b"\x2a\x01\xff", "this is not a ModelInferRequest"),
        (infer_bytes("late", value=(1, 2, 3)), "takes 8 bytes, got 12 bytes"),
        (Request(model_name="late", inputs=[{"name": "x", "datatype": "FP32", "shape": [2]}]), "no data"),
        (Request(model_name="late", raw_input_contents=[b"12"]), "belong to no input"),
        (Request(model_name="late", inputs=[{"name": "x"}] * 65), "at most 64 inputs"),
        (
            Request(model_name="late", inputs=[{"name": "x", "shape": [-1], "contents": {}, "datatype": "FP32"}]),
            "not an inference request",
        ),
        (
            Request(
                model_name="same_INT8",
                inputs=[{"name": "x", "datatype": "INT8", "shape": [1, 2], "contents": {"int_contents": [1, 128]}}],
            ),
            "do not fit INT8",
        ),
        (
            Request(
                model_name="late",
                inputs=[{"name": "x", "datatype": "FP32", "shape": [2], "contents": {"fp64_contents": [1, 2]}}],
            ),
            "goes into fp32_contents; got fp64_contents",
        ),
        (
            Request(
                model_name="half",
                inputs=[{"name": "x", "datatype": "FP16", "shape": [2], "contents": {"fp32_contents": [1, 2]}}],
            ),
            "FP16 has no form in contents",
        ),
        (Request(model_name="late", parameters={f"p{i}": {"int64_param": 1} for i in range(65)}), "65 parameters"),
        (Request(model_name="late", parameters={"p": {}}), "the parameter p has no value"),
        (infer_bytes("late", parameters={"timeout": {"double_param": 1.5}}), "timeout must be an integer"),
        (infer_bytes("late", parameters={"sequence_id": {"int64_param": 1}}), "sequence_id is not supported"),
    ],
)
def test_bad_requests(channel: Any, data: Any, says: str) -> None:
    error = refused(channel, "ModelInfer", data if isinstance(data, bytes) else data.SerializeToString())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and says in error.details()


@CPU
def test_a_call_without_a_message(channel: Any) -> None:
    stub = channel.stream_unary(f"/{INFERENCE}.GRPCInferenceService/ModelInfer")
    with pytest.raises(grpc.RpcError, match="none came"):
        stub(iter(()), timeout=PATIENCE_S)


@CPU
def test_a_message_that_does_not_come() -> None:
    """Who announces a message and sends none is sent away, and nobody waits for it."""
    server = Server(Limits(body_timeout_s=0.2), everything=True)
    hold = threading.Event()

    def nothing() -> Iterator[bytes]:
        hold.wait(PATIENCE_S)
        yield b""

    with grpc.insecure_channel(f"{HOST}:{server.grpc.port}") as channel:
        stub = channel.stream_unary(f"/{INFERENCE}.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError, match="did not arrive in time"):
            stub(nothing(), timeout=PATIENCE_S)
        call(channel, "ModelInfer", infer_bytes("late"))
        hold.set()
    server.stop()


@CPU
def test_compressed_messages() -> None:
    """The library unpacks them, into no more than a message may have."""
    server = Server(Limits(max_body_bytes=1 << 20), everything=True)
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"{HOST}:{server.grpc.port}", options) as channel:
        packed = {"compression": grpc.Compression.Gzip}
        answer = Response.FromString(call(channel, "ModelInfer", infer_bytes("late"), **packed))
        assert answer.raw_output_contents[0] == np.array([1, 2], np.float32).tobytes()
        error = refused(channel, "ModelInfer", bytes(50 << 20), **packed)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in error.details()
        call(channel, "ModelInfer", infer_bytes("late"))
    server.stop()


@CPU
def test_what_has_begun_is_answered_at_the_end() -> None:
    server = Server(everything=True)
    with grpc.insecure_channel(f"{HOST}:{server.grpc.port}") as channel:
        stub = channel.unary_unary(f"/{INFERENCE}.GRPCInferenceService/ModelInfer")
        future = stub.future(infer_bytes("wait"), timeout=PATIENCE_S)
        assert server.backend.entered.wait(PATIENCE_S)
        ending = server.submit(server.grpc.drain(PATIENCE_S))
        time.sleep(0.05)
        assert not ending.done()
        server.open_gate()
        assert Response.FromString(future.result()).model_name == "wait"
        ending.result(PATIENCE_S)
    server.grpc = None
    server.stop()
