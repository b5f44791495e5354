"""Stages: batched functions, from ordinary Python or from an ONNX file.

A stage takes lists and gives a list of the same length: one element per item of the batch. Inside a workflow it
is called on one item (`read(page)`) or mapped over a list (`read.map(lines)`); batches form across requests.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import msgspec

from ..errors import DeclarationError
from .graph import StageSpec
from .onnxfile import ModelFile, read_onnx
from .onnxwork import count_macs

if TYPE_CHECKING:
    from .handles import Guarded, Handle

__all__ = ["Stage", "onnx", "stage"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
MAX_BATCH = 1024
FULL_PCT = 100


class Stage:
    """A declared stage. Call it, `.map` it or guard it with `.when` inside a workflow."""

    def __init__(
        self,
        spec: StageSpec,
        *,
        function: Callable[..., Any] | None = None,
        file: ModelFile | None = None,
        arity: tuple[int, int | None] = (1, None),
        load: Callable[[], Any] | None = None,
    ) -> None:
        self.spec = spec
        self.function = function
        #: Makes what the function takes first; called once in each process, before its first batch.
        self.load = load
        self.file = file
        #: Fewest and most arguments; None is no limit.
        self.arity = arity

    @property
    def name(self) -> str:
        """The stage's name, unique in an application."""
        return self.spec.name

    def __call__(self, *args: Any) -> Handle:
        from .handles import call

        return call(self, args)

    def map(self, *lists: Any) -> Handle:
        """Run once per element of the lists, which have equal lengths; elements batch across requests."""
        from .handles import call

        return call(self, lists, mapped=True)

    def when(self, condition: Any, otherwise: Any = None) -> Guarded:
        """Run only if `condition` is true, else take the value of `otherwise`: ``big.when(unsure, small)(x)``."""
        from .handles import Guarded

        return Guarded(self, condition, otherwise)

    def __repr__(self) -> str:
        return f"<stage {self.name} ({self.spec.kind}, batch {'/'.join(map(str, self.spec.batch))})>"


def check_batch(name: str, batch: Sequence[int] | int) -> tuple[int, ...]:
    """The batch sizes as a rising tuple, or a refusal."""
    sizes = (batch,) if isinstance(batch, int) else tuple(batch)
    if not sizes or any(not isinstance(b, int) or isinstance(b, bool) or b < 1 or b > MAX_BATCH for b in sizes):
        raise DeclarationError(
            f"stage {name!r}: batch={batch!r} must be whole numbers from 1 to {MAX_BATCH}, such as (1, 4, 8)"
        )
    return tuple(sorted(set(sizes)))


def check_slice(what: str, share: int | None, quota: int | None) -> tuple[int, int]:
    """Share and quota in per cent, 0 where none is declared, or a refusal.

    All of the time is no quota. A quota without a share is of the whole device.
    """
    for word, pct in (("share", share), ("quota", quota)):
        if pct is not None and (not isinstance(pct, int) or isinstance(pct, bool) or not 1 <= pct <= FULL_PCT):
            raise DeclarationError(
                f"{what}: {word}={pct!r} must be whole per cents of a device, from 1 to {FULL_PCT}"
            )
    quota_pct = quota if quota is not None and quota < FULL_PCT else 0
    return share or (FULL_PCT if quota_pct else 0), quota_pct


def with_slice(spec: StageSpec, workflow: str, share_pct: int, quota_pct: int) -> StageSpec:
    """A model without a slice of its own has its workflow's, and is charged to that."""
    if spec.on_host or spec.share_pct or spec.quota_pct or not (share_pct or quota_pct):
        return spec
    return msgspec.structs.replace(
        spec, share_pct=share_pct, quota_pct=quota_pct, client=workflow if quota_pct else ""
    )


def check_name(name: str) -> str:
    """The name, if it can appear in an address and a file."""
    if not _NAME.fullmatch(name):
        raise DeclarationError(f"name {name!r} must be letters, digits, '_', '-' or '.', beginning with a letter")
    return name


@overload
def stage(function: Callable[..., Any]) -> Stage: ...


@overload
def stage(
    *,
    batch: Sequence[int] | int = ...,
    outputs: Sequence[str] = ...,
    name: str | None = ...,
    load: Callable[[], Any] | None = ...,
    share: int | None = ...,
    quota: int | None = ...,
) -> Callable[[Callable[..., Any]], Stage]: ...


