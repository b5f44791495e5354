"""`dovetail load`: a load for any server of the Open Inference Protocol, and what became of it.

Rules of this file
- The times of all requests are drawn before the first is sent, from a seed (`sim.arrivals`). `load` sends them, and
  counts a latency from the time at which its request was due.
- A request counts as answered in time if it has results within the objective. Whatever else happened counts against.
- Requests of a class are independent of those of others, so that one may be compared with the same one elsewhere.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, takewhile
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import DovetailError
from ..record.ledger import Histogram
from ..sim.arrivals import Bursts, Constant, Poisson, Process, merge, stream_rng
from ..units import MS, SECOND
from ..workflow.tensor import NUMPY_OF
from .load import Answer, Client, Shot, infer_shot, post_shot

__all__ = ["ClassLoad", "LoadPlan", "LoadResult", "Model", "describe", "generate", "run_load", "samples"]

Arrivals = Literal["poisson", "constant", "burst"]
#: Different inputs that are sent in turn.
VARIETY = 16
#: What is asked of a server before the load begins may take so long.
ASK_SECONDS = 10.0
#: Bytes of a tensor that is made up.
MOST_BYTES = 64 << 20


class Model(msgspec.Struct, frozen=True):
    """A model as its server describes it."""

    name: str
    #: (name, datatype, shape)
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    #: Objective and class, if it has some (Dovetail's do).
    slo_ms: float | None = None
    priority: int | None = None


class LoadPlan(msgspec.Struct, frozen=True):
    """What to send."""

    host: str
    port: int
    model: str
    #: Requests per second, one step after the other, each for so long.
    rates: tuple[float, ...]
    seconds: float
    slo_ms: float
    arrivals: Arrivals = "poisson"
    burst: int = 10
    #: Class -> its part; 0 is the model's own, and is not sent.
    classes: Mapping[int, float] = msgspec.field(default_factory=lambda: {0: 1.0})
    headers: Mapping[str, str] = {}
    connections: int = 256
    timeout_s: float = 60.0
    seed: int = 1
    #: Requests at the first rate that are sent before and do not count.
    warm_up: int = 0


class ClassLoad(msgspec.Struct, frozen=True):
    """What became of the requests of one class at one rate."""

    priority: int
    sent: int
    outcomes: dict[str, int]
    in_time: int
    attainment: float
    goodput_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float


class LoadResult(msgspec.Struct, frozen=True):
    """One rate."""

    rate_per_s: float
    seconds: float
    classes: tuple[ClassLoad, ...]
    #: How late this client was itself with its requests, at the 99th percentile: it is part of their latency.
    late_start_p99_ms: float
    #: The first errors, by what they say.
    errors: dict[str, int]

    @property
    def attainment(self) -> float:
        """Part of all requests that was answered in time."""
        return sum(c.in_time for c in self.classes) / max(1, sum(c.sent for c in self.classes))


def describe(host: str, port: int, model: str, headers: Mapping[str, str]) -> Model:
    """What the server says of a model."""

    def ask(path: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(host, port, timeout=ASK_SECONDS)
        try:
            connection.request("GET", path, headers=dict(headers))
            answer = connection.getresponse()
            body = answer.read(1 << 20)
        except OSError as error:
            raise DovetailError(f"no answer from http://{host}:{port}{path}: {error}") from None
        finally:
            connection.close()
        try:
            told = json.loads(body)
        except ValueError:
            told = {}
        if answer.status != 200 or not isinstance(told, dict):
            why = told.get("error", answer.reason) if isinstance(told, dict) else answer.reason
            raise DovetailError(f"http://{host}:{port}{path} answers {answer.status}: {why}")
        return told

    said = ask(f"/v2/models/{model}")
    try:
        inputs = tuple((i["name"], i["datatype"], tuple(map(int, i["shape"]))) for i in said["inputs"])
    except (KeyError, TypeError, ValueError):
        problem = f"http://{host}:{port}/v2/models/{model} does not describe inputs as the protocol has it"
        raise DovetailError(problem) from None
    try:
        parameters = ask(f"/v2/models/{model}/config").get("parameters", {})
        slo, own = (parameters.get(key, {}).get("string_value") for key in ("slo_ms", "priority"))
    except DovetailError:  # an extension that a server need not have
        slo = own = None
    return Model(model, inputs, float(slo) if slo else None, int(own) if own else None)


def generate(
    model: Model, shapes: Mapping[str, Sequence[int]], given: Mapping[str, npt.NDArray[Any]], seed: int
) -> list[dict[str, npt.NDArray[Any]]]:
    """Inputs for requests: those that are given, and random ones of the shapes that the model or the user states."""
    names = {name for name, _, _ in model.inputs}
    for name in (*shapes, *given):
        if name not in names:
            raise DovetailError(f"model {model.name!r} has no input {name!r}; it has: {', '.join(sorted(names))}")
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(VARIETY):
        tensors: dict[str, npt.NDArray[Any]] = {}
        for name, datatype, declared in model.inputs:
            if name in given:
                tensors[name] = given[name]
                continue
            shape = tuple(shapes.get(name) or _shape(name, declared))
            tensors[name] = _random(datatype, shape, rng)
        made.append(tensors)
    return made


def _shape(name: str, declared: tuple[int, ...]) -> tuple[int, ...]:
    """One dimension may be left open, the first: that is how many."""
    shape = (1, *declared[1:]) if declared[:1] == (-1,) else declared
    if any(size < 0 for size in shape):
        text = ",".join(map(str, declared))
        raise DovetailError(
            f"input {name!r} has the open shape [{text}]; say which to send with --shape {name}=480,640,3, or give "
            f"--input {name}=FILE.npy"
        )
    return shape


def _random(datatype: str, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[Any]:
    if datatype == "BYTES":
        words = np.empty(shape, object)
        words.reshape(-1)[:] = [bytes(rng.integers(97, 123, 16, np.uint8)) for _ in range(words.size)]
        return words
    if datatype not in NUMPY_OF:
        raise DovetailError(f"inputs of type {datatype!r} cannot be made up; give them with --input NAME=FILE.npy")
    kind = NUMPY_OF[datatype]
    if int(np.prod(shape, dtype=np.int64)) * kind.itemsize > MOST_BYTES:
        raise DovetailError(f"an input of shape {list(shape)} has more than {MOST_BYTES >> 20} MiB")
    if kind.kind == "f":
        return rng.random(shape, np.float32).astype(kind)
    return rng.integers(0, 2 if kind.kind == "b" else 100, shape).astype(kind)


def run_load(
    plan: LoadPlan,
    bodies: Sequence[dict[str, npt.NDArray[Any]] | bytes],
    on_answer: Callable[[Answer], None] = lambda _: None,
) -> list[LoadResult]:
    """Send it all; one result per rate."""
    return asyncio.run(_run(plan, bodies, on_answer))


async def _run(
    plan: LoadPlan,
    bodies: Sequence[dict[str, npt.NDArray[Any]] | bytes],
    on_answer: Callable[[Answer], None],
) -> list[LoadResult]:
    client = Client(plan.host, plan.port, connections=plan.connections, timeout_s=plan.timeout_s)
    results = []
    try:
        if plan.warm_up:
            warm = islice(_shots(plan, bodies, plan.rates[0], -1), plan.warm_up)
            await client.open_loop(warm, lambda _: None)
        for step, rate in enumerate(plan.rates):
            answers: list[Answer] = []

            def take(answer: Answer, answers: list[Answer] = answers) -> None:
                answers.append(msgspec.structs.replace(answer, body=b""))
                on_answer(answer)

            shots = takewhile(lambda shot: shot.due_ns < plan.seconds * SECOND, _shots(plan, bodies, rate, step))
            await client.open_loop(shots, take)
            results.append(_settle(plan, rate, answers))
    finally:
        client.close()
    return results


def _process(plan: LoadPlan, rate: float) -> Process:
    if plan.arrivals == "constant":
        return Constant(rate)
    return Poisson(rate) if plan.arrivals == "poisson" else Bursts(rate, plan.burst)


def _shots(
    plan: LoadPlan, bodies: Sequence[dict[str, npt.NDArray[Any]] | bytes], rate: float, step: int
) -> Iterator[Shot]:
    """Endless; every class is a stream of its own."""
    classes = sorted(plan.classes.items())
    times = [
        _process(plan, rate * part).times_ns(stream_rng(plan.seed, (step + 1) * 100 + priority))
        for priority, part in classes
    ]
    for number, (at_ns, which) in enumerate(merge(times)):
        priority = classes[which][0]
        yield _shot(plan, f"{step} {number} {priority}", at_ns, bodies[number % len(bodies)], priority)


def samples(plan: LoadPlan, bodies: Sequence[dict[str, npt.NDArray[Any]] | bytes]) -> list[Shot]:
    """A request for each of these, for whoever has times of his own."""
    return [_shot(plan, str(number), 0, body, 0) for number, body in enumerate(bodies)]


def _shot(plan: LoadPlan, ident: str, at_ns: int, body: dict[str, npt.NDArray[Any]] | bytes, priority: int) -> Shot:
    path = f"/v2/models/{plan.model}/infer"
    headers = {"Host": f"{plan.host}:{plan.port}", **plan.headers}
    if isinstance(body, bytes):
        claims = {"X-Dovetail-Priority": str(priority)} if priority else {}
        raw = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
        return post_shot(path, ident, at_ns, (body,), {**headers, **raw, **claims})
    return infer_shot(path, ident, at_ns, body, headers, **({"priority": priority} if priority else {}))


def outcome_of(answer: Answer, slo_ms: float) -> str:
    """What became of a request, as a client sees it."""
    if answer.status == 200:
        return "in time" if answer.latency_ns <= slo_ms * MS else "late"
    by_status = {0: "no answer", 429: "shed", 503: "shed", 504: "expired"}
    return by_status.get(answer.status, "refused" if answer.status < 500 else "failed")


def _settle(plan: LoadPlan, rate: float, answers: Sequence[Answer]) -> LoadResult:
    errors: Counter[str] = Counter(a.error or f"status {a.status}" for a in answers if a.status not in (200, 429))
    late = Histogram()
    for answer in answers:
        late.add(max(0, answer.sent_ns - answer.due_ns))
    classes = []
    for priority in sorted(plan.classes):
        mine = [a for a in answers if a.ident.endswith(f" {priority}")]
        outcomes = Counter(outcome_of(a, plan.slo_ms) for a in mine)
        times = Histogram()
        for answer in mine:
            if answer.status == 200:
                times.add(answer.latency_ns)
        classes.append(
            ClassLoad(
                priority=priority,
                sent=len(mine),
                outcomes=dict(outcomes),
                in_time=outcomes["in time"],
                attainment=outcomes["in time"] / max(1, len(mine)),
                goodput_per_s=outcomes["in time"] / plan.seconds,
                p50_ms=times.quantile(0.5) / MS,
                p95_ms=times.quantile(0.95) / MS,
                p99_ms=times.quantile(0.99) / MS,
                max_ms=times.max_ns / MS,
            )
        )
    return LoadResult(rate, plan.seconds, tuple(classes), late.quantile(0.99) / MS, dict(errors.most_common(5)))
