"""Which machine and which libraries a profile was measured with: what must be the same for it to hold.

Rules of this file: nothing is measured and nothing heavy is imported, so that asking is cheap.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import msgspec

__all__ = [
    "CPU", "HOST", "LIBRARIES", "Identity", "core_counts", "cpu_name", "machine_text", "this_machine", "usable_cores",
]  # fmt: skip

#: Kind of device that runs models on this machine, and the one that runs ordinary Python.
CPU, HOST = "cpu", "host"

#: Kind of device -> libraries whose version moves its times. onnxruntime cannot move those of ordinary Python.
LIBRARIES = {CPU: ("onnxruntime", "numpy", "python"), HOST: ("numpy", "python")}


class Identity(msgspec.Struct, frozen=True):
    """A machine and its libraries, as far as they decide how long a stage runs."""

    cpu: str
    #: Logical cores that this process may use.
    cores: int
    libraries: dict[str, str]

    @property
    def machine(self) -> str:
        """The machine for people: ``"Intel Xeon, 2 cores"``."""
        return machine_text(self.cpu, self.cores)


def machine_text(cpu: str, cores: int) -> str:
    """Processor and number of cores for people."""
    return f"{cpu}, {cores} core{'s' if cores != 1 else ''}"


def this_machine() -> Identity:
    """Where we are now."""
    return Identity(cpu_name(), usable_cores(), {name: _version(name) for name in LIBRARIES[CPU]})


def core_counts(cores: int) -> tuple[int, ...]:
    """Numbers of cores worth measuring on a machine of so many: powers of two, and all of them."""
    return tuple(sorted({1 << k for k in range(cores.bit_length())} | {cores}))


def usable_cores(quota_file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Logical cores this process may run on: its affinity, and a container's quota rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(1, min(cores, -(-int(quota) // int(period))))


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name. Virtual machines call many of them the same, so family and model go with it."""
    try:
        lines = cpuinfo.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        lines = []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = facts.get("model name") or platform.processor() or platform.machine() or "unknown processor"
    name = " ".join(name.replace("(R)", "").replace("(TM)", "").split())
    if "cpu family" in facts and "model" in facts:
        name += f" (family {facts['cpu family']} model {facts['model']})"
    return name


def _version(library: str) -> str:
    if library == "python":
        # Patch releases repair, they do not speed up; the flag tells the build without the interpreter lock.
        return f"{sys.version_info.major}.{sys.version_info.minor}{getattr(sys, 'abiflags', '')}"
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:  # another package brings it: onnxruntime-openvino, numpy-quaddtype...
        return str(importlib.import_module(library).__version__)
