"""`dovetail load MODEL --rate 20/s`: requests to a server at times that were fixed before, and what became of them.

Any server of the Open Inference Protocol will do. Exit code 0: enough requests were answered in time at every rate.
1: not. 2: the input was wrong, or there is no such server.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from ..errors import DeclarationError, DovetailError
from ..extras import need
from ..tools.loading import LoadPlan, LoadResult, describe, generate, run_load, samples
from ..tools.mlperf import MlperfPlan, MlperfResult, run_mlperf
from ..tools.table import results_console
from ..units import MS, parse_duration, parse_rate
from ..workflow.app import load_target
from .flags import refuse, seconds, whole
from .reading import new_table, print_json, printable, progress_bar

__all__ = ["address", "configure", "pair", "run"]

_SECONDS = seconds(0.1, 86_400.0, "a number of seconds from 0.1 to 86400")


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("model", help="model, or workflow, to ask")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="server (default: http://127.0.0.1:8000)")
    parser.add_argument(
        "--rate", metavar="RATE[,RATE...]", help="requests per second, such as 20/s; several in turn (10/s)"
    )
    parser.add_argument("--seconds", type=_SECONDS, default=10.0, metavar="S", help="how long each rate is kept (10)")
    parser.add_argument("--arrivals", choices=("poisson", "constant", "burst"), help="how they come (poisson)")
    parser.add_argument("--burst", type=whole(2, 10_000), metavar="N", help="requests of a burst (10)")
    parser.add_argument(
        "--classes", metavar="CLASS:PART,...", help="classes and their parts, such as 1:0.2,2:0.8 (the model's own)"
    )
    parser.add_argument("--slo", metavar="TIME", help="objective (default: what the server says, or 1s)")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="NAME=D,D", help="shape of an input that is made up"
    )
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE", help="an input from a file: .npy, or bytes"
    )
    parser.add_argument("--body", type=Path, metavar="FILE", help="send this file as it is, a picture say")
    parser.add_argument("--sample", metavar="MODULE:APP", help="take the sample that the workflow declares")
    parser.add_argument("--header", action="append", default=[], metavar="NAME: VALUE", help="a header to send")
    parser.add_argument("--warm-up", type=whole(0), metavar="N", help="requests before, not counted")
    parser.add_argument("--connections", type=whole(1, 10_000), default=256, metavar="N", help="at most (256)")
    parser.add_argument("--timeout", type=_SECONDS, default=60.0, metavar="S", help="give up an answer after (60)")
    parser.add_argument("--seed", type=whole(0), default=1, metavar="N", help="of times and made-up inputs (1)")
    parser.add_argument(
        "--target", type=_part, default=0.95, metavar="PART", help="part to be answered in time (0.95)"
    )
    parser.add_argument(
        "--mlperf",
        choices=("server", "single-stream"),
        help="let MLPerf's LoadGen draw the times and judge (extra: mlperf)",
    )
    parser.add_argument("--mlperf-log", type=Path, metavar="DIR", help="keep LoadGen's own files there")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _part(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 0 to 1")
    return value


def run(args: argparse.Namespace) -> int:
    """Send the load and say what became of it."""
    if args.arrivals != "burst":
        refuse(args, "--burst", because=f"{args.arrivals or 'poisson'} arrivals have none; add --arrivals burst")
    if args.body is not None:
        refuse(args, "--input", "--shape", "--sample", because="--body is the whole request; leave one of them out")
    if args.mlperf is None:
        refuse(args, "--mlperf-log", because="only LoadGen has such files; add --mlperf server")
    else:
        refuse(args, "--arrivals", "--classes", "--warm-up", because="LoadGen has its own; leave --mlperf out")
        if args.mlperf == "single-stream":
            refuse(args, "--rate", because="single-stream sends one request after the other; take --mlperf server")
        need("mlperf_loadgen", extra="mlperf", for_="--mlperf")
    host, port = address(args.url)
    headers = dict(pair(text, ":", "--header") for text in args.header)
    model = describe(host, port, args.model, headers)
    slo_ms = parse_duration(args.slo, "--slo") / MS if args.slo else model.slo_ms or 1000.0
    if args.body is not None:
        bodies: list[Any] = [_read(args.body)]
    else:
        shapes = {name: _dims(name, dims) for name, dims in (pair(t, "=", "--shape") for t in args.shape)}
        given = {name: _tensor(Path(file)) for name, file in (pair(t, "=", "--input") for t in args.input)}
        if args.sample:
            given = {**_sample(args.sample, args.model), **given}
        bodies = list(generate(model, shapes, given, args.seed))
    plan = LoadPlan(
        host=host,
        port=port,
        model=args.model,
        rates=tuple(parse_rate(text, "--rate") for text in (args.rate or "10/s").split(",")),
        seconds=args.seconds,
        slo_ms=slo_ms,
        arrivals=args.arrivals or "poisson",
        burst=args.burst or 10,
        classes=_classes(args.classes) if args.classes else {0: 1.0},
        headers=headers,
        connections=args.connections,
        timeout_s=args.timeout,
        seed=args.seed,
        warm_up=args.warm_up or 0,
    )
    if args.mlperf is not None:
        return _mlperf(args, plan, bodies)
    expected = sum(plan.rates) * plan.seconds
    with progress_bar("requests") as progress:
        results = run_load(plan, bodies, _counter(progress, expected))
    if args.json:
        print_json({"model": args.model, "slo_ms": slo_ms, "seed": args.seed, "results": results})
    else:
        _print(plan, results)
    return 0 if all(result.attainment >= args.target for result in results) else 1


def _mlperf(args: argparse.Namespace, plan: LoadPlan, bodies: list[Any]) -> int:
    if len(plan.rates) > 1:
        raise DeclarationError(f"--rate {args.rate}: LoadGen takes one rate at a time")
    result = run_mlperf(MlperfPlan(args.mlperf, plan, args.target, args.mlperf_log), samples(plan, bodies))
    if args.json:
        print_json({"model": args.model, "slo_ms": plan.slo_ms, "seed": args.seed, "mlperf": result})
    else:
        _print_mlperf(plan, result)
    return 0 if result.valid and not result.without_results else 1


def _print_mlperf(plan: LoadPlan, result: MlperfResult) -> None:
    out = results_console()
    table = new_table("LoadGen says", "")
    for name, figure in result.summary.items():
        table.add_row(name, figure)
    out.print(table)
    out.print(printable(f"{plan.model} at {plan.host}:{plan.port}, objective {plan.slo_ms:g} ms, {result.sent} sent"))
    for what, count in result.without_results.items():
        out.print(printable(f"{count} times no results, which LoadGen counts as twice the objective: {what}"))


def _counter(progress: Callable[[float, float], None], expected: float) -> Callable[[object], None]:
    seen = 0

    def count(_: object) -> None:
        nonlocal seen
        seen += 1
        progress(seen, max(expected, seen))

    return count


def address(url: str) -> tuple[str, int]:
    """Host and port of a server."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port or parts.path not in ("", "/"):
        raise DeclarationError(f"--url {url!r} must be http://HOST:PORT")
    return parts.hostname, port


