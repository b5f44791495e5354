"""Where keys stand in a TOML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.errors import ScenarioError
from dovetail.sim.scenario.toml_source import TomlSource, key_lines

TEXT = '''\
# a comment
seed = 1            # 2
title = """
[[not a table]]
x = 3
"""
[policy]            # 7
batch = { "a.b" = 3 }
[[workflows]]       # 9
name = "one"
[[workflows.stages]]
name = "s"          # 12
[[workflows.stages]]
after = [           # 14
  "s",
]
[[workflows]]       # 17
stages = [          # 18
  { name = "t" },
]
a.b.c = 1           # 21
[workflows.time]    # 22
x = 1
'''


def test_keys_are_found_where_they_stand() -> None:
    assert key_lines(TEXT) == {
        "seed": 2,
        "title": 3,
        "policy": 7,
        "policy.batch": 8,
        "policy.batch.a.b": 8,
        "workflows[0]": 9,
        "workflows[0].name": 10,
        "workflows[0].stages[0]": 11,
        "workflows[0].stages[0].name": 12,
        "workflows[0].stages[1]": 13,
        "workflows[0].stages[1].after": 14,
        "workflows[0].stages[1].after[0]": 14,
        "workflows[1]": 17,
        "workflows[1].stages": 18,
        "workflows[1].stages[0]": 18,
        "workflows[1].stages[0].name": 18,
        "workflows[1].a": 21,
        "workflows[1].a.b": 21,
        "workflows[1].a.b.c": 21,
        "workflows[1].time": 22,
        "workflows[1].time.x": 23,
    }


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("workflows[1].stages[0].name", 18),
        ("workflows[0].slo", 9),
        ("workflows[0].stages", 11),
        ("policy.*.x", 7),
    ],
)
def test_an_error_points_at_the_key_or_at_what_is_around_it(tmp_path: Path, key: str, line: int) -> None:
    path = tmp_path / "s.toml"
    path.write_text(TEXT)
    assert str(TomlSource(path).error(key, "is wrong")) == f"{path}:{line}: {key}: is wrong"


def test_without_a_place_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("")
    assert str(TomlSource(path).error("", "is empty")) == f"{path}: is empty"
    assert str(TomlSource(path).error("seed", "is missing")) == f"{path}: seed: is missing"


def test_broken_syntax_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('seed = 1\nname = "x\n')
    with pytest.raises(ScenarioError, match=r"s\.toml:2: illegal character"):
        TomlSource(path)


@pytest.mark.parametrize(
    ("make", "message"), [(lambda p: p.mkdir(), "Is a directory"), (lambda p: None, "No such file")]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path / "s.toml")  # type: ignore[operator]
    with pytest.raises(ScenarioError, match=message):
        TomlSource(tmp_path / "s.toml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ScenarioError, match="not text in UTF-8"):
        TomlSource(tmp_path / "s.toml")
