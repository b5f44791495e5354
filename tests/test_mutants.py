"""The tool that changes rules on purpose: what it changes, and that its written rules are still those of the code."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import threading
import tomllib
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = Path(__file__).resolve().parents[1]
SCRIPTS = PROJECT / "scripts"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


points = module("mutant_points")
tree = module("mutant_tree")
RULES = [
    rule for path in sorted(SCRIPTS.glob("mutant_rules/*.toml")) for rule in tomllib.loads(path.read_text())["rule"]
]


#: Of a function that checks, prints and says what it is, only the default.
MOVED = [("3", "4"), ("3", "2")]


def changes(text: str) -> list[tuple[str, str]]:
    return [(mutant.old, mutant.new) for mutant in points.mutants_of("file.py", text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def f(a, b):\n    return a < b\n", [("a < b", "(a <= b)"), ("a < b", "(a >= b)")]),
        ("def f(a, b):\n    return min(a, b)\n", [("min(a, b)", "max(a, b)")]),
        ("def f(a, b):\n    return a + b\n", [("a + b", "(a - b)")]),
        ("def f(a, b):\n    return a and not b\n", [("a and not b", "(a or not b)"), ("not b", "(b)")]),
        ("LIMIT = 7\n", [("7", "8"), ("7", "6")]),
        ("class A:\n    part: float = 0.5\n", [("0.5", "1.0")]),
        ("def f(a) -> None:\n    a.go()\n", [("", "return\n    "), ("a.go()", "pass")]),
        ("def f(a):\n    if a:\n        a -= b\n", [("a", "not (a)"), ("a -= b", "a += b")]),
        ("def f(é, b):\n    return é == b\n", [("é == b", "(é != b)")]),
        ('def f(a: int = 3) -> "int | None":\n    """1 < 2"""\n    assert a > 0\n    return f"{a + 1}"\n', MOVED),
        ("__all__ = ['a']\n__slots__ = (1,)\n\nclass P(Protocol):\n    a: int = 1\n", []),
    ],
)  # fmt: skip
def test_what_is_changed(text: str, expected: list[tuple[str, str]]) -> None:
    assert changes(text) == expected


def test_each_change_is_one_piece_of_text_and_has_a_name_that_lines_do_not_matter_to() -> None:
    text = "def f(a, b):\n    x = a < b  # kept\n    return a < b\n"
    first, second = (points.mutants_of("file.py", t) for t in (text, "\n\n" + text))
    assert first[0].text == "def f(a, b):\n    x = (a <= b)  # kept\n    return a < b\n"
    assert [m.ident for m in first] == [m.ident for m in second]
    assert len({m.ident for m in first}) == 4, "the same change at two places is two"
    assert first[0].lines == (2, 2)


@pytest.mark.parametrize("promise", ["1 ", "2 ", "3 ", "4 ", "5 ", "6 ", "7 "])
def test_each_promise_has_three_changes_whose_text_is_still_there(promise: str) -> None:
    there = [
        rule
        for rule in RULES
        if rule["about"].startswith(promise)
        and (PROJECT / "src/dovetail" / rule["file"]).exists()
        and (PROJECT / "src/dovetail" / rule["file"]).read_text().count(rule["old"]) == 1
    ]
    assert len(there) >= 3, "rules have moved: move the changes in scripts/mutant_rules with them"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["name"])
def test_no_change_is_stale(rule: dict[str, str]) -> None:
    text = (PROJECT / "src/dovetail" / rule["file"]).read_text()
    assert text.count(rule["old"]) == 1, "the rule has moved: move the change in scripts/mutant_rules with it"


def test_tests_that_have_to_notice_exist() -> None:
    for rule in RULES:
        for test in rule["tests"]:
            assert (PROJECT / test.partition("::")[0]).exists(), rule["name"]


# -- when tests of a change take too long ---------------------------------------------------------------------------

STOPS = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"


def ended(code: str, seconds: float = 20.0, asleep_seconds: float = 20.0) -> int | None:
    """The exit code of a Python program; None if it was ended because it took too long."""
    program = subprocess.Popen([sys.executable, "-I", "-S", "-c", code])
    found, _ = tree.wait_for(program.pid, seconds, asleep_seconds)
    program.returncode = 0  # it is waited for
    return found  # type: ignore[no-any-return]


def test_who_takes_too_much_processor_time_is_ended_and_so_is_who_sleeps_for_ever() -> None:
    assert ended("while True: pass", seconds=0.2) is None
    assert ended("import time; time.sleep(3600)", asleep_seconds=0.2) is None


def test_who_sleeps_and_goes_on_is_not_ended() -> None:
    assert ended("import time; time.sleep(0.3)", seconds=10.0) == 0
    assert ended("raise SystemExit(3)") == 3
    assert ended("import os, signal; os.kill(os.getpid(), signal.SIGKILL)") == 1, "a death is a failure"


def test_what_it_has_started_is_ended_with_it() -> None:
    read, write = os.pipe()
    child = "import time; time.sleep(3600)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}], pass_fds=[{write}])"
    program = subprocess.Popen([sys.executable, "-c", start], pass_fds=[write])
    os.close(write)
    assert tree.wait_for(program.pid, 20.0, 1.0)[0] is None
    program.returncode = 0
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"", "nobody has the other end any more"


def test_a_run_that_is_paused_is_not_ended_however_long_that_takes() -> None:
    over = threading.Event()

    def go_on(pid: int) -> None:
        while not over.wait(0.5):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    program = subprocess.Popen([sys.executable, "-I", "-S", "-c", STOPS])
    waker = threading.Thread(target=go_on, args=(program.pid,))
    waker.start()
    try:
        assert tree.wait_for(program.pid, 20.0, 0.2)[0] == 0
    finally:
        over.set()
        waker.join()
    program.returncode = 0


def test_a_clock_that_has_jumped_because_we_were_paused_ourselves_ends_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jumps = itertools.count(0.0, 1000.0)
    monkeypatch.setattr(tree.time, "monotonic", lambda: next(jumps))
    assert ended("import time; time.sleep(0.3)", asleep_seconds=10.0) == 0
