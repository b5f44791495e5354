"""Settings of the server from four places: its flags, the environment, one TOML file, and defaults. The first wins.

Rules of this file
- A setting has one name: `--max-body`, `max-body = "8MiB"` in the file, `DOVETAIL_MAX_BODY` in the environment. Its
  value is read and checked by the flag itself, so there is one set of rules for all three.
- What is wrong is told with its place: the file and its line, or the variable. What nobody knows is refused.
- Paths in the file are relative to the file.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import DeclarationError
from ..serve.keys import NAME
from ..serve.tenants import Tenant

__all__ = ["Layered", "Value", "add_config", "effective"]

PREFIX = "DOVETAIL_"
#: Variables that are no settings of the server.
_OTHERS = ("DOVETAIL_CACHE", "DOVETAIL_DATA", "DOVETAIL_COMPILED", "DOVETAIL_TEST_")
#: What the flags call otherwise.
_NAMES = {"target": "apps"}
#: Neither in the file nor in the environment.
_NOT_IN_FILE = {"help", "config", "json"}


class Value(NamedTuple):
    """One setting: its value, the text that it was read from, and where that was."""

    value: Any
    text: Any
    source: str


class Layered(NamedTuple):
    """All settings."""

    args: argparse.Namespace
    values: dict[str, Value]
    tenants: dict[str, Tenant]
    #: Name of a tenant -> where it was declared.
    tenant_sources: dict[str, str]


def add_config(parser: argparse.ArgumentParser) -> None:
    """The option that names the file."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"settings in TOML; also {PREFIX}CONFIG (docs/production.md)"
    )


def effective(
    configure: Callable[[argparse.ArgumentParser], None],
    words: Sequence[str],
    environment: Mapping[str, str] | None = None,
) -> Layered:
    """What holds: `words` are those of the command line, behind the verb."""
    environment = os.environ if environment is None else environment
    plain = argparse.ArgumentParser(prog="dovetail serve", add_help=False)
    configure(plain)
    actions = {a.dest: a for a in plain._actions if a.dest not in _NOT_IN_FILE}
    defaults = {dest: action.default for dest, action in actions.items()}
    spoken = argparse.ArgumentParser(prog="dovetail serve", add_help=False)
    configure(spoken)
    for action in spoken._actions:
        action.default = argparse.SUPPRESS
        if callable(action.type) and action.choices is None:
            action.type = partial(_keep, action.type)
    given = vars(spoken.parse_args(list(words)))
    names = {_NAMES.get(dest, dest.replace("_", "-")): dest for dest in actions}
    values = {dest: Value(default, default, "default") for dest, default in defaults.items()}
    tenants: dict[str, Tenant] = {}
    sources: dict[str, str] = {}
    named = environment.get(PREFIX + "CONFIG")
    file = _value(given.get("config")) or (Path(named) if named else None)
    if file is not None:
        found, tenants, sources = _from_file(file, names, actions)
        values |= found
    values |= _from_environment(environment, names, actions)
    for dest, value in given.items():
        if dest in actions and not (dest == "target" and not value):
            flag = actions[dest].option_strings[-1] if actions[dest].option_strings else "the command line"
            values[dest] = Value(_value(value), _text(value), flag)
    args = argparse.Namespace(**{dest: value.value for dest, value in values.items()}, config=file)
    return Layered(args, values, tenants, sources)


class _Kept(NamedTuple):
    """What was read, and the text of it."""

    value: Any
    text: str


def _keep(read: Callable[[str], Any], text: str) -> _Kept:
    return _Kept(read(text), text)


def _value(given: Any) -> Any:
    return [_value(each) for each in given] if isinstance(given, list) else getattr(given, "value", given)


def _text(given: Any) -> Any:
    return [_text(each) for each in given] if isinstance(given, list) else getattr(given, "text", given)


def _from_environment(
    environment: Mapping[str, str], names: Mapping[str, str], actions: Mapping[str, argparse.Action]
) -> dict[str, Value]:
    values = {}
    known = {PREFIX + name.upper().replace("-", "_"): dest for name, dest in names.items()}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or variable.startswith((*_OTHERS, PREFIX + "CONFIG")) or not text:
            continue
        if variable not in known:
            raise DeclarationError(f"{variable}: there is no such setting{_similar(variable, known)}")
        action = actions[known[variable]]
        given: Any = [part.strip() for part in text.split(",")] if _is_list(action) else text
        if action.nargs == 0:
            if text.lower() not in ("1", "0", "true", "false"):
                raise DeclarationError(f"{variable}={text!r} must be true or false")
            given = text.lower() in ("1", "true")
        values[known[variable]] = Value(_read(action, given, f"{variable}={text!r}"), given, variable)
    return values


