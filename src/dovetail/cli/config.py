"""`dovetail config`: the settings that `dovetail serve` would have, and where each of them comes from.

What is printed is a file for `--config`. Settings that nobody gave and that have no default are comments.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec

from . import serve
from .layers import Layered, effective

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb: those of `serve`."""
    serve.configure(parser)
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace) -> int:
    """Print what holds."""
    found = effective(configure, args.words)
    if args.json:
        settings = {name: {"value": _plain(v.text), "source": v.source} for name, v in _named(found)}
        tenants = {
            name: {"value": msgspec.to_builtins(tenant), "source": found.tenant_sources[name]}
            for name, tenant in found.tenants.items()
        }
        print(json.dumps({"settings": settings, "tenants": tenants}, indent=2))
        return 0
    for name, value in _named(found):
        text = _toml(value.text)
        print(f"{name} = {text}  # {value.source}" if text else f"# {name} is not set")
    for name, tenant in found.tenants.items():
        print(f"\n[tenants.{_key(name)}]  # {found.tenant_sources[name]}")
        for key, value in msgspec.to_builtins(tenant).items():
            if value is not None:
                print(f"{key} = {_toml(value)}")
    return 0


def _named(found: Layered) -> list[tuple[str, Any]]:
    return sorted(("apps" if dest == "target" else dest.replace("_", "-"), v) for dest, v in found.values.items())


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else [_plain(v) for v in value] if isinstance(value, list) else value


def _toml(value: Any) -> str:
    """As it is written in a file; empty if it cannot be."""
    return "" if value is None else json.dumps(_plain(value))


def _key(name: str) -> str:
    return name if "." not in name else f'"{name}"'
