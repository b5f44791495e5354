"""One suite for both protocols, driven by Triton's own clients, unchanged: HTTP and gRPC, each blocking and asyncio.

A case says what is asked; the four drivers ask it. What differs between protocols is in the drivers only.
"""

from __future__ import annotations

import asyncio
import os
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.serve.support import HOST, MODELS, Server

from dovetail.workflow.tensor import NUMPY_OF

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tritonclient.grpc as grpc_blocking
    import tritonclient.grpc.aio as grpc_asyncio
    import tritonclient.http as http_blocking
    import tritonclient.http.aio as http_asyncio
    import tritonclient.utils.shared_memory as shm
    from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.cpu
PATIENCE_S = 30
#: aiohttp warns whoever sends megabytes; that is Triton's client.
BULKY = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


class Driver:
    """Asks by one protocol in one style."""

    def __init__(self, server: Server, protocol: str, style: str) -> None:
        self.server, self.protocol, self.style = server, protocol, style
        self.kit: Any = http_blocking if protocol == "http" else grpc_blocking
        port = server.port if protocol == "http" else server.grpc.port
        self._url = f"{HOST}:{port}"
        self._blocking = self.kit.InferenceServerClient(self._url)

    def ask(self, method: str, *args: Any, **named: Any) -> Any:
        """A call of the client by its name."""
        if self.style == "blocking":
            return getattr(self._blocking, method)(*args, **named)

        async def once() -> Any:
            kit: Any = http_asyncio if self.protocol == "http" else grpc_asyncio
            async with kit.InferenceServerClient(self._url) as client:
                return await asyncio.wait_for(getattr(client, method)(*args, **named), PATIENCE_S)

        return asyncio.run(once())

    def say(self, method: str, *args: Any, **named: Any) -> Any:
        """The answer to a question, as JSON has it."""
        return self.ask(method, *args, **named, **({} if self.protocol == "http" else {"as_json": True}))

    def tensor(self, name: str, datatype: str, value: np.ndarray[Any, Any], json: bool = False) -> Any:
        given = self.kit.InferInput(name, list(value.shape), datatype)
        given.set_data_from_numpy(value, **({"binary_data": not json} if self.protocol == "http" else {}))
        return given

    def wanted(self, name: str, json: bool = False) -> Any:
        return self.kit.InferRequestedOutput(name, **({"binary_data": not json} if self.protocol == "http" else {}))

    def close(self) -> None:
        self._blocking.close()


@pytest.fixture(scope="module")
def everything() -> Iterator[Server]:
    server = Server(everything=True)
    yield server
    server.stop()


@pytest.fixture(params=["http blocking", "http asyncio", "grpc blocking", "grpc asyncio"])
def driver(everything: Server, request: pytest.FixtureRequest) -> Iterator[Driver]:
    driver = Driver(everything, *request.param.split())
    yield driver
    driver.close()
    assert everything.everything_returned()


def some_of(datatype: str) -> np.ndarray[Any, Any]:
    """Smallest and largest of a type, and others."""
    if datatype == "BYTES":
        return np.array([[b"", b"\xff\x00"], ["déjà".encode(), b"x" * 300], [b"a", b"b"]], object)
    dtype = NUMPY_OF[datatype]
    if datatype == "BOOL":
        return np.array([[True, False], [False, False], [True, True]])
    if dtype.kind == "f":
        info = np.finfo(dtype)
        return np.array([[info.min, info.max], [info.tiny, -0.0], [1.5, -2.25]], dtype)
    bounds = np.iinfo(dtype)
    return np.array([[bounds.min, bounds.max], [0, 1], [2, 3]], dtype)


def test_health(driver: Driver) -> None:
    assert driver.ask("is_server_live")
    assert driver.ask("is_server_ready")
    assert driver.ask("is_model_ready", "add_one")
    assert driver.ask("is_model_ready", "add_one", "1")
    assert not driver.ask("is_model_ready", "asleep")
    assert not driver.ask("is_model_ready", "absent")


def test_metadata(driver: Driver) -> None:
    said = driver.say("get_server_metadata")
    assert said["name"] == "dovetail"
    assert set(said["extensions"]) >= {"binary_tensor_data", "statistics", "system_shared_memory"}
    said = driver.say("get_model_metadata", "mixed", "1")
    assert [each["name"] for each in said["inputs"]] == ["pixels", "words", "flags"]
    assert [int(dim) for dim in said["inputs"][0]["shape"]] == [-1, 3]
    assert said["versions"] == ["1"]


