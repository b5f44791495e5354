"""Torch modules as stages, as far as torch is not needed: what is said where it is missing, or something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dovetail import DovetailError, extras, tensor, torch_model
from dovetail.errors import DeclarationError, ModelError
from dovetail.workflow.graph import Port, StageSpec
from dovetail.workflow.runners import make_model

ITEM = tensor("float32", 3)


def test_without_torch_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "has", lambda package: package != "torch")
    said = r"stage 'reader' needs torch, which is not installed; run: pip install 'dovetail\[torch\]'"
    with pytest.raises(DovetailError, match=said):
        torch_model("nets:reader", inputs={"x": ITEM})
    spec = StageSpec("reader", "torch", factory="nets:reader", inputs=(Port("x", "FP32", (3,)),))
    with pytest.raises(DovetailError, match=said):
        make_model(spec)


@pytest.mark.parametrize(
    ("factory", "more", "said"),
    [
        ("nets", {}, "must be module:function"),
        ("nets:not one", {}, "must be"),
        ("no_such_nets:reader", {}, "no module 'no_such_nets' that a worker could import"),
        ("no_such.nets:reader", {}, "no module 'no_such.nets'"),
        ("json:loads", {"inputs": {}}, "say what it takes"),
        ("json:loads", {"inputs": {"x": tensor("bytes")}}, "'x' must be a tensor of numbers"),
        ("json:loads", {"outputs": {"y": "float32"}}, "'y' must be a tensor of numbers"),
        ("json:loads", {"batch": 0}, "must be whole numbers"),
    ],
)
def test_declarations_that_cannot_be_are_refused(
    factory: str, more: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "has", lambda _: True)
    with pytest.raises(DeclarationError, match=said):
        torch_model(factory, **({"inputs": {"x": ITEM}} | more))


def test_weights_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "has", lambda _: True)
    with pytest.raises(ModelError, match=r"weights gone\.pt do not exist"):
        torch_model("json:loads", inputs={"x": ITEM}, weights=Path("gone.pt"))
