"""What a call is made of: a header wins over the parameter of the same meaning, and odd values are refused."""

from __future__ import annotations

import pytest

from dovetail.errors import BadRequest
from dovetail.serve.backend import Call, ModelInfo
from dovetail.serve.framing import Heads, HttpError
from dovetail.serve.inference import Inference
from dovetail.serve.oip import OpenInference
from dovetail.serve.oip_records import MAX_NAME_CHARS, InferRequest
from dovetail.serve.oip_request import call_of

from .support import MODELS, MemoryBackend

INFO = ModelInfo("reader", "onnx", (), (), True)


def call(headers: dict[str, str] | None = None, **parameters: object) -> Call:
    request = InferRequest(inputs=[], id="x", parameters=parameters)  # type: ignore[arg-type]
    return call_of(INFO, request, {}, headers or {})


def test_the_header_names_the_tenant_whatever_the_body_says() -> None:
    assert call({"x-dovetail-tenant": "red"}, tenant="blue").tenant == "red"
    assert call(tenant="blue").tenant == "blue"
    assert call().tenant == ""
    assert call({"x-dovetail-tenant": ""}, tenant="blue").tenant == "", "a proxy may take the name away"


def test_the_header_names_the_objective_whatever_the_body_says() -> None:
    assert call({"x-dovetail-slo-ms": "12.5"}, slo_ms=80).slo_ms == 12.5
    assert call(slo_ms=80).slo_ms == 80.0
    assert call().slo_ms == 0.0


def test_a_wrong_header_is_refused_even_if_the_body_is_right() -> None:
    with pytest.raises(BadRequest, match="slo_ms must be"):
        call({"x-dovetail-slo-ms": "soon"}, slo_ms=80)
    with pytest.raises(BadRequest, match="tenant must be"):
        call({"x-dovetail-tenant": "t" * (MAX_NAME_CHARS + 1)}, tenant="blue")


def test_names_may_be_as_long_as_is_said() -> None:
    assert len(call(tenant="t" * MAX_NAME_CHARS).tenant) == MAX_NAME_CHARS


@pytest.mark.parametrize("name", ["priority", "timeout"])
def test_whole_numbers_from_nought_are_taken_as_they_are(name: str) -> None:
    assert getattr(call(**{name: 0}), name if name == "priority" else "timeout_us") == 0
    assert getattr(call(**{name: 2**63 - 1}), name if name == "priority" else "timeout_us") == 2**63 - 1
    with pytest.raises(BadRequest, match=f"{name} must be"):
        call(**{name: 2**63})


class ChangingBackend(MemoryBackend):
    """Its models are loaded anew, and are others then."""

    def __init__(self) -> None:
        super().__init__()
        self.served = dict(MODELS)

    def models(self) -> dict[str, ModelInfo]:
        return self.served


def test_what_was_read_from_a_head_holds_for_that_head_and_until_there_are_other_models() -> None:
    name, other = list(MODELS)[:2]
    backend = ChangingBackend()
    application = OpenInference(Inference(backend))  # type: ignore[arg-type]
    heads = Heads()

    def asked(model: str, length: int, json_bytes: int) -> tuple[ModelInfo, int]:
        head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n"
        head += f"Inference-Header-Content-Length: {json_bytes}\r\n\r\n"
        request = heads.parse(head.encode())
        application.check(request, length)
        return request.known[:2]  # type: ignore[no-any-return]

    for _ in range(2):
        assert asked(name, 100, 40) == (MODELS[name], 40)
        assert asked(name, 100, 41) == (MODELS[name], 41)
        assert asked(other, 100, 40) == (MODELS[other], 40)
        with pytest.raises(HttpError, match="must be a number within the body of 30 bytes"):
            asked(name, 30, 40)
    changed = ModelInfo(name, "another", (), (), True)
    backend.served = {name: changed}
    application.renew()
    assert asked(name, 100, 40) == (changed, 40)
    with pytest.raises(HttpError, match="unknown model"):
        asked(other, 100, 40)
