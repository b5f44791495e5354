"""Put a live system together: application, device, policy, log, HTTP. Used by `serve`, the demo and the tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from ..control import Action, Event
from ..control.log import LogWriter, make_header
from ..live.devices import parse_device
from ..live.system import LiveSystem, Settings
from ..profile.table import Entry
from ..wiring import PolicySpec, make_controller
from ..workflow import App
from .adapter import LiveBackend
from .http import HttpServer
from .oip import start

__all__ = ["Options", "Served", "launch"]


class Options(msgspec.Struct, frozen=True):
    """How an application is served."""

    device: str = "cpu"
    host: str = "127.0.0.1"
    #: 0 takes any free port.
    port: int = 8000
    #: Processes for ordinary Python stages.
    hosts: int = 1
    policy: PolicySpec = PolicySpec()
    log: Path | None = None
    arena_bytes: int = 1 << 30
    seed: int = 1


class Served(msgspec.Struct):
    """A running server."""

    system: LiveSystem
    http: HttpServer
    label: str

    async def stop(self, drain_s: float = 30.0) -> bool:
        """Take nothing new, answer what was admitted, and end; False if some could not be answered in time."""
        # The system first: while it drains, requests on open connections are refused with a reason.
        clean = await self.system.drain(drain_s)
        await self.http.drain()
        await self.system.close()
        return clean


async def launch(
    app: App,
    target: str,
    options: Options,
    *,
    entries: Sequence[Entry] = (),
    say: Callable[[str], None] = lambda _: None,
    observers: Sequence[Callable[[Event, list[Action]], None]] = (),
) -> Served:
    """Start workers and HTTP for an application; returns when every stage is loaded."""
    workers, device_entries, cores = parse_device(options.device, app.specs, options.hosts)
    known = (*entries, *device_entries)
    controller = make_controller(app.graphs, options.policy, known, cores)
    log = None
    if options.log is not None:
        policy = msgspec.msgpack.encode(options.policy)
        header = make_header(
            "live", app.graphs, policy, known, cores, seed=options.seed, started_unix_ns=time.time_ns()
        )
        log = LogWriter(options.log, header)
    settings = Settings(target, app.graphs, workers, known, options.arena_bytes, options.seed)
    system = LiveSystem(settings, controller, log=log, say=say, observers=observers)
    label = options.device if options.device.startswith("emulated:") else ""
    try:
        await system.start()
        http = await start(LiveBackend(system, label=label), options.host, options.port)
    except BaseException:
        await system.close()
        raise
    return Served(system, http, label)
