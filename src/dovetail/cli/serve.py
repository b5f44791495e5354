"""`dovetail serve app:wf`: HTTP on loopback until SIGTERM or Ctrl-C, then drain.

Everything goes to stderr, with the time before it. One line is for programs, and comes when every model is loaded:

    {"ready": true, "host": "127.0.0.1", "port": 8000, "pid": 4242, "models": ["document"], "device": "cpu"}

Exit code 0: stopped when told, and everything that was admitted has been answered. 1: some requests were given up, or
the server broke. 2: it could not start.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import signal
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ..errors import DeclarationError, DovetailError
from ..profile.machine import this_machine
from ..schedule import Goal
from ..serve.launch import Options, launch
from ..serve.operate import Operation, Wanted, forget_modules
from ..serve.tenants import Tenant
from ..serve.voice import LogToVoice, Voice, keep_standard_descriptors
from ..state.worker import FULL_SHARE
from ..units import US
from ..wiring import POLICIES, PolicySpec, find_policy
from ..workflow.app import App, load_target
from .announce import announce
from .flags import ANY_SECONDS as _SECONDS
from .flags import SIZE as _SIZE
from .flags import TIME_NS as _TIME_NS
from .flags import bounds, given, refuse, whole
from .flags import patience as _patience
from .flags import port as _port
from .flags import some_bytes as _some_bytes
from .layers import Layered, add_config, effective
from .stores import add_store, chosen_store

__all__ = ["configure", "run"]

#: How long before the end of a batch the next is sent, unless told otherwise.
LEAD_US = 1000
ARENA_BYTES = 1 << 30
#: Objects of a kind that can refer to each other in circles, made and not freed, after which the collector looks.
COLLECT_AFTER = 10_000
#: Processes for Python stages [our choice]: each takes some 50 MB and a start.
MOST_HOSTS = 64


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    others = ", ".join(name for name in POLICIES if name != "dovetail")
    parser.add_argument(
        "target",
        nargs="*",
        help="module:attribute of an App or a workflow, such as examples.quickstart:app; or several",
    )
    add_config(parser)
    parser.add_argument("--port", type=_port, default=8000, help="HTTP port; 0 takes a free one (default: 8000)")
    parser.add_argument(
        "--grpc-port",
        type=_port,
        metavar="PORT",
        help="serve gRPC there, too; 0 takes a free one (needs dovetail[grpc])",
    )
    parser.add_argument(
        "--shared-memory", action="store_true", help="let clients of this machine put tensors into shared memory"
    )
    parser.add_argument(
        "--serve-stages", action="store_true", help="let clients call models by the names of their stages, too"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to bind to (default: loopback only)")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name in Host to answer to; '*' is any"
    )
    parser.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL", help="a site whose pages may ask; '*' is any"
    )
    parser.add_argument(
        "--trust-priority", action="store_true", help="let clients elsewhere claim a higher class than a workflow's"
    )
    parser.add_argument(
        "--keys", type=Path, metavar="FILE", help="keys that clients need (dovetail keys); read anew when it changes"
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate, for HTTPS")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, if that is in a file of its own")
    parser.add_argument("--device", help="cpu (the default), cpu:N, or emulated:KIND[xN] such as emulated:v100x4")
    parser.add_argument("--hosts", type=whole(1, MOST_HOSTS), metavar="N", help="processes for Python stages (1)")
    parser.add_argument(
        "--workers",
        type=bounds,
        metavar="N[..M]",
        help="processes for models on the cores (1); 1..3: as many of these as the load asks for; 0..3: and none if "
        "nothing comes (docs/scale.md)",
    )
    parser.add_argument(
        "--slices",
        action="store_true",
        help="every stage has a slice of the workers, which follows the load: its quota, then its share, then its "
        "workers; without, stages share workers freely (docs/scale.md)",
    )
    parser.add_argument(
        "--zero-after",
        type=whole(1, 86400),
        metavar="S",
        help="seconds without a request until a stage has no slice, and with --workers 0..M no worker (60)",
    )
    parser.add_argument(
        "--spare-workers", type=whole(0, 8), metavar="N", help="with --workers 0..3: started ahead (1)"
    )
    parser.add_argument("--dry-run", action="store_true", help="the scaler only says what it would do")
    parser.add_argument(
        "--kernels",
        choices=("auto", "always", "never"),
        help="run models kernel by kernel, so that a higher class waits for no whole batch of a lower: where that "
        "could happen and costs little (auto, the default), always, or never",
    )
    parser.add_argument(
        "--kernel-log", type=Path, metavar="FILE", help="write the kernels that ran, for dovetail trace --log"
    )
    parser.add_argument(
        "--weights",
        choices=("shared", "own"),
        help="all workers map one copy of each model's weights (shared, the default), or each has its own",
    )
    parser.add_argument(
        "--ageing",
        type=_TIME_NS,
        metavar="TIME",
        help="a lower class that has waited so long gets a kernel, one per TIME (default: never)",
    )
    parser.add_argument(
        "--quotas",
        choices=("conserving", "strict"),
        help="what a declared quota is: what is had before the excess of others (conserving, the default), or all "
        "that is ever had (strict) (docs/sharing.md)",
    )
    parser.add_argument(
        "--memory",
        type=_SIZE,
        metavar="SIZE",
        help="what each device may use for models and for running them; models come and go then (docs/memory.md)",
    )
    parser.add_argument("--policy", default="dovetail", metavar="NAME", help=f"dovetail if not given; or {others}")
    parser.add_argument("--share", type=int, metavar="PCT", help="share of the device for each batch (default: 100)")
    parser.add_argument(
        "--max-batch", type=whole(1), metavar="N", help="largest batch of any stage, if less than declared"
    )
    parser.add_argument(
        "--lead",
        type=_TIME_NS,
        metavar="TIME",
        help="how long before the end of a batch the next is sent to its worker (default: 1ms; 0 waits for the end)",
    )
    parser.add_argument("--max-open", type=whole(1), default=1000, metavar="N", help="requests open before 429")
    parser.add_argument("--max-body", type=_some_bytes, metavar="SIZE", help="largest body (64MiB)")
    parser.add_argument(
        "--max-fan-out", type=whole(1), default=1024, metavar="N", help="items of a request at one stage (1024)"
    )
    parser.add_argument("--arena", type=_SIZE, metavar="SIZE", help="memory per worker (1GiB)")
    shared = parser.add_mutually_exclusive_group()
    shared.add_argument(
        "--share-workers",
        type=Path,
        metavar="DIR",
        help="let other servers of this machine use the workers of this one, with --join DIR",
    )
    shared.add_argument(
        "--join",
        type=Path,
        metavar="DIR",
        help="serve the same application with the workers of the server that shares them at DIR",
    )
    add_store(parser)
    parser.add_argument("--log", type=Path, metavar="FILE", help="record the run for replay and explain")
    parser.add_argument(
        "--access-log", type=Path, metavar="FILE", help="add a line of JSON for each answer; '-' is stderr"
    )
    parser.add_argument("--no-dashboard", action="store_true", help="nobody may watch at /dashboard")
    parser.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="lines on stderr as text, or as JSON"
    )
    parser.add_argument(
        "--drain", type=_SECONDS, default=30.0, metavar="S", help="seconds to finish what was admitted"
    )
    parser.add_argument(
        "--hang", type=_patience, default=30.0, metavar="S", help="kill a worker whose batch takes longer than this"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    keep_standard_descriptors()
    layered = effective(configure, args.words)
    voice = Voice(as_json=layered.args.log_format == "json")
    handler = LogToVoice(partial(voice.say, level="warning"))
    logging.getLogger().addHandler(handler)
    try:
        return asyncio.run(_serve(layered, args.words, voice))
    finally:
        logging.getLogger().removeHandler(handler)
        voice.close()


def _load(target: str) -> App:
    """The application; whatever its module raises is the user's to see, and ends the start."""
    try:
        return load_target(target)
    except DovetailError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise DeclarationError(f"{target} cannot be loaded: {type(error).__name__}: {error}") from error