def _from_file(
    file: Path, names: Mapping[str, str], actions: Mapping[str, argparse.Action]
) -> tuple[dict[str, Value], dict[str, Tenant], dict[str, str]]:
    try:
        text = file.read_text()
        content = tomllib.loads(text)
    except FileNotFoundError:
        raise DeclarationError(f"there is no file {file} (--config)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DeclarationError(f"cannot read {file}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise DeclarationError(f"{file} is not TOML: {error}") from None
    lines = text.splitlines()
    values: dict[str, Value] = {}
    tables = content.pop("tenants", {})
    for name, given in content.items():
        where = f"{file}:{_line(lines, '', name)}"
        if name not in names:
            raise DeclarationError(f"{where}: there is no setting {name!r}{_similar(name, [*names, 'tenants'])}")
        action = actions[names[name]]
        told = f"{where}: {name} = {msgspec.json.encode(given).decode()}"
        if isinstance(given, dict):
            raise DeclarationError(f"{told} must be a value, not a table")
        if _is_list(action) is not isinstance(given, list):
            raise DeclarationError(f"{told} must be {'a list' if _is_list(action) else 'one value'}")
        if (action.nargs == 0) is not isinstance(given, bool):
            raise DeclarationError(f"{told} must be {'true or false' if action.nargs == 0 else 'a value'}")
        if action.type is Path and given != "-":
            given = str(file.parent / given)
        values[names[name]] = Value(_read(action, given, told), given, where)
    tenants, sources = _tenants(file, lines, tables)
    return values, tenants, sources


def _tenants(file: Path, lines: list[str], tables: Any) -> tuple[dict[str, Tenant], dict[str, str]]:
    if not isinstance(tables, dict):
        raise DeclarationError(f"{file}:{_line(lines, '', 'tenants')}: tenants must be tables: [tenants.NAME]")
    tenants, sources = {}, {}
    for name, table in tables.items():
        section = f"tenants.{name}"
        where = f"{file}:{_line(lines, section, '')}"
        if not re.fullmatch(NAME, name):
            raise DeclarationError(f"{where}: a tenant is called by letters, digits, '.', '_' and '-', up to 64")
        try:
            tenants[name] = msgspec.convert(table, Tenant)
        except msgspec.ValidationError as error:
            at = re.search(r"\$\.([\w-]+)|unknown field `([\w-]+)`", str(error))
            key = (at[1] or at[2]) if at else ""
            told = f"{key}: {str(error).partition(' - at ')[0].replace('`', '')}"
            if at and at[2]:
                known = [field.encode_name for field in msgspec.structs.fields(Tenant)]
                told = f"there is no setting {key!r}{_similar(key, known)}"
            raise DeclarationError(f"{file}:{_line(lines, section, key)}: [{section}] {told}") from None
        sources[name] = where
    return tenants, sources


def _line(lines: list[str], section: str, key: str) -> int:
    """Where a key of a section is; the section itself if it has no key; 1 if it is written in another way."""
    here, at = "", 1
    for number, line in enumerate(lines, 1):
        if match := re.match(r"\s*\[\s*([^\]]+?)\s*\]", line):
            here = match[1].replace('"', "").replace("'", "")
            if here == section:
                at = number
        elif here == section and key and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return number
    return at


def _is_list(action: argparse.Action) -> bool:
    return action.nargs == "*" or isinstance(action, argparse._AppendAction)


def _read(action: argparse.Action, given: Any, told: str) -> Any:
    """A value as the flag would read it."""
    if action.nargs == 0:
        return given
    if _is_list(action):
        return [_read_one(action, part, told) for part in given]
    return _read_one(action, given, told)


def _read_one(action: argparse.Action, given: Any, told: str) -> Any:
    text = f"{given:g}" if isinstance(given, float) else str(given)
    read = action.type if callable(action.type) else str
    try:
        value = read(text)
    except argparse.ArgumentTypeError as error:
        raise DeclarationError(f"{told}: {error}") from None
    except (TypeError, ValueError):
        raise DeclarationError(f"{told} is no {getattr(read, '__name__', 'value')}") from None
    if action.choices is not None and value not in action.choices:
        raise DeclarationError(f"{told} must be one of: {', '.join(map(str, action.choices))}")
    return value


def _similar(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else "; 'dovetail config' shows all"
