"""TOML in and out: files with errors that name the line, single values from a command line, whole sections."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel

from headrace.core.errors import ConfigError


def read(path: Path) -> dict[str, Any]:
    """The table a TOML file holds.

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
            fix="name a TOML file that exists and is readable, or a preset (headrace list)",
        ) from None


def parse_value(text: str) -> Any:
    """``text`` as a TOML value; where it is none, the text itself, so that words need no quotation marks."""
    try:
        table = tomllib.loads(f"value = {text}\n")
    except tomllib.TOMLDecodeError:
        return text
    # A line break in the text could smuggle in further keys.
    return table["value"] if list(table) == ["value"] else text


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
            below += [*tomli_w.dumps(nested).splitlines(), ""]
        elif value is None:
            lines.append(f"# {name} is not set")
        else:
            lines.append(tomli_w.dumps({name: value}).strip())
    return ([*lines, ""] if lines else []) + below