#: Flag -> the setting of a policy that it gives.
_SETTINGS = {"--share": "share_pct", "--max-batch": "batch", "--lead": "lead_us"}


def _check_flags(args: argparse.Namespace) -> None:
    """A flag that the policy or the device does not look at is refused."""
    reads = find_policy(args.policy).reads
    for flag, setting in _SETTINGS.items():
        if setting not in reads:
            able = ", ".join(name for name, entry in POLICIES.items() if setting in entry.reads)
            refuse(args, flag, because=f"the policy {args.policy!r} does not look at it; these do: {able}")
    if (args.device or "").startswith("emulated:"):
        because = "an emulated device does not look at it; leave it out, or serve with --device cpu"
        refuse(args, "--kernel-log", "--ageing", because=because)


def _policy(args: argparse.Namespace, app: App) -> PolicySpec:
    """The policy that the flags describe."""
    batch = {s.name: min(args.max_batch, s.batch[-1]) for s in app.specs} if args.max_batch else {}
    share_pct = FULL_SHARE if args.share is None else args.share
    # Devices are there whether they are used or not.
    goal: Goal = "time" if "goal" in find_policy(args.policy).reads else "cost"
    return PolicySpec(args.policy, share_pct=share_pct, batch=batch, max_open=args.max_open, goal=goal)


#: Flag -> why it is for the server to give that starts the workers, and for none that joins.
_FIRST_ONLY = {
    "--device": "devices have workers already",
    "--workers": "there are as many as the first server has started",
    "--slices": "no server may slice what others use",
    "--memory": "workers have been given their memory",
    "--arena": "workers have been given their memory, and every server has as much",
    "--kernels": "workers have been told how to run models",
    "--kernel-log": "workers write one log, for all servers",
    "--ageing": "workers count by one rule, for all servers",
    "--quotas": "workers keep quotas by one rule, for all servers",
    "--weights": "workers have their models",
}


