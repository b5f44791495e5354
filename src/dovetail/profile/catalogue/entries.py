"""What a catalogue entry says: devices, evidence, workflows. Plain data, as the TOML files beside this one hold it.

Rule of this file: no number without its origin. Each entry carries a `source`, and whether we read it there
(`verified`) or only remember, borrow or infer it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..curve import Curve

__all__ = ["Basis", "Device", "Evidence", "Family", "StageEntry", "UnitPrices", "WorkflowEntry"]

Basis = Literal["fitted", "quoted", "scaled"]
"""fitted: from measurements on this device. quoted: from a few published figures on this device, and an assumption
about the rest. scaled: carried here from another device by a factor."""

Family = Literal["convolution", "transformer", "recurrent"]


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of accelerator."""

    name: str
    title: str
    sm_count: int
    #: Nominal; drivers and contexts take some of it.
    memory_bytes: int
    memory_bandwidth_bytes_per_s: int
    #: Measured from pinned host memory, so what a model is loaded with.
    host_to_device_bytes_per_s: int
    #: On demand, without the machine around the device.
    usd_per_hour: float
    #: How a share is enforced: percent of SMs, or slices of seven.
    sharing: Literal["mps", "mig"]
    #: The shares to plan with, ascending.
    shares_pct: tuple[int, ...]
    #: Names of fields above that no source gives for this very device.
    unverified: tuple[str, ...]
    #: Where each figure is from, by field name.
    sources: dict[str, str]


class UnitPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What ESG charges for its units, as remembered: the ratio of its costs, not a market price."""

    usd_per_vgpu_hour: float
    usd_per_vcpu_hour: float
    #: One vGPU as a share of an A100.
    vgpu_share_pct: int
    verified: bool
    source: str


class Evidence(msgspec.Struct, frozen=True):
    """Why a curve is what it is. Errors are absolute and relative to what was measured, in percent."""

    basis: Basis
    verified: bool
    source: str
    #: What had to be taken for granted; empty where nothing was.
    assumption: str = ""
    #: Mean and 90th percentile over the measured points; None where nothing was fitted.
    fit_error_pct: float | None = None
    fit_error_p90_pct: float | None = None
    points: int = 0
    #: Known error of the factors that carried the curve here; None where it is unknown or was not carried.
    scale_error_pct: float | None = None


class CurveEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One curve of models.toml."""

    device: str
    basis: Literal["fitted", "quoted"]
    source: str
    verified: bool
    batches: tuple[int, ...]
    floor_ns: tuple[int, ...]
    work_ns: tuple[int, ...]
    mape_pct: float | None = None
    p90_pct: float | None = None
    points: int = 0
    assumption: str = ""

    def curve(self) -> Curve:
        """The curve itself."""
        return Curve(self.batches, self.floor_ns, self.work_ns)


class ScaleEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many times as long floors and works of a family are on a device as on a V100."""

    device: str
    family: Family
    #: The device to carry a curve from, where the model has a curve on several.
    prefer: str
    floor: float
    work: float
    rule: str
    error_pct: float | None = None


class StageEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stage of a workflow. Without a model it runs on the host for `host_ns`."""

    name: str
    model: str = ""
    after: tuple[str, ...] = ()
    in_bytes: int = 0
    out_bytes: int = 0
    #: The source's time of this very task; the model's curve may be a mean over several. 0: not given.
    quoted_ms: float = 0.0
    host_ms: float = 0.0

    @property
    def quoted_ns(self) -> int:
        """`quoted_ms` in nanoseconds."""
        return round(self.quoted_ms * 1_000_000)

    @property
    def host_ns(self) -> int:
        """`host_ms` in nanoseconds."""
        return round(self.host_ms * 1_000_000)


class WorkflowEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A graph of stages, each after those it names, with a default objective."""

    name: str
    source: str
    verified: bool
    slo_ms: float
    lower_bound_ms: float
    stages: tuple[StageEntry, ...]

    @property
    def slo_ns(self) -> int:
        """The default latency objective."""
        return round(self.slo_ms * 1_000_000)

    @property
    def lower_bound_ns(self) -> int:
        """Quoted times along the longest path: the latency in an empty system."""
        return round(self.lower_bound_ms * 1_000_000)
