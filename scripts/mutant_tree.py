"""A copy of the tree in which one file at a time is changed, and a book of results on disk."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

__all__ = ["OUT", "ROOT", "Book", "Tree", "digest", "sources", "text_of"]

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "mutants"
#: What a copy needs so that pure tests run in it.
COPIED = ("src", "tests", "examples", "scripts", "bench", "docs", "pyproject.toml", "README.md", "Makefile")


class Tree:
    """The copy. Nobody else's files are touched."""

    def __init__(self) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="mutants-")
        self.root = Path(self._scratch.name)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.exists():
                shutil.copy2(source, self.root / name)

    def close(self) -> None:
        """Remove the copy."""
        self._scratch.cleanup()

    def test(
        self, tests: Iterable[str], seconds: float, *options: str, environment: Mapping[str, str] | None = None
    ) -> tuple[str, str]:
        """("passed" | "failed" | "timeout" | "broken", what failed first)."""
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)
        path = os.pathsep.join(
            [str(self.root / "src"), str(self.root), str(self.root / "scripts"), os.environ.get("PYTHONPATH", "")]
        )
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
        command += ["-p", "mutant_quick", "--hypothesis-seed=1", *options, *tests]
        variables = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "1", "COLUMNS": "300", **(environment or {})}
        with tempfile.TemporaryFile("w+") as output:
            # A session of its own: what does not end is ended together with what it has started.
            begun = subprocess.Popen(
                command, cwd=self.root, env=variables, stdout=output, stderr=output, start_new_session=True
            )
            try:
                begun.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(begun.pid, signal.SIGKILL)
                begun.wait()
                return "timeout", ""
            output.seek(0)
            said = output.read()
        if begun.returncode == 0:
            return "passed", ""
        first = next((line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        # 2 is an error while tests are collected: the change is so wrong that its module cannot be imported.
        verdict = "failed" if begun.returncode in (1, 2) else "broken"
        return verdict, first.partition(" - ")[0] or said[-200:]

    @contextmanager
    def changed(self, file: str, text: str) -> Iterator[None]:
        """The file has this text for a while."""
        path = self.root / file
        before = path.read_text()
        try:
            _write(path, text)
            yield
        finally:
            _write(path, before)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    # Written within a second, and of one length, an old compiled file would be taken for that of the new text.
    for old in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        old.unlink()


class Book:
    """Results by key, written down one by one, so that whoever is stopped goes on where it was."""

    def __init__(self, name: str, *, again: bool = False) -> None:
        self._path = OUT / f"{name}.json"
        self.results: dict[str, dict[str, str]] = {}
        if self._path.exists() and not again:
            self.results = json.loads(self._path.read_text())

    def put(self, key: str, result: dict[str, str]) -> None:
        """Write one down."""
        self.results[key] = result
        OUT.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self.results, indent=1, sort_keys=True))
        fresh.replace(self._path)


def digest(*parts: str) -> str:
    """A short name for these texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def sources(*places: str) -> list[Path]:
    """All Python files in these files and folders."""
    found: list[Path] = []
    for place in places:
        path = ROOT / place
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []
    return found


def text_of(tests: Iterable[str]) -> str:
    """The text of these tests' files: a result holds for that."""
    return "\0".join(path.read_text() for path in sources(*sorted({test.partition("::")[0] for test in tests})))
