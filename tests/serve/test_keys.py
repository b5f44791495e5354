"""Keys: kept as digests, looked up in constant time, and good for what they say and nothing else."""

from __future__ import annotations

import base64
import json
import stat

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tests.serve.live_support import LiveServer, item_body
from tests.serve.support import HOST, Wire

from dovetail.cli import main
from dovetail.errors import DeclarationError, Forbidden, Unauthorized
from dovetail.serve.access import Access, effective_class
from dovetail.serve.keys import Key, Keys, add, read, revoke


def made(path, tenant="acme", **more):
    return add(path, Key("0" * 12, "0" * 64, tenant, **more))


def test_a_key_is_kept_as_a_digest_and_shown_once(tmp_path):
    path = tmp_path / "keys.json"
    entry, text = made(path)
    secret = text.split("_", 2)[2]
    assert secret not in path.read_text() and text not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read(path).find(text, 0.0) == entry
    other = text[:-1] + ("A" if text[-1] != "A" else "B")
    for wrong in (other, "", "dvt_", text + "A", text.replace(entry.id, "0" * 12), "dvt_\u00e9"):
        assert read(path).find(wrong, 0.0) is None
    assert revoke(path, entry.id) == entry
    assert read(path).find(text, 0.0) is None


def test_a_key_ends_when_it_says(tmp_path):
    entry, text = made(tmp_path / "keys.json", expires_unix_s=1000)
    keys = Keys([entry])
    assert keys.find(text, 999.0) == entry
    assert keys.find(text, 1000.0) is None
    assert keys.next_expiry(10.0) == 1000 and keys.next_expiry(1000.0) == float("inf")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not a key file"),
        ('{"version": 9, "keys": []}', "version 9"),
        ('{"version": 1, "keys": [], "more": 1}', "more"),
        ('{"version": 1, "keys": [{"id": "x", "digest": "", "tenant": "a"}]}', "keys"),
    ],
)
def test_what_is_no_key_file_is_told(tmp_path, content, said):
    path = tmp_path / "keys.json"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(DeclarationError, match=said):
        read(path)


def test_a_file_that_others_can_write_is_refused(tmp_path):
    path = tmp_path / "keys.json"
    made(path)
    path.chmod(0o620)
    with pytest.raises(DeclarationError, match="chmod 600"):
        read(path)


def test_what_a_key_is_good_for(tmp_path):
    path = tmp_path / "keys.json"
    _, narrow = made(path, workflows=("document",))
    _, observer = made(path, scopes=("observe",))
    access = Access(read(path))

    def ask(method, target, key="", header="authorization"):
        headers = {} if not key else {header: f"Bearer {key}" if header == "authorization" else key}
        return access.of(method, target, headers)

    assert ask("GET", "/v2/health/ready") is None
    for target in ("/v2", "/metrics", "/v2/models/document/infer", "/", "/anything"):
        with pytest.raises(Unauthorized):
            ask("GET", target)
        with pytest.raises(Unauthorized):
            ask("GET", target, narrow[:-2] + "xx")
    assert ask("POST", "/v2/models/document/infer", narrow).workflows == ("document",)
    assert ask("POST", "/v2/models/document/infer", narrow, "x-api-key").tenant == "acme"
    assert ask("GET", "/v2", narrow) and ask("POST", "/v2/repository/index", narrow)
    for method, target in (
        ("POST", "/v2/models/other/infer"),
        ("GET", "/v2/models/other"),
        ("GET", "/v2/models/%6fther/stats"),
        ("GET", "/v2/models/stats"),
        ("GET", "/metrics"),
        ("GET", "/dashboard"),
    ):
        with pytest.raises(Forbidden):
            ask(method, target, narrow)
    assert ask("GET", "/metrics", observer) and ask("GET", "/v2/models/other/stats", observer)
    with pytest.raises(Forbidden):
        ask("POST", "/v2/models/document/infer", observer)
    assert ask("POST", "/dashboard/what-if", observer)
    with pytest.raises(Forbidden, match="scope admin"):
        ask("POST", "/slices", observer)


@pytest.mark.parametrize(
    ("highest", "own", "claimed", "given"),
    [(0, 2, 0, 2), (0, 2, 3, 3), (0, 2, 1, None), (1, 2, 1, 1), (4, 2, 0, 4), (4, 2, 3, None), (4, 2, 9, 9)],
)
def test_the_class_of_a_key(highest, own, claimed, given):
    key = Key("0" * 12, "0" * 64, "acme", highest_class=highest)
    if given is None:
        with pytest.raises(Forbidden, match="may claim class"):
            effective_class(key, "m", own, claimed)
    else:
        assert effective_class(key, "m", own, claimed) == given


