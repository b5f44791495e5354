"""A server that runs is told to read everything anew: keys, limits, certificates, logs and workflows.

Rules of this file
- No request is dropped. What is read is checked before anything is changed; if it is not sound, that is said and all
  stays as it was.
- Keys, tenants, names and certificates change in place. Other workflows, or settings that workers or the scheduler
  are started with, need other workers: these are started beside the old ones, new requests go to them once all stages
  can run, and the old ones end when what they have begun is answered. For that time there are twice as many.
- A change of the key file is noticed within a second, so that a key that was revoked is soon good for nothing.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from ..errors import DeclarationError, DovetailError
from ..live.front.stores import TimesStore
from ..live.front.system import LiveSystem
from ..profile.store import ProfileStore
from ..profile.table import Entry
from ..workflow.app import App
from .access_log import AccessLog
from .gate import is_loopback
from .keys import Keys
from .keys import read as read_keys
from .launch import Options, Served, limits_of, start_system
from .preparing import prepare
from .tenants import Tenants
from .tls import load_certificate

__all__ = ["Operation", "Wanted", "forget_modules"]

#: How often the key file is looked at.
LOOK_SECONDS = 1.0
#: What cannot be changed while the server runs.
_FIXED = {
    "host": "--host",
    "port": "--port",
    "grpc_port": "--grpc-port",
    "shared_memory": "--shared-memory",
    "share_workers": "--share-workers",
    "join": "--join",
}
#: What changes in place; everything else needs other workers.
_IN_PLACE = {
    "allow_hosts", "allow_origins", "trust_priority", "keys", "tenants", "tls_cert", "tls_key", "access_log",
    "max_body_bytes",
}  # fmt: skip


class Wanted(NamedTuple):
    """What is to be served."""

    app: App
    target: str
    options: Options
    entries: Sequence[Entry]


class Operation:
    """Changes a server while it runs, one change at a time."""

    def __init__(
        self, served: Served, present: Wanted, store: ProfileStore, say: Callable[[str], None], drain_s: float
    ) -> None:
        self._served = served
        self._present = present
        self._store = store
        self._say = say
        self._drain_s = drain_s
        #: Set whenever another system has taken over.
        self.changed = asyncio.Event()
        self._busy = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen = self._keys_stamp()
        self._expiry = self._next_expiry()
        self._begin(self._watch_keys())

    def reload_soon(self, read: Callable[[], Wanted], anyway: bool = False) -> None:
        """Reload as soon as a change that is under way is through."""
        self._begin(self.reload(read, anyway))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self, read: Callable[[], Wanted], anyway: bool = False) -> None:
        """Read anew and change what has changed; with `anyway` the workers, too, though nothing else asks for it."""
        async with self._busy:
            try:
                wanted = await asyncio.to_thread(read)  # importing an application takes its time
                keys = self._check(wanted)
                if anyway or self._needs_workers(wanted):
                    await self._exchange(wanted)
                self._apply(wanted, keys)
            except Exception as error:
                what = str(error) if isinstance(error, DovetailError) else f"{type(error).__name__}: {error}"
                self._say(f"WARNING: nothing was reloaded: {what}")
                return
            self._present = wanted
            self._say(f"reloaded; serving {', '.join(wanted.app.workflows)}")

    async def close(self) -> None:
        """End what is under way; systems that were taken over from are closed at once."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _check(self, wanted: Wanted) -> Keys | None:
        """Raises if something of it cannot be; the keys that are to hold."""
        present, options = self._present.options, wanted.options
        for field, flag in _FIXED.items():
            if getattr(options, field) != getattr(present, field):
                raise DeclarationError(f"{flag} cannot change while the server runs; start it again for that")
        if (options.tls_cert is None) is not (present.tls_cert is None):
            raise DeclarationError("--tls-cert cannot come or go while the server runs; start it again for that")
        if (options.share_workers or options.join) and self._needs_workers(wanted):
            raise DeclarationError("workers that several servers share cannot be exchanged; start the servers again")
        return None if options.keys is None else read_keys(options.keys)

    def _needs_workers(self, wanted: Wanted) -> bool:
        before, after = self._present, wanted
        if before.target != after.target or before.app.graphs != after.app.graphs:
            return True
        fields = [f for f in Options.__struct_fields__ if f not in _IN_PLACE]
        return any(getattr(before.options, f) != getattr(after.options, f) for f in fields)

    def _apply(self, wanted: Wanted, keys: Keys | None) -> None:
        """What changes in place."""
        options, served = wanted.options, self._served
        http, backend = served.http, served.backend
        if http.tls is not None and options.tls_cert is not None:
            load_certificate(http.tls, options.tls_cert, options.tls_key)
            if served.grpc is not None:
                served.grpc.renew(options.tls_cert, options.tls_key)
        access_log = None if options.access_log is None else AccessLog(options.access_log)
        if http.access_log is not None:  # it may have been rotated away
            asyncio.get_running_loop().run_in_executor(None, http.access_log.close)
        http.access_log = access_log
        http.limits = limits_of(options, served.system.settings.arena_bytes)
        http.gate.allow(options.host, options.allow_hosts, options.allow_origins)
        trusts = options.trust_priority
        backend.trust_priority = is_loopback(options.host) if trusts is None else trusts
        self._take_keys(keys, options)

    def _take_keys(self, keys: Keys | None, options: Options) -> None:
        served = self._served
        served.http.gate.access.keys = keys
        known = [] if keys is None else [key.tenant for key in keys]
        if served.backend.tenants is not None:
            served.backend.tenants.declare(options.tenants, known)
        elif options.tenants or known:
            served.backend.tenants = Tenants(options.tenants, known)
        served.http.heads.forget()
        self._seen, self._expiry = self._keys_stamp(), self._next_expiry()

    async def _exchange(self, wanted: Wanted) -> None:
        served, options = self._served, wanted.options
        self._say(f"loading {wanted.target} beside what runs ...")
        serves, share = prepare(wanted.app, options)
        began = await start_system(
            wanted.app, wanted.target, options, serves, share, wanted.entries, self._store, self._say
        )
        old, old_times = served.system, served.times
        began.system.ledger.go_on(old.ledger)
        served.backend.switch(began.system, began.label)
        served.http.application.renew()
        served.system, served.times = began.system, began.times
        served.device, served.label = began.device, began.label
        if served.watch is not None:
            await served.watch.switch(began.system, began.banner, began.header)
        self.changed.set()
        self._begin(self._retire(old, old_times))

    async def _retire(self, system: LiveSystem, times: TimesStore | None) -> None:
        """End a system once what it has begun is answered, be it that only its body has begun to come."""
        deadline = time.monotonic() + self._drain_s
        try:
            while system.controller.requests or system.memory.front.used_bytes:
                if time.monotonic() > deadline:
                    self._say("WARNING: some requests to the workflows before were not answered in time")
                    break
                await asyncio.sleep(0.05)
            await system.drain(0.0)
        finally:
            self._served.backend.forget(system)
            await system.close()
            if times is not None:
                await times.close()
        self._say("the workers of the workflows before have ended")

    # -- keys -----------------------------------------------------------------------------------------------------

    async def _watch_keys(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self._keys_stamp() == self._seen and time.time() < self._expiry:
                continue
            async with self._busy:
                path = self._present.options.keys
                try:
                    if path is not None:
                        self._take_keys(read_keys(path), self._present.options)
                        self._say(f"the keys of {path} have changed")
                except DovetailError as error:
                    self._seen = self._keys_stamp()
                    self._say(f"WARNING: the keys stay as they were: {error}")

    def _keys_stamp(self) -> tuple[int, int, int] | None:
        path = self._present.options.keys
        try:
            found = None if path is None else os.stat(path)
        except OSError:
            return None
        return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)

    def _next_expiry(self) -> float:
        keys = self._served.http.gate.access.keys
        return float("inf") if keys is None else keys.next_expiry(time.time())


def forget_modules(target: str) -> None:
    """Let the modules of an application be imported anew: all that lie beside its own, installed ones left out."""
    installed = {
        os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    folders = set()
    for one in target.split(","):
        package = one.partition(":")[0].partition(".")[0]
        spec = importlib.util.find_spec(package) if package in sys.modules else None
        if spec is not None and spec.origin:
            folders.add(os.path.dirname(os.path.realpath(spec.origin)))
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or name == "__main__" or name.partition(".")[0] == "dovetail":
            continue
        real = os.path.realpath(file)
        if any(real.startswith(f"{place}{os.sep}") for place in installed):
            continue
        if any(real.startswith(f"{folder}{os.sep}") for folder in folders):
            del sys.modules[name]
