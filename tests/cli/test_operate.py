"""A server that is changed while it runs: keys, limits, certificates, logs and workflows, without a request lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from http.client import HTTPSConnection
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tests.cli.test_serve import Serving, serve
from tests.serve.support import HOST, until

from dovetail.cli import main

pytestmark = pytest.mark.cpu
__all__ = ["serve"]

APP = """
import os, time
from dovetail import App, stage, tensor, workflow

@stage
def add(values):
    time.sleep(0.005)
    return [v + {more} for v in values]

@workflow(slo="5s")
def sums(x: tensor("float32", 1)) -> tensor("float32", 1):
    return add(x)

app = App(sums)
"""
OTHER = """
from dovetail import App, stage, tensor, workflow

@stage
def twice(values):
    return [2 * v for v in values]

@workflow(slo="5s")
def doubles(x: tensor("float32", 1)) -> tensor("float32", 1):
    return twice(x)

app = App(doubles)
"""


def asked(base: str, model: str, value: float, key: str = "", context: ssl.SSLContext | None = None) -> float | int:
    """The answer, or the status if there is none."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [value]}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(
        f"{base}/v2/models/{model}/infer", json.dumps({"inputs": [tensor]}).encode(), headers
    )
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return float(json.load(answer)["outputs"][0]["data"][0])
    except urllib.error.HTTPError as error:
        with error:
            return error.code


class Clients:
    """Ask without a pause, and note what came."""

    def __init__(self, base: str, number: int = 4) -> None:
        self.got: list[float | int] = []
        self._going = True
        self._threads = [threading.Thread(target=self._work, args=(base,)) for _ in range(number)]
        for thread in self._threads:
            thread.start()

    def _work(self, base: str) -> None:
        while self._going:
            self.got.append(asked(base, "sums", 1.0))

    def stop(self) -> list[float | int]:
        self._going = False
        for thread in self._threads:
            thread.join()
        return self.got


def said(serving: Serving, text: str, times: int = 1) -> None:
    until(lambda: sum(text in line for line in serving.said) >= times)


def test_workflows_limits_and_logs_are_read_anew_without_losing_a_request(serve, tmp_path):
    (tmp_path / "sums.py").write_text(APP.format(more=1))
    (tmp_path / "doubles.py").write_text(OTHER)
    config = tmp_path / "dovetail.toml"
    config.write_text('apps = ["sums:app"]\ndevice = "cpu:1"\naccess-log = "access.log"\n')
    serving = serve("--config", config, cwd=tmp_path)
    base = f"http://{HOST}:{serving.port}"
    assert asked(base, "sums", 1.0) == 2.0
    clients = Clients(base)
    until(lambda: len(clients.got) > 10)

    # Other code, and another application beside it.
    (tmp_path / "sums.py").write_text(APP.format(more=10))
    config.write_text(config.read_text().replace('"sums:app"', '"sums:app", "doubles:app"'))
    os.rename(tmp_path / "access.log", tmp_path / "access.log.1")
    serving.signal(signal.SIGHUP)
    said(serving, "the workers of the workflows before have ended")
    assert asked(base, "doubles", 4.0) == 8.0
    until(lambda: clients.got[-1] == 11.0)

    # What is wrong changes nothing.
    config.write_text("host = '127.0.0.2'\n" + config.read_text())
    serving.signal(signal.SIGHUP)
    said(serving, "WARNING: nothing was reloaded: --host cannot change")
    config.write_text(config.read_text().removeprefix("host = '127.0.0.2'\n"))
    (tmp_path / "sums.py").write_text("app = 1")
    serving.signal(signal.SIGHUP)
    said(serving, "WARNING: nothing was reloaded", 2)
    (tmp_path / "sums.py").write_text(APP.format(more=10))

    # Limits change in place.
    workers = sum("loading" in line for line in serving.said)
    config.write_text(config.read_text() + "[tenants.default]\nrate = 0.001\nburst = 1\n")
    serving.signal(signal.SIGHUP)
    said(serving, "reloaded; serving sums, doubles", 2)
    assert sum("loading" in line for line in serving.said) == workers
    until(lambda: 429 in clients.got)
    got = clients.stop()
    before = got.index(11.0)
    assert set(got[:before]) == {2.0}
    assert set(got) == {2.0, 11.0, 429}, "every request was answered, by the old code or by the new"
    with urllib.request.urlopen(f"{base}/metrics", timeout=60) as answer:
        metrics = answer.read().decode()
    count = next(
        line for line in metrics.splitlines() if line.startswith('dovetail_goodput_requests_total{workflow="sums"')
    )
    assert int(count.split()[-1]) >= len([value for value in got if value != 429]), "books go on"
    assert (tmp_path / "access.log").stat().st_size and (tmp_path / "access.log.1").stat().st_size
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0


def certificate(folder: Path, name: str) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", "2", "-subj", f"/CN={name}",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True, timeout=60,
    )  # fmt: skip