def test_keys_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "keys.json"
    words = ["keys", "add", "--file", str(path), "--tenant", "acme", "--workflow", "document", "--class", "2"]
    assert main([*words, "--expires", "30d", "--note", "for the tests"]) == 0
    text = capsys.readouterr().out.strip()
    (entry,) = read(path)
    assert read(path).find(text, 0.0) == entry
    assert (entry.tenant, entry.workflows, entry.highest_class) == ("acme", ("document",), 2)
    assert entry.expires_unix_s == entry.created_unix_s + 30 * 24 * 3600
    assert main(["keys", "list", "--file", str(path), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["id"] == entry.id and "digest" not in shown
    assert main(["keys", "list", "--file", str(path)]) == 0
    assert "acme" in capsys.readouterr().out
    assert main(["keys", "revoke", "--file", str(path), entry.id]) == 0
    assert len(read(path)) == 0
    assert main(["keys", "revoke", "--file", str(path), entry.id]) == 2
    assert "has no key" in capsys.readouterr().err
    assert main(["keys", "add", "--file", str(path), "--tenant", "../x"]) == 2
    assert "tenant" in capsys.readouterr().err


@pytest.mark.cpu
def test_a_server_with_keys(tmp_path):
    path = tmp_path / "keys.json"
    _, plain = made(path)
    _, urgent = made(path, highest_class=1, workflows=("gated",))
    _, watches = made(path, scopes=("observe",))
    server = LiveServer("tests.live.apps:hosted", device="cpu:1", keys=path)
    try:
        with Wire(server.port) as wire:
            wire.socket.settimeout(60)

            def ask(key, model="gated", **parameters):
                more = {"parameters": parameters} if parameters else {}
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                return wire.ask("POST", f"/v2/models/{model}/infer", item_body(0, **more), **headers)

            assert ask(plain).status == 200
            assert ask(plain, priority=2).status == 200
            refused = ask(plain, priority=1)
            assert refused.status == 403 and "class 2" in refused.error, "gated is of class 2"
            assert ask(urgent, priority=1).status == 200
            assert ask(plain, tenant="acme").status == 200
            assert ask(plain, tenant="umbrella").status == 403
        with Wire(server.port) as wire:
            assert wire.ask("GET", "/v2/health/ready").status == 200
            refused = wire.ask("GET", "/v2/models/gated")
            assert refused.status == 401 and refused.headers["www-authenticate"].startswith("Bearer")
        with Wire(server.port) as wire:
            refused = wire.ask("GET", "/metrics", Authorization=f"Bearer {plain}")
            assert refused.status == 403 and "observe" in refused.error
        with Wire(server.port) as wire:  # a browser asks its user, who has any name
            refused = wire.ask("GET", "/dashboard")
            assert refused.status == 401 and refused.headers["www-authenticate"].startswith("Basic")
        for path, key, status in (
            ("/dashboard", watches, 200), ("/dashboard/app.js", watches, 200), ("/dashboard", plain, 403),
            ("/dashboard", "dvt_x", 401), ("/metrics", watches, 401), ("/v2/models/gated", watches, 401),
        ):  # fmt: skip
            with Wire(server.port) as wire:
                shown = base64.b64encode(f"me:{key}".encode()).decode()
                assert wire.ask("GET", path, Authorization=f"Basic {shown}").status == status, path
        with Wire(server.port) as wire:
            assert wire.ask("GET", "/dashboard", Authorization="Basic \xe4").status == 401
    finally:
        server.stop()


@pytest.mark.cpu
def test_keys_are_needed_over_grpc_too(tmp_path):
    path = tmp_path / "keys.json"
    _, plain = made(path, workflows=("gated",))
    server = LiveServer("tests.live.apps:hosted", device="cpu:1", keys=path, grpc_port=0)
    client = triton_grpc.InferenceServerClient(f"{HOST}:{server.served.grpc.port}")

    def infer(key="", model="gated", **more):
        tensor = triton_grpc.InferInput("x", [3], "FP32")
        tensor.set_data_from_numpy(np.zeros(3, np.float32))
        headers = {"authorization": f"Bearer {key}"} if key else {}
        return client.infer(model, [tensor], headers=headers, client_timeout=60, **more)

    def code(call):
        with pytest.raises(triton_grpc.InferenceServerException) as refused:
            call()
        return refused.value.status()

    try:
        assert client.is_server_live() and client.is_server_ready()
        assert infer(plain).get_response().model_name == "gated"
        assert code(infer) == "StatusCode.UNAUTHENTICATED"
        assert code(lambda: infer(plain[:-1])) == "StatusCode.UNAUTHENTICATED"
        assert code(lambda: infer(plain, "plain")) == "StatusCode.PERMISSION_DENIED"
        assert code(lambda: infer(plain, priority=1)) == "StatusCode.PERMISSION_DENIED"
        assert code(lambda: client.get_model_metadata("gated")) == "StatusCode.UNAUTHENTICATED"
        key = {"authorization": f"Bearer {plain}"}
        assert client.get_model_metadata("gated", headers=key).name == "gated"
        assert code(lambda: client.get_inference_statistics(headers=key)) == "StatusCode.PERMISSION_DENIED"
    finally:
        client.close()
        server.stop()
