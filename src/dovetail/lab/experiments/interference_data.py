"""Public measurements of batches beside others, as samples. None of them is part of the project.

Rules of this file: a reader says which file it reads, takes what is there, and computes nothing but slow-downs.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np

from ...predict.interference import Beside, Load, quarter_octaves
from ...units import MS, US
from ..rivals.interference.common import Sample

__all__ = ["STACKS", "Disb", "Pitot", "read_disb", "read_igniter", "read_pitot"]

#: DISB's servers: prefix of the file -> name.
STACKS = {"trt": "TensorRT", "triton": "Triton", "tfs": "TF-Serving"}


class Disb(msgspec.Struct, frozen=True):
    """Mean latency and time alone of both clients in one workload."""

    victim_ns: int
    victim_solo_ns: int
    other_ns: int
    other_solo_ns: int


def read_disb(path: Path) -> Disb:
    """`disb/results/STACK.WORKLOAD.json` of workload A or B: ResNet-152 beside VGG-19 on an RTX 3080."""
    found = {}
    for row in json.loads(path.read_text())["results"]:
        basic = next(entry for entry in row["analyzers"] if entry["type"] == "basic")
        latency, solo = basic["avgTotalLatency(us)"], basic["standAloneTotalLatency(us)"]
        found[row["clientName"]] = latency * US, solo * US
    return Disb(*found["resnet152_be"], *found["vgg19_rt"])


def read_igniter(path: Path) -> list[list[Sample]]:
    """`igniter/v100_mps_pairs.jsonl`: both victims of each co-located pair, on a V100 that MPS divides."""
    solo: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    pairs: list[list[object]] = []
    for line in path.read_text().splitlines():
        for name, tables in json.loads(line).items():
            if name != "interference":
                solo.setdefault(name, {}).update(tables)
            elif "latency" in tables:
                pairs += tables["latency"]

    def load(model: str, items: int, share: int) -> Load:
        at = str(items), str(share)
        of = {table: solo[model][table][at[0]][at[1]] for table in ("latency", "l2cache", "dram")}
        solo_q = quarter_octaves(round(of["latency"] * MS))
        return Load(model, items, share, solo_q, "", -1.0, of["l2cache"] / 100, of["dram"] / 100)

    out = []
    for row in pairs:
        m1, m2, b1, b2, share, ms1, ms2 = msgspec.convert(row, tuple[str, str, int, int, int, float, float])
        one, two = load(m1, b1, share), load(m2, b2, 100 - share)
        both = []
        for victim, other, ms in ((one, two, ms1), (two, one, ms2)):
            solo_ms = solo[victim.model]["latency"][str(victim.items)][str(victim.share_pct)]
            beside = (Beside(other),)
            both.append(Sample("v100", victim, round(solo_ms * MS), round(ms * MS), beside, beside))
        out.append(both)
    return out


class Pitot:
    """`pitot/pairs.npz`: pairs on CPUs under WebAssembly runtimes, 161 platforms, 249 workloads."""

    def __init__(self, path: Path) -> None:
        data = np.load(path)
        self.platforms = [str(name) for name in data["platform_names"]]
        self.workloads = [str(name) for name in data["workload_names"]]
        self.platform = data["pair_platform"].tolist()
        self._victim = data["pair_workload"].tolist()
        self._other = data["pair_beside"].tolist()
        self._ns = data["pair_t_ns"].tolist()
        keys = zip(data["solo_platform"].tolist(), data["solo_workload"].tolist(), strict=True)
        self._solo = dict(zip(keys, data["solo_t_ns"].tolist(), strict=True))
        self._loads: dict[tuple[int, int], Load] = {}

    def __len__(self) -> int:
        return len(self._ns)

    def _load(self, platform: int, workload: int) -> Load:
        key = platform, workload
        found = self._loads.get(key)
        if found is None:
            name = self.workloads[workload]
            solo_q = quarter_octaves(round(self._solo.get(key, 10 * MS)))
            found = self._loads[key] = Load(name, 1, 50, solo_q, name.split("/")[0])
        return found

    def sample(self, number: int) -> Sample:
        """One pair. The name of a platform is "runtime:host"."""
        platform, victim = self.platform[number], self._victim[number]
        beside = (Beside(self._load(platform, self._other[number])),)
        # Times go down to microseconds: thousandths of a nanosecond keep their digits.
        solo_ns, ns = round(1000 * self._solo[platform, victim]), round(1000 * self._ns[number])
        return Sample(self.platforms[platform], self._load(platform, victim), solo_ns, ns, beside, beside)


def read_pitot(path: Path) -> Pitot:
    """The pairs."""
    return Pitot(path)
