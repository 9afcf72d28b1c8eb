"""Code that runs beside environments reads clocks which they cannot replace, see `headrace.core.clock`."""

from __future__ import annotations

import ast

BESIDE = (
    "core",
    "ipc",
    "telemetry",
    "supervision",
    "record",
    "envs",
    "lanes",
    "weights",
    "vector",
    "collectors",
    "learners",
    "runtime",
)
CLOCKS = {"time", "monotonic", "perf_counter"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}


def read_late(tree: ast.Module) -> list[str]:
    """Where a clock is looked up in ``time``, and where one is taken from it under a name of the module."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "time":
            found += [f"line {node.lineno}: time.{node.attr}"] if node.attr in CLOCKS else []
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            names = [alias.name for alias in node.names if alias.name in CLOCKS]
            found += [f"line {node.lineno}: from time import {name}" for name in names]
        elif isinstance(node, ast.Import):
            found += [
                f"line {node.lineno}: time as another name"
                for alias in node.names
                if alias.name == "time" and alias.asname
            ]
    return found


def test_no_clock_is_looked_up_where_an_environment_may_have_replaced_it(modules: dict[str, ast.Module]) -> None:
    beside = {path: tree for path, tree in modules.items() if path.split("/")[0] in BESIDE and path != "core/clock.py"}
    assert {path: found for path, tree in beside.items() if (found := read_late(tree))} == {}


def test_the_rule_sees_each_way() -> None:
    source = "import time as t\nimport time\nfrom time import monotonic\ndef f(): return time.time_ns()\n"
    found = ["line 1: time as another name", "line 3: from time import monotonic", "line 4: time.time_ns"]
    assert sorted(read_late(ast.parse(source))) == found
