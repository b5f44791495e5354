"""What a scenario file says, as checked data: workflows, devices, arrivals, policy and noise.

Rules of this file: it holds one struct per table of the file, refuses what it does not know, and looks at nothing but
the file. What the names mean (catalogue, applications, profiles) is found out in `world.py`. docs/simulate.md is
the reference for people.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...units import MS, parse_bytes, parse_duration, parse_rate
from ...version import __version__
from ..arrivals import Diurnal, Gamma, Poisson, Process, Steps
from ..branching import FanOut
from ..contention import BESIDE
from ..recorded import Recorded
from .toml_source import TomlSource, text_hook

__all__ = [
    "VERSION", "ArrivalsEntry", "DeviceEntry", "FanOut", "Scenario", "StageEntry", "Times", "WorkflowEntry",
    "read_scenario",
]  # fmt: skip


#: Raised when a key of the file changes its meaning; a scenario of another version is refused by name.
VERSION = 1


# Types for what is written as text. Whoever hands such a value on makes it a plain number: logs hold only those.
class Duration(int):
    """Nanoseconds, written as ``"300ms"``."""


class Rate(float):
    """Per second, written as ``50`` or ``"50/s"``."""


class Bytes(int):
    """Bytes, written as ``"14GB"``."""


Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
#: 1 is the highest class.
Priority = Annotated[int, Meta(ge=1, le=10)]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file."""


class Times(_Table, frozen=True, kw_only=True):
    """How long batches take on the whole device, when no model of the catalogue fits."""

    batch: Annotated[tuple[Count, ...], Meta(min_length=1)]
    ms: Annotated[tuple[Positive, ...], Meta(min_length=1)]


class StageEntry(_Table, frozen=True, kw_only=True):
    """A stage of a workflow that is written out in the file."""

    name: str
    #: A model of the catalogue; or `time`.
    model: str = ""
    time: Times | None = None
    #: Stages it waits for. If no stage of the workflow says, each waits for the one above it.
    after: tuple[str, ...] | None = None
    #: Batch sizes it may run in; the model's measured ones if it does not say.
    batch: tuple[Count, ...] = ()
    #: It runs on the host, like ordinary Python, and needs no device.
    host: bool = False
    #: It runs once for each element of the lists of the stages it comes after.
    map: bool = False
    #: It runs only if that stage says so; see `condition` of the workflow.
    when: str = ""
    weights: Bytes = Bytes(0)


class WorkflowEntry(_Table, frozen=True, kw_only=True):
    """A workflow: from the catalogue, from an application, or written out."""

    catalogue: str = ""
    app: str = ""
    #: Which of the application's workflows, if it has several.
    workflow: str = ""
    name: str = ""
    slo: Duration | None = None
    priority: Priority | None = None
    stages: tuple[StageEntry, ...] = ()
    #: Stage, ``stage.output`` or input -> lengths of its lists; text is the name of one that has the same length.
    fanout: dict[str, FanOut | str] = {}
    #: Stage, ``stage.output`` or input -> how likely the condition holds that it decides.
    condition: dict[str, Share] = {}
    #: Stage of an application -> its times, where neither a profile nor the catalogue has them.
    time: dict[str, Times] = {}


class DeviceEntry(_Table, frozen=True, kw_only=True):
    """Some devices of one kind."""

    #: A device of the catalogue, or "cpu".
    kind: str
    count: Count = 1
    #: Host workers beside them, for stages that need no device.
    host: Annotated[int, Meta(ge=0)] = 0
    #: Profile store, relative to the scenario.
    profile: str = ""
    #: Processor cores of each that batches share; not counted if 0.
    cores: Annotated[int, Meta(ge=0)] = 0
    #: Memory for models; what the catalogue says if not given.
    memory: Bytes | None = None
    usd_per_hour: Annotated[float, Meta(ge=0)] | None = None
    #: Batches of models whose kernels are known can be stopped between two of them, or run whole ("never").
    kernels: Literal["auto", "never"] = "auto"
    #: When they come and go; there from the start to the end if not given.
    join: Duration = Duration(0)
    leave: Duration | None = None


class _Arrivals(_Table, frozen=True, kw_only=True, tag_field="kind", rename={"class_": "class"}):
    workflow: str
    class_: Priority | None = None
    #: How long clients wait before they give up; for ever if not given.
    timeout: Duration | None = None


class PoissonEntry(_Arrivals, frozen=True, kw_only=True, tag="poisson"):
    """Independent clients."""

    rate: Rate

    def process(self, folder: Path) -> Process:
        """As a stream."""
        return Poisson(self.rate)


class GammaEntry(_Arrivals, frozen=True, kw_only=True, tag="gamma"):
    """Bursts."""

    rate: Rate
    cv: Positive

    def process(self, folder: Path) -> Process:
        """As a stream."""
        return Gamma(self.rate, self.cv)


