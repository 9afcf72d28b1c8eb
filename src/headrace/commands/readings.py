"""What probes and lines say, as values: numbers in metrics, JSON and log lines. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?P<labels>\{.*\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")


def prometheus(text: str, metric: str) -> float | None:
    """A metric of Prometheus's text format; without labels, all its series added up. None: it is not there."""
    name, brace, labels = metric.partition("{")
    total, found = 0.0, False
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None or sample["name"] != name:
            continue
        if brace and sample["labels"] != brace + labels:
            continue
        value = _number(sample["value"])
        if value is not None:
            total, found = total + value, True
    return total if found else None


def json_number(text: str, path: str) -> float | None:
    """The number at ``a.0.b`` of a JSON text; None: there is none."""
    try:
        here: Any = json.loads(text)
    except ValueError:
        return None
    for key in path.split("."):
        if isinstance(here, Mapping) and key in here:
            here = here[key]
        elif isinstance(here, list) and key.isdigit() and int(key) < len(here):
            here = here[int(key)]
        else:
            return None
    try:
        return float(here) if isinstance(here, int | float) and not isinstance(here, bool) else None
    except OverflowError:  # a whole number beyond 1e308
        return None


def holds(found: Any, expected: Any) -> bool:
    """Whether a JSON value holds what is expected: of objects the keys named, of anything else all of it."""
    if isinstance(expected, Mapping):
        return isinstance(found, Mapping) and all(
            key in found and holds(found[key], value) for key, value in expected.items()
        )
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)


def json_holds(text: str, expected: Mapping[str, Any]) -> bool:
    """`holds`, of a text; one that is no JSON holds nothing."""
    try:
        return holds(json.loads(text), expected)
    except ValueError:
        return False


def number_in(match: re.Match[str]) -> float | None:
    """The number a match has caught in its first group; None if it has no group, or that is no number."""
    if not match.re.groups or match[1] is None:
        return None
    return _number(match[1].replace(",", "").replace("_", ""))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