def pair(text: str, mark: str, flag: str) -> tuple[str, str]:
    """A name and a value."""
    name, found, value = text.partition(mark)
    if not found or not name.strip() or not value.strip():
        raise DeclarationError(f"{flag} {text!r} must be NAME{mark}VALUE")
    return name.strip(), value.strip()


def _dims(name: str, text: str) -> tuple[int, ...]:
    dims = text.split(",")
    if not all(dim.strip().isdecimal() and int(dim) for dim in dims):
        raise DeclarationError(f"--shape {name}={text} must be whole numbers above 0, such as 480,640,3")
    return tuple(int(dim) for dim in dims)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DovetailError(f"cannot read {path}: {error.strerror}") from None


def _tensor(path: Path) -> npt.NDArray[Any]:
    """A .npy file is a tensor; any other one is one element of BYTES."""
    if path.suffix == ".npy":
        try:
            loaded: npt.NDArray[Any] = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise DovetailError(f"cannot read {path}: {error}") from None
        return loaded
    return np.array([_read(path)], object)


def _sample(target: str, model: str) -> dict[str, npt.NDArray[Any]]:
    workflow = load_target(target).workflows.get(model)
    if workflow is None or workflow.sample is None:
        raise DeclarationError(f"--sample {target}: workflow {model!r} declares no sample; give --input or --shape")
    return {
        name: np.array([value], object) if isinstance(value, bytes) else np.asarray(value)
        for name, value in workflow.sample().items()
    }


def _classes(text: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for piece in text.split(","):
        number, part = pair(piece, ":", "--classes")
        try:
            found[int(number)] = float(part)
        except ValueError:
            raise DeclarationError(f"--classes {text!r} must be such as 1:0.2,2:0.8") from None
    if abs(sum(found.values()) - 1) > 1e-6 or min(found.values()) <= 0 or not all(1 <= c <= 10 for c in found):
        raise DeclarationError(f"--classes {text!r}: classes are from 1 to 10, and their parts add up to 1")
    return found


def _print(plan: LoadPlan, results: list[LoadResult]) -> None:
    out = results_console()
    heads = (">rate/s", ">class", ">sent", ">in time", ">late", ">shed", ">other", ">p50", ">p95", ">p99", ">max")
    table = new_table(*heads, ">goal", ">hits", ">good/s")
    for result in results:
        for line in result.classes:
            late, shed = line.outcomes.get("late", 0), line.outcomes.get("shed", 0)
            table.add_row(
                f"{result.rate_per_s:g}",
                str(line.priority or "-"),
                str(line.sent),
                str(line.in_time),
                str(late),
                str(shed),
                str(line.sent - line.in_time - late - shed),
                *(f"{ms:,.1f}" for ms in (line.p50_ms, line.p95_ms, line.p99_ms, line.max_ms)),
                f"{plan.slo_ms:,.0f}",
                f"{line.attainment:.1%}",
                f"{line.goodput_per_s:.1f}",
            )
    out.print(table)
    where = f"{plan.model} at {plan.host}:{plan.port}, {plan.arrivals}, seed {plan.seed}"
    out.print(printable(f"{where}; latency in ms from when each was due"))
    for result in results:
        if result.late_start_p99_ms > max(5.0, plan.slo_ms / 20):
            out.print(
                f"at {result.rate_per_s:g}/s this client was late by {result.late_start_p99_ms:.1f} ms (p99), which "
                "is part of the latency: it has too little processor time or too few --connections"
            )
        for what, count in result.errors.items():
            out.print(printable(f"at {result.rate_per_s:g}/s, {count} times: {what}"))
