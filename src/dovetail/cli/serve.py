"""`dovetail serve app:wf`: HTTP on loopback until SIGTERM or Ctrl-C, then drain."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from ..serve.launch import Options, launch
from ..wiring import POLICIES, PolicySpec
from ..workflow import load_target

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("target", help="module:attribute of an App or a workflow, such as examples.quickstart:app")
    parser.add_argument("--port", type=int, default=8000, help="HTTP port; 0 takes a free one (default: 8000)")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to (default: loopback only)")
    parser.add_argument("--device", default="cpu", help="cpu, cpu:N, or emulated:KIND[xN] such as emulated:v100x4")
    parser.add_argument("--hosts", type=int, default=1, help="processes for Python stages (default: 1)")
    parser.add_argument("--policy", default="by-class", choices=list(POLICIES), help="default: by-class")
    parser.add_argument("--share", type=int, default=100, metavar="PCT", help="share of the device for each batch")
    parser.add_argument("--max-open", type=int, default=1000, help="open requests before new ones are shed")
    parser.add_argument("--log", type=Path, metavar="FILE", help="record the run for replay and explain")
    parser.add_argument("--drain", type=float, default=30.0, metavar="S", help="seconds to finish what was admitted")


def say(text: str) -> None:
    """A line for the operator."""
    print(text, file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    return asyncio.run(_serve(args))


async def _serve(args: argparse.Namespace) -> int:
    app = load_target(args.target)
    options = Options(
        device=args.device,
        host=args.host,
        port=args.port,
        hosts=args.hosts,
        policy=PolicySpec(args.policy, share_pct=args.share, max_open=args.max_open),
        log=args.log,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    say(f"dovetail: loading {args.target} on {args.device} ...")
    served = await launch(app, args.target, options, say=say)
    if served.label:
        say(f"dovetail: EMULATED device {served.label}: times are a GPU's, answers are held from the first input")
    for name in app.workflows:
        say(f"dovetail: ready at http://{args.host}:{served.http.port}/v2/models/{name}/infer")
    with contextlib.suppress(asyncio.CancelledError):
        await stop.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    open_requests = len(served.system.controller.requests)
    say(f"dovetail: draining {open_requests} open request(s), up to {args.drain:g} s; once more to stop at once")
    clean = await served.stop(args.drain)
    say("dovetail: stopped" if clean else "dovetail: stopped with requests unanswered")
    return 0 if clean else 1
