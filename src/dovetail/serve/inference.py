"""What is served, whatever the protocol: models by name, and inferences that were read. HTTP and gRPC both ask here.

Rules of this file
- A refusal is an `HttpError`. Its status says what a client should do; gRPC has a code for each (`rpc/errors.py`).
- What an inference holds of a client's shared memory is let go exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import __version__
from .access import Access
from .application import Cancel
from .backend import Answer, Backend, Call, ModelInfo
from .framing import HttpError
from .oip_request import Upload, Wanted
from .oip_response import MODEL_VERSION, Outputs, as_refusal, outcome_of
from .shared_memory import Held, Regions, SharedPlace, turned_on

__all__ = ["EXTENSIONS", "Inference"]

EXTENSIONS = ["binary_tensor_data", "model_configuration", "model_repository", "statistics", "schedule_policy"]
_LOADED = "workflows are loaded when the server starts; none can be loaded or unloaded"


class Inference:
    """One backend for every protocol; `regions` is None where shared memory is off."""

    def __init__(self, backend: Backend, regions: Regions | None = None, access: Access | None = None) -> None:
        """`access` knows the keys of clients."""
        self.backend = backend
        self.access = access or Access()
        self.regions = regions

    def metadata(self) -> dict[str, Any]:
        """What the server says of itself."""
        more = [] if self.regions is None else ["system_shared_memory"]
        return {"name": "dovetail", "version": __version__, "extensions": [*EXTENSIONS, *more]}

    def model(self, name: str, version: str = "") -> ModelInfo:
        """The model of this name."""
        models = self.backend.models()
        if name not in models:
            raise HttpError(404, f"unknown model {name!r}; known models: {', '.join(sorted(models)) or 'none'}")
        if version not in ("", MODEL_VERSION):
            raise HttpError(404, f"model {name!r} has only version {MODEL_VERSION}, not {version!r}")
        return models[name]

    def shared_memory(self) -> Regions:
        """The regions of clients."""
        return turned_on(self.regions)

    def refuse_loading(self) -> HttpError:
        """What is said to who wants to change the repository."""
        return HttpError(400, _LOADED)

    def begin(
        self,
        upload: Upload,
        call: Call,
        wanted: Wanted,
        binary: bool,
        done: Callable[[Outputs | Exception], None],
    ) -> Cancel:
        """Put a call to the backend; `done` is told its end, once and perhaps before this returns."""
        held: list[Held] = []
        goes: dict[str, bool | Held] = {}
        try:
            for name, how in wanted.items() if wanted else ():
                if isinstance(how, SharedPlace):
                    held.append(self.shared_memory().hold(how))
                    goes[name] = held[-1]
                else:
                    goes[name] = how

            def ended(answer: Answer | Exception) -> None:
                outcome = outcome_of(upload.info, call, goes, binary, answer)
                for each in held:
                    each.release()
                done(outcome)

            return self.backend.infer(call, ended)
        except Exception as error:
            for each in held:
                each.release()
            raise as_refusal(error) from None
