"""A copy of the tree in which one file at a time is changed, and a book of results on disk.

Rules of this file: whether tests end is judged by the processor time that they take, never by the clock. A run that
is paused, or that gets no processor because others are at work, takes as long as it takes. Only tests that sleep and
take no processor time at all for a minute wait for ever. They stay in our process group: who pauses us pauses them.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

import hypothesis.stateful  # noqa: F401
import msgspec  # noqa: F401
import numpy  # noqa: F401
import pytest

__all__ = ["OUT", "ROOT", "Book", "Outcome", "Tree", "digest", "sources", "text_of"]

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "mutants"
#: What a copy needs so that pure tests run in it.
COPIED = ("src", "tests", "examples", "scripts", "bench", "docs", "pyproject.toml", "README.md", "Makefile")
#: Tests that sleep for so long wait for ever. It is counted while we run ourselves.
ASLEEP_SECONDS = 60.0
LOOK_SECONDS = 0.05
#: A change can make a list grow without end: tests get so much memory.
MOST_BYTES = 8 << 30


class Outcome(NamedTuple):
    """How tests ended: "passed", "failed", "timeout" or "broken", what failed first, and their processor time."""

    verdict: str
    by: str
    seconds: float


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
    ) -> Outcome:
        """Run tests; they may take so many seconds of processor time.

        Tests run in a fork of this process, which has imported what is slow to import and nothing of the project.
        """
        shutil.rmtree(self.root / ".hypothesis", ignore_errors=True)
        arguments = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-p", "mutant_quick"]
        arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning", "--hypothesis-seed=1", *options, *tests]
        with tempfile.TemporaryFile("w+") as output:
            child = os.fork()
            if not child:
                self._run(arguments, output.fileno(), environment or {})
            code, took = wait_for(child, seconds, ASLEEP_SECONDS)
            if code is None:
                return Outcome("timeout", "", took)
            output.seek(0)
            said = output.read()
        if code == 0:
            return Outcome("passed", "", took)
        first = next((line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        # 2 is an error while tests are collected: the change is so wrong that its module cannot be imported.
        verdict = "failed" if code in (1, 2) else "broken"
        return Outcome(verdict, first.partition(" - ")[0] or said[-200:], took)

    def _run(self, arguments: list[str], output: int, environment: Mapping[str, str]) -> NoReturn:
        """The life of the child."""
        code = 3
        try:
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self.root)
            paths = [str(self.root / "src"), str(self.root)]
            sys.path[:0] = paths
            os.environ.update(environment, PYTHONPATH=os.pathsep.join(paths), COLUMNS="300")
            code = int(pytest.main(arguments))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

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


def wait_for(child: int, seconds: float, asleep_seconds: float) -> tuple[int | None, float]:
    """The child's exit code and the processor time it took; no code if it took too much, or sleeps and was ended.

    A death by a signal counts as failed.
    """
    asleep = took = 0.0
    before = time.monotonic()
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            return (code if code >= 0 else 1), usage.ru_utime + usage.ru_stime
        now, family = time.monotonic(), _family(child)
        known, took = took, sum(process.seconds for process in family)
        idle = took <= known and all(process.state == "S" for process in family)
        # After a pause of ours the clock has jumped: of that nothing counts.
        asleep = asleep + min(now - before, 2 * LOOK_SECONDS) if idle else 0.0
        before = now
        if took > seconds or asleep > asleep_seconds:
            break
        time.sleep(LOOK_SECONDS)
    for process in _family(child):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, took


class _Process(NamedTuple):
    pid: int
    #: As in /proc: R runs or would like to, S sleeps, T is paused.
    state: str
    seconds: float


def _family(pid: int) -> list[_Process]:
    """A process and all that it has started and that are still there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        children = [
            c for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []  # it has just ended
    ticks = sum(map(int, stat[11:15]))  # its own, and those of its children that have ended
    found = [_Process(pid, stat[0], ticks / os.sysconf("SC_CLK_TCK"))]
    for started in children:
        found += _family(int(started))
    return found


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
