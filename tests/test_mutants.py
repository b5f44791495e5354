"""The tool that changes rules on purpose: what it changes, and that its written rules are still those of the code."""

from __future__ import annotations

import importlib.util
import tomllib
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
