"""Modules that can be compiled keep to what a compiler asks for, and the tests run against what they say they do."""

from __future__ import annotations

import ast
import importlib
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = PROJECT / "src" / "dovetail"
HOOK = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
MODULES: list[str] = HOOK["custom"]["modules"]
#: Records of compiled modules: none of them is ever decoded.
INSIDE = {
    "Candidate", "Choice", "Considered", "HttpRequest", "HttpResponse", "Known", "Limits", "Need", "Outputs",
    "Result", "Run", "Settings", "Spot", "StageOptions", "Summary", "Victim", "Way", "_Delivery", "_Entry", "_Fetch",
    "_Hint", "_Known",
}  # fmt: skip


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def file_of(module: str) -> Path:
    return SOURCE / f"{module.replace('.', '/')}.py"


def classes(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Every class of a file, and the last names of its bases."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef):
            yield node.name, [ast.unparse(base).split(".")[-1] for base in node.bases]


def imports(module: str) -> set[str]:
    """Modules of ours that are run when this one is; what only types need is not."""
    path = file_of(module)
    package = module.split(".")[:-1]
    found: set[str] = set()
    for node in tree(path).body:
        if isinstance(node, ast.ImportFrom) and node.level:
            base = package[: len(package) - node.level + 1] + (node.module or "").split(".")
            name = ".".join(part for part in base if part)
            found |= {name} if name and file_of(name).exists() else {f"{name}.__init__".removeprefix(".")}
    return found


def reached(start: str) -> set[str]:
    seen: set[str] = set()
    front = imports(start)
    while front:
        seen |= front
        front = {after for name in front for after in imports(name)} - seen
    return seen


@pytest.mark.parametrize("module", MODULES)
def test_what_is_asked_for_is_what_runs(module: str) -> None:
    """`make test-compiled` tests extensions, and everybody else tests Python."""
    path = importlib.import_module(f"dovetail.{module}").__file__
    assert path is not None
    assert path.endswith(".py") is (os.environ.get("DOVETAIL_COMPILED", "") in ("", "0"))


@pytest.mark.parametrize("module", MODULES)
def test_no_cycle_of_imports_goes_through_it(module: str) -> None:
    assert module not in reached(module)


def test_nobody_outside_subclasses_a_class_inside() -> None:
    inside = {file_of(module) for module in MODULES}
    compiled = {name for path in inside for name, _ in classes(path)}
    folders = (SOURCE, PROJECT / "tests", PROJECT / "bench", PROJECT / "examples", PROJECT / "scripts")
    outside = {path for folder in folders for path in folder.rglob("*.py")} - inside
    crossing = [(path.name, name) for path in outside for name, bases in classes(path) if compiled & set(bases)]
    assert not crossing


def test_records_that_travel_are_not_compiled() -> None:
    found = [pair for module in MODULES for pair in classes(file_of(module))]
    assert {name for name, bases in found if "Struct" in bases} == INSIDE
