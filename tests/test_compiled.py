"""Modules that can be compiled keep to what a compiler asks for, and the tests run against what they say they do."""

from __future__ import annotations

import ast
import importlib
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.control import Reply
from dovetail.record.ledger import Ledger

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = PROJECT / "src" / "dovetail"
HOOK = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
MODULES: list[str] = HOOK["custom"]["modules"]
#: Records of compiled modules: none of them is ever decoded.
INSIDE = {
    "Candidate", "Considered", "HttpRequest", "HttpResponse", "Known", "Limits", "Outputs", "Result",
    "Spot", "Summary", "Victim", "_Delivery", "_Entry", "_Fetch", "_Hint", "_Known",
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


class Backwards(msgspec.Struct):
    """An answer whose fields lie elsewhere than those of ours."""

    cost_usd: float
    outcome: str
    priority: int
    graph: int
    arrived_ns: int


class Plain:
    """An answer that is no record."""

    def __init__(self) -> None:
        self.arrived_ns, self.graph, self.priority, self.outcome, self.cost_usd = 0, 0, 1, "ok", 0.5


def costs(ledger: Ledger) -> float:
    return ledger.rows[0, 1].cost_usd


def test_where_a_field_was_is_remembered_of_that_class_only_and_until_it_changes() -> None:
    """`inline_caches.h`: one place of the code meets answers of several classes in turn."""
    answers: list[Any] = [Reply(1, 1, 0, 1, "ok", 0, 0.25), Backwards(0.125, "ok", 1, 0, 0), Plain()]
    ledger = Ledger([("flow", 1)])
    for answer in answers * 3:
        ledger.add(answer, 1)
    assert costs(ledger) == 3 * (0.25 + 0.125 + 0.5)
    changing = type("Changing", (Backwards,), {})
    before = changing(0.125, "ok", 1, 0, 0)
    ledger.add(before, 1)
    ledger.add(before, 1)
    changing.cost_usd = property(lambda _: 8.0)
    ledger.add(before, 1)
    assert costs(ledger) == 3 * (0.25 + 0.125 + 0.5) + 2 * 0.125 + 8.0
    with pytest.raises(AttributeError):
        ledger.add(object(), 1)  # type: ignore[arg-type]


def test_a_name_of_a_module_is_looked_up_again_when_the_module_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcomes(ledger_of: str) -> list[str]:
        ledger = Ledger([(ledger_of, 1)])
        ledger.add(Reply(1, 1, 0, 1, "ok", 0, 0.0), 1)
        return list(ledger.rows[0, 1].outcomes)

    usual = outcomes("flow")
    assert outcomes("flow") == usual
    with monkeypatch.context() as changed:
        changed.setattr(importlib.import_module("dovetail.record.ledger"), "OUTCOMES", ("ok", *"abcde"))
        assert outcomes("flow") == ["ok", *"abcde"]
    assert outcomes("flow") == usual
