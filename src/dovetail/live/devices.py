"""Which workers a ``--device`` text asks for: this machine's cores, or emulated devices of the catalogue."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import msgspec

from ..errors import DeclarationError
from ..profile import catalogue
from ..profile.table import Entry
from ..state import WorkerSpec
from ..units import format_bytes
from ..workflow.graph import StageSpec

__all__ = ["hosts_for", "parse_device"]

_EMULATED = re.compile(r"emulated:([a-z0-9_-]+?)(?:x([1-9][0-9]{0,2}))?")


def parse_device(
    text: str,
    stages: Sequence[StageSpec],
    hosts: int = 1,
    workers: int = 1,
    *,
    kernels: str = "auto",
    memory_bytes: int | None = None,
) -> tuple[tuple[WorkerSpec, ...], tuple[Entry, ...], int]:
    """Workers, their profile entries (emulated devices only) and the cores of a device.

    ``cpu`` is all cores of this machine, ``cpu:1`` one of them; ``emulated:v100x4`` four emulated V100s. `workers`
    divides the cores and the memory of a processor among so many processes. Unless `kernels` is "never", they may
    stop a batch between two kernels. `memory_bytes` is what each device may use, if that is not all it has.
    """
    preempts = kernels != "never"
    machine = len(os.sched_getaffinity(0))
    # A core has a price, so that cost is never nought; the catalogue says where the figure is from.
    usd_per_core_hour = catalogue.unit_prices().usd_per_vcpu_hour
    host_workers = hosts_for(stages, hosts)
    if text == "cpu" or text.startswith("cpu:"):
        count = text.partition(":")[2] or str(machine)
        if not count.isdigit() or not 1 <= int(count) <= machine:
            raise DeclarationError(
                f"device {text!r}: this machine has {machine} core(s); write cpu or cpu:1 to cpu:{machine}"
            )
        if workers > int(count):
            raise DeclarationError(
                f"--workers {workers} would share the {count} core(s) of device {text!r}; give no more than that"
            )
        cores = max(1, int(count) // workers)
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 // workers
        price = usd_per_core_hour * int(count) / workers
        devices = tuple(
            WorkerSpec(f"cpu-{i}", "cpu", ("onnx", "torch"), cores, memory, price, "cooperative", preempts=preempts)
            for i in range(workers)
        )
        return (*_within(devices, stages, memory_bytes), *host_workers), (), cores
    match = _EMULATED.fullmatch(text)
    if match is None:
        raise DeclarationError(
            f"device {text!r} is not known; write cpu, cpu:N, or emulated:KIND such as emulated:v100x4"
        )
    kind, copies = match.group(1), int(match.group(2) or 1)
    if workers > 1:
        raise DeclarationError(f"{workers} workers of device {text!r}: write emulated:{kind}x{workers * copies}")
    card = catalogue.device(kind)
    card_has = (card.memory_bytes, card.usd_per_hour)
    devices = tuple(
        WorkerSpec(f"{kind}-{i}", kind, ("onnx", "torch", "model"), 0, *card_has, "emulated", preempts=preempts)
        for i in range(copies)
    )
    return (*_within(devices, stages, memory_bytes), *host_workers), _entries(kind, stages), 1


def hosts_for(stages: Sequence[StageSpec], hosts: int) -> tuple[WorkerSpec, ...]:
    """So many workers for Python stages, if there are such stages."""
    price = catalogue.unit_prices().usd_per_vcpu_hour
    count = hosts if any(s.on_host for s in stages) else 0
    return tuple(WorkerSpec(f"host-{i}", "host", ("python",), 1, 0, price, "none") for i in range(count))


def _within(
    devices: Sequence[WorkerSpec], stages: Sequence[StageSpec], memory_bytes: int | None
) -> tuple[WorkerSpec, ...]:
    """The same devices with so much memory each; every model has to fit by itself."""
    largest = max((s for s in stages if not s.on_host), key=lambda s: s.weights_bytes, default=None)
    if memory_bytes is not None:
        devices = [msgspec.structs.replace(spec, memory_bytes=memory_bytes) for spec in devices]
    for spec in devices:
        budget = spec.memory_bytes
        if largest is not None and budget and largest.weights_bytes > budget:
            raise DeclarationError(
                f"the model of stage {largest.name!r} has {format_bytes(largest.weights_bytes)}, more than the "
                f"{format_bytes(budget)} that worker {spec.name} may use; give it more with --memory"
            )
    return tuple(devices)


def _entries(kind: str, stages: Sequence[StageSpec]) -> tuple[Entry, ...]:
    entries = []
    for stage in stages:
        if stage.on_host:
            continue
        entry = catalogue.modelled(stage, kind)
        if entry is None:
            raise DeclarationError(
                f"stage {stage.name!r} has no curve for an emulated {kind}: say which catalogue model it is like, "
                f"for example onnx(..., like='mobilenet_v2') (dovetail catalogue lists them), or serve it with "
                f"--device cpu"
            )
        entries.append(entry)
    return tuple(entries)
