"""Fit the catalogue's latency curves from public measurements and write models.toml.

    python scripts/fit_catalogue.py [--data DIR] [--check]

Reads DIR (default ../shared/data: rapp, parvagpu_a100_mig, igniter) and the quoted figures in models_quoted.toml.
The measurements are not part of the project, and several of their authors state no licence: what is written holds
fitted parameters and their errors, never a row of data. Same input, same bytes. --check writes nothing and fails
where the committed file is not what comes out. docs/catalogue.md says what each rule below is for.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from math import exp, log
from pathlib import Path
from typing import Any

from dovetail.profile.curve import Curve, Fit, fit

CATALOGUE = Path(__file__).resolve().parent.parent / "src" / "dovetail" / "profile" / "catalogue"
MS = 1_000_000
# MIG slice (of seven) -> the whole percent that stands for it, rounded down so that seven of one fit on a device.
SLICE_PCT = {1: 14, 2: 28, 3: 42, 4: 57, 7: 100}
# ParvaGPU's file name -> torchvision's, where they differ.
TORCHVISION_NAME = {"inceptionv3": "inception_v3", "mobilenetv2": "mobilenet_v2"}
COMMON_BATCHES = (1, 2, 4, 8)  # measured by both RaPP and ParvaGPU

Row = dict[str, Any]
Times = dict[str, dict[int, dict[int, int]]]  # model -> batch -> share_pct -> ns


def read_rapp(data: Path) -> Times:
    """RaPP's V100 times at the whole time quota."""
    times: Times = defaultdict(lambda: defaultdict(dict))
    with (data / "rapp" / "latency_ms_by_batch_sm_quota.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["quota_pct"] == "100":
                times[row["model"]][int(row["batch"])][int(row["sm_pct"])] = round(float(row["latency_ms"]) * MS)
    return times


def read_parvagpu(data: Path) -> Times:
    """ParvaGPU's A100 times of one process per MIG slice; batches that ran out of memory on two slices are left out.

    Time is batch / throughput: the latency column has a resolution of a millisecond.
    """
    times: Times = defaultdict(lambda: defaultdict(dict))
    for path in sorted((data / "parvagpu_a100_mig").glob("*.csv")):
        name = TORCHVISION_NAME.get(path.stem, path.stem)
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                batch, throughput = int(row["Batch size"]), float(row["Throughput"])
                if row["Workload Number"] == "1" and throughput > 0:
                    times[name][batch][SLICE_PCT[int(row["Mig instance"])]] = round(batch / throughput * 1000 * MS)
        times[name] = {batch: by_share for batch, by_share in times[name].items() if len(by_share) >= 4}
    return times


def read_igniter(data: Path) -> Times:
    """iGniter's V100 TensorRT times at powers of two (it measured each batch from 1 to 32)."""
    times: Times = {}
    with (data / "igniter" / "v100_mps_pairs.jsonl").open() as file:
        for (name, what), *_ in (json.loads(line).items() for line in file):
            if "latency" in what and name != "interference":
                times[f"igniter/{name}"] = {
                    batch: {int(share): round(ms * MS) for share, ms in what["latency"][str(batch)].items()}
                    for batch in (1, 2, 4, 8, 16, 32)
                }
    return times


def geomean(values: Iterable[float]) -> float:
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs))


