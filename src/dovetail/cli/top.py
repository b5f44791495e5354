"""`dovetail top`: what a server does, live, in the terminal: the dashboard's figures without a browser.

It reads the same stream (`/dashboard/events`). With `--once`, or where there is no terminal, it prints one picture
and ends. Exit code 0: ended when told to. 2: there is no such server, or it went away.
"""

from __future__ import annotations

import argparse
import http.client
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import msgspec
from rich.console import Console
from rich.live import Live

from ..errors import DovetailError
from ..record.sight import Banner, Tick
from ..tools.topview import render
from .flags import seconds
from .load import address, pair
from .reading import print_json

__all__ = ["configure", "run"]

#: A server that says nothing for so long is gone: it ticks twice a second.
SILENCE_SECONDS = 15.0
#: Of one event.
MOST_BYTES = 16 << 20
#: Width of a picture that goes into a file or a pipe.
FILE_WIDTH = 120


class _First(msgspec.Struct):
    banner: Banner


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    watch = seconds(0, 3600, "from 0 to 3600 seconds")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="server (default: http://127.0.0.1:8000)")
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="a header to send")
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    parser.add_argument("--after", type=watch, default=2.0, metavar="S", help="look on for so long before that (2)")
    parser.add_argument("--json", action="store_true", help="print one tick as JSON and end")


def run(args: argparse.Namespace) -> int:
    """Show it until told to stop."""
    host, port = address(args.url)
    headers = dict(pair(text, ":", "--header") for text in args.header)
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    once = args.once or args.json or not console.is_terminal
    banner: Banner | None = None
    tick: Tick | None = None
    begin_s = time.monotonic()
    with nullcontext() if once else Live(console=console, screen=True, auto_refresh=False) as live:
        for kind, data in events(host, port, headers):
            if kind == "banner":
                banner = msgspec.json.decode(data, type=_First).banner
            elif kind == "gone":
                raise DovetailError(f"the server has nothing to show: {msgspec.json.decode(data)}; try again")
            elif kind == "tick" and banner is not None:
                tick = msgspec.json.decode(data, type=Tick)
                if live is not None:
                    live.update(render(banner, tick, console.height), refresh=True)
                elif time.monotonic() - begin_s >= args.after:
                    break
    if tick is None or banner is None:
        raise DovetailError(f"http://{host}:{port} shows nothing")
    if args.json:
        print_json(tick)
    elif once:
        console.print(render(banner, tick, 0))
    else:
        raise DovetailError(f"http://{host}:{port} went away")
    return 0


def events(host: str, port: int, headers: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Server-sent events: name and data, until the server ends them."""
    connection = http.client.HTTPConnection(host, port, timeout=SILENCE_SECONDS)
    try:
        connection.request("GET", "/dashboard/events", headers=dict(headers))
        answer = connection.getresponse()
        if answer.status != 200:
            why = answer.read(1 << 16).decode(errors="replace")
            raise DovetailError(f"http://{host}:{port}/dashboard/events answers {answer.status}: {why}")
        kind, data = "", b""
        while line := answer.readline(MOST_BYTES):
            name, _, value = line.rstrip(b"\r\n").partition(b": ")
            if name == b"event":
                kind = value.decode()
            elif name == b"data":
                data = value
            elif not name and kind:
                yield kind, data
                kind, data = "", b""
    except (OSError, http.client.HTTPException) as error:
        raise DovetailError(f"no answer from http://{host}:{port}: {error}") from None
    finally:
        connection.close()