def test_config(driver: Driver) -> None:
    said = driver.say("get_model_config", "mixed")
    said = said.get("config", said)
    assert (said["name"], said["backend"], said["platform"]) == ("mixed", "dovetail", "dovetail_workflow")
    assert [each["data_type"] for each in said["input"]] == ["TYPE_UINT8", "TYPE_STRING", "TYPE_BOOL"]
    assert said["parameters"] == {"slo": {"string_value": "1s"}}


def test_statistics(driver: Driver) -> None:
    (one,) = driver.say("get_inference_statistics", "reverse")["model_stats"]
    assert (one["name"], one["version"]) == ("reverse", "1")
    assert set(one["inference_stats"]) >= {"success", "fail", "queue", "compute_infer"}
    assert len(driver.say("get_inference_statistics")["model_stats"]) == len(MODELS)


def test_repository(driver: Driver) -> None:
    said = driver.say("get_model_repository_index")
    models = said["models"] if driver.protocol == "grpc" else said
    assert {each["name"] for each in models} == set(MODELS)
    assert next(each for each in models if each["name"] == "asleep")["state"] == "UNAVAILABLE"
    for method in ("load_model", "unload_model"):
        with pytest.raises(InferenceServerException, match="when the server starts"):
            driver.ask(method, "add_one")


@pytest.mark.parametrize("datatype", [*NUMPY_OF, "BYTES"])
@pytest.mark.parametrize("how", ["raw", "one by one"])
def test_datatypes(driver: Driver, datatype: str, how: str) -> None:
    """One by one is JSON over HTTP, in and out, and `contents` over gRPC. Neither has a form for FP16."""
    x = some_of(datatype)
    json = driver.protocol == "http" and how == "one by one"
    if datatype == "BYTES" and json:
        x = np.array([[b"", b"a"], ["déjà".encode(), b'"\\'], [b"a", b"b"]], object)
    tensor = driver.tensor("x", datatype, x, json=json and datatype != "FP16")
    if how == "one by one" and driver.protocol == "grpc" and datatype != "FP16":
        as_contents(tensor, datatype, x)
    if datatype == "FP16" and json:
        with pytest.raises(InferenceServerException, match="FP16, which has no JSON form"):
            driver.ask("infer", f"same_{datatype}", [tensor], outputs=[driver.wanted("y", json=True)])
        return
    result = driver.ask("infer", f"same_{datatype}", [tensor], outputs=[driver.wanted("y", json=json)])
    y = result.as_numpy("y")
    if datatype == "BYTES" and json:
        y = np.array([text.encode() for text in y.reshape(-1)], object).reshape(y.shape)
    assert y.dtype == x.dtype and y.shape == x.shape
    np.testing.assert_array_equal(y, x)


def as_contents(tensor: Any, datatype: str, x: np.ndarray[Any, Any]) -> None:
    """The elements one by one, as a client without numpy sends them. Triton's client has no call for that."""
    lists = {"BOOL": "bool", "UINT64": "uint64", "INT64": "int64", "FP32": "fp32", "FP64": "fp64", "BYTES": "bytes"}
    kind = lists.get(datatype, "uint" if datatype.startswith("U") else "int")
    tensor._raw_content = None
    getattr(tensor._input.contents, f"{kind}_contents").extend(x.reshape(-1).tolist())


@pytest.mark.parametrize("count", [0, 1, 7])
def test_batches(driver: Driver, count: int) -> None:
    x = np.arange(count * 4, dtype=np.float32).reshape(count, 4)
    result = driver.ask("infer", "add_one", [driver.tensor("x", "FP32", x)])
    np.testing.assert_array_equal(result.as_numpy("y"), x + np.float32(1))


def test_a_long_answer_one_by_one(driver: Driver) -> None:
    """Long enough to be compressed for clients that take it; asyncio's say so."""
    x = np.arange(2000, dtype=np.float32).reshape(-1, 4)
    result = driver.ask("infer", "add_one", [driver.tensor("x", "FP32", x)], outputs=[driver.wanted("y", json=True)])
    np.testing.assert_array_equal(result.as_numpy("y"), x + np.float32(1))