def device_factors(rapp: dict[str, Fit], parva: dict[str, Fit], quoted: Row) -> list[Row]:
    """How many times as long floors and works are on each device as on a V100, by family of model."""
    common = sorted(rapp.keys() & parva.keys())

    def ratio(models: Iterable[str], batches: Iterable[int], part: int) -> float:
        return geomean(parva[m].curve.at(b)[part] / rapp[m].curve.at(b)[part] for m in models for b in batches)

    def error_without(left_out: str) -> float:
        others = [m for m in common if m != left_out]
        guess = rapp[left_out].curve.scaled(ratio(others, COMMON_BATCHES, 0), ratio(others, COMMON_BATCHES[-1:], 1))
        truth = parva[left_out].curve
        grid = [(b, s) for b in COMMON_BATCHES for s in SLICE_PCT.values()]
        return sum(abs(guess.latency_ns(b, s) / truth.latency_ns(b, s) - 1) for b, s in grid) / len(grid)

    times = [row["ms"] for row in quoted["device_time"]]
    text = {d: geomean(row[d] / row["v100"] for row in times) for d in ("t4", "l4", "a100-40gb")}
    spread = {d: sum(abs(row[d] / row["v100"] / text[d] - 1) for row in times) / len(times) for d in text}
    leave_one_out = sum(error_without(m) for m in common) / len(common)
    floor, work = ratio(common, COMMON_BATCHES, 0), ratio(common, COMMON_BATCHES[-1:], 1)
    measured = f"{len(common)} models fitted on both; error: each carried by the factors of the others"
    networks = f"{len(times)} networks timed on both (NeuSight); error: mean deviation of one from their mean"
    single = "median of 4,950 convolutions timed on both (NeuSight)"
    a100, t4, l4 = "a100-40gb", "t4", "l4"
    # Where share does not matter, convolutional and recurrent models wait for the host; a card does not change that
    # (a100: its host did). The transformers were timed on the whole device, so the ratio is of their floors, too.
    rows: list[tuple[str, str, float, float, float | None, str]] = [
        ("v100", "convolution", 1.0, 1.0, 0.0, "the reference"),
        ("v100", "recurrent", 1.0, 1.0, 0.0, "the reference"),
        ("v100", "transformer", 1.0, 1.0, 0.0, "the reference"),
        ("a100", "convolution", floor, work, leave_one_out, measured),
        ("a100", "recurrent", floor, text[a100], None, "floor of convolution, work of transformer"),
        ("a100", "transformer", text[a100], text[a100], spread[a100], f"as a100-40gb: {networks}"),
        ("a100-40gb", "convolution", floor, work, None, "as a100"),
        ("a100-40gb", "recurrent", floor, text[a100], None, "as a100"),
        ("a100-40gb", "transformer", text[a100], text[a100], spread[a100], networks),
        (
            "l4",
            "convolution",
            1.0,
            text[l4],
            None,
            "host floor as v100, work of transformer: no convolutions were timed",
        ),
        ("l4", "recurrent", 1.0, text[l4], None, "host floor as v100, work of transformer"),
        ("l4", "transformer", text[l4], text[l4], spread[l4], networks),
        ("t4", "convolution", 1.0, quoted["convolution_ratio"][t4], None, f"host floor as v100, work: {single}"),
        ("t4", "recurrent", 1.0, text[t4], None, "host floor as v100, work of transformer"),
        ("t4", "transformer", text[t4], text[t4], spread[t4], networks),
    ]
    return [
        {"device": device, "family": family, "prefer": "a100" if device == "a100-40gb" else "v100"}
        | {"floor": round(floor, 4), "work": round(work, 4)}
        | ({} if error is None else {"error_pct": round(100 * error, 1)})
        | {"rule": rule}
        for device, family, floor, work, error, rule in rows
    ]


