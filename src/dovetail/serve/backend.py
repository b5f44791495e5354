"""What the front needs from the live system behind it.

Rules of this file
- It holds data and protocols only and imports neither the front nor the live system, so each can be tested alone.
- All calls come from the thread of the event loop, and none blocks: `infer` answers by calling back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from ..workflow.graph import Port
from .keys import Key

__all__ = ["BODY_ALIGN_BYTES", "Answer", "Backend", "Body", "Call", "Metric", "ModelInfo", "SliceWanted"]

#: The front lays a request out so that its first binary tensor is as aligned as the body is, up to this much.
BODY_ALIGN_BYTES = 64


#: Name, kind, meaning and value.
Metric = tuple[str, Literal["counter", "gauge"], str, float]


class ModelInfo(msgspec.Struct, frozen=True):
    """What clients may know of a model. Its tensors have no batch dimension: a request is one item."""

    name: str
    platform: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    ready: bool
    config: dict[str, Any] = {}  # merged into the answer of `/config`
    priority: int = 1  # class of requests that claim none
    generation: int = 0  # of the system behind, for `Call`


class Body(Protocol):
    """Memory that one request body is received into, straight from the socket."""

    @property
    def view(self) -> memoryview:
        """Writable bytes, as many as were asked for, aligned to `BODY_ALIGN_BYTES`."""

    def ref(self, offset: int, nbytes: int, dtype: str, shape: tuple[int, ...]) -> object:
        """Names a tensor that lies in this body: raw, little-endian, row-major. `dtype` is numpy's name: float32."""

    def release(self) -> None:
        """The front is done with it: the response is written, or the client is gone and `infer` was answered.

        Called once. Work that outlives a cancelled `infer` keeps the memory by its own count.
        """


class Call(msgspec.Struct):
    """One inference. Values of `inputs` by the declared input:

    - fixed-size datatype: a reference made by `Body.ref` if it came in binary, a numpy array if it came as JSON;
    - BYTES of the declared shape (1,): `bytes`;
    - BYTES of any other shape: a flat `list[bytes]`.
    """

    model: str
    inputs: dict[str, object]
    request_id: str = ""
    priority: int = 0  # 1 is highest, 0 the model's default
    timeout_us: int = 0  # 0 is none
    slo_ms: float = 0.0  # 0 is the model's own
    tenant: str = ""
    trace: str = ""  # the W3C `traceparent` that came with it
    asked_s: float = 0.0  # when it began to arrive, by the monotonic clock; 0 is now
    generation: int = 0  # that of the model it was read for; 0 is the present one
    who: Key | None = None  # the key that came with it, where keys are needed


class SliceWanted(msgspec.Struct, forbid_unknown_fields=True):
    """The slice that somebody wants for a client; what is left out stays."""

    share: int = 0
    quota: int = 0
    #: Name of the worker that it is moved to; empty: any.
    worker: str | None = None


class Answer(msgspec.Struct):
    """How a call ended. Exactly one of six outcomes; `outputs` belongs to the first two.

    Outputs may be numpy arrays and scalars, str, bytes, lists of these two, bool, int and float; anything else
    reaches the client as JSON text.
    """

    outcome: str  # ok, late, shed, expired, failed, cancelled
    outputs: dict[str, object] = {}
    reason: str = ""
    retry_after_ms: int = 0
    parameters: dict[str, str | int | float | bool] = {}
    release: Callable[[], None] | None = None  # called once the outputs are written and no longer read


class Backend(Protocol):
    """The live system."""

    def body(self, model: str, nbytes: int, priority: int = 0, generation: int = 0) -> Body:
        """Room for the body of a request of a class to this model (0: the model's own; 0: the present generation).

        Raises `Overloaded` when there is none now for this class.
        """

    def crowded(self) -> bool:
        """Whether room is so short that it depends on its class whether a request is let in."""

    def claims(self, model: str, priority: int, who: Key | None = None) -> int:
        """The class that a request of this class gets (0: the model's own).

        Raises `BadRequest` if there is no such class, or `Forbidden` if a client may not claim it.
        """

    def let_in(self, model: str, priority: int, who: Key | None) -> None:
        """Raises `QuotaExceeded` if it is known before the body that a request is beyond its tenant's limits."""

    def models(self) -> Mapping[str, ModelInfo]:
        """All models by name; cheap, it is asked for each request."""

    def live(self) -> bool:
        """Whether the process works at all."""

    def ready(self) -> bool:
        """Whether requests to every model can be served now."""

    def statistics(self, model: str | None) -> list[dict[str, Any]]:
        """Entries of Triton's `model_stats`, for one model or for all."""

    def slices(self) -> list[dict[str, Any]]:
        """What every client with a quota has of the devices: `client`, `share_pct`, `quota_pct`, `worker`."""

    def change_slice(self, client: str, wanted: SliceWanted) -> dict[str, Any]:
        """Give a client another slice. Raises `BadRequest` or `Forbidden`."""

    def metrics(self, http: list[Metric]) -> str:
        """Everything that is measured, in Prometheus' text form; `http` are values of the front."""

    def infer(self, call: Call, done: Callable[[Answer | Exception], None]) -> Callable[[], object]:
        """Begins one call. What is returned cancels it: nobody waits any more, and the work may be dropped.

        `done` is called once, also after cancelling, and perhaps before this returns. It is not a task that is
        awaited, because the answer should be on its way in the moment it is known.
        Raises, or hands to `done`, `BadRequest` for content that only the system behind can judge, and `Overloaded`
        when it has no room.
        """
