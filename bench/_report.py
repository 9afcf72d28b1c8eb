"""What every benchmark prints: one table for people, or one JSON object for programs."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from headrace.benchmarks.report import Row, compare, in_words, less_is_better, machine, take_turns, to_json

__all__ = ["Row", "arguments", "compare", "less_is_better", "machine", "options", "report", "take_turns"]


def options(description: str, **defaults: float) -> argparse.ArgumentParser:
    """Every default becomes an option; ``--json`` is always there."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"default {value:,}")
    return parser


def arguments(description: str, **defaults: float) -> argparse.Namespace:
    """What was given of these options."""
    return options(description, **defaults).parse_args()


def report(rows: Sequence[Row], *, as_json: bool, **more: object) -> None:
    """Print everything. ``more`` is told of the machine, besides."""
    about = {**machine(), **more}
    print(json.dumps(to_json(rows, about)) if as_json else "\n".join(in_words(rows, about)))
