"""Decisions are pure: the import contract bites, the pure part can be loaded without the rest, and nobody cheats."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = PROJECT / "src" / "dovetail"
PURE = ("state", "plan", "place", "scale", "predict", "device", "schedule", "control")
#: What they may import beside each other.
BELOW = {
    "errors",
    "units",
    "workflow",  # a package that imports nothing
    "workflow.graph",
    "profile",  # likewise
    "profile.curve",
    "profile.kernels",
    "profile.table",
}
FILES = sorted(path for package in PURE for path in (SOURCE / package).rglob("*.py"))

#: Imports the pure packages below a root that has not been run, and says which modules came along.
LOAD = """
import importlib, json, sys, types
root = types.ModuleType("dovetail")
root.__path__ = [sys.argv[1]]
sys.modules["dovetail"] = root
for package in sys.argv[2:]:
    importlib.import_module(f"dovetail.{package}")
print(json.dumps(sorted(sys.modules)))
"""


def test_the_pure_part_loads_without_the_rest() -> None:
    command = [sys.executable, "-c", LOAD, str(SOURCE), *PURE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    loaded = json.loads(done.stdout)
    ours = {name.removeprefix("dovetail.") for name in loaded if name.startswith("dovetail.")}
    assert {name for name in ours if name.split(".")[0] not in PURE} <= BELOW
    assert not {"onnxruntime", "httptools", "rich", "sqlite3", "asyncio", "socket"} & set(loaded)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_is_opened_printed_or_drawn_by_chance(path: Path) -> None:
    """What needs no import, or only that of a calculator."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input", "exec", "eval", "__import__"}, ast.unparse(node)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "np":
            assert node.attr not in {"random", "load", "save", "fromfile", "memmap"}, ast.unparse(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "numpy.random" not in ast.unparse(node)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("control/step.py", "import time"),
        ("place/rank.py", "import os"),
        ("workflow/graph.py", "import pathlib"),
        ("profile/table.py", "from .store import ProfileStore"),
        ("schedule/first_come.py", "from ..workflow.app import App"),
    ],
)
def test_the_contract_bites(file: str, line: str, tmp_path: Path) -> None:
    """Directly, through what they import, and through a neighbour that does."""
    shutil.copytree(PROJECT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(PROJECT / "pyproject.toml", tmp_path)
    changed = tmp_path / "src" / "dovetail" / file
    changed.write_text(changed.read_text() + f"\n\ndef _changed() -> None:\n    {line}  # noqa\n")
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout
    assert "decisions are pure: no clock, no chance, no threads, no input or output BROKEN" in done.stdout