def stage(
    function: Callable[..., Any] | None = None,
    *,
    batch: Sequence[int] | int = (1, 2, 4, 8),
    outputs: Sequence[str] = (),
    name: str | None = None,
    load: Callable[[], Any] | None = None,
    share: int | None = None,
    quota: int | None = None,
) -> Stage | Callable[[Callable[..., Any]], Stage]:
    """Make a stage of a function that takes lists and returns a list of the same length.

    `load` is called once in each process that runs the stage, before its first batch and before the server is ready.
    What it returns, a model say, is the function's first argument. `share` and `quota` are the slice of its host
    process that it declares, as in `onnx`.
    """

    def declare(function: Callable[..., Any]) -> Stage:
        own = check_name(name or function.__name__)
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise DeclarationError(
                f"stage {own!r}: must be a plain function that returns a list, not async or a generator"
            )
        if load is not None and not callable(load):
            raise DeclarationError(f"stage {own!r}: load={load!r} must be a function without arguments")
        share_pct, quota_pct = check_slice(f"stage {own!r}", share, quota)
        source = "".join(_source(f) for f in (function, load) if f is not None)
        spec = StageSpec(
            name=own,
            kind="python",
            batch=check_batch(own, batch),
            outputs=tuple(outputs),
            model=hashlib.sha256(source.encode()).hexdigest(),
            share_pct=share_pct,
            quota_pct=quota_pct,
        )
        return Stage(spec, function=function, arity=_arity(own, function, loaded=load is not None), load=load)

    return declare if function is None else declare(function)


def _source(function: Callable[..., Any]) -> str:
    """What tells one function from another."""
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return repr(function if code is None else code.co_code)


def _arity(name: str, function: Callable[..., Any], *, loaded: bool = False) -> tuple[int, int | None]:
    """Fewest and most lists that it takes; what was `loaded` comes before them."""
    least = 0
    most: int | None = 0
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.VAR_POSITIONAL:
            most = None
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            least += p.default is p.empty
            most = None if most is None else most + 1
        elif p.kind is p.KEYWORD_ONLY and p.default is p.empty:
            raise DeclarationError(f"stage {name!r}: argument {p.name!r} must be positional; stages are called so")
    if loaded:
        least, most = max(0, least - 1), None if most is None else most - 1
    if most is not None and most < 1:
        after = " after what load=... gives" if loaded else ""
        raise DeclarationError(f"stage {name!r}: takes no argument{after}; a stage takes at least one list")
    return max(1, least), most


def onnx(
    path: str | Path,
    *,
    batch: Sequence[int] | int = (1, 2, 4, 8),
    name: str | None = None,
    pad: float | None = None,
    like: str = "",
    share: int | None = None,
    quota: int | None = None,
) -> Stage:
    """Make a stage of an ONNX model. Items are stacked on the model's first axis.

    `pad` fills items of unequal shape up to the largest of the batch; without it they run in sub-batches of
    equal shape. `like` names a catalogue model whose curve stands in on simulated and emulated GPUs. `share` and
    `quota` are the slice of a device that it declares, in per cent of the device and of its time; without them the
    policy decides. A quota alone is of the whole device.
    """
    file_path = Path(path)
    own = check_name(name or file_path.stem)
    sizes = check_batch(own, batch)
    share_pct, quota_pct = check_slice(f"stage {own!r}", share, quota)
    file = read_onnx(file_path, own)
    if file.numbers:
        raise DeclarationError(
            f"stage {own!r}: {file.numbers[0]!r} of {file_path.name} has no batch axis: it is a single number for a "
            f"whole batch; export the model with a batch axis first in every input and output"
        )
    fixed = [n for n, spec in file.inputs.items() if spec.shape and spec.shape[0] not in (-1, 1)]
    if fixed:
        raise DeclarationError(
            f"stage {own!r}: input {fixed[0]!r} of {file_path.name} has a first axis fixed at "
            f"{file.inputs[fixed[0]].shape[0]}; export it with a variable batch axis"
        )
    if max(sizes) > 1 and any(spec.shape and spec.shape[0] == 1 for spec in file.inputs.values()):
        raise DeclarationError(
            f"stage {own!r}: {file_path.name} has a batch axis fixed at 1, but batch={sizes} asks for more; "
            f"write batch=1, or export it with a variable batch axis"
        )
    spec = StageSpec(
        name=own,
        kind="onnx",
        batch=sizes,
        outputs=tuple(file.outputs) if len(file.outputs) > 1 else (),
        model=file.sha256,
        path=str(file_path.resolve()),
        pad=pad,
        weights_bytes=file.nbytes,
        like=like,
        macs=count_macs(file_path, file.inputs),
        share_pct=share_pct,
        quota_pct=quota_pct,
    )
    return Stage(spec, file=file, arity=(len(file.inputs), len(file.inputs)))
