"""`dovetail keys add | list | revoke`: who may use a server, and for what. The server reads the file within a second.

A key is printed once, alone on stdout. The file has only its digest.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from ..errors import DeclarationError
from ..serve.keys import NAME, SCOPES, Key, add, read, revoke
from ..serve.voice import stamp
from ..units import parse_duration
from .flags import whole

__all__ = ["configure", "run"]

_DAYS = re.compile(r"([0-9]+)d")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="COMMAND")
    for name, summary in (
        ("add", "make a key, put its digest into the file, and print it"),
        ("list", "show the keys of a file"),
        ("revoke", "take a key out of a file"),
    ):
        sub = verbs.add_parser(name, help=summary, description=summary)
        sub.add_argument("--file", type=Path, required=True, metavar="FILE", help="the key file (serve --keys FILE)")
        if name == "list":
            sub.add_argument("--json", action="store_true", help="as JSON")
        elif name == "revoke":
            sub.add_argument("id", help="which one, as list shows it")
        else:
            _configure_add(sub)


def _configure_add(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--tenant", required=True, metavar="NAME", help="whose key it is")
    sub.add_argument(
        "--workflow", action="append", default=[], metavar="NAME", help="a workflow that it may use (default: all)"
    )
    sub.add_argument(
        "--class",
        dest="highest",
        type=whole(1, 10),
        default=0,
        metavar="N",
        help="highest class that it may claim, 1 is the highest of all (default: the workflow's own)",
    )
    sub.add_argument(
        "--scope",
        action="append",
        choices=SCOPES,
        help="infer (the default), observe: what the server measures, or admin",
    )
    sub.add_argument("--expires", type=_lifetime_s, default=0, metavar="TIME", help="such as 90d or 12h (never)")
    sub.add_argument("--note", default="", help="what it is for")


def _lifetime_s(text: str) -> int:
    if match := _DAYS.fullmatch(text):
        return int(match[1]) * 24 * 3600
    try:
        return max(1, parse_duration(text, "--expires") // 1_000_000_000)
    except DeclarationError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(args: argparse.Namespace) -> int:
    """Add, list or revoke."""
    if args.what == "add":
        return _add(args)
    if args.what == "revoke":
        gone = revoke(args.file, args.id)
        print(f"key {gone.id} of tenant {gone.tenant} is good for nothing any more", file=sys.stderr)
        return 0
    keys = [{k: v for k, v in msgspec.to_builtins(key).items() if k != "digest"} for key in read(args.file)]
    if args.json:
        print(json.dumps(keys, indent=2))
        return 0
    table = Table("id", "tenant", "workflows", "highest class", "scopes", "expires", "note", box=None)
    for key in read(args.file):
        highest = str(key.highest_class) if key.highest_class else "the workflow's"
        ends = stamp(key.expires_unix_s)[:10] if key.expires_unix_s else "never"
        table.add_row(
            key.id, key.tenant, ", ".join(key.workflows) or "all", highest, ", ".join(key.scopes), ends, key.note
        )
    Console().print(table)
    return 0


def _add(args: argparse.Namespace) -> int:
    if not re.fullmatch(NAME, args.tenant):
        raise DeclarationError(f"a tenant is called by letters, digits, '.', '_' and '-', up to 64: {args.tenant!r}")
    now = int(time.time())
    wanted = Key(
        "",
        "",
        args.tenant,
        tuple(args.workflow),
        args.highest,
        tuple(dict.fromkeys(args.scope or ["infer"])),
        now + args.expires if args.expires else 0,
        now,
        args.note[:256],
    )
    entry, text = add(args.file, wanted)
    print(text)
    print(f"key {entry.id} of tenant {entry.tenant}; this is the only time it is shown", file=sys.stderr)
    return 0
