"""A live system for tests: started once, asked from ordinary functions, and looked over when it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

import numpy as np
from tests.live import apps

from dovetail.control import Action, Event, RunBatch
from dovetail.control.validate import validate
from dovetail.live.devices import parse_device
from dovetail.live.front.process import WorkerProcess
from dovetail.live.front.system import LiveSystem, Result, Settings
from dovetail.record.log import LogWriter
from dovetail.wiring import PolicySpec, make_controller
from dovetail.workflow.app import load_target

T = TypeVar("T")
#: A system that hangs should fail a test, not hang it.
PATIENCE_SECONDS = 30.0
#: Each gate is used once.
_gates = count(1)


def item(first: float) -> np.ndarray:
    """An input that tells the stages of `apps` what to do."""
    return np.full(3, first, np.float32)


class Live:
    """A system and its loop; the loop runs only while a test waits for something."""

    def __init__(
        self,
        target: str = "tests.live.apps:app",
        device: str = "cpu:1",
        *,
        policy: PolicySpec | None = None,
        hosts: int = 1,
        log: Callable[[Any], LogWriter] | None = None,
        **settings: Any,
    ) -> None:
        self.said: list[str] = []
        self.steps: list[tuple[Event, list[Action]]] = []
        self.loop = asyncio.new_event_loop()
        app = load_target(target)
        workers, entries, cores = parse_device(device, app.specs, hosts)
        policy = policy or PolicySpec("by-class")
        self.controller = make_controller(app.graphs, policy, entries, cores)

        async def start() -> LiveSystem:
            system = LiveSystem(
                Settings(target, app.graphs, workers, entries, cpus=(cores,), **settings),
                self.controller,
                say=self.said.append,
                observers=[self._observe],
                log=None if log is None else log((app.graphs, policy, entries, cores)),
            )
            try:
                await system.start()
            except BaseException:
                await system.close()
                raise
            return system

        try:
            self.system = self.run(start())
        except BaseException:
            self.loop.close()
            raise

    def _observe(self, event: Event, actions: list[Action]) -> None:
        validate(self.controller)
        self.steps.append((event, actions))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, PATIENCE_SECONDS))

    def submit(self, workflow: str, *inputs: Any, **options: Any) -> asyncio.Future[Result]:
        """A request that is under way when this returns."""

        async def submit() -> asyncio.Future[Result]:
            values = [item(i) if isinstance(i, int | float) else i for i in inputs]
            return self.begin(workflow, values, **options)

        return self.run(submit())

    def begin(self, workflow: str, values: list[Any], **options: Any) -> asyncio.Future[Result]:
        """The same, called by the event loop."""
        future = self.loop.create_future()
        self.system.submit(workflow, values, lambda _, result: future.set_result(result), **options)
        return future

    def wait(self, *futures: asyncio.Future[Result]) -> list[Result]:
        """The results, copied out of shared memory."""

        async def read(future: asyncio.Future[Result]) -> Result:
            result = await future
            result.outputs = {name: _copied(value) for name, value in result.outputs.items()}
            result.release()
            return result

        async def read_all() -> list[Result]:
            return await asyncio.gather(*map(read, futures))

        return self.run(read_all())

    def ask(self, workflow: str, *inputs: Any, **options: Any) -> Result:
        """One request and its result."""
        return self.wait(self.submit(workflow, *inputs, **options))[0]

    def until(self, condition: Callable[[], object], what: str = "it") -> None:
        """Let the system go on until something has happened."""

        async def poll() -> None:
            while not condition():
                await asyncio.sleep(0.002)

        try:
            self.run(poll())
        except TimeoutError:
            raise AssertionError(f"{what} never came; the system said: {self.said}") from None

    @contextmanager
    def busy_host(self) -> Iterator[int]:
        """Keep the host worker busy for as long as the block lasts; the number of the request that does."""
        number = next(_gates)
        future = self.submit("gated", number)
        ident = max(self.controller.requests)
        self.until(lambda: any(i == ident for a in self.runs() for i, _, _ in a.items), "its turn")
        yield ident
        apps.open_gate(number)
        self.wait(future)

    def runs(self) -> list[RunBatch]:
        """Every batch that was started, in order."""
        return [a for _, actions in self.steps for a in actions if isinstance(a, RunBatch)]

    def worker(self, name: str) -> WorkerProcess:
        """The worker process of that name, once it has joined."""
        found: list[WorkerProcess] = []

        def joined() -> bool:
            found[:] = [
                w
                for w in self.system.fleet.workers.values()
                if w.spec.name == name and w.ident in self.controller.workers
            ]
            return bool(found)

        self.until(joined, f"worker {name}")
        return found[0]

    def batch_sizes(self, stage: str) -> list[int]:
        """Sizes of the batches of a stage, in the order in which they were started."""
        return [len(a.items) for a in self.runs() if a.stage == stage]

    def check_clean(self) -> None:
        """Nothing is left of any request: no block, no reader, no timer, no arena of a lost worker."""
        system, memory = self.system, self.system.memory
        self.until(lambda: not any(memory.blocks.values()) and not memory.front.used_bytes, "the last free block")
        assert memory.front.blocks == 0
        assert not any(memory.used_bytes.values())
        assert set(memory.arenas) == {0, *(w.ident for w in system.fleet.workers.values() if w.arena is not None)}
        assert not self.controller.requests
        assert not system.answers.requests
        assert not system.answers._waiting
        assert not system._timers
        memory.front.validate()

    def close(self) -> None:
        self.run(self.system.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.array(value)
    return [_copied(v) for v in value] if isinstance(value, list) else value


__all__ = ["Live", "apps", "item"]