def _check_join(args: argparse.Namespace) -> None:
    """What was decided by the server that started the workers cannot be decided again."""
    for flag, why in _FIRST_ONLY.items():
        if args.join is not None and given(args, flag):
            raise DeclarationError(
                f"{flag} is not for a server that joins another: {why}; leave it out here, or give it to the server "
                f"that was started with --share-workers {args.join}"
            )


class _Prepared(NamedTuple):
    """What is to be served, and how."""

    args: argparse.Namespace
    app: App
    options: Options


def _prepare(layered: Layered) -> _Prepared:
    """Read and check everything that can be before anything is started."""
    args = layered.args
    args.target = ",".join(args.target or [])
    if not args.target:
        raise DeclarationError(
            "nothing to serve: name module:attribute, such as examples.quickstart:app, or set apps"
        )
    _check_flags(args)
    _check_join(args)
    app = _load(args.target)
    if not any(spec.on_host for spec in app.specs):
        refuse(args, "--hosts", because=f"{args.target} has no Python stage; leave it out")
    return _Prepared(args, app, _options(args, app, layered.tenants))


def _options(args: argparse.Namespace, app: App, tenants: dict[str, Tenant]) -> Options:
    least, most = args.workers or (1, 1)
    if args.zero_after and not (args.slices or least < most):
        raise DeclarationError("--zero-after is for what the scaler takes away; add --slices or --workers 0..1")
    if args.spare_workers is not None and least == most:
        raise DeclarationError("--spare-workers wait until the load asks for more; add --workers 1..2")
    return Options(
        device=args.device or "cpu",
        host=args.host,
        allow_hosts=tuple(args.allow_host),
        allow_origins=tuple(args.allow_origin),
        trust_priority=True if args.trust_priority else None,
        keys=args.keys,
        tenants=tenants,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        port=args.port,
        grpc_port=args.grpc_port,
        shared_memory=args.shared_memory,
        serve_stages=args.serve_stages,
        hosts=args.hosts or 1,
        workers=least,
        most_workers=most if most > least else None,
        spare_workers=1 if args.spare_workers is None else args.spare_workers,
        slices=args.slices,
        dry_run=args.dry_run,
        zero_s=args.zero_after or 60,
        kernels=args.kernels or "auto",
        kernel_log=args.kernel_log,
        ageing_ns=args.ageing or 0,
        quotas=args.quotas or "conserving",
        weights=args.weights or "shared",
        memory_bytes=args.memory,
        policy=_policy(args, app),
        lead_us=LEAD_US if args.lead is None else args.lead // US,
        log=args.log,
        dashboard=not args.no_dashboard,
        access_log=args.access_log,
        arena_bytes=args.arena or ARENA_BYTES,
        max_body_bytes=args.max_body,
        max_fan_out=args.max_fan_out,
        hang_s=args.hang,
        share_workers=args.share_workers,
        join=args.join,
    )


async def _serve(layered: Layered, words: Sequence[str], voice: Voice) -> int:
    say = voice.say
    args, app, options = _prepare(layered)
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    # The end of the terminal is no reason to stop.
    loop.add_signal_handler(signal.SIGHUP, lambda: say("SIGHUP before it was ready: everything is being read"))
    where = f"on {options.device}" if args.join is None else f"with the workers at {args.join}"
    say(f"loading {args.target} {where} ...")
    store = chosen_store(args, say)
    entries = store.entries(app.specs, this_machine())
    starting = asyncio.ensure_future(launch(app, args.target, options, entries=entries, store=store, say=say))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        say("stopped before it was ready")
        return 1
    served = starting.result()

    def read_anew() -> Wanted:
        forget_modules(args.target)
        again = _prepare(effective(configure, words))
        known = store.entries(again.app.specs, this_machine())
        return Wanted(again.app, again.args.target, again.options, known)

    operation = Operation(served, Wanted(app, args.target, options, entries), store, say, args.drain)
    for number, anyway in ((signal.SIGHUP, False), (signal.SIGUSR2, True)):
        loop.add_signal_handler(number, operation.reload_soon, read_anew, anyway)
    announce(served, app, args, voice)
    # What was loaded stays: keep the collector from walking it every time. Of requests nothing is left that it would
    # find, and at Python's own threshold it takes 2 to 3 % of the front's time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    while not stop.is_set() and not served.system.fault.done():
        changed = asyncio.ensure_future(operation.changed.wait())
        await asyncio.wait((stopping, served.system.fault, changed), return_when=asyncio.FIRST_COMPLETED)
        changed.cancel()
        operation.changed.clear()
    if stop.is_set():
        count = len(served.system.controller.requests)
        say(f"draining {count} open request(s), up to {args.drain:g} s; once more to stop at once")
    stopping.cancel()
    await operation.close()
    clean = await served.stop(args.drain, hurry)
    say("stopped" if clean else "stopped; some requests were not answered")
    return 0 if clean else 1
