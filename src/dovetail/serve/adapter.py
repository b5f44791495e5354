"""The live system as the HTTP front's backend: bodies in the front's arena, calls as requests of the controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from ..errors import BadRequest, Forbidden, Overloaded
from ..live.front.checks import fan_out_refused
from ..live.front.system import LiveSystem, Result
from ..live.tensors.arena import Arena, ArenaFull
from ..live.tensors.codec import Ref
from ..units import MS, SECOND, US, format_bytes
from ..workflow.graph import Graph, Port
from ..workflow.local import count_of
from .backend import Answer, Call, Metric, ModelInfo
from .metrics import render

__all__ = ["LiveBackend"]

LOWEST_CLASS = 10
#: Part of the memory for bodies that is for every class; the rest is for class 1, as it is in the workers' memory
#: (`memory_admission.FOR_THE_HIGHEST`).
FOR_ALL = 0.8
#: Part of an objective that the way in and the way back take from it, at least and at most [our choice]. At twice the
#: capacity a client saw answers 2 to 6 ms later than the front did (docs/results/peers.md).
LEAST_SPENT, MOST_SPENT = 0.02, 0.05


class _Body:
    """A block of the front's arena, freed when both the HTTP front and the request are done with it."""

    def __init__(self, arena: Arena, nbytes: int) -> None:
        self._arena = arena
        self._offset = arena.alloc(nbytes)
        self.view = arena.view(self._offset, nbytes)
        self._users = 1

    def ref(self, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]) -> _BodyRef:
        return _BodyRef(Ref(self._arena.ident, self._offset + offset, nbytes, dtype, shape), self)

    def hold(self) -> None:
        self._users += 1

    def release(self) -> None:
        self._users -= 1
        if not self._users:
            self.view.release()
            self._arena.free(self._offset)


class _BodyRef(NamedTuple):
    """A tensor that lies in a body."""

    ref: Ref
    body: _Body


