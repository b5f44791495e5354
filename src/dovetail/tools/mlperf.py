"""`dovetail load --mlperf`: LoadGen of MLPerf draws the times, keeps the books and judges; our client sends.

Rules of this file
- Nothing here judges a latency: LoadGen measures from when a request was due until it is told of its answer.
- LoadGen knows answers only. A request without results is told to it when twice its objective has passed, and so
  counts as too late, never as fast.
- LoadGen's threads wait for nobody: they hand requests to an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..errors import DovetailError
from ..extras import need
from ..units import MS, SECOND
from .load import Answer, Client, Shot
from .loading import LoadPlan

__all__ = ["MlperfPlan", "MlperfResult", "Scenario", "run_mlperf"]

Scenario = Literal["server", "single-stream"]
#: The name of LoadGen's own summary.
_SUMMARY = "mlperf_log_summary.txt"
#: One request after the other: nobody answers more quickly, and no more requests than this are drawn beforehand.
_QUICKEST_NS, _MOST_DRAWN = 100_000, 1_000_000
#: Handing over what is left when LoadGen has ended takes no longer.
_END_SECONDS = 10.0


class MlperfPlan(msgspec.Struct, frozen=True):
    """What LoadGen is asked for."""

    scenario: Scenario
    #: Server, rate, time, objective and seed; its kinds of arrivals and its classes are not read.
    load: LoadPlan
    #: Part of the requests that has to be answered within the objective.
    target: float
    #: Where LoadGen's own files go; None: nowhere.
    directory: Path | None = None


class MlperfResult(msgspec.Struct, frozen=True):
    """LoadGen's verdict and figures, and what we saw."""

    scenario: Scenario
    valid: bool
    #: LoadGen's summary: what it calls a figure -> the figure.
    summary: dict[str, str]
    sent: int
    #: Requests without results, by what was said.
    without_results: dict[str, int]


class _Sender:
    """An event loop in a thread of its own, and the client in it."""

    def __init__(self, plan: MlperfPlan, shots: Sequence[Shot], tell: Callable[[int], None]) -> None:
        self._plan = plan
        self._shots = shots
        self._tell = tell
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: Client | None = None
        self.sent = 0
        self.without: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def issue(self, wanted: Sequence[tuple[int, int]]) -> None:
        """From any thread: ask for these samples, each with the number under which LoadGen knows it."""
        self._loop.call_soon_threadsafe(self._begin, wanted)

    def close(self) -> None:
        """Everything was answered."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        if self._client is not None:
            self._client.close()
        self._loop.close()

    def _begin(self, wanted: Sequence[tuple[int, int]]) -> None:
        if self._client is None:
            plan = self._plan.load
            self._client = Client(plan.host, plan.port, connections=plan.connections, timeout_s=plan.timeout_s)
        for number, index in wanted:
            self.sent += 1
            task = self._loop.create_task(self._ask(self._client, number, self._shots[index % len(self._shots)]))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, client: Client, number: int, shot: Shot) -> None:
        begun = self._loop.time()
        answers: list[Answer] = []
        await client.shoot(shot, 0, answers.append)
        answer = answers[0]
        if answer.status != 200:
            self.without[answer.error or f"status {answer.status}"] += 1
            await asyncio.sleep(max(0.0, begun + 2 * self._plan.load.slo_ms * MS / SECOND - self._loop.time()))
        self._tell(number)


def run_mlperf(plan: MlperfPlan, shots: Sequence[Shot]) -> MlperfResult:
    """Have LoadGen put a load on the server; `shots` are its samples, their times are not read."""
    need("mlperf_loadgen", extra="mlperf", for_="--mlperf")
    import mlperf_loadgen as loadgen

    def tell(number: int) -> None:
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(number, 0, 0)])

    sender = _Sender(plan, shots, tell)
    with _directory(plan.directory) as directory:
        system = loadgen.ConstructSUT(lambda asked: sender.issue([(q.id, q.index) for q in asked]), lambda: None)
        samples = loadgen.ConstructQSL(len(shots), len(shots), lambda _: None, lambda _: None)
        try:
            loadgen.StartTestWithLogSettings(
                system, samples, _settings(loadgen, plan), _log(loadgen, directory), str(directory / "audit.config")
            )
        finally:
            sender.close()
            loadgen.DestroyQSL(samples)
            loadgen.DestroySUT(system)
        summary = _read(directory / _SUMMARY)
    return MlperfResult(
        plan.scenario, summary.get("Result is") == "VALID", summary, sender.sent, dict(sender.without.most_common(5))
    )


def _settings(loadgen: Any, plan: MlperfPlan) -> Any:
    settings = loadgen.TestSettings()
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = round(plan.load.seconds * 1000)
    settings.min_query_count = 1
    settings.qsl_rng_seed = settings.sample_index_rng_seed = settings.schedule_rng_seed = plan.load.seed
    if plan.scenario == "server":
        settings.scenario = loadgen.TestScenario.Server
        settings.server_target_qps = plan.load.rates[0]
        settings.server_target_latency_ns = round(plan.load.slo_ms * MS)
        settings.server_target_latency_percentile = plan.target
    else:
        settings.scenario = loadgen.TestScenario.SingleStream
        # So many are drawn beforehand, and it ends when the time is over.
        settings.single_stream_expected_latency_ns = max(
            _QUICKEST_NS, round(plan.load.seconds * SECOND / _MOST_DRAWN)
        )
        settings.single_stream_target_latency_percentile = plan.target
    return settings


def _log(loadgen: Any, directory: Path) -> Any:
    output = loadgen.LogOutputSettings()
    output.outdir = str(directory)
    output.copy_detail_to_stdout = output.copy_summary_to_stdout = False
    log = loadgen.LogSettings()
    log.log_output = output
    log.enable_trace = False
    return log


@contextmanager
def _directory(wanted: Path | None) -> Iterator[Path]:
    if wanted is not None:
        try:
            wanted.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DovetailError(f"cannot make {wanted}: {error.strerror}") from None
        yield wanted
        return
    with tempfile.TemporaryDirectory(prefix="dovetail-mlperf-") as scratch:
        yield Path(scratch)


def _read(path: Path) -> dict[str, str]:
    """The lines ``name : figure`` of a summary, before it repeats the settings."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError as error:
        raise DovetailError(f"LoadGen left no summary at {path}: {error.strerror}") from None
    before = itertools.takewhile(lambda line: "Test Parameters Used" not in line, lines)
    pairs = (line.partition(" : ") for line in before)
    return {name.strip(): value.strip() for name, mark, value in pairs if mark}