def test_https_with_keys_that_come_and_go_and_lines_in_json(serve, tmp_path, capsys):
    (tmp_path / "sums.py").write_text(APP.format(more=1))
    certificate(tmp_path, "one")
    certificate(tmp_path, "two")
    for part in ("crt", "key"):
        os.replace(tmp_path / f"one.{part}", tmp_path / f"server.{part}")
    keys = tmp_path / "keys.json"
    assert main(["keys", "add", "--file", str(keys), "--tenant", "acme"]) == 0
    first = capsys.readouterr().out.strip()
    words = ("sums:app", "--device", "cpu:1", "--keys", keys, "--tls-cert", "server.crt", "--tls-key", "server.key")
    serving = serve(*words, "--log-format", "json", cwd=tmp_path)
    base = f"https://{HOST}:{serving.port}"

    def trusting(name: str) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=tmp_path / name)

    old = trusting("server.crt")
    assert asked(base, "sums", 1.0, first, old) == 2.0
    assert asked(base, "sums", 1.0, "", old) == 401
    with pytest.raises(OSError):
        asked(base.replace("https", "http"), "sums", 1.0, first)
    records = [json.loads(line) for line in serving.said]
    assert {"info"} == {record["level"] for record in records if "level" in record}
    assert any(record.get("message", "").startswith("ready at https://") for record in records)

    # A key more, and one less: nobody has to be told.
    assert main(["keys", "add", "--file", str(keys), "--tenant", "acme"]) == 0
    second = capsys.readouterr().out.strip()
    until(lambda: asked(base, "sums", 1.0, second, old) == 2.0)
    assert main(["keys", "revoke", "--file", str(keys), first.split("_")[1]]) == 0
    until(lambda: asked(base, "sums", 1.0, first, old) == 401)
    assert asked(base, "sums", 1.0, second, old) == 2.0

    # Another certificate.
    new = trusting("two.crt")
    for part in ("crt", "key"):
        os.replace(tmp_path / f"two.{part}", tmp_path / f"server.{part}")
    serving.signal(signal.SIGHUP)
    said(serving, "reloaded")
    assert asked(base, "sums", 1.0, second, new) == 2.0
    with pytest.raises(OSError):
        asked(base, "sums", 1.0, second, old)
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--tls-key", "pyproject.toml"], "needs --tls-cert"),
        (["--tls-cert", "nowhere.pem"], "there is no file nowhere.pem"),
        (["--tls-cert", "pyproject.toml"], "no certificate with its key"),
        (["--keys", "nowhere.json"], "there is no key file nowhere.json"),
    ],
)
def test_what_cannot_be_secured_is_told(words, text, capfd):
    assert main(["serve", "tests.live.apps:hosted", "--device", "cpu:1", *words]) == 2
    assert text in capfd.readouterr().err


def test_grpc_speaks_tls_with_keys_and_takes_another_certificate(serve, tmp_path, capsys):
    (tmp_path / "sums.py").write_text(APP.format(more=1))
    for name in ("one", "two"):
        certificate(tmp_path, name)
    shutil.copy(tmp_path / "one.crt", tmp_path / "server.crt")
    shutil.copy(tmp_path / "one.key", tmp_path / "server.key")
    keys = tmp_path / "keys.json"
    assert main(["keys", "add", "--file", str(keys), "--tenant", "acme"]) == 0
    key = capsys.readouterr().out.strip()
    words = ("sums:app", "--device", "cpu:1", "--keys", keys, "--tls-cert", "server.crt", "--tls-key", "server.key")
    serving = serve(*words, "--grpc-port", "0", cwd=tmp_path)
    address = f"{HOST}:{serving.ready['grpc_port']}"

    def infer(trusted: str, key: str) -> float:
        client = triton_grpc.InferenceServerClient(address, ssl=True, root_certificates=str(tmp_path / trusted))
        x = triton_grpc.InferInput("x", [1], "FP32")
        x.set_data_from_numpy(np.ones(1, np.float32))
        headers = {"authorization": f"Bearer {key}"} if key else {}
        try:
            return float(client.infer("sums", [x], headers=headers, client_timeout=30).as_numpy("output")[0])
        finally:
            client.close()

    def refused(trusted: str, key: str) -> str:
        with pytest.raises(triton_grpc.InferenceServerException) as error:
            infer(trusted, key)
        return str(error.value.status())

    assert infer("one.crt", key) == 2.0
    assert refused("one.crt", "") == "StatusCode.UNAUTHENTICATED"
    assert refused("two.crt", key) == "StatusCode.UNAVAILABLE"
    with triton_grpc.InferenceServerClient(address) as plain, pytest.raises(triton_grpc.InferenceServerException):
        plain.is_server_live(client_timeout=10)

    for part in ("crt", "key"):
        os.replace(tmp_path / f"two.{part}", tmp_path / f"server.{part}")
    serving.signal(signal.SIGHUP)
    said(serving, "reloaded")
    assert infer("server.crt", key) == 2.0
    assert refused("one.crt", key) == "StatusCode.UNAVAILABLE"
    serving.signal(signal.SIGTERM)
    assert serving.wait() == 0


def test_large_bodies_and_answers_pass_through_tls(serve, tmp_path):
    (tmp_path / "echoes.py").write_text(
        OTHER.replace("2 * v", "v").replace('tensor("float32", 1)', 'tensor("float32", -1)')
    )
    certificate(tmp_path, "one")
    words = ("echoes:app", "--device", "cpu:1", "--tls-cert", "one.crt", "--tls-key", "one.key")
    serving = serve(*words, cwd=tmp_path)
    context = ssl.create_default_context(cafile=tmp_path / "one.crt")
    data = bytes(range(256)) * (16 << 10)
    tensor = {
        "name": "x",
        "datatype": "FP32",
        "shape": [len(data) // 4],
        "parameters": {"binary_data_size": len(data)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    connection = HTTPSConnection(HOST, serving.port, context=context, timeout=60)
    for _ in range(3):
        headers = {"Inference-Header-Content-Length": str(len(head))}
        connection.request("POST", "/v2/models/doubles/infer", head + data, headers)
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read().endswith(data)
    connection.close()
