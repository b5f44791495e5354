"""The live system as the HTTP front's backend: bodies in the front's arena, calls as requests of the controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ..errors import BadRequest, Forbidden, Overloaded, QuotaExceeded
from ..live.front.checks import fan_out_refused
from ..live.front.system import LiveSystem, Result
from ..live.tensors.arena import Arena, ArenaFull
from ..live.tensors.ref import Ref
from ..units import MS, SECOND, US, format_bytes
from ..workflow.graph import Graph, Port
from ..workflow.local import count_of
from .access import effective_class
from .backend import Answer, Call, Metric, ModelInfo, SliceWanted
from .keys import Key
from .metrics import render
from .tenants import Tenants

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


class _Generation:
    """One system and what is served with it. There is another one when workflows have been loaded anew."""

    def __init__(self, number: int, system: LiveSystem, label: str) -> None:
        self.number = number
        self.system = system
        graphs = system.settings.graphs
        self.graphs = {g.name: g for g in graphs}
        self.counted = {g.name: g.counted_inputs() for g in graphs}
        #: Inputs of each workflow that stages are mapped over.
        self.lists = {g.name: {-1 - node for node, _ in g.lists() if node < 0} for g in graphs}
        #: Objective of each workflow, and the least and the most of it that the way in and back take.
        self.ways_ns = {g.name: (g.slo_ns, *_ways_ns(g.slo_ns)) for g in graphs}
        #: Set on emulated devices: goes into every answer.
        self.label = label
        self.infos = {name: self._info(graph, ready=True) for name, graph in self.graphs.items()}
        self.unready = {name: self._info(graph, ready=False) for name, graph in self.graphs.items()}

    def _info(self, graph: Graph, *, ready: bool) -> ModelInfo:
        parameters = {
            "slo_ms": {"string_value": f"{graph.slo_ns / MS:g}"},
            "priority": {"string_value": str(graph.priority)},
        }
        if self.label:
            parameters["device"] = {"string_value": self.label}
        return ModelInfo(
            name=graph.name,
            platform="dovetail_workflow",
            inputs=tuple(Port(p.name, p.datatype, p.shape or (1,)) for p in graph.inputs),
            outputs=tuple(Port(p.name, p.datatype, p.shape or (1,)) for p in graph.outputs),
            ready=ready,
            config={"parameters": parameters},
            priority=graph.priority,
            generation=self.number,
        )


class LiveBackend:
    """Answers the HTTP front from a live system, and from the one before it while that has something to do."""

    def __init__(
        self,
        system: LiveSystem,
        *,
        label: str = "",
        trust_priority: bool = True,
        tenants: Tenants | None = None,
    ) -> None:
        """Without `trust_priority` a client without a key may claim neither a higher class than its workflow has, nor
        to be a tenant. Without `tenants` nobody is limited."""
        self.trust_priority = trust_priority
        self.tenants = tenants
        self._now = _Generation(1, system, label)
        self._all = {1: self._now}

    @property
    def system(self) -> LiveSystem:
        """The one that new requests go to."""
        return self._now.system

    def switch(self, system: LiveSystem, label: str = "") -> None:
        """New requests go to this one. Those that have begun, be it with their body, stay where they are."""
        self._now = _Generation(self._now.number + 1, system, label)
        self._all[self._now.number] = self._now

    def forget(self, system: LiveSystem) -> None:
        """A system that others have taken over from is about to be closed."""
        self._all = {n: each for n, each in self._all.items() if each.system is not system}

    def _of(self, number: int) -> _Generation:
        found = self._all.get(number) if number else self._now
        if found is None:
            raise Overloaded("the workflow was loaded anew meanwhile; send the request again", retry_after_ms=1)
        return found

    def body(self, model: str, nbytes: int, priority: int = 0, generation: int = 0) -> _Body:
        """Room for a request body in shared memory. Who finds none is on record, though its id has not been read."""
        now = self._of(generation)
        front = now.system.memory.front
        try:
            if (priority or now.graphs[model].priority) > 1 and front.used_bytes + nbytes > front.size * FOR_ALL:
                raise ArenaFull(f"the last {1 - FOR_ALL:.0%} of {format_bytes(front.size)} are for class 1")
            return _Body(front, nbytes)
        except ArenaFull as error:
            refusal = Overloaded(f"no memory for a body of {nbytes} bytes now: {error}", retry_after_ms=1000)
            now.system.refuse(model, refusal, priority=priority)
            raise refusal from error

    def crowded(self) -> bool:
        """Whether half of the memory for bodies is in use: below that nobody is refused for want of it."""
        front = self.system.memory.front
        return front.used_bytes > front.size // 2

    def claims(self, model: str, priority: int, who: Key | None = None) -> int:
        """Whether a client may claim a class, and which one it gets."""
        if not priority and who is None:
            return 0
        if not 0 <= priority <= LOWEST_CLASS:
            raise BadRequest(f"priority {priority} must be from 1 (highest) to {LOWEST_CLASS}, or 0 for the default")
        own = self._now.graphs[model].priority if model in self._now.graphs else 1
        if who is not None:
            return effective_class(who, model, own, priority)
        if 0 < priority < own and not self.trust_priority:
            raise Forbidden(
                f"class {priority} is above {model!r}'s own, {own}; a server that others can reach takes that from "
                "nobody unless it has keys (--keys) or is started with --trust-priority"
            )
        return priority

    def let_in(self, model: str, priority: int, who: Key | None) -> None:
        """Whether the tenant of a key may have one more request now; its body has not come yet."""
        if who is not None and self.tenants is not None:
            try:
                self.tenants.look(who.tenant, time.monotonic_ns())
            except QuotaExceeded as refusal:
                self.system.refuse(model, refusal, priority=priority)
                raise

    def _tenant(self, call: Call) -> str:
        """Whose request it is; only where clients are trusted they may say it themselves."""
        if call.who is not None:
            if call.tenant not in ("", call.who.tenant):
                raise Forbidden(f"this key is of tenant {call.who.tenant!r}, not of {call.tenant!r}")
            return call.who.tenant
        return call.tenant if self.trust_priority else ""

    def slices(self) -> list[dict[str, Any]]:
        """What every client with a quota has of the devices."""
        return [msgspec.to_builtins(piece) for piece in self.system.slices.all()]

    def change_slice(self, client: str, wanted: SliceWanted, admin: bool = False) -> dict[str, Any]:
        """Give a client another slice, if whoever asks is trusted."""
        if not (admin or self.trust_priority):
            raise Forbidden(
                "a server that others can reach changes slices for nobody unless it is started with --trust-priority"
            )
        changed = self.system.slices.change(client, wanted.share, wanted.quota, wanted.worker)
        found: dict[str, Any] = msgspec.to_builtins(changed)
        return found

    def models(self) -> Mapping[str, ModelInfo]:
        """All workflows."""
        return self._now.infos if self.system.ready() else self._now.unready

    def live(self) -> bool:
        """The event loop answers, so the process lives."""
        return True

    def ready(self) -> bool:
        """Whether every stage is loaded somewhere, and the server is not draining."""
        return self.system.ready() and not self.system.controller.draining

    def statistics(self, model: str | None) -> list[dict[str, Any]]:
        """Entries of Triton's `model_stats`."""
        names = list(self._now.graphs) if model is None else [model]
        return [self.system.statistics.model_stats(name) for name in names]

    def metrics(self, http: list[Metric]) -> str:
        """From the books, at the moment of asking."""
        return render(self.system, http, self.tenants)

    def infer(self, call: Call, done: Callable[[Answer | Exception], None]) -> Callable[[], None]:
        """Put the call to the controller; its end is told to `done`."""
        now = self._of(call.generation)
        inputs: list[Any] = []
        bodies: list[_Body] = []
        for port in now.graphs[call.model].inputs:
            value = call.inputs[port.name]
            if isinstance(value, _BodyRef):
                bodies.append(value.body)
                value = value.ref
            inputs.append(value)
        priority = self.claims(call.model, call.priority, call.who)
        counts: tuple[int, ...] = ()
        if counted := now.counted[call.model]:
            counts = tuple([_count(inputs[i]) for i in counted])
            most = now.system.settings.max_fan_out
            for i, count in zip(counted, counts, strict=True):
                if count > most and i in now.lists[call.model]:
                    name = now.graphs[call.model].inputs[i].name
                    raise BadRequest(fan_out_refused(f"input {name!r} is", count, most))
        tenant = self._enter(now, call, priority) if self.tenants is not None else None
        for body in bodies:
            body.hold()

        def freed() -> None:
            for body in bodies:
                body.release()

        def ended(ident: int, result: Result) -> None:
            if tenant is not None:
                tenant(result.outcome == "shed", result.cost_usd)
            done(_answer(ident, result, now.label))

        try:
            ident = now.system.submit(
                call.model,
                inputs,
                ended,
                priority=priority,
                objective_ns=self._objective_ns(now, call),
                timeout_ns=call.timeout_us * US,
                note=call.request_id or call.trace,
                counts=counts,
                sheddable=self.tenants is None or self.tenants.sheddable(self._tenant(call)),
                on_free=freed,
            )
        except BaseException as error:
            freed()
            if tenant is not None:
                tenant(isinstance(error, Overloaded), 0.0)
            raise
        return partial(now.system.cancel, ident)

    def _objective_ns(self, now: _Generation, call: Call) -> int:
        """When the answer has to leave, from now on.

        An objective counts from when a request began to arrive until its answer is there. Under load bodies wait for
        the front, and so do answers: the way back is taken to be as long as the way in, and both to be a small part
        of the objective at least. Under overload all are answered just in time, and a millisecond that nobody counted
        makes all of them late. A client that sends slowly is charged a small part only.
        """
        whole_ns, least_ns, most_ns = now.ways_ns[call.model]
        if own_ns := round(call.slo_ms * MS) if call.slo_ms else 0:
            whole_ns, (least_ns, most_ns) = own_ns, _ways_ns(own_ns)
        way_ns = 2 * round((time.monotonic() - call.asked_s) * SECOND) if call.asked_s else 0
        way_ns = most_ns if way_ns > most_ns else least_ns if way_ns < least_ns else way_ns
        return max(1, whole_ns - way_ns)

    def _enter(self, now: _Generation, call: Call, priority: int) -> Callable[[bool, float], None]:
        """Book a request of a tenant; what is returned is to be told its end: whether it was shed, and its cost."""
        system, tenants = now.system, self.tenants
        assert tenants is not None
        name, own = tenants.name_of(self._tenant(call)), priority or now.graphs[call.model].priority
        try:
            tenants.enter(name, call.model, own, time.monotonic_ns())
        except QuotaExceeded as refusal:
            system.refuse(call.model, refusal, priority=priority, note=call.request_id or call.trace)
            raise
        return lambda shed, cost: tenants.leave(name, call.model, cost, own, shed, time.monotonic_ns())


def _answer(ident: int, result: Result, label: str) -> Answer | Exception:
    if result.outcome == "cancelled":  # if a client waits, it was us
        result.release()
        given_up = Overloaded(result.reason, retry_after_ms=1000)
        given_up.request = ident
        return given_up
    parameters: dict[str, str | int | float | bool] = {"dovetail_request": ident}
    if label:
        parameters["dovetail_device"] = label
    return Answer(
        outcome=result.outcome,
        outputs=result.outputs,
        reason=result.reason,
        retry_after_ms=-(-result.retry_after_ns // MS),
        parameters=parameters,
        release=result.release,
    )


def _ways_ns(objective_ns: int) -> tuple[int, int]:
    return round(objective_ns * LEAST_SPENT), round(objective_ns * MOST_SPENT)


def _count(value: Any) -> int:
    return value.shape[0] if isinstance(value, Ref) and value.shape else count_of(value)
