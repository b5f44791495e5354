"""What is served on which devices, and what does not go together; checked before anything is started."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..errors import DeclarationError
from ..extras import need
from ..live.devices import parse_device
from ..live.front.share import FirstFront, JoinedFront, Serves
from ..state.worker import FULL_SHARE
from ..units import format_bytes
from ..wiring import PolicySpec, find_policy
from ..workflow.app import App

if TYPE_CHECKING:
    from .launch import Options

__all__ = ["prepare"]

#: Least shared memory of the front and of each worker [our choice]: room for some ordinary requests.
LEAST_ARENA_BYTES = 1 << 20


def prepare(app: App, options: Options) -> tuple[Serves, FirstFront | JoinedFront | None]:
    """Check what does not go together, and say what is served on which devices."""
    if options.kernel_log is not None and options.kernels == "never":
        raise DeclarationError("--kernel-log writes kernels, and --kernels never runs none; leave one of them out")
    if options.ageing_ns and options.kernels == "never":
        raise DeclarationError(
            "--ageing lets waiting kernels of lower classes start, and --kernels never runs none; leave one out"
        )
    if options.grpc_port is not None:
        need("grpc", extra="grpc", for_="--grpc-port")
    if options.join is None and options.arena_bytes < LEAST_ARENA_BYTES:
        raise DeclarationError(
            f"--arena {format_bytes(options.arena_bytes)} is too small for anything; give it at least "
            f"{format_bytes(LEAST_ARENA_BYTES)}, pages cost nothing until they are written"
        )
    serves, share = _devices(app, options)
    # A body lies in it beside others.
    if options.max_body_bytes is not None and options.max_body_bytes > serves.arena_bytes // 2:
        if share is not None:
            share.close()
        raise DeclarationError(
            f"--max-body {format_bytes(options.max_body_bytes)} does not fit twice into --arena "
            f"{format_bytes(serves.arena_bytes)}; change one of them"
        )
    return serves, share


def _devices(app: App, options: Options) -> tuple[Serves, FirstFront | JoinedFront | None]:
    """What is served on which devices, by our own decision or by that of the front that is joined."""
    if options.join is not None:
        if options.share_workers is not None:
            raise DeclarationError(
                "--join takes workers that --share-workers would share again; leave one of them out"
            )
        joined = JoinedFront(options.join, app.specs)
        serves = joined.serves
        extra = sorted(set(_cpus(options.policy, serves.cores)) - set(serves.cpus))
        if serves.strict and extra:
            joined.close()
            raise DeclarationError(
                f"--join {options.join}: the policy {options.policy.name!r} would run models with "
                f"{' or '.join(map(str, extra))} thread(s), for which the first front's --memory has no room; choose "
                f"the first front's policy and share"
            )
        return serves, joined
    device, count = _most(options)
    workers, device_entries, cores = parse_device(
        device,
        app.specs,
        options.hosts,
        count,
        kernels=options.kernels,
        memory_bytes=options.memory_bytes,
    )
    devices = tuple(spec for spec in workers if not spec.on_host)
    serves = Serves(
        tuple(app.specs),
        options.device,
        # The first is there at the start, also if there may be none later: what cannot be served is found then.
        devices if options.most_workers is None else devices[: max(1, options.workers)],
        device_entries,
        cores,
        _cpus(options.policy, cores),
        options.memory_bytes is not None and not options.device.startswith("emulated:"),
        options.arena_bytes,
    )
    return serves, None if options.share_workers is None else FirstFront(options.share_workers, serves)


def _most(options: Options) -> tuple[str, int]:
    """The device and the number of its processes, if all that there may be are there."""
    most = options.most_workers
    if options.dry_run and most is None and not options.slices:
        raise DeclarationError("--dry-run says what the scaler would do, and there is none; add --slices")
    if options.slices:
        _check_scaled(options, "--slices", "slice them; leave one out", "sets no slices; leave it out")
    if most is None:
        return options.device, options.workers
    asked = f"--workers {options.workers}..{most}"
    _check_scaled(options, asked, "stop one; give one number", "starts and stops no workers; give one number")
    if not options.device.startswith("emulated:"):
        return options.device, most
    if copies := re.search("x[0-9]+$", options.device):
        kind = options.device.removesuffix(copies[0])
        raise DeclarationError(f"{asked} and {options.device!r} both say how many devices there are; write {kind}")
    return f"{options.device}x{most}", 1


def _check_scaled(options: Options, asked: str, shared: str, what: str) -> None:
    """Whether the scaler may do what it is asked for."""
    if options.share_workers is not None:
        raise DeclarationError(f"{asked}: other servers use the workers of --share-workers, and none may {shared}")
    if "scale" not in find_policy(options.policy.name).reads:
        raise DeclarationError(f"{asked}: the policy {options.policy.name!r} {what}, or serve with --policy dovetail")


def _cpus(policy: PolicySpec, cores: int) -> tuple[int, ...]:
    """Cores that a batch may be given under a policy: models are loaded for each number of threads beforehand."""
    if find_policy(policy.name).whole:
        return (cores,)
    if "share_pct" in find_policy(policy.name).reads:  # every batch has the same share
        return (max(1, cores * policy.share_pct // FULL_SHARE),)
    return tuple(sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores}))
