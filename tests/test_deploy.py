"""The files for production: settings that hold, a unit that systemd takes, a dashboard of metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest
from tests.serve.live_support import LiveServer
from tests.serve.support import Wire
from tests.serve.test_metrics import parse

from dovetail.cli import serve
from dovetail.cli.layers import effective
from dovetail.serve.tenants import Tenant

DEPLOY = Path(__file__).parents[1] / "deploy"
PROJECT = DEPLOY.parent


def unit() -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((DEPLOY / "dovetail.service").read_text())
    return parser


def test_the_settings_hold():
    found = effective(serve.configure, ["--config", str(DEPLOY / "dovetail.toml")], {})
    assert found.args.target == ["examples.quickstart:app"]
    assert found.tenants["batch"] == Tenant(weight=0.5, max_open=16)


def test_the_unit_starts_what_there_is_and_waits_for_the_drain():
    service = unit()["Service"]
    command = service["ExecStart"].split()
    assert command[1] == "serve"
    settings = effective(serve.configure, ["--config", str(DEPLOY / "dovetail.toml")], {}).args
    effective(serve.configure, [word for word in command[2:] if "/etc/" not in word and word != "--config"], {})
    assert int(service["TimeoutStopSec"]) > settings.drain
    assert service["KillMode"] == "mixed" and service["RestartPreventExitStatus"] == "2"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"


@pytest.mark.cpu
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_takes_the_unit(tmp_path):
    text = (DEPLOY / "dovetail.service").read_text()
    text = text.replace("/srv/dovetail/.venv/bin/dovetail", "/bin/true").replace(
        "User=dovetail\nGroup=dovetail\n", ""
    )
    (tmp_path / "dovetail.service").write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "dovetail.service")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if "dovetail.service" in line]
    assert ours == [], done.stderr


def test_the_container_copies_what_there_is_and_starts_what_it_copied():
    lines = (DEPLOY / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            for source in sources:
                assert (PROJECT / source).exists(), line
    (command,) = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")]
    assert command[:2] == ["dovetail", "serve"]
    assert f"COPY deploy/dovetail.toml {command[-1]}" in lines
    environment = dict(re.findall(r"(DOVETAIL_\w+)=(\S+)", "\n".join(lines)))
    assert effective(serve.configure, ["--config", str(DEPLOY / "dovetail.toml")], environment).args.host == "0.0.0.0"


def test_the_proxy_passes_on_what_the_server_takes():
    text = (DEPLOY / "nginx.conf").read_text()
    settings = effective(serve.configure, ["--config", str(DEPLOY / "dovetail.toml")], {}).args
    assert f"server {settings.host}:{settings.port};" in text
    name = re.search(r"server_name (\S+);", text)
    assert name is not None and name[1] in settings.allow_host
    assert text.count("{") == text.count("}")


@pytest.mark.cpu
def test_the_dashboard_asks_for_metrics_that_there_are():
    panels = json.loads((DEPLOY / "grafana" / "dovetail.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 15
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    limits = {"acme": Tenant(rate=1000.0)}
    server = LiveServer("tests.live.apps:hosted", device="cpu:1", tenants=limits)
    try:
        assert server.ask("big", 1, parameters={"tenant": "acme"}).status == 200
        with Wire(server.port) as wire:
            text = wire.ask("GET", "/metrics").body.decode()
    finally:
        server.stop()
    samples = parse(text)
    families = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    for query in queries:
        names = re.findall(r"\bdovetail_[a-z_]+", query)
        assert names, query
        for name in names:
            assert name in samples or name in families, f"{name}: {query}"
        for label in re.findall(r"by \(([^)]*)\)", query):
            for each in label.split(", "):
                known = [labels for name in names for labels in samples.get(name, {})]
                assert not known or any(f'{each}="' in labels for labels in known), query
    rectangles = [tuple(panel["gridPos"][k] for k in "xywh") for panel in panels]
    for i, (x, y, w, h) in enumerate(rectangles):
        for x2, y2, w2, h2 in rectangles[:i]:
            assert x >= x2 + w2 or x2 >= x + w or y >= y2 + h2 or y2 >= y + h, "panels lie on each other"
