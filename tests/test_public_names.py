"""What users may rely on: the names of the package, each with a docstring, and the verbs of the command line."""

from __future__ import annotations

import importlib
import inspect
import tomllib
from pathlib import Path

import pytest

import dovetail
from dovetail.cli import VERBS

PROJECT = Path(__file__).resolve().parents[1]

NAMES = [
    "App", "DovetailError", "Stage", "Workflow", "onnx", "packaged", "stage", "tensor", "torch_model", "workflow",
]  # fmt: skip


def test_public_names() -> None:
    assert dovetail.__all__ == NAMES == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_says_what_it_is(name: str) -> None:
    thing = getattr(dovetail, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        members = [
            m for n, m in vars(thing).items() if not n.startswith("_") and (callable(m) or isinstance(m, property))
        ]
        assert all(inspect.getdoc(member) for member in members), name


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert dovetail.__version__ == project["version"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_a_module_that_keeps_the_contract(verb: str) -> None:
    module_name, summary = VERBS[verb]
    module = importlib.import_module(f"dovetail.cli.{module_name}")
    assert callable(module.configure)
    assert callable(module.run)
    assert module.__doc__ is not None
    assert module.__doc__.startswith(f"`dovetail {verb}")
    assert summary[0].islower()
    assert not summary.endswith(".")
