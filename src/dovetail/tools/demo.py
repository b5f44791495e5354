"""The demo: a real server, real models, real pages over HTTP at a rising rate, and what became of every request.

Rules of this file
- The server is `dovetail serve` in a process of its own, exactly as a user starts it; this process is its client, so
  that neither takes the other's interpreter.
- The rates are shares of this machine's own capacity, measured first: every machine sees a light and a heavy load.
- The figures are the server's own, taken from the log that it wrote; what the client measured stands beside them.
- It prints nothing. `cli/demo.py` shows it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from ..control import Reject, Reply, RequestArrived, RequestRefused
from ..errors import DovetailError
from ..record.ledger import Ledger, Summary
from ..record.log import LogReader
from ..sim.arrivals import Steps, Stream, requests
from ..units import SECOND
from ..workflow.app import App, load_target
from .load import Answer, Client, Shot, infer_shot

__all__ = ["CLASSES", "LOADS_PCT", "DemoResult", "Moment", "Options", "Reading", "StepResult", "run_demo"]

TARGET = "examples.document:app"
WORKFLOW = "document"
HOST = "127.0.0.1"
#: Offered load of each step, in per cent of the capacity that was measured: light, busy, nearly full, twice too much.
LOADS_PCT = (30, 60, 90, 200)
#: Class -> its name, and its part of the requests.
CLASSES = {1: ("interactive", 0.2), 2: ("batch", 0.8)}
#: Pages that are drawn; each is sent many times. All of 3 to 9 lines, four in ten turned.
PAGES = 40
#: Requests kept open while the capacity is measured: enough that no stage idles; and their objective, so that none is
#: refused.
AT_A_TIME, PATIENCE_MS = 8, 60_000
#: Part of the whole time that goes into measuring the capacity.
CALIBRATION_PART = 0.12
#: Lines that must be read without any error: 617 of 618 are with the releases in constraints.txt, see docs/models.md.
LEAST_EXACT = 0.97


class Options(msgspec.Struct, frozen=True):
    """How the demo is run."""

    #: Time during which requests are sent, the measuring of capacity included.
    seconds: float = 50.0
    device: str = "cpu"
    log: Path = Path("out/demo.log")
    seed: int = 1


class Moment(msgspec.Struct, frozen=True):
    """Where the demo is, for a progress bar."""

    #: What is going on, such as "60 %: 8.4 pages/s".
    phase: str
    #: 0 to 1.
    done: float
    sent: int = 0
    outcomes: dict[str, int] = {}


Watch = Callable[[Moment], None]


class Reading(msgspec.Struct, frozen=True):
    """A page: what was drawn on it and what the models read."""

    turned_deg: int
    drawn: list[str]
    read: list[str]


class StepResult(msgspec.Struct, frozen=True):
    """One load and what became of its requests, by class."""

    load_pct: int
    rate_per_s: float
    #: Class -> requests that the client sent: what "in time" is a share of.
    sent: dict[int, int]
    #: As the log has it: there a request that was refused before it was read counts as of its workflow's class.
    classes: list[Summary]


class DemoResult(msgspec.Struct, frozen=True):
    """Everything that the demo found out."""

    device: str
    capacity_per_s: float
    steps: list[StepResult]
    classes: list[Summary]
    #: Class -> 95th percentile as the client measured it, from the time at which the request was due.
    client_p95_ms: dict[int, float]
    requests: int
    #: Class -> requests that were turned away with 503 for want of memory. The log has them as shed.
    refused: dict[int, int]
    #: Requests without exactly one outcome in the log, or with another one at the client; there should be none.
    unaccounted: list[str]
    lines: int
    lines_exact: int
    readings: list[Reading]
    #: The request that took longest: number in the log, latency, class.
    slowest: tuple[int, float, int]
    log: str

    @property
    def texts_right(self) -> bool:
        """Whether the models read what was drawn. Emulated devices compute nothing, so they are not judged."""
        return self.device.startswith("emulated:") or self.lines_exact >= LEAST_EXACT * self.lines > 0

    @property
    def holds(self) -> bool:
        """Whether every request has one outcome in the log, the same as at the client, and the texts are right."""
        return not self.unaccounted and self.texts_right


class _Tally:
    """The client's own books."""

    def __init__(self) -> None:
        self.sent = 0
        self.outcomes: Counter[str] = Counter()
        self.answers: dict[str, Answer] = {}
        #: Page -> the texts that came back for it, and how often.
        self.texts: dict[int, Counter[tuple[str, ...]]] = {}

    def take(self, answer: Answer) -> None:
        self.sent += 1
        self.outcomes[outcome_of(answer)] += 1
        self.answers[answer.ident] = answer
        page = int(answer.ident.rpartition("-p")[2])
        if (text := text_of(answer)) is not None:
            self.texts.setdefault(page, Counter())[text] += 1


