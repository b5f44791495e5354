"""Stages from torch modules: declared by the function that makes the module, which only workers call.

To declare one imports neither torch nor the module that holds the function. So the types of inputs are said here, and
what the profile is keyed by is the text of that module, the weights' file and the version of torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from ..errors import DeclarationError, ModelError
from ..extras import need
from .graph import Port, StageSpec
from .onnxfile import ModelFile
from .stage import Stage, check_batch, check_name, check_slice
from .tensor import NUMPY_OF, TensorSpec

__all__ = ["torch_model"]


def torch_model(
    factory: str,
    *,
    inputs: Mapping[str, TensorSpec],
    outputs: Mapping[str, TensorSpec] | None = None,
    weights: str | Path | None = None,
    batch: Sequence[int] | int = (1, 2, 4, 8),
    name: str | None = None,
    pad: float | None = None,
    like: str = "",
    share: int | None = None,
    quota: int | None = None,
) -> Stage:
    """Make a stage of a torch module: ``torch_model("nets:reader", inputs={"x": tensor("float32", 3, 48, 320)})``.

    `factory` is ``module:function``; workers import it and call it, with the path of `weights` if there is one.
    Inputs are named as the parameters of `forward`; items have no batch axis, the module has it first. Several
    `outputs` have to be named; of one the type may be left out. `pad`, `like`, `share`
    and `quota` are as in `onnx`.
    """
    where, _, function = factory.partition(":")
    own = check_name(name or function or factory)
    if not where or not function.isidentifier():
        raise DeclarationError(f"stage {own!r}: {factory!r} must be module:function, such as 'nets:reader'")
    need("torch", extra="torch", for_=f"stage {own!r}")
    sizes = check_batch(own, batch)
    share_pct, quota_pct = check_slice(f"stage {own!r}", share, quota)
    if not inputs:
        raise DeclarationError(
            f"stage {own!r}: say what it takes, as in inputs={{'x': tensor('float32', 3, 224, 224)}}"
        )
    for given, type_ in {**inputs, **(outputs or {})}.items():
        if not isinstance(type_, TensorSpec) or type_.datatype not in NUMPY_OF:
            raise DeclarationError(
                f"stage {own!r}: {given!r} must be a tensor of numbers, as in tensor('float32', 3)"
            )
    file = Path(weights) if weights is not None else None
    if file is not None and not file.is_file():
        raise ModelError(f"stage {own!r}: weights {file} do not exist; check the path in torch_model(...)")
    source = _source(own, where)
    ports = tuple(Port(n, t.datatype, t.shape) for n, t in inputs.items())
    digest = hashlib.sha256(repr((factory, ports, metadata.version("torch"))).encode())
    for part in (source, *([file] if file is not None else [])):
        with part.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    nbytes = file.stat().st_size if file is not None else 0
    several = tuple(outputs) if outputs is not None and len(outputs) > 1 else ()
    spec = StageSpec(
        name=own,
        kind="torch",
        batch=sizes,
        outputs=several,
        model=digest.hexdigest(),
        path=str(file.resolve()) if file is not None else "",
        pad=pad,
        weights_bytes=nbytes,
        like=like,
        factory=factory,
        inputs=ports,
        share_pct=share_pct,
        quota_pct=quota_pct,
    )
    declared = ModelFile(spec.model, nbytes, _with_batch(inputs), _with_batch(outputs or {}))
    return Stage(spec, file=declared, arity=(len(inputs), len(inputs)))


def _source(stage: str, module: str) -> Path:
    """The file of a module, which is not imported; packages around it are."""
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.has_location or found.origin is None:
        raise DeclarationError(
            f"stage {stage!r}: there is no module {module!r} that a worker could import; run from the directory that "
            f"holds it, or install it"
        )
    return Path(found.origin)


def _with_batch(types: Mapping[str, TensorSpec]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(type_.datatype, (-1, *type_.shape)) for name, type_ in types.items()}