def test_several_inputs_and_outputs(driver: Driver) -> None:
    inputs = [
        driver.tensor("pixels", "UINT8", np.array([[0, 1, 2], [253, 254, 255]], np.uint8)),
        driver.tensor("words", "BYTES", np.array(["ab", "", "c,d"], dtype=object)),
        driver.tensor("flags", "BOOL", np.array([True, False])),
    ]
    result = driver.ask("infer", "mixed", inputs)
    assert list(result.as_numpy("words")) == [b"AB", b"", b"C,D"]
    assert result.as_numpy("mean") == [127.5]
    assert result.as_numpy("count").dtype == np.int64 and result.as_numpy("count") == [3]
    result = driver.ask("infer", "mixed", inputs, outputs=[driver.wanted("count"), driver.wanted("words")])
    assert list(result.as_numpy("words")) == [b"AB", b"", b"C,D"]
    assert result.as_numpy("mean") is None


def test_fields_of_a_request(driver: Driver) -> None:
    x = driver.tensor("x", "FP32", np.zeros((1, 4), np.float32))
    result = driver.ask(
        "infer",
        "add_one",
        [x],
        request_id="request-7",
        priority=1,
        timeout=250_000,
        parameters={"slo_ms": 80, "tenant": "blue"},
    )
    response = result.get_response()
    assert (response["id"] if driver.protocol == "http" else response.id) == "request-7"
    call = driver.server.backend.calls[-1]
    assert (call.request_id, call.priority, call.timeout_us) == ("request-7", 1, 250_000)
    assert (call.slo_ms, call.tenant) == (80.0, "blue")
    headers = {"x-dovetail-slo-ms": "12.5", "x-dovetail-tenant": "red", "x-dovetail-priority": "3"}
    driver.ask("infer", "add_one", [x], headers=headers)
    call = driver.server.backend.calls[-1]
    assert (call.slo_ms, call.tenant, call.request_id, call.priority) == (12.5, "red", "", 3)


STATUS = {
    "absent": ("404", "NOT_FOUND", "unknown model 'absent'; known models"),
    "shed": ("429", "RESOURCE_EXHAUSTED", "the request was shed"),
    "expired": ("504", "DEADLINE_EXCEEDED", "the request was expired"),
    "failed": ("500", "INTERNAL", "the request was failed"),
    "no room": ("503", "UNAVAILABLE", "the queue is full"),
    "refused": ("400", "INVALID_ARGUMENT", "x must be sorted"),
    "crash": ("500", "INTERNAL", "internal error; the server's log has the cause"),
    "forgetful": ("500", "INTERNAL", "gave no output 'y'"),
}


@pytest.mark.parametrize("name", STATUS)
def test_outcomes(driver: Driver, name: str) -> None:
    http, code, text = STATUS[name]
    x = driver.tensor("x", "FP32", np.zeros(2, np.float32))
    with pytest.raises(InferenceServerException) as caught:
        driver.ask("infer", name, [x], outputs=[driver.wanted("y")])
    assert text in str(caught.value)
    assert caught.value.status() == (http if driver.protocol == "http" else f"StatusCode.{code}")


def test_late_is_an_answer(driver: Driver) -> None:
    x = np.array([1, 2], np.float32)
    result = driver.ask("infer", "late", [driver.tensor("x", "FP32", x)])
    np.testing.assert_array_equal(result.as_numpy("y"), x)
    parameters = result.get_response(**({} if driver.protocol == "http" else {"as_json": True}))["parameters"]
    late = parameters["dovetail_outcome"]
    assert late == ("late" if driver.protocol == "http" else {"string_param": "late"})


def test_what_is_wrong_is_said(driver: Driver) -> None:
    def refusal(model: str, tensors: list[Any], **more: Any) -> str:
        with pytest.raises(InferenceServerException) as caught:
            driver.ask("infer", model, tensors, **more)
        assert caught.value.status() in ("400", "404", "StatusCode.INVALID_ARGUMENT", "StatusCode.NOT_FOUND")
        return str(caught.value)

    x = np.zeros(2, np.float32)
    good = driver.tensor("x", "FP32", x)
    assert "got [3]" in refusal("late", [driver.tensor("x", "FP32", np.zeros(3, np.float32))])
    assert "datatype FP32, got FP64" in refusal("late", [driver.tensor("x", "FP64", np.zeros(2))])
    assert "unknown input 'z'" in refusal("late", [driver.tensor("z", "FP32", x)])
    assert "given twice" in refusal("late", [good, driver.tensor("x", "FP32", x)])
    assert "missing input" in refusal("mixed", [driver.tensor("flags", "BOOL", np.array([True, False]))])
    assert "unknown output 'z'" in refusal("late", [good], outputs=[driver.wanted("z")])
    assert "version" in refusal("late", [good], model_version="2")
    assert "sequence_id" in refusal("late", [good], sequence_id=7)
    wrong = driver.tensor("x", "FP32", x)
    if driver.protocol == "grpc":
        wrong._raw_content = b"123"
        assert "takes 8 bytes, got 3 bytes" in refusal("late", [wrong])


