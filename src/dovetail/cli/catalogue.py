"""`dovetail catalogue`: the devices, models and workflows that can be simulated, and how sure their figures are."""

from __future__ import annotations

import argparse
from typing import Any

from rich.text import Text

from ..profile import catalogue
from ..tools.table import results_console
from ..units import MS, format_bytes
from .flags import refuse
from .reading import new_table, print_json

SECTIONS = ("devices", "models", "workflows")


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    parser.add_argument("section", nargs="?", choices=SECTIONS, help="only these; all three if not given")
    parser.add_argument("--device", metavar="NAME", help="times of the models on this device, not on their own")
    parser.add_argument("--json", action="store_true", help="print the catalogue as JSON")


def run(args: argparse.Namespace) -> int:
    """Print it; the exit code."""
    if args.device is not None:
        if args.section not in (None, "models"):
            refuse(args, "--device", because=f"{args.section} are the same for every device; it goes with models")
        catalogue.device(args.device)  # refuses a wrong name before anything is printed
    wanted = [args.section] if args.section else list(SECTIONS)
    if args.json:
        found = {name: _SECTIONS[name][0](args.device) for name in wanted}
        print_json(found, order="sorted")
        return 0
    for number, name in enumerate(wanted):
        if number:
            print()
        _SECTIONS[name][1](args.device)
    return 0


def _devices(_: str | None) -> list[Any]:
    return [catalogue.device(name) for name in catalogue.devices()]


def _models(device: str | None) -> list[Any]:
    found = []
    for name in catalogue.models():
        model = catalogue.model(name)
        on = device or model.home
        curve = model.curve(on)
        found.append(
            {
                "name": name,
                "family": model.family,
                "weights_bytes": model.weights_bytes,
                "device": on,
                "ms": {str(batch): curve.latency_ns(batch, 100) / MS for batch in curve.batches},
                "evidence": model.evidence(on),
            }
        )
    return found


def _workflows(_: str | None) -> list[Any]:
    return [catalogue.workflow(name) for name in catalogue.workflows()]


def _print_devices(_: str | None) -> None:
    table = new_table("device", "~name", ">SMs", ">memory", ">$/hour", ">load GB/s", "shares", "unverified")
    for name in catalogue.devices():
        d = catalogue.device(name)
        shares = d.shares_pct
        table.add_row(
            d.name,
            d.title,
            str(d.sm_count),
            format_bytes(d.memory_bytes),
            f"{d.usd_per_hour:.2f}",
            f"{d.host_to_device_bytes_per_s / 1e9:.1f}",
            f"{d.sharing} {shares[0]} to {shares[-1]} %",
            ", ".join(d.unverified) or "-",
        )
    results_console().print(table)


def _print_models(device: str | None) -> None:
    table = new_table(
        "model", "family", ">weights", "device", ">batch", ">ms", ">batch", ">ms", "basis", ">error", "~source"
    )
    for name in catalogue.models():
        model = catalogue.model(name)
        on = device or model.home
        curve, why = model.curve(on), model.evidence(on)
        first, last = curve.batches[0], curve.batches[-1]
        error = f"{why.fit_error_pct:.1f}%" if why.fit_error_pct is not None else "-"
        table.add_row(
            name,
            model.family,
            format_bytes(model.weights_bytes),
            on,
            str(first),
            f"{curve.latency_ns(first, 100) / MS:.2f}",
            str(last),
            f"{curve.latency_ns(last, 100) / MS:.2f}",
            Text(why.basis if why.verified else f"{why.basis}, unverified", "" if why.verified else "yellow"),
            error,
            why.source.partition(":")[0],  # the whole of it is in --json
        )
    results_console().print(table)


def _print_workflows(_: str | None) -> None:
    table = new_table("workflow", ">objective ms", "~stages", "verified")
    for name in catalogue.workflows():
        w = catalogue.workflow(name)
        stages = ", ".join(f"{s.name} ({s.model or f'host, {s.host_ms:g} ms'})" for s in w.stages)
        table.add_row(w.name, f"{w.slo_ms:g}", stages, "yes" if w.verified else Text("no", "yellow"))
    results_console().print(table)


#: Section -> (its entries as data, how they are printed).
_SECTIONS = {
    "devices": (_devices, _print_devices),
    "models": (_models, _print_models),
    "workflows": (_workflows, _print_workflows),
}