class StepsEntry(_Arrivals, frozen=True, kw_only=True, tag="steps"):
    """One rate after the other."""

    steps: Annotated[tuple[tuple[Duration, Annotated[float, Meta(ge=0)]], ...], Meta(min_length=1)]

    def process(self, folder: Path) -> Process:
        """As a stream."""
        return Steps(self.steps)


class DiurnalEntry(_Arrivals, frozen=True, kw_only=True, tag="diurnal"):
    """Day and night."""

    rate: Rate
    amplitude: Share
    period: Duration

    def process(self, folder: Path) -> Process:
        """As a stream."""
        return Diurnal(self.rate, self.amplitude, self.period)


class FileEntry(_Arrivals, frozen=True, kw_only=True, tag="file"):
    """Recorded arrivals."""

    path: str
    #: Told by the header if it is not given.
    format: Literal["", "timestamps", "azure-functions-2021", "azure-llm"] = ""
    speed: Positive = 1.0
    limit: Count | None = None

    def process(self, folder: Path) -> Process:
        """As a stream."""
        return Recorded(str(folder / self.path), self.format, self.speed, self.limit)


ArrivalsEntry = PoissonEntry | GammaEntry | StepsEntry | DiurnalEntry | FileEntry


class Noise(_Table, frozen=True, kw_only=True):
    """Scatter of run times."""

    #: Standard deviation over mean of every stage, whatever its profile says; 0 is none.
    spread: Annotated[float, Meta(ge=0, le=2)] | None = None


class ContentionEntry(_Table, frozen=True, kw_only=True):
    """Batches that run side by side slow each other down."""

    #: How many times as long one takes beside another: see `sim.contention`.
    beside: Annotated[float, Meta(ge=1, le=10)] = BESIDE


class Ingresses(_Table, frozen=True, kw_only=True):
    """Controllers that share the workers and know them through the state table only."""

    ingresses: Count = 1
    #: How often workers push their rows of the table, and controllers read it.
    push: Duration = Duration(1 * MS)
    pull: Duration = Duration(1 * MS)


class Scenario(_Table, frozen=True, kw_only=True):
    """The whole file."""

    #: Of the format, for those who want to be sure: a file that does not say is of this version.
    version: int = VERSION
    seed: Annotated[int, Meta(ge=0)] = 1
    duration: Duration | None = None
    requests: Count | None = None
    #: Requests that arrive before are left out of the table.
    warmup: Duration = Duration(0)
    #: Share of its requests that each class has to answer within the objective.
    target: Share = 0.95
    workflows: Annotated[tuple[WorkflowEntry, ...], Meta(min_length=1)]
    devices: Annotated[tuple[DeviceEntry, ...], Meta(min_length=1)]
    arrivals: Annotated[tuple[ArrivalsEntry, ...], Meta(min_length=1)]
    #: Whether the policy is told how long stages take. Otherwise it learns, like a server without a profile.
    profiled: bool = True
    #: A `wiring.PolicySpec`, read where policies are known.
    policy: dict[str, Any] = {}
    noise: Noise = Noise()
    #: None: batches that run side by side do not notice each other.
    contention: ContentionEntry | None = None
    cluster: Ingresses = Ingresses()


_HOOK = text_hook({Duration: parse_duration, Rate: parse_rate, Bytes: parse_bytes})
_TABLES = (
    Scenario, WorkflowEntry, StageEntry, Times, FanOut, DeviceEntry, Noise, ContentionEntry, Ingresses,
    PoissonEntry, GammaEntry, StepsEntry, DiurnalEntry, FileEntry,
)  # fmt: skip
#: What can stand in a scenario, to guess misspelt words from.
_WORDS = (
    *sorted({name for table in _TABLES for name in table.__struct_encode_fields__}), "kind",
    "poisson", "gamma", "steps", "diurnal", "file", "fixed", "geometric",
    "timestamps", "azure-functions-2021", "azure-llm", "auto", "never",
)  # fmt: skip


def read_scenario(path: Path) -> tuple[Scenario, TomlSource]:
    """The scenario, and the file to point into when a name in it turns out to be wrong."""
    file = TomlSource(path)
    version = file.data.get("version", VERSION)
    if version != VERSION:
        raise file.error(
            "version",
            f"this is a scenario of version {version}, and this Dovetail ({__version__}) reads version {VERSION}; "
            f"run it with the Dovetail it was written for, or write it anew as docs/simulate.md says",
        )
    scenario = file.convert(file.data, Scenario, known=_WORDS, hook=_HOOK)
    if scenario.duration is not None and scenario.requests is not None:
        raise file.error("requests", "give either duration or requests, not both")
    endless = [i for i, a in enumerate(scenario.arrivals) if not isinstance(a, StepsEntry | FileEntry)]
    if scenario.duration is None and scenario.requests is None and endless:
        raise file.error(
            f"arrivals[{endless[0]}]", 'these never end; say how long to run, duration = "60s" or requests = 100000'
        )
    if scenario.duration is not None and scenario.warmup >= scenario.duration:
        raise file.error("warmup", "must be shorter than the duration")
    return scenario, file
