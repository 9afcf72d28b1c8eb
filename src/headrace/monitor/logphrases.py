"""What a line of somebody's training log means: its time, its kind, and its numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

MOST_NUMBERS = 64
"""More numbers than this are not read from one line: it is data, not a log."""
READ_CHARACTERS = 2000
"""How much of a line that is not JSON is looked at."""

_VALUE = (
    r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
    r"|[-+]?(?:nan|inf|infinity)\b"
)
_NUMBER = rf"(?P<value>{_VALUE})(?P<unit>(?-i:[kM])\b)?(?![\d-]|[.:]\d)"
_NAME = r"[A-Za-z_][\w/.\-]*"
_PAIR = re.compile(
    rf"(?<![\w/.\-])(?P<name>{_NAME}(?: {_NAME}){{0,2}})\s*(?P<sign>[:=])\s*[\[(]?{_NUMBER}", re.IGNORECASE
)
_CELL = re.compile(rf"\s*(?P<name>{_NAME}(?: {_NAME}){{0,3}})\s+{_NUMBER}\s*(?:%|[A-Za-z/]+)?\s*$", re.IGNORECASE)
_COUNTED = re.compile(
    r"\b(?P<name>meta ?ep|episode|ep|epoch|global[ _]step|time ?step|step|iteration|iter|update|game)s?\s*#?\s?"
    r"(?P<value>\d[\d,]*)(?![\d.:-]*\d)",
    re.IGNORECASE,
)
_SCORED = re.compile(rf"\b(?P<name>return|reward|score)s? (?:of |was |is )?{_NUMBER}", re.IGNORECASE)
_BAR = re.compile(r"(?<![\d.])(?P<value>\d+)/\d+ \[")
_LEVEL = re.compile(r"^(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL|SUCCESS)\s+", re.IGNORECASE)

_STAMP = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<full>\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)|(?<![\d:])(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?![\d:])"
)


class Kind(StrEnum):
    """What kind of message a line is."""

    ERROR = "error"
    TIME_OUT = "time-out"
    WAITING = "waiting"
    FINISHED = "finished"
    """The program says that all is done."""
    OTHER = "other"


_QUIET = re.compile(r"\b(?:no|0|zero|without) (?:errors?|exceptions?|failures?|time-?outs?)\b|--[\w-]+", re.IGNORECASE)
_TIME_OUT = re.compile(
    r"\btimed[ -]out\b|(?<![\w.-])time-?outs?\b(?![\w-]*\s*[=:]\s*\d)|\bTimeout\w*(?:Error|Expired)\b|"
    r"\bno heartbeat\b|\bnot responding\b",
    re.IGNORECASE,
)
_ERROR = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL)\b|\b(?:[a-z_]+\.)*[A-Z]\w*(?:Error|Exception)\b(?:[:(]|\s*$)|"
    r"\b[Ee]rror(?: (?:in|while|during|on|when|at|from)\b|:)|\b[Ee]xception(?: (?:in|while|during)\b|:)|"
    r"\b[Ff]ail(?:ed|ure)\b|\bSegmentation fault\b|\bcore dumped\b|\b[Oo]ut of memory\b|\bKilled\b|"
    r"\bterminated by signal\b|\bcrashed\b|\bpending call to\b"
)
_WAITING = re.compile(r"\bwaiting (?:for|on|until)\b|\bstill waiting\b|\bwait_for\b|\bblocked on\b", re.IGNORECASE)
_FINISHED = re.compile(
    r"\b(?:training|experiment|run|optimization|evaluation|all epochs|job)\s+(?:is |has |was )?(?:now )?"
    r"(?:complete[d]?|finished|done)\b|^\W*(?:done|finished|all done)\W*$",
    re.IGNORECASE,
)


def kind_of(line: str) -> Kind:
    """What kind of message this is. Numbers with names (``td_error=0.3``, ``timeout: 10``) are no messages."""
    words = _QUIET.sub(" ", _PAIR.sub(_without_number, line[:READ_CHARACTERS]))
    if words.startswith("Traceback (most recent"):
        return Kind.OTHER  # the exception follows on a line of its own
    for kind, pattern in (
        (Kind.TIME_OUT, _TIME_OUT),
        (Kind.ERROR, _ERROR),
        (Kind.FINISHED, _FINISHED),
        (Kind.WAITING, _WAITING),
    ):
        if pattern.search(words):
            return kind
    return Kind.OTHER


def _without_number(pair: re.Match[str]) -> str:
    """Nothing, but for ``KeyError: 0``, which is no number with a name."""
    return pair[0] if pair["name"].endswith(("Error", "Exception")) else " "


def normalised(line: str) -> str:
    """The message without what changes from one time to the next, so that its repetitions can be counted."""
    text = _STAMP.sub("", line[:READ_CHARACTERS])
    text = re.sub(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{12,}\b", "#", text)
    text = re.sub(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?", "#", text)
    return re.sub(r"\s+", " ", text).strip(" -[]|,.:")[:200]


def stamp_in(line: str) -> float | None:
    """The time that a line carries at its start, in seconds; only differences between lines mean anything.

    A time without a date counts from midnight.
    """
    found = _STAMP.search(line[:48])
    if found is None:
        return None
    text = f"{found['date'] or '1970-01-01'} {(found['full'] or found['clock']).replace(',', '.')}"
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def numbers_in(line: str) -> dict[str, float]:
    """Every number with a name: ``key=value``, ``key: value``, JSON, ``step 10 | loss 0.3``, ``| reward | 3 |``.

    Returns:
        By name as in the line; NaN and infinity included, booleans not. A name that comes twice keeps its first value.
    """
    if line.startswith("{") and line.endswith("}"):
        try:
            return dict(_limited(_json_numbers("", json.loads(line))))
        except (ValueError, RecursionError):
            pass
    line = line[:READ_CHARACTERS]
    line = _STAMP.sub(" ", line) if _STAMP.search(line[:48]) else line
    found: dict[str, float] = {}
    for name, value in _limited(_named(line)):
        found.setdefault(name, value)
    _without_second_reading(found)
    return found


def leaf(name: str) -> str:
    """The last part of a name, in one spelling: ``rollout/Ep-Rew mean`` is ``ep_rew_mean``."""
    return re.sub(r"[\s.\-]+", "_", name.rpartition("/")[2]).lower()


def _without_second_reading(found: dict[str, float]) -> None:
    """Of ``| episodes 5 |``, the words alone say ``episode``, the table ``episodes``: one is enough."""
    for name in [name for name in found if f"{name}s" in found]:
        del found[name]


def _limited(pairs: Iterator[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    for _, pair in zip(range(MOST_NUMBERS), pairs, strict=False):
        yield pair


def _named(line: str) -> Iterator[tuple[str, float]]:
    if bar := _BAR.search(line):
        yield "progress", float(bar["value"])
    for found in _PAIR.finditer(line):
        yield _name(found["name"], found["sign"]), _value(found["value"], found["unit"])
    yield from _cells(line)
    rest = _PAIR.sub(" ", line)
    for found in _SCORED.finditer(rest):
        yield found["name"], _value(found["value"], found["unit"])
    for found in _COUNTED.finditer(rest):
        yield found["name"].replace(" ", "_"), _value(found["value"], None)


def _cells(line: str) -> Iterator[tuple[str, float]]:
    """Numbers of a table: a name and a number in one cell, or in two neighbouring ones."""
    if "|" not in line:
        return
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    for cell in cells:
        if found := _CELL.match(cell):
            yield _name(found["name"], ":"), _value(found["value"], found["unit"])
    if not line.startswith("|") or len(cells) != 2 or not re.fullmatch(_NAME, cells[0].replace(" ", "_")):
        return
    if alone := re.fullmatch(_NUMBER, cells[1], re.IGNORECASE):
        yield cells[0], _value(alone["value"], alone["unit"])


def _name(text: str, sign: str) -> str:
    """``lr`` of ``INFO step lr=0.1``: what stands before the last word belongs to a name only before a colon."""
    text = _LEVEL.sub("", text)
    return text.rpartition(" ")[2] if sign == "=" else text


def _value(text: str, unit: str | None) -> float:
    return float(text.replace(",", "")) * {"k": 1e3, "M": 1e6}.get(unit or "", 1.0)


def _json_numbers(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _json_numbers(f"{prefix}/{key}" if prefix else str(key), inner)
    elif isinstance(value, int | float) and not isinstance(value, bool) and prefix:
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond 1e308
            return
        yield prefix, number
