"""A TOML file whose mistakes can be pointed at: every error names file, line and key.

`tomllib` gives line numbers for broken syntax only. For a wrong value we find the line ourselves: the file is known
to be valid by then, so it is cut into headers and statements, and each statement is the shortest run of lines that
parses. Values inside an inline table or a list stand at the line where their statement begins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...errors import DovetailError, ScenarioError

__all__ = ["TomlSource", "key_lines"]

T = TypeVar("T")

_AT = re.compile(r"(.*?)(?: - at `\$\.?(.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_INVALID = re.compile(r"Invalid (?:enum )?value '(.*)'")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_SYNTAX = re.compile(r"(.*) \(at line (\d+), column \d+\)")
#: msgspec's names of types, as people write them in TOML.
_TYPES = {
    "str": "text", "int": "whole number", "float": "number", "bool": "true or false",
    "array": "list", "object": "table",
}  # fmt: skip


class TomlSource:
    """A parsed file that knows where its keys stand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ScenarioError(f"cannot read the scenario {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ScenarioError(f"the scenario {path} is not text in UTF-8") from None
        try:
            self.data: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            match = _SYNTAX.fullmatch(str(error))
            where, what = (f"{path}:{match[2]}", match[1]) if match else (str(path), str(error))
            raise ScenarioError(f"{where}: {what[0].lower()}{what[1:]}") from None
        self._lines = key_lines(text)

    def error(self, key: str, message: str) -> ScenarioError:
        """An error at a key such as ``arrivals[0].rate``; an empty key is the file as a whole."""
        line = self._line(key)
        where = f"{self.path}:{line}" if line else str(self.path)
        return ScenarioError(f"{where}: {key}: {message}" if key else f"{where}: {message}")

    def _line(self, key: str) -> int:
        """Line of the key, or of the nearest thing around it."""
        while key:
            for name in (key, f"{key}[0]"):
                if name in self._lines:
                    return self._lines[name]
            key = key[: max(key.rfind("."), key.rfind("["), 0)]
        return 0

    def convert(
        self, value: object, kind: type[T], key: str = "", *, known: Collection[str] = (), hook: Hook | None = None
    ) -> T:
        """The value that stands at `key` as a `kind`; `known` are words to guess a misspelt one from."""
        try:
            return msgspec.convert(value, kind, dec_hook=hook)
        except msgspec.ValidationError as error:
            match = _AT.fullmatch(str(error))
            assert match is not None
            what, below = match[1], (match[2] or "").replace("[...]", ".*")
            if unknown := _UNKNOWN.fullmatch(what):
                hint = _guess(unknown[1], known)
                raise self.error(_join(key, below, unknown[1]), f"there is no such key{hint}") from None
            if invalid := _INVALID.fullmatch(what):
                hint = _guess(invalid[1], known)
                raise self.error(_join(key, below), f"{invalid[1]!r} is not possible here{hint}") from None
            if missing := _MISSING.fullmatch(what):
                raise self.error(_join(key, below), f"the key {missing[1]!r} is missing") from None
            for name, plain in _TYPES.items():
                what = what.replace(f"`{name}`", plain).replace(f"`{name} | ", f"`{plain} or ")
            raise self.error(_join(key, below), what[0].lower() + what[1:]) from None


#: Makes a value of a type that TOML does not have; refuses with ValueError.
Hook = Callable[[type, Any], Any]


def text_hook(parsers: Mapping[type, Callable[[object], Any]]) -> Hook:
    """Values of these types are written as text and read by our own parsers."""

    def hook(kind: type, value: object) -> Any:
        try:
            return kind(parsers[kind](value))
        except DovetailError as error:
            raise ValueError(str(error)) from None

    return hook


def _guess(word: str, known: Collection[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _join(*keys: str) -> str:
    return ".".join(key for key in keys if key).replace(".[", "[")


def key_lines(text: str) -> dict[str, int]:
    """Key -> line on which it stands, of a text that is valid TOML. Elements of a list are ``key[0]``."""
    lines = text.splitlines()
    found: dict[str, int] = {}
    #: Array of tables -> how many tables it has so far.
    lengths: dict[str, int] = {}
    table = ""
    at = 0
    while at < len(lines):
        head = lines[at].strip()
        if not head or head.startswith("#"):
            at += 1
            continue
        if head.startswith("["):
            table = _header(tomllib.loads(head), head.startswith("[["), lengths)
            found[table] = at + 1
            at += 1
            continue
        statement, end = _statement(lines, at)
        for key in _keys(statement):
            found[_join(table, key)] = at + 1
        at = end
    return found


def _header(parsed: dict[str, Any], is_array: bool, lengths: dict[str, int]) -> str:
    """The full key of a table header, with the index of each array of tables in it."""
    parts: list[str] = []
    value: Any = parsed
    while isinstance(value, dict) and value:
        ((part, value),) = value.items()
        parts.append(part)
    key = ""
    for number, part in enumerate(parts, start=1):
        key = _join(key, part)
        if is_array and number == len(parts):
            lengths[key] = lengths.get(key, 0) + 1
        if key in lengths:
            key = f"{key}[{lengths[key] - 1}]"
    return key


def _statement(lines: list[str], begin: int) -> tuple[dict[str, Any], int]:
    """The statement that begins at a line, parsed, and the line behind it."""
    for end in range(begin + 1, len(lines) + 1):
        try:
            return tomllib.loads("\n".join(lines[begin:end])), end
        except tomllib.TOMLDecodeError:
            continue
    raise AssertionError("the text was valid as a whole")


def _keys(value: Any) -> Iterator[str]:
    """Every key inside a parsed value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in pairs:
        key = name if isinstance(name, str) else f"[{name}]"
        yield key
        yield from (_join(key, below) for below in _keys(inner))