class LiveBackend:
    """Answers the HTTP front from a live system."""

    def __init__(self, system: LiveSystem, *, label: str = "", trust_priority: bool = True) -> None:
        """Without `trust_priority` no client may claim a higher class than its workflow has."""
        self._system = system
        self._trust_priority = trust_priority
        self._graphs = {g.name: g for g in system.settings.graphs}
        self._counted = {g.name: g.counted_inputs() for g in system.settings.graphs}
        #: Inputs of each workflow that stages are mapped over.
        self._lists = {g.name: {-1 - node for node, _ in g.lists() if node < 0} for g in system.settings.graphs}
        #: Set on emulated devices: goes into every answer.
        self._label = label
        self._infos = {name: self._info(graph, ready=True) for name, graph in self._graphs.items()}
        self._unready = {name: self._info(graph, ready=False) for name, graph in self._graphs.items()}

    def _info(self, graph: Graph, *, ready: bool) -> ModelInfo:
        parameters = {
            "slo_ms": {"string_value": f"{graph.slo_ns / MS:g}"},
            "priority": {"string_value": str(graph.priority)},
        }
        if self._label:
            parameters["device"] = {"string_value": self._label}
        return ModelInfo(
            name=graph.name,
            platform="dovetail_workflow",
            inputs=tuple(Port(p.name, p.datatype, p.shape or (1,)) for p in graph.inputs),
            outputs=tuple(Port(p.name, p.datatype, p.shape or (1,)) for p in graph.outputs),
            ready=ready,
            config={"parameters": parameters},
            priority=graph.priority,
        )

    def body(self, model: str, nbytes: int, priority: int = 0) -> _Body:
        """Room for a request body in shared memory. Who finds none is on record, though its id has not been read."""
        front = self._system.memory.front
        try:
            if (priority or self._graphs[model].priority) > 1 and front.used_bytes + nbytes > front.size * FOR_ALL:
                raise ArenaFull(f"the last {1 - FOR_ALL:.0%} of {format_bytes(front.size)} are for class 1")
            return _Body(front, nbytes)
        except ArenaFull as error:
            refusal = Overloaded(f"no memory for a body of {nbytes} bytes now: {error}", retry_after_ms=1000)
            self._system.refuse(model, refusal, priority=priority)
            raise refusal from error

    def crowded(self) -> bool:
        """Whether half of the memory for bodies is in use: below that nobody is refused for want of it."""
        front = self._system.memory.front
        return front.used_bytes > front.size // 2

    def claims(self, model: str, priority: int) -> None:
        """Whether a client may claim a class."""
        if not priority:
            return
        if not 0 <= priority <= LOWEST_CLASS:
            raise BadRequest(f"priority {priority} must be from 1 (highest) to {LOWEST_CLASS}, or 0 for the default")
        own = self._graphs[model].priority
        if 0 < priority < own and not self._trust_priority:
            raise Forbidden(
                f"class {priority} is above {model!r}'s own, {own}; a server that others can reach takes that from "
                "nobody unless it is started with --trust-priority"
            )

    def models(self) -> Mapping[str, ModelInfo]:
        """All workflows."""
        return self._infos if self._system.ready() else self._unready

    def live(self) -> bool:
        """The event loop answers, so the process lives."""
        return True

    def ready(self) -> bool:
        """Whether every stage is loaded somewhere, and the server is not draining."""
        return self._system.ready() and not self._system.controller.draining

    def statistics(self, model: str | None) -> list[dict[str, Any]]:
        """Entries of Triton's `model_stats`."""
        names = list(self._graphs) if model is None else [model]
        return [self._system.statistics.model_stats(name) for name in names]

    def metrics(self, http: list[Metric]) -> str:
        """From the books, at the moment of asking."""
        return render(self._system, http)

    def infer(self, call: Call, done: Callable[[Answer | Exception], None]) -> Callable[[], None]:
        """Put the call to the controller; its end is told to `done`."""
        inputs: list[Any] = []
        bodies: list[_Body] = []
        for port in self._graphs[call.model].inputs:
            value = call.inputs[port.name]
            if isinstance(value, _BodyRef):
                bodies.append(value.body)
                value = value.ref
            inputs.append(value)
        self.claims(call.model, call.priority)
        counts = tuple([_count(inputs[i]) for i in self._counted[call.model]])
        most = self._system.settings.max_fan_out
        for i, count in zip(self._counted[call.model], counts, strict=True):
            if count > most and i in self._lists[call.model]:
                name = self._graphs[call.model].inputs[i].name
                raise BadRequest(fan_out_refused(f"input {name!r} is", count, most))
        for body in bodies:
            body.hold()

        def freed() -> None:
            for body in bodies:
                body.release()

        try:
            ident = self._system.submit(
                call.model,
                inputs,
                lambda ident, result: done(self._answer(ident, result)),
                priority=call.priority,
                objective_ns=self._objective_ns(call),
                timeout_ns=call.timeout_us * US,
                note=call.request_id,
                counts=counts,
                on_free=freed,
            )
        except BaseException:
            freed()
            raise
        return partial(self._system.cancel, ident)

    def _objective_ns(self, call: Call) -> int:
        """When the answer has to leave, from now on.

        An objective counts from when a request began to arrive until its answer is there. Under load bodies wait for
        the front, and so do answers: the way back is taken to be as long as the way in, and both to be a small part
        of the objective at least. Under overload all are answered just in time, and a millisecond that nobody counted
        makes all of them late. A client that sends slowly is charged a small part only.
        """
        whole_ns = round(call.slo_ms * MS) or self._graphs[call.model].slo_ns
        spent_ns = round((time.monotonic() - call.asked_s) * SECOND) if call.asked_s else 0
        way_ns = min(max(2 * spent_ns, round(whole_ns * LEAST_SPENT)), round(whole_ns * MOST_SPENT))
        return max(1, whole_ns - way_ns)

    def _answer(self, ident: int, result: Result) -> Answer | Exception:
        if result.outcome == "cancelled":  # if a client waits, it was us
            result.release()
            given_up = Overloaded(result.reason, retry_after_ms=1000)
            given_up.request = ident
            return given_up
        parameters: dict[str, str | int | float | bool] = {"dovetail_request": ident}
        if self._label:
            parameters["dovetail_device"] = self._label
        return Answer(
            outcome=result.outcome,
            outputs=result.outputs,
            reason=result.reason,
            retry_after_ms=-(-result.retry_after_ns // MS),
            parameters=parameters,
            release=result.release,
        )


def _count(value: Any) -> int:
    return value.shape[0] if isinstance(value, Ref) and value.shape else count_of(value)
