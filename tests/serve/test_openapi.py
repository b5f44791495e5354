"""The description of the server is that of the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.serve.support import MODELS, Server, Wire, request

from dovetail.serve.oip_records import InferRequest, InferResponse, InputTensor, OutputTensor

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def everything():
    server = Server(everything=True)
    yield server
    server.stop()


@pytest.fixture
def described(everything: Server) -> dict[str, Any]:
    with everything.wire() as wire:
        return wire.ask("GET", "/openapi.json").json


def test_every_path_is_routed(everything: Server, described: dict[str, Any]) -> None:
    with everything.wire() as wire:
        for path, item in described["paths"].items():
            where = path.replace("{model}", "late").replace("{version}", "1").replace("{region}", "r")
            methods = {"get", "post"} & item.keys()
            assert len(methods) == 1, path
            (method,) = methods
            reply = wire.ask(method.upper(), where, b"{}" if method == "post" else b"")
            assert reply.status != 405 and "no such path" not in reply.body.decode(), path
            assert str(reply.status) in item[method]["responses"], (path, reply)
            assert wire.ask("POST" if method == "get" else "GET", where).status == 405, path


def test_every_model_has_its_inference_and_an_example_that_it_takes(everything: Server, described: Any) -> None:
    with everything.wire() as wire:
        for info in MODELS.values():
            path = f"/v2/models/{info.name.replace(' ', '%20')}/infer"
            content = described["paths"][path]["post"]["requestBody"]["content"]
            assert ("image/*" in content) == (info.name == "reverse")
            for example in content["application/json"].get("examples", {}).values():
                if info.name not in ("wait", "asleep"):  # these two never answer
                    body = json.dumps({**example["value"], "parameters": {"binary_data_output": True}}).encode()
                    reply = wire.send(request("POST", path, body)).reply("POST")
                    assert reply.status != 400 or info.name == "refused", (info.name, reply)
            assert ("examples" in content["application/json"]) == (not any(p.datatype == "FP16" for p in info.inputs))


def test_fields_are_those_of_the_records(wire: Wire) -> None:
    described = wire.ask("GET", "/openapi.json").json
    assert not any("sharedmemory" in path for path in described["paths"])
    schemas = described["components"]["schemas"]
    asked = described["paths"]["/v2/models/late/infer"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    tensor = asked["properties"]["inputs"]["items"]["anyOf"][0]
    assert set(asked["properties"]) == set(InferRequest.__struct_fields__)
    assert set(tensor["properties"]) == set(InputTensor.__struct_fields__)
    assert set(schemas["OutputTensor"]["properties"]) == set(OutputTensor.__struct_fields__)
    assert set(schemas["InferResponse"]["properties"]) == set(InferResponse.__struct_fields__)
