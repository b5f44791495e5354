"""What `dovetail serve` says when it is ready: for people on stderr, and one line of JSON for programs."""

from __future__ import annotations

import argparse
import json
import os

from ..serve.gate import is_loopback
from ..serve.launch import Served
from ..serve.voice import Voice
from ..tools.knowledge import outlook
from ..units import format_bytes
from ..workflow.app import App

__all__ = ["announce", "memory_lines"]


def announce(served: Served, app: App, args: argparse.Namespace, voice: Voice) -> None:
    """Say where it serves, what it may use, and what is not safe or cannot be met."""
    say = voice.say
    port = served.http.port
    if served.label:
        say(f"EMULATED device {served.label}: times are a GPU's, answers are held from the first input")
    if not is_loopback(args.host):
        lacks = [] if args.keys else ["anybody may ask: --keys"]
        lacks += [] if args.tls_cert else ["what is said can be read on the way: --tls-cert, or a proxy that has it"]
        for lack in lacks:
            say(f"WARNING: {args.host} can be reached from elsewhere, and {lack}")
    for line in memory_lines(served):
        say(line)
    controller = served.system.controller
    workers = [worker.spec for worker in controller.workers.values()]
    for line in outlook(app.graphs, workers, controller.policy.predictor):
        say(line)
    for name in app.workflows:
        say(f"ready at http{'s' if args.tls_cert else ''}://{args.host}:{port}/v2/models/{name}/infer")
    models = list(app.workflows)
    ready: dict[str, object] = {"ready": True, "host": args.host, "port": port, "pid": os.getpid(), "models": models}
    if served.grpc is not None:
        say(f"gRPC at {args.host}:{served.grpc.port}")
        ready["grpc_port"] = served.grpc.port
    voice.line(json.dumps({**ready, "device": served.device}))


def memory_lines(served: Served) -> list[str]:
    """What workers with a strict budget may use, and what they have measured."""
    system = served.system
    if not system.settings.strict:
        return []
    specs = {s.name: s for s in system.settings.workers}
    lines = []
    for spec in (w.spec for w in system.controller.workers.values() if not w.spec.on_host):
        budget, usable = format_bytes(specs[spec.name].memory_bytes), format_bytes(spec.memory_bytes)
        weighed = system.fleet.weighed.get(spec.kind, [])
        models = f"; all {len(weighed)} take {format_bytes(sum(w.nbytes for w in weighed))}" if weighed else ""
        lines.append(f"worker {spec.name} keeps within {budget}, of which {usable} for models{models}")
    return lines
