"""Which tests reach which line: a plugin of pytest, loaded with `-p mutant_map`, that writes what coverage saw.

The file has the tests with what each took, and for each source file and line the numbers of the tests that ran it.
What runs while modules are imported belongs to no test.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

__all__ = ["Reach"]

#: Where to write, and which folder of sources to look at.
MAP_FILE, MAP_SOURCE = "MUTANTS_MAP", "MUTANTS_SOURCE"


class Reach:
    """What is known of tests and lines."""

    def __init__(self, path: Path) -> None:
        read = json.loads(path.read_text())
        self.digest: str = read["digest"]
        #: Files of tests, and the digest of each as it was.
        self.files: dict[str, str] = read["files"]
        #: Tests that fail although nothing was changed: they say nothing.
        self.failed: list[str] = read["failed"]
        self.tests: list[str] = read["tests"]
        self.seconds: list[float] = read["seconds"]
        self._lines: dict[str, dict[str, list[int]]] = read["lines"]

    def of(self, file: str, first: int, last: int) -> set[int]:
        """Tests that reach one of these lines."""
        lines = self._lines.get(file, {})
        return {test for line in range(first, last + 1) for test in lines.get(str(line), ())}

    def of_file(self, file: str) -> set[int]:
        """Tests that reach anything in a file."""
        return {test for tests in self._lines.get(file, {}).values() for test in tests}

    def usual(self, test: str, otherwise: float) -> float:
        """Seconds that a test takes, or a file of tests of which that is not known."""
        return self.seconds[self.tests.index(test)] if test in self.tests else otherwise


def pytest_configure(config: pytest.Config) -> None:
    if MAP_FILE in os.environ:
        config.pluginmanager.register(_Recorder(Path(os.environ[MAP_SOURCE])), "mutant-recorder")


class _Recorder:
    def __init__(self, source: Path) -> None:
        self._root = source.parent.parent
        self._coverage = coverage.Coverage(data_file=None, source=[str(source)], config_file=False, branch=False)
        self._tests: dict[str, float] = {}
        self._failed: set[str] = set()
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        begin = time.process_time()  # others may be at work here, too
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")
            test, took = _plain(item.nodeid), time.process_time() - begin
            self._tests[test] = round(self._tests.get(test, 0.0) + took, 3)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(_plain(report.nodeid))

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        for test in self._failed:
            self._tests.pop(test, None)
        number = {test: i for i, test in enumerate(self._tests)}
        lines: dict[str, dict[str, list[int]]] = {}
        for file in sorted(data.measured_files()):
            by_line = data.contexts_by_lineno(file)
            name = str(Path(file).relative_to(self._root))
            lines[name] = {
                str(line): sorted({number[_plain(c)] for c in contexts if _plain(c) in number})
                for line, contexts in by_line.items()
            }
        found = {
            "failed": sorted(self._failed),
            "tests": list(self._tests),
            "seconds": list(self._tests.values()),
            "lines": lines,
        }
        Path(os.environ[MAP_FILE]).write_text(json.dumps(found))


def _plain(test: str) -> str:
    """A test without its parameters: a change of a constant may change their names."""
    return test.partition("[")[0]
