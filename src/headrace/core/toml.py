"""TOML in and out: files with errors that name the line, single values from a command line, whole sections."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel

from headrace.core.errors import ConfigError


def read(path: Path, otherwise: str | None = None) -> dict[str, Any]:
    """The table a TOML file holds.

    Args:
        path: Of the file.
        otherwise: What the caller takes in place of a file's name, for the message.

    Raises:
        ConfigError: It cannot be read, or is no TOML; names file and line.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except tomllib.TOMLDecodeError as error:
        text = str(error)
        place = re.search(r"\(at line (\d+)", text)
        raise ConfigError(
            "the configuration file is not valid TOML",
            file=path,
            line=place.group(1) if place else "the last one",
            problem=text,
            fix="correct that line; strings need quotation marks, true and false are in small letters",
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            "the configuration file is not written in UTF-8",
            file=path,
            problem=error,
            fix="name a TOML file, and save it in UTF-8",
        ) from None
    except OSError as error:
        raise ConfigError(
            "the configuration file cannot be read",
            file=path,
            problem=error,
            fix="name a TOML file that exists and is readable" + (f", or {otherwise}" if otherwise else ""),
        ) from None


def read_table(path: Path) -> dict[str, Any]:
    """The same of a file that need not be there, for whoever only looks at it; empty if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def parse_value(text: str) -> Any:
    """``text`` as a TOML value; where it is none, the text itself, so that words need no quotation marks."""
    try:
        table = tomllib.loads(f"value = {text}\n")
    except tomllib.TOMLDecodeError:
        return text
    # A line break in the text could smuggle in further keys.
    return table["value"] if list(table) == ["value"] else text


def as_read_back(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table of the user's own as a file gives it back (tuples as lists), so that all sessions of a run are given the same.

    Raises:
        ConfigError: A value cannot be written, or would come back as another one.
    """
    return {name: _as_read_back(name, value) for name, value in table.items()}


def _as_read_back(name: str, value: Any) -> Any:
    problem: object = "it would be read as another value"
    try:
        found = tomllib.loads(tomli_w.dumps({name: value}).encode().decode())[name]
    except (TypeError, ValueError) as error:
        problem = error
    else:
        meant = _with_lists(value)
        if found == meant or repr(found) == repr(meant):  # nan equals nothing
            return found
    raise ConfigError(
        "an argument of the environment cannot be written into the run's config.toml",
        argument=f"env.kwargs.{name}",
        found=f"{type(value).__name__}: {value!r}"[:200],
        problem=problem,
        fix="make it a number, text, list or table, or set it inside a factory function",
    )


def _with_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _with_lists(inner) for name, inner in value.items()}
    return [_with_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


def dump(section: BaseModel) -> str:
    """Every key of ``section`` as TOML; a key without a value becomes a comment, since TOML has no null."""
    return "\n".join(_tables(section, ""))


def _tables(section: BaseModel, path: str) -> list[str]:
    lines = [f"[{path}]"] if path else []
    below: list[str] = []
    for name in type(section).model_fields:
        value = getattr(section, name)
        place = f"{path}.{name}" if path else name
        if isinstance(value, BaseModel):
            below += _tables(value, place)
        elif isinstance(value, dict):
            nested: dict[str, Any] = value
            for part in reversed(place.split(".")):
                nested = {part: nested}
            below += [*tomli_w.dumps(nested).removesuffix("\n").split("\n"), ""]  # a text may hold other ends of lines
        elif value is None:
            lines.append(f"# {name} is not set")
        else:
            lines.append(tomli_w.dumps({name: value}).strip())
    return ([*lines, ""] if lines else []) + below
