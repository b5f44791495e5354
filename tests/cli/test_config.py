"""Settings from a file, the environment and flags: which one holds, and what is said of a wrong one."""

from __future__ import annotations

import json
import tomllib

import pytest

from dovetail.cli import main, serve
from dovetail.cli.layers import effective
from dovetail.errors import DeclarationError
from dovetail.serve.tenants import Tenant


def layers(tmp_path, text="", words=(), **environment):
    path = tmp_path / "dovetail.toml"
    path.write_text(text)
    return effective(serve.configure, ["--config", str(path), *words], environment)


def test_flags_go_before_the_environment_before_the_file_before_defaults(tmp_path):
    text = 'port = 1\nmax-open = 2\nhosts = 3\napps = ["a:b"]\nallow-host = ["one", "two"]\ntrust-priority = true\n'
    found = layers(tmp_path, text, ["--port", "9", "c:d"], DOVETAIL_PORT="8", DOVETAIL_MAX_OPEN="7")
    args = found.args
    assert (args.port, args.max_open, args.hosts, args.target, args.workers) == (9, 7, 3, ["c:d"], None)
    assert (args.allow_host, args.trust_priority, args.drain) == (["one", "two"], True, 30.0)
    sources = {name: found.values[name].source for name in ("port", "max_open", "hosts", "workers")}
    assert sources == {
        "port": "--port",
        "max_open": "DOVETAIL_MAX_OPEN",
        "hosts": f"{tmp_path / 'dovetail.toml'}:3",
        "workers": "default",
    }
    assert layers(tmp_path, text).args.target == ["a:b"]
    assert layers(tmp_path, "", DOVETAIL_APPS="a:b,c:d").args.target == ["a:b", "c:d"]
    assert layers(tmp_path, "", DOVETAIL_TRUST_PRIORITY="false").args.trust_priority is False
    assert layers(tmp_path, 'workers = "1..3"\n').args.workers == (1, 3)
    assert layers(tmp_path, "workers = 2\n", DOVETAIL_WORKERS="2..4").args.workers == (2, 4)
    assert layers(tmp_path, "workers = 2\n").args.workers == (2, 2)


def test_paths_of_the_file_are_relative_to_it(tmp_path):
    found = layers(tmp_path, 'keys = "keys.json"\naccess-log = "-"\nlog = "/var/log/run"\nmax-body = "8MiB"\n')
    assert found.args.keys == tmp_path / "keys.json"
    assert (str(found.args.access_log), str(found.args.log)) == ("-", "/var/log/run")
    assert found.args.max_body == 8 << 20


def test_tenants(tmp_path):
    found = layers(
        tmp_path, "port = 1\n[tenants.acme]\nrate = 5\nmax-open = 3\nsheddable = false\n[tenants.default]\n"
    )
    assert found.tenants == {"acme": Tenant(rate=5.0, max_open=3, sheddable=False), "default": Tenant()}
    assert found.tenant_sources["acme"].endswith(":2")


@pytest.mark.parametrize(
    ("text", "environment", "said"),
    [
        ("prot = 8000", {}, "dovetail.toml:1: there is no setting 'prot'; did you mean 'port'?"),
        ("\n\nport = 99999", {}, "dovetail.toml:3: port = 99999: '99999' must be a port"),
        ('max-body = "5 apples"', {}, "dovetail.toml:1: max-body"),
        ("port = [1]", {}, "must be one value"),
        ('apps = "a:b"', {}, "must be a list"),
        ("trust-priority = 1", {}, "must be true or false"),
        ("port = true", {}, "must be a value"),
        ('kernels = "sometimes"', {}, "must be one of: auto, always, never"),
        ("[port]", {}, "not a table"),
        ("port = ", {}, "is not TOML"),
        ("[tenants.acme]\nweight = 1\nrate = 0", {}, "dovetail.toml:3: [tenants.acme] rate: Expected float > 0.0"),
        ("[tenants.acme]\nrat = 1", {}, "toml:2: [tenants.acme] there is no setting 'rat'; did you mean 'rate'?"),
        ('[tenants."a b"]', {}, "a tenant is called by"),
        ("tenants = 1", {}, "must be tables"),
        ("", {"DOVETAIL_PORT": "x"}, "DOVETAIL_PORT='x': 'x' must be a port"),
        ("", {"DOVETAIL_PROT": "1"}, "did you mean 'DOVETAIL_PORT'?"),
        ("", {"DOVETAIL_TRUST_PRIORITY": "maybe"}, "must be true or false"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, text, environment, said):
    with pytest.raises(DeclarationError) as error:
        layers(tmp_path, text, **environment)
    assert said in str(error.value)


def test_every_setting_can_be_given_in_all_three_ways(tmp_path):
    """A flag that the file cannot say would be one that a service cannot have."""
    values = layers(tmp_path).values
    assert len(values) > 30
    for dest, value in values.items():
        if dest == "target" or value.value is False or isinstance(value.value, list):
            continue
        name = dest.replace("_", "-")
        with pytest.raises(DeclarationError, match="must be a value"):
            layers(tmp_path, f"{name} = true")


def test_what_config_prints_is_a_file_for_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DOVETAIL_MAX_FAN_OUT", "77")
    path = tmp_path / "dovetail.toml"
    path.write_text('max-body = "8MiB"\n[tenants."a.b"]\nrate = 5\n')
    words = ["config", "--config", str(path), "examples.quickstart:app", "--port", "0", "--lead", "2ms"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f'max-body = "8MiB"  # {path}:1' in out
    assert 'max-fan-out = "77"  # DOVETAIL_MAX_FAN_OUT' in out
    assert 'port = "0"  # --port' in out and 'lead = "2ms"  # --lead' in out and "# memory is not set" in out
    again = tomllib.loads(out)
    assert again["tenants"]["a.b"]["rate"] == 5 and again["apps"] == ["examples.quickstart:app"]
    monkeypatch.delenv("DOVETAIL_MAX_FAN_OUT")
    path.write_text(out)
    assert main(["config", "--config", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["settings"]["max-body"]["value"] == "8MiB"
    assert told["settings"]["max-fan-out"]["source"].startswith(str(path))
    assert told["tenants"]["a.b"]["value"]["rate"] == 5


def test_nothing_to_serve_is_told(capfd, tmp_path):
    assert main(["serve"]) == 2
    assert "nothing to serve" in capfd.readouterr().err
    assert main(["serve", "--config", str(tmp_path / "none.toml")]) == 2
    assert "there is no file" in capfd.readouterr().err