@BULKY
def test_megabytes_both_ways(driver: Driver) -> None:
    x = np.random.default_rng(0).integers(0, 255, 20_000_001, np.uint8)
    result = driver.ask("infer", "copy", [driver.tensor("x", "UINT8", x)])
    np.testing.assert_array_equal(result.as_numpy("y"), x)


# aiohttp leaves a connection behind that is closed while it writes.
@pytest.mark.parametrize("driver", ["http blocking", "grpc blocking", "grpc asyncio"], indirect=True)
def test_a_message_that_is_too_large(driver: Driver) -> None:
    x = np.zeros(70 << 20, np.uint8)
    with pytest.raises(InferenceServerException, match="larger"):
        driver.ask("infer", "copy", [driver.tensor("x", "UINT8", x)])


# -- shared memory ------------------------------------------------------------------------------------------------


@pytest.fixture
def region() -> Iterator[tuple[str, Any]]:
    key = f"/conformance-{uuid.uuid4().hex}"
    handle = shm.create_shared_memory_region("ours", key, 4096)
    yield key, handle
    shm.destroy_shared_memory_region(handle)


def opened(key: str) -> int:
    """How often this process, in which the server is, has an object open."""
    links = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    return links.count(f"/dev/shm{key}")


def two_outputs(driver: Driver, handle: Any) -> None:
    """The first goes to shared memory, and the second is found all the same."""
    inputs = [
        driver.tensor("pixels", "UINT8", np.array([[0, 1, 2]], np.uint8)),
        driver.tensor("words", "BYTES", np.array(["ab"], dtype=object)),
        driver.tensor("flags", "BOOL", np.array([True, False])),
    ]
    wanted = driver.kit.InferRequestedOutput("mean")
    wanted.set_shared_memory("data", 8, offset=2048 - 64)
    result = driver.ask("infer", "mixed", inputs, outputs=[wanted, driver.wanted("words")])
    assert list(result.as_numpy("words")) == [b"AB"]
    assert shm.get_contents_as_numpy(handle, np.float64, [1], 2048) == [1.0]


def test_shared_memory(driver: Driver, region: tuple[str, Any]) -> None:
    key, handle = region
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    shm.set_shared_memory_region(handle, [x], offset=256)
    before = opened(key)
    driver.ask("register_system_shared_memory", "data", key, 4096 - 64, offset=64)
    status = driver.say("get_system_shared_memory_status")
    status = list(status["regions"].values()) if driver.protocol == "grpc" else status
    assert [(each["name"], each["key"], int(each["byte_size"])) for each in status] == [("data", key, 4032)]
    tensor = driver.kit.InferInput("x", [2, 4], "FP32")
    tensor.set_shared_memory("data", 32, offset=256 - 64)
    wanted = driver.kit.InferRequestedOutput("y")
    wanted.set_shared_memory("data", 40, offset=1024 - 64)
    result = driver.ask("infer", "add_one", [tensor], outputs=[wanted])
    np.testing.assert_array_equal(shm.get_contents_as_numpy(handle, np.float32, (2, 4), 1024), x + np.float32(1))
    output = result.get_output("y")
    parameters = output["parameters"] if driver.protocol == "http" else output.parameters
    size = parameters["shared_memory_byte_size"]
    assert (size if driver.protocol == "http" else size.int64_param) == 32
    with pytest.raises(InferenceServerException, match="registered already"):
        driver.ask("register_system_shared_memory", "data", key, 64)
    two_outputs(driver, handle)
    driver.ask("unregister_system_shared_memory", "data")
    driver.ask("unregister_system_shared_memory")
    assert opened(key) == before
    with pytest.raises(InferenceServerException, match="no shared memory region 'data'"):
        driver.ask("infer", "add_one", [tensor])