def outcome_of(answer: Answer) -> str:
    """The outcome that the server stated, or the status that stands for it."""
    if answer.status == 200:
        parameters: Any = answer.json().get("parameters", {})
        return str(parameters.get("dovetail_outcome", "unknown"))
    by_status = {429: "shed", 503: "shed", 504: "expired", 500: "failed"}
    return by_status.get(answer.status, f"no answer ({answer.error or answer.status})")


def text_of(answer: Answer) -> tuple[str, ...] | None:
    """The lines that the models read, or None if there was no result."""
    outputs: Any = answer.json().get("outputs", [])
    return next((tuple(o["data"]) for o in outputs if o["name"] == "text"), None)


def load_pages(seed: int) -> tuple[App, list[Any]]:
    """The application (its weights are fetched now if need be, with pip's own progress) and the pages to send."""
    app = load_target(TARGET)
    page = importlib.import_module("examples.pages").page
    return app, [page(seed * 1000 + i) for i in range(PAGES)]


async def run_demo(options: Options, watch: Watch, say: Callable[[str], None] = lambda _: None) -> DemoResult:
    """Serve, measure the capacity, send, and settle the accounts. Takes `options.seconds` and a few for the start."""
    watch(Moment("getting the models", 0.0))
    app, pages = load_pages(options.seed)
    options.log.parent.mkdir(parents=True, exist_ok=True)
    watch(Moment("starting dovetail serve", 0.0))
    tally = _Tally()
    async with _server(options, say) as port:
        client = Client(HOST, port)
        try:
            capacity = await _calibrate(client, pages, options, watch)
            rates = [capacity * load / 100 for load in LOADS_PCT]
            await _send_steps(client, pages, options, rates, tally, watch)
        finally:
            client.close()
    return _settle(app, pages, options, capacity, rates, tally)


