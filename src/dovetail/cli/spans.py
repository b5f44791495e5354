"""`dovetail spans LOG`: what a log says as spans of OpenTelemetry, to stdout or to a collector.

Without `--otlp` each line of stdout is an ExportTraceServiceRequest in JSON. With it they go to the collector's
`/v1/traces`. Exit code 1: the collector did not take them.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import DeclarationError
from ..record.log import LogReader
from ..tools.spans import Span, Spans, document

__all__ = ["configure", "run"]

#: Spans of one message.
AT_ONCE = 512
#: How often a collector that does not answer is tried, and the wait before each time.
WAITS_SECONDS = (0.0, 0.5, 2.0)
#: How often a log that is being written is looked at.
FOLLOW_SECONDS = 0.5


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("log", type=Path, help="what serve or simulate has written with --log")
    parser.add_argument(
        "--otlp", type=_url, metavar="URL", help="a collector's address, such as http://127.0.0.1:4318"
    )
    parser.add_argument("--follow", action="store_true", help="wait for what is added to the log, until Ctrl-C")


def _url(text: str) -> str:
    if urllib.parse.urlsplit(text).scheme not in ("http", "https"):
        raise argparse.ArgumentTypeError(f"{text!r} must be an http or https address")
    return text.rstrip("/") + ("" if text.rstrip("/").endswith("/v1/traces") else "/v1/traces")


def run(args: argparse.Namespace) -> int:
    """Read, and hand on."""
    count = 0
    try:
        with LogReader(args.log) as log:
            for spans in _pieces(log, args.follow):
                count += len(spans)
                body = msgspec.json.encode(document(spans, [("dovetail.log", args.log.name)]))
                if args.otlp is None:
                    print(body.decode(), flush=True)
                else:
                    _send(args.otlp, body)
    except KeyboardInterrupt:
        pass  # who follows a log ends it so
    except OSError as error:
        print(f"dovetail spans: {args.otlp} did not take the spans: {error}", file=sys.stderr)
        return 1
    print(f"dovetail spans: {count} spans", file=sys.stderr)
    return 0


def _pieces(log: LogReader, follow: bool) -> Iterator[list[Span]]:
    spans = Spans(log.header)
    ended: list[Span] = []
    while True:
        for step in log:
            ended += spans.take(step)
            if len(ended) >= AT_ONCE:
                yield ended
                ended = []
        if ended:
            yield ended
            ended = []
        if not follow:
            return
        time.sleep(FOLLOW_SECONDS)
        log.go_on()


def _send(url: str, body: bytes) -> None:
    for attempt, wait_s in enumerate(WAITS_SECONDS, 1):
        time.sleep(wait_s)
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                answer.read()
            return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code not in (429, 502, 503, 504):
                raise DeclarationError(f"{url} refused the spans with status {error.code}") from None
            if attempt == len(WAITS_SECONDS):
                raise
        except OSError:
            if attempt == len(WAITS_SECONDS):
                raise
