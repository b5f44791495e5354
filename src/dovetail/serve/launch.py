"""Put a live system together: application, device, policy, log, HTTP. Used by `serve`, the demo and the tests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ..device.tokens import QuotaMode
from ..errors import DovetailError
from ..live.devices import hosts_for
from ..live.front.background import BackgroundFile, keep_earlier
from ..live.front.share import FirstFront, JoinedFront, Serves
from ..live.front.stores import KernelStore, TimesStore
from ..live.front.system import LiveSystem, Settings
from ..profile.machine import this_machine
from ..profile.store import ProfileStore
from ..profile.table import Entry
from ..record.log import Header, LogWriter, make_header
from ..record.sight import Banner
from ..units import SECOND
from ..wiring import PolicySpec, ScaleSpec, find_policy, make_controller
from ..workflow.alone import stage_graphs
from ..workflow.app import App
from .access import Access
from .access_log import AccessLog
from .adapter import LiveBackend
from .framing import DEFAULT_LIMITS, Limits
from .gate import Gate, is_loopback
from .http import HttpServer
from .inference import Inference
from .keys import read as read_keys
from .oip import start
from .pages import Pages
from .preparing import prepare
from .sampling import banner_of
from .shared_memory import Regions
from .tenants import Tenant, Tenants
from .tls import tls_context
from .watch import Watch

if TYPE_CHECKING:
    from .rpc.server import GrpcServer

__all__ = ["Options", "Served", "launch", "limits_of", "start_system"]

#: What a worker takes to start and to load its models, as a rule: so far ahead its scaler looks [our choice].
START_MS = 2000
#: How long answers may take to be written after the last request has ended.
WRITE_SECONDS = 5.0


class Options(msgspec.Struct, frozen=True):
    """How an application is served."""

    device: str = "cpu"
    host: str = "127.0.0.1"
    #: Names in `Host`, and sites in `Origin`, that are allowed beside the server's own; "*" is all.
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    #: Whether clients may claim a higher class than their workflow's; None: if only this machine can reach us.
    trust_priority: bool | None = None
    #: File of keys that clients need; None: everybody may ask.
    keys: Path | None = None
    #: What is declared of tenants, by name.
    tenants: dict[str, Tenant] = {}
    #: Certificate and key, for HTTPS.
    tls_cert: Path | None = None
    tls_key: Path | None = None
    #: 0 takes any free port.
    port: int = 8000
    #: For gRPC, beside HTTP; None: it is not served.
    grpc_port: int | None = None
    #: Whether clients may register system shared memory of this machine.
    shared_memory: bool = False
    #: Whether clients may call models by the names of their stages, beside the workflows.
    serve_stages: bool = False
    #: Processes for ordinary Python stages.
    hosts: int = 1
    #: Processes that share the cores of a processor, or emulated devices.
    workers: int = 1
    #: So many of them at the most, as the load asks for; None: their number stays.
    most_workers: int | None = None
    #: Of those that are not there yet, so many are started and wait to be asked for.
    spare_workers: int = 1
    #: Stages have slices of the workers, which follow the load; otherwise they share them freely.
    slices: bool = False
    #: The scaler only says what it would do.
    dry_run: bool = False
    #: What nothing has come for in this time has no slice, and may have no worker.
    zero_s: int = 60
    #: Whether models are run kernel by kernel, so that a higher class need not wait for a whole batch of a lower:
    #: where that could happen, always, or never.
    kernels: Literal["auto", "always", "never"] = "auto"
    #: Where to write what ran, kernel by kernel.
    kernel_log: Path | None = None
    #: One kernel of a lower class may start per this time, whatever is above it; 0: never.
    ageing_ns: int = 0
    #: What a quota is: what a client is given before others' excess, or also all that it ever gets.
    quotas: QuotaMode = "conserving"
    #: Whether workers share one copy of each model's weights, or each has its own.
    weights: Literal["shared", "own"] = "shared"
    #: What each device may use for models and for running them; None: what there is, and nothing is measured.
    memory_bytes: int | None = None
    policy: PolicySpec = PolicySpec()
    #: How long before a batch's expected end the next is sent: what a decision takes to come back, and some more.
    lead_us: int = 1000
    log: Path | None = None
    #: Whether people may watch at /dashboard.
    dashboard: bool = True
    #: Where a line for each answer goes; "-" is stderr.
    access_log: Path | None = None
    #: Shared memory of the front and of each worker; pages cost nothing until they are written.
    arena_bytes: int = 1 << 30
    #: Largest request body; None is 64 MiB, or half of the arena where that is less.
    max_body_bytes: int | None = None
    #: Most items of one request at one stage.
    max_fan_out: int = 1024
    #: A batch that ran for this long (and 50 times what was expected) hangs.
    hang_s: float = 30.0
    seed: int = 1
    #: Directory at which other fronts of this machine may join the workers.
    share_workers: Path | None = None
    #: Directory at which another front shares its workers; what is theirs to decide is not looked at here.
    join: Path | None = None


class Started(NamedTuple):
    """A system whose every stage can run."""

    system: LiveSystem
    device: str
    #: What answers of an emulated one say.
    label: str
    times: TimesStore | None
    #: What those who watch are told of it.
    banner: Banner
    header: Header


class Served(msgspec.Struct):
    """A running server."""

    system: LiveSystem
    http: HttpServer
    backend: LiveBackend
    #: As `--device` names it; and what answers of an emulated one say.
    device: str
    label: str
    #: Where what is learned of times is kept, if it is.
    times: TimesStore | None = None
    grpc: GrpcServer | None = None
    #: Who watches.
    watch: Watch | None = None

    async def stop(self, drain_s: float = 30.0, hurry: asyncio.Event | None = None) -> bool:
        """Take nothing new, answer what was admitted, and end; False if some were given up.

        Set `hurry` to give up at once.
        """
        # The system first: while it drains, requests are refused with a reason, and told to come back elsewhere.
        self.http.retire()
        clean = await _first(self.system.drain(drain_s), hurry)
        if not clean:
            self.system.give_up("the server stopped before it was done")
        if self.grpc is not None:
            await self.grpc.drain(WRITE_SECONDS)
        if self.watch is not None:
            await self.watch.close()
        await self.http.drain(WRITE_SECONDS)
        if self.http.access_log is not None:
            self.http.access_log.close()
        await self.system.close()
        if self.times is not None:
            await self.times.close()
        return clean


async def _first(drained: Coroutine[Any, Any, bool], hurry: asyncio.Event | None) -> bool:
    """What draining says, or False as soon as there is a hurry."""
    task = asyncio.ensure_future(drained)
    if hurry is None:
        return await task
    bell = asyncio.ensure_future(hurry.wait())
    await asyncio.wait((task, bell), return_when=asyncio.FIRST_COMPLETED)
    bell.cancel()
    if task.done():
        return task.result()
    task.cancel()
    return False


def _emptied(path: Path) -> Path:
    """The file for kernels, which workers only add to."""
    try:
        path.write_bytes(b"")
    except OSError as error:
        raise DovetailError(f"--kernel-log {path}: {error.strerror or error}") from error
    return path.absolute()


async def launch(
    app: App,
    target: str,
    options: Options,
    *,
    entries: Sequence[Entry] = (),
    store: ProfileStore | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Served:
    """Start workers and HTTP for an application; returns when every stage is loaded.

    `store` is where what is learned of kernels is kept; without, it is forgotten at the end.
    """
    keys = None if options.keys is None else read_keys(options.keys)
    tls = tls_context(options.tls_cert, options.tls_key)
    serves, share = prepare(app, options)
    try:
        began = await start_system(app, target, options, serves, share, entries, store, say)
    except BaseException:
        if share is not None:
            share.close()
        raise
    limits = limits_of(options, serves.arena_bytes)
    system = began.system
    try:
        access_log = None if options.access_log is None else AccessLog(options.access_log)
        try:
            trusts = is_loopback(options.host) if options.trust_priority is None else options.trust_priority
            known_tenants = [] if keys is None else [key.tenant for key in keys]
            tenants = Tenants(options.tenants, known_tenants) if options.tenants or known_tenants else None
            backend = LiveBackend(system, label=began.label, trust_priority=trusts, tenants=tenants)
            gate = Gate(options.host, options.allow_hosts, options.allow_origins, Access(keys))
            regions = Regions(limits.max_body_bytes) if options.shared_memory else None
            watch = Watch(system, began.banner, began.header, say) if options.dashboard else None
            pages = None if watch is None else Pages(watch)
            http = await start(backend, options.host, options.port, limits, gate, regions, pages, tls)
            http.access_log = access_log
        except OSError as error:
            where = f"{options.host}:{options.port}"
            raise DovetailError(f"cannot listen on {where}: {error.strerror or error}") from error
        grpc = None
        if options.grpc_port is not None:
            try:
                grpc = await _serve_grpc(options, Inference(backend, regions, gate.access), limits)
                http.more_metrics = grpc.metrics
            except BaseException:
                await http.close()
                raise
    except BaseException:
        await system.close()
        raise
    return Served(system, http, backend, serves.device, began.label, began.times, grpc, watch)


def limits_of(options: Options, arena_bytes: int) -> Limits:
    """What clients may take. Bodies under way have a quarter of the arena, so that they never shut out others."""
    largest = options.max_body_bytes or min(DEFAULT_LIMITS.max_body_bytes, arena_bytes // 2)
    return Limits(max_body_bytes=largest, max_unreceived_bytes=arena_bytes // 4)


async def start_system(
    app: App,
    target: str,
    options: Options,
    serves: Serves,
    share: FirstFront | JoinedFront | None,
    entries: Sequence[Entry],
    store: ProfileStore | None,
    say: Callable[[str], None],
) -> Started:
    """Start a system, and wait until every stage can run."""
    graphs = (*app.graphs, *(stage_graphs(app) if options.serve_stages else ()))
    emulated = serves.device.startswith("emulated:")
    joined = isinstance(share, JoinedFront)
    ingress = 0 if share is None else share.ingress
    known = (*entries, *serves.entries)
    policy_spec = msgspec.structs.replace(options.policy, lead_us=options.lead_us, several=share is not None)
    if "quotas" in find_policy(policy_spec.name).reads:
        policy_spec = msgspec.structs.replace(policy_spec, quotas=options.quotas)
    if not emulated:
        policy_spec = msgspec.structs.replace(policy_spec, near=True)
    if options.most_workers is not None or options.slices:
        least, started = options.workers, sum(not spec.on_host for spec in serves.workers)
        scale = ScaleSpec(
            least if options.most_workers is not None else started,
            options.most_workers or started,
            slices=options.slices,
            limits=options.quotas == "strict",
            learns=True,
            start_ms=START_MS,
            zero_s=options.zero_s,
            dry=options.dry_run,
            started=started,
        )
        policy_spec = msgspec.structs.replace(policy_spec, scale=scale)
    times = None
    if store is not None and not emulated:
        times = TimesStore(store, this_machine(), app.specs, say)
    learned = None if times is None else times.known
    controller = make_controller(graphs, policy_spec, known, serves.cores, learned=learned, ingress=ingress)
    header = make_header(
        "live",
        graphs,
        msgspec.msgpack.encode(policy_spec),
        known,
        serves.cores,
        seed=options.seed,
        started_unix_ns=time.time_ns() - (0 if share is None else time.monotonic_ns() - share.origin_ns),
        learned=learned,
        ingress=ingress,
    )
    log = None
    if options.log is not None:
        if (earlier := keep_earlier(options.log)) is not None:
            say(f"{options.log} of an earlier run is kept as {earlier}")
        log = LogWriter(options.log, header, BackgroundFile)
    settings = Settings(
        target,
        graphs,
        (*serves.workers, *hosts_for(app.specs, options.hosts)),
        known,
        cpus=serves.cpus,
        arena_bytes=serves.arena_bytes,
        hang_ns=round(options.hang_s * SECOND),
        strict=serves.strict,
        kernels=options.kernels,
        kernel_log="" if options.kernel_log is None else str(_emptied(options.kernel_log)),
        ageing_ns=options.ageing_ns,
        max_fan_out=options.max_fan_out,
        quotas=options.quotas,
        shared_weights=options.weights == "shared" and not joined,
        most=options.most_workers or 0,
        spares=options.spare_workers if options.most_workers is not None and not options.dry_run else 0,
    )
    kernels = None
    if options.kernels != "never" and not emulated and not joined:
        kernels = KernelStore(store, this_machine(), {s.model for s in app.specs}, say)
    system = LiveSystem(settings, controller, log=log, kernels=kernels, share=share, say=say)
    label = serves.device if emulated else ""
    try:
        await system.start()
    except BaseException:
        await system.close()
        raise
    if times is not None and not joined:  # the first front sees the same workers, and keeps what it learns
        times.keep(controller.policy.predictor)
    banner = banner_of(graphs, policy_spec.name, label or serves.device, header.started_unix_ns)
    return Started(system, serves.device, label, times, banner, header)


async def _serve_grpc(options: Options, inference: Inference, limits: Limits) -> GrpcServer:
    from .rpc.server import start as start_grpc  # a package of its own, and it takes 0.2 s to import

    try:
        return await start_grpc(
            inference, options.host, options.grpc_port or 0, limits, options.tls_cert, options.tls_key
        )
    except OSError as error:
        raise DovetailError(f"--grpc-port {options.grpc_port}: {error}; is it taken?") from error