@asynccontextmanager
async def _server(options: Options, say: Callable[[str], None]) -> AsyncIterator[int]:
    """`dovetail serve` in a process of its own; gives its port, and ends it with a drain."""
    command = [sys.executable, "-m", "dovetail", "serve", TARGET, "--port", "0", "--device", options.device]
    command += ["--log", str(options.log)]
    process = await asyncio.create_subprocess_exec(
        *command, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    assert process.stderr is not None
    said: list[str] = []
    port = 0
    while not port and (line := await process.stderr.readline()):
        said.append(line.decode(errors="replace").rstrip())
        if line.startswith(b"{"):  # the one line that is meant for programs
            port = json.loads(line)["port"]
    if not port:
        await process.wait()
        raise DovetailError("the server did not start; it said: " + (" / ".join(said[-3:]) or "nothing"))

    async def pass_on() -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            say(line.decode(errors="replace").rstrip())

    reader = asyncio.create_task(pass_on())
    try:
        yield port
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        status = await process.wait()
        await reader
    if status != 0:
        raise DovetailError(f"the server ended with exit code {status}")


async def _calibrate(client: Client, pages: Sequence[Any], options: Options, watch: Watch) -> float:
    """Pages per second that this machine can do, with a few always waiting."""
    answers: list[Answer] = []

    def shots(first: int) -> Iterator[Shot]:
        for number in count(first):
            page = number % len(pages)
            yield _shot(f"calibrate-{number:04}-p{page}", 0, pages[page], 2, slo_ms=PATIENCE_MS)

    watch(Moment("warming up", 0.0))
    await client.closed_loop(shots(0), answers.append, at_a_time=AT_A_TIME, seconds=0.5)
    answers.clear()
    watch(Moment(f"measuring the capacity of {options.device}", 0.02))
    seconds = options.seconds * CALIBRATION_PART
    await client.closed_loop(shots(1000), answers.append, at_a_time=AT_A_TIME, seconds=seconds)
    answered = [a for a in answers if a.status == 200]
    if not answered:
        raise DovetailError(f"the server answered none of {len(answers)} pages: {outcome_of(answers[0])}")
    return len(answered) * SECOND / max(a.done_ns for a in answered)


async def _send_steps(
    client: Client, pages: Sequence[Any], options: Options, rates: Sequence[float], tally: _Tally, watch: Watch
) -> None:
    step_ns = round(options.seconds * (1 - CALIBRATION_PART) / len(LOADS_PCT) * SECOND)
    streams = [
        Stream(Steps(tuple((step_ns, rate * part) for rate in rates)), 0, priority)
        for priority, (_, part) in CLASSES.items()
    ]

    def shots() -> Iterator[Shot]:
        for arrival in requests(streams, options.seed):
            step = min(arrival.at_ns // step_ns, len(LOADS_PCT) - 1)
            page = arrival.request % len(pages)
            name, _ = CLASSES[arrival.priority]
            ident = f"{LOADS_PCT[step]}-{name}-{arrival.request:04}-p{page}"
            part = CALIBRATION_PART + (1 - CALIBRATION_PART) * arrival.at_ns / (step_ns * len(LOADS_PCT))
            phase = f"{LOADS_PCT[step]} % of capacity: {rates[step]:.1f} pages/s"
            watch(Moment(phase, part, tally.sent, dict(tally.outcomes)))
            yield _shot(ident, arrival.at_ns, pages[page], arrival.priority)
        watch(Moment("waiting for the last answers", 1.0, tally.sent, dict(tally.outcomes)))

    await client.open_loop(shots(), tally.take)
    watch(Moment("stopping the server", 1.0, tally.sent, dict(tally.outcomes)))


def _shot(ident: str, due_ns: int, page: Any, priority: int, **more: float) -> Shot:
    path = f"/v2/models/{WORKFLOW}/infer"
    return infer_shot(path, ident, due_ns, {"page": page.pixels}, priority=priority, **more)


def _settle(
    app: App, pages: Sequence[Any], options: Options, capacity: float, rates: Sequence[float], tally: _Tally
) -> DemoResult:
    """Compare the server's log with the client's books."""
    books = [(g.name, g.slo_ns) for g in app.graphs]
    by_step = {load: Ledger(books) for load in LOADS_PCT}
    total = Ledger(books)
    # Of what is refused before it is read the log knows no name, but its client was told the number.
    told = {a.json().get("dovetail_request"): name for name, a in tally.answers.items() if a.status != 200}
    names: dict[int, str] = {}
    logged: dict[str, list[str]] = {}
    slowest = (0, 0.0, 0)
    with LogReader(options.log) as log:
        for step in log:
            if isinstance(step.event, RequestArrived | RequestRefused):
                names[step.event.request] = step.note or told.get(step.event.request, "")
            for action in step.actions:
                if not isinstance(action, Reply | Reject):
                    continue
                name = names[action.request]
                if name not in tally.answers:
                    continue  # sent while the capacity was measured
                now_ns = step.event.at_ns
                logged.setdefault(name, []).append(action.outcome)
                by_step[int(name.partition("-")[0])].add(action, now_ns)
                total.add(action, now_ns)
                slowest = max(slowest, (action.request, (now_ns - action.arrived_ns) / 1e6, action.priority), key=_ms)
    ends = {name: outcome_of(answer) for name, answer in tally.answers.items()}
    unaccounted = [name for name, end in ends.items() if logged.get(name) != [end]]
    exact, lines = _compare(pages, tally)
    read = sorted(tally.texts)
    shown = [i for turned in (180, 0) for i in read if pages[i].turned_deg == turned][:1]
    return DemoResult(
        device=options.device,
        capacity_per_s=capacity,
        steps=[
            StepResult(load, rate, _per_class(ends, f"{load}-"), by_step[load].summary())
            for load, rate in zip(LOADS_PCT, rates, strict=True)
        ],
        classes=total.summary(),
        client_p95_ms={priority: _p95_ms(tally, name) for priority, (name, _) in CLASSES.items()},
        requests=len(tally.answers),
        refused=_per_class([name for name, answer in tally.answers.items() if answer.status == 503]),
        unaccounted=unaccounted,
        lines=lines,
        lines_exact=exact,
        readings=[
            Reading(pages[i].turned_deg, list(pages[i].lines), list(tally.texts[i].most_common(1)[0][0]))
            for i in shown
            if i in tally.texts
        ],
        slowest=slowest,
        log=str(options.log),
    )


def _per_class(names: Iterable[str], prefix: str = "") -> dict[int, int]:
    """How many of these requests belong to each class."""
    return {
        priority: sum(name.startswith(prefix) and f"-{class_name}-" in name for name in names)
        for priority, (class_name, _) in CLASSES.items()
    }


def _ms(request: tuple[int, float, int]) -> float:
    return request[1]


def _compare(pages: Sequence[Any], tally: _Tally) -> tuple[int, int]:
    """Lines that came back exactly as drawn, and lines that were drawn, over all answers."""
    exact = lines = 0
    for index, texts in tally.texts.items():
        drawn = pages[index].lines
        for text, times in texts.items():
            exact += times * (Counter(drawn) & Counter(text)).total()
            lines += times * len(drawn)
    return exact, lines


def _p95_ms(tally: _Tally, class_name: str) -> float:
    """Of the answers with a result, as the server's ledger counts it."""
    latencies = sorted(a.latency_ns for n, a in tally.answers.items() if f"-{class_name}-" in n and a.status == 200)
    return latencies[-(-len(latencies) * 95 // 100) - 1] / 1e6 if latencies else 0.0