def mean_shape(name: str, fits: dict[str, Fit], batches: tuple[int, ...], work_at_pct: int, rule: str) -> Row:
    """Floors and works of the mean model, in units of one time of its first batch size.

    That unit is the floor (work_at_pct = 100) or the time at a share at which all of them are bound by work.
    """
    curves = [f.curve for f in fits.values() if set(batches) <= set(f.curve.batches)]

    def unit(curve: Curve) -> float:
        floor_ns, work_ns = curve.at(batches[0])
        return floor_ns if work_at_pct == 100 else work_ns * 100 / work_at_pct

    return {
        "name": name, "models": len(curves), "batches": [b // batches[0] for b in batches],
        "floor": [round(geomean(c.at(b)[0] / unit(c) for c in curves), 4) for b in batches],
        "work": [round(geomean(c.at(b)[1] / unit(c) for c in curves), 4) for b in batches],
        "rule": f"geometric mean of fitted curves; {rule}",
    }  # fmt: skip


def curve_row(device: str, basis: str, source: str, made: Fit | Curve, assumption: str = "") -> Row:
    curve = made.curve if isinstance(made, Fit) else made
    row: Row = {"device": device, "basis": basis, "source": source, "verified": not assumption}
    if isinstance(made, Fit):
        row |= {"mape_pct": round(made.mape_pct, 1), "p90_pct": round(made.p90_pct, 1), "points": made.points}
    row |= {"batches": list(curve.batches)}
    row |= {"floor_ns": [_us(ns) for ns in curve.floor_ns], "work_ns": [_us(ns) for ns in curve.work_ns]}
    return row | ({"assumption": assumption} if assumption else {})


def _us(ns: float) -> int:
    """Whole microseconds, as nanoseconds: more digits would only pretend."""
    return max(1, round(ns / 1000)) * 1000


def quoted_models(quoted: Row, rapp_mean: Row, parva_mean: Row) -> Iterator[Row]:
    """Models of which only a few figures are published, with the shape of a measured mean put under them."""
    for row in quoted["throughput"]:
        rates = zip(row["share_pct"], row["requests_per_s"], strict=True)
        one = fit({1: {share: round(1000 * MS / rate) for share, rate in rates}})
        floor_ns, work_ns = one.curve.at(1)
        curve = Curve(
            tuple(rapp_mean["batches"]),
            tuple(round(floor_ns * f) for f in rapp_mean["floor"]),
            tuple(round(work_ns * w / rapp_mean["work"][0]) for w in rapp_mean["work"]),
        )
        assumption = "batch 1 is fitted; larger batches grow as the mean RaPP model does"
        made = Fit(curve, one.mape_pct, one.p90_pct, one.points)
        yield row | {
            "weights_source": "model size on the FaST-GShare slides, p. 15", "weights_verified": True,
            "curve": [curve_row("v100", "quoted", "fast-gshare", made, assumption)],
        }  # fmt: skip
    for row in quoted["min_config"]:
        curve = _shaped(parva_mean, row["ms"] * MS)
        assumption = "one request loads a slice as a batch of 8 does in the mean ParvaGPU model"
        yield row | {
            "weights_verified": False, "cold_start_ns": row["cold_start_ms"] * MS,
            "curve": [curve_row("a100", "quoted", "esg", curve, assumption)],
        }  # fmt: skip
    for row in quoted["whole_device"]:
        curve = _shaped(rapp_mean, row["ms"] * MS, quoted["convolution_ratio"]["t4"])
        assumption = "share and batch act as on the mean RaPP model carried to a T4"
        yield row | {
            "weights_bytes": row["weights_kib"] * 1024, "weights_source": quoted["sources"]["compass"],
            "weights_verified": True, "curve": [curve_row("t4", "quoted", "compass", curve, assumption)],
        }  # fmt: skip


def _shaped(shape: Row, unit_ns: float, work_factor: float = 1.0) -> Curve:
    return Curve(
        tuple(shape["batches"]),
        tuple(round(unit_ns * f) for f in shape["floor"]),
        tuple(round(unit_ns * w * work_factor) for w in shape["work"]),
    )


def render(data: Path) -> str:
    """The text of models.toml, from the measurements in `data` and the quoted figures."""
    quoted = tomllib.loads((CATALOGUE / "models_quoted.toml").read_text(encoding="utf-8"))
    rapp = {name: fit(times) for name, times in sorted(read_rapp(data).items())}
    parva = {name: fit(times) for name, times in sorted(read_parvagpu(data).items())}
    igniter = {name: fit(times) for name, times in sorted(read_igniter(data).items())}
    rapp_mean = mean_shape("rapp-mean", rapp, COMMON_BATCHES, 100, "unit: floor of batch 1")
    parva_mean = mean_shape("parvagpu-mean", parva, (8, 16, 32), 14, "unit: time of batch 8 on one slice of seven")
    scaling = device_factors(rapp, parva, quoted)

    models = list(quoted_models(quoted, rapp_mean, parva_mean))
    fitted: dict[str, list[Row]] = defaultdict(list)
    for device, source, fits in (("v100", "rapp", rapp), ("a100", "parvagpu", parva), ("v100", "igniter", igniter)):
        for name, made in fits.items():
            fitted[name].append(curve_row(device, "fitted", source, made))
    parameters = {name: (family, n) for family, counts in quoted["parameters"].items() for name, n in counts.items()}
    for name, curves in fitted.items():
        family, count = parameters[name.removeprefix("igniter/")]
        source = f"{count:,} parameters of four bytes"
        models.append({
            "name": name, "family": family, "weights_bytes": count * 4, "weights_source": source,
            "weights_verified": True, "curve": curves,
        })  # fmt: skip
    fields = ("name", "family", "weights_bytes", "weights_source", "weights_verified", "cold_start_ns")
    lines = [
        "# Generated: do not edit. Made by",
        "#     python scripts/fit_catalogue.py --data ../shared/data",
        "# from public measurements that are not part of the project, and from models_quoted.toml beside this file.",
        "# docs/catalogue.md explains every field.",
        "", "[sources]", *(f"{key} = {_toml(text)}" for key, text in quoted["sources"].items()),
    ]  # fmt: skip
    for table, rows in (("shape", [rapp_mean, parva_mean]), ("scaling", scaling)):
        for row in rows:
            lines += ["", f"[[{table}]]", *(f"{key} = {_toml(value)}" for key, value in row.items())]
    for model in sorted(models, key=lambda m: m["name"]):
        lines += ["", "[[model]]", *(f"{key} = {_toml(model[key])}" for key in fields if key in model)]
        for curve in model["curve"]:
            lines += ["", "[[model.curve]]", *(f"{key} = {_toml(value)}" for key, value in curve.items())]
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def main() -> int:
    parser = argparse.ArgumentParser(description="Fit the catalogue's latency curves and write models.toml.")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the measurements")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if models.toml would change")
    options = parser.parse_args()
    needed = ["rapp/latency_ms_by_batch_sm_quota.csv", "parvagpu_a100_mig", "igniter/v100_mps_pairs.jsonl"]
    missing = [name for name in needed if not (options.data / name).exists()]
    if missing:
        print(
            f"no measurements: {options.data} lacks {', '.join(missing)}. Give the folder that holds them with "
            f"--data DIR; docs/catalogue.md names the public repositories they come from. Nothing was written.",
            file=sys.stderr,
        )
        return 2
    text, path = render(options.data), CATALOGUE / "models.toml"
    if options.check:
        same = path.exists() and path.read_text(encoding="utf-8") == text
        print("models.toml is what comes out" if same else "models.toml differs: run scripts/fit_catalogue.py")
        return 0 if same else 1
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path.name}: {text.count('[[model]]')} models, {text.count('[[model.curve]]')} curves")
    return 0


if __name__ == "__main__":
    sys.exit(main())
