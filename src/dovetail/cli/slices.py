"""`dovetail slices [CLIENT --quota 40]`: what clients have of the devices of a running server, and how to change it.

Exit code 0: it is so. 2: the server cannot be reached, or refuses.
"""

from __future__ import annotations

import argparse
import http.client
import json
from typing import Any
from urllib.parse import quote, urlsplit

from ..errors import DovetailError
from ..tools.table import results_console
from .flags import whole
from .reading import new_table, print_json, printable

__all__ = ["configure", "run"]

TIMEOUT_SECONDS = 10.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("client", nargs="?", metavar="CLIENT", help="whose slice is to change; without: list all")
    parser.add_argument("--share", type=whole(1, 100), metavar="PERCENT", help="of the device while it runs")
    parser.add_argument("--quota", type=whole(1, 100), metavar="PERCENT", help="of the time")
    parser.add_argument("--worker", metavar="NAME", help="move it to this worker, or with '' to any")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of the server (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def run(args: argparse.Namespace) -> int:
    """Ask the server; the exit code."""
    wanted = {name: value for name in ("share", "quota", "worker") if (value := getattr(args, name)) is not None}
    if wanted and args.client is None:
        raise DovetailError(f"--{next(iter(wanted))} of which client? Write: dovetail slices CLIENT ...")
    if wanted:
        found = [_ask(args.url, "POST", f"/v2/slices/{quote(args.client, safe='')}", wanted)]
    else:
        found = [s for s in _ask(args.url, "GET", "/v2/slices")["slices"] if args.client in (None, s["client"])]
        if args.client is not None and not found:
            raise DovetailError(f"client {args.client!r} has no slice; dovetail slices lists those that have")
    if args.json:
        print_json(found)
        return 0
    table = new_table("client", ">share %", ">quota %", "worker")
    for piece in found:
        sizes = (str(piece["share_pct"]), str(piece["quota_pct"]))
        table.add_row(printable(piece["client"]), *sizes, printable(piece["worker"]) or "any")
    results_console().print(table)
    return 0


def _ask(url: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    where = urlsplit(url)
    if where.scheme != "http" or not where.hostname:
        raise DovetailError(f"{url!r} is no address of a server; write http://127.0.0.1:8000")
    connection = http.client.HTTPConnection(where.hostname, where.port or 80, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        said = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DovetailError(f"no Dovetail server answers at {url}: {error}; start one, or give --url") from error
    finally:
        connection.close()
    if response.status != 200:
        raise DovetailError(str(said.get("error", f"the server answers {response.status}")))
    answer: dict[str, Any] = said
    return answer
