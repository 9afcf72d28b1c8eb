"""Mutants: a known bug put into a copy of our code, and the one test that has to turn red.

A mutant is an exact text, which must occur exactly once in its file, and what stands there instead. A unified diff would
do the same on the day it is written; but a diff hangs on line numbers and on lines around the change that mean nothing,
and `patch` places it anyway where it seems to fit. A text that has moved away, or that has become two, fails at once and
says which mutant has to be looked at again.

The mutants are tables in ``tests/mutants/*.toml``, one file per part of the package; a table's name is the mutant's::

    [stack_reaches_into_the_episode_before]
    causes = ["6.3"]                          # of the catalogue, see test_catalogue.py; may be empty
    bug = "One sentence: what the code then does."
    file = "lanes/derive.py"                  # in src/headrace
    old = "..."                               # exactly once in it
    new = "..."
    test = "tests/unit/test_derive.py::test_x"
    says = "..."                              # in what pytest prints of the failure

``old`` and ``new`` are given as literal texts (three apostrophes) where they have several lines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
FOLDER = CHECKOUT / "tests" / "mutants"
LIMIT_S = 200.0
"""Longest a mutant's test may take. A mutant that hangs is not caught: the test has to say what is wrong."""

_WRONG_PACKAGE = 90
_MAIN = f"""
import pathlib, sys
import headrace
if not pathlib.Path(headrace.__file__).is_relative_to(sys.argv[1]):
    print("imported", headrace.__file__, "instead of the copy in", sys.argv[1])
    sys.exit({_WRONG_PACKAGE})
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""
_BROKEN = ("NameError", "UnboundLocalError", "SyntaxError", "IndentationError", "ImportError", "ModuleNotFoundError")
"""What a test says of code that does not run at all; a bug runs."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug of our code, planted."""

    name: str
    causes: tuple[str, ...]
    """Ids of the catalogued causes it is an example of; none: it comes from somewhere else."""
    bug: str
    file: str
    old: str
    new: str
    test: str
    says: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How pytest ended."""

    code: int | None
    """Its exit code; None: it was ended after `LIMIT_S`."""
    output: str

    @property
    def failure(self) -> str:
        """The lines in which pytest tells what was wrong."""
        return "\n".join(line for line in self.output.splitlines() if line.startswith("E  "))


def read(folder: Path = FOLDER) -> list[Mutant]:
    """All mutants, in the order of files and tables.

    Raises:
        TypeError: A table has a key too many or too few.
    """
    found = []
    for path in sorted(folder.glob("*.toml")):
        for name, table in tomllib.loads(path.read_text()).items():
            found.append(Mutant(name, tuple(table.pop("causes")), **table))
    return found


def planted(mutant: Mutant, source: str) -> str:
    """The text of the mutant's file with the bug in it.

    Raises:
        ValueError: The text to replace is not there exactly once, or nothing would change.
    """
    count = source.count(mutant.old)
    if count != 1:
        raise ValueError(f"{mutant.name}: its text occurs {count} times in {mutant.file}, and should exactly once")
    if mutant.new == mutant.old:
        raise ValueError(f"{mutant.name} changes nothing")
    return source.replace(mutant.old, mutant.new)


def copied(mutant: Mutant | None, folder: Path) -> Path:
    """A copy of the package and its presets, with a bug or without; the path to import from."""
    for name in ("src", "configs"):
        shutil.copytree(CHECKOUT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        path = folder / "src" / "headrace" / mutant.file
        path.write_text(planted(mutant, path.read_text()))
    return folder / "src"


def run(source: Path, tests: Sequence[str], limit_s: float = LIMIT_S) -> Outcome:
    """Run tests of the checkout against a copy of the package, in a process of their own.

    Raises:
        ImportError: Not the copy was imported.
    """
    arguments = [*tests, "-x", "-q", "--tb=short", "--no-header", "-p", "no:cacheprovider", "-o", "timeout=180"]
    process = subprocess.Popen(
        [sys.executable, "-c", _MAIN, str(source), *arguments],
        cwd=CHECKOUT,
        # One thread: many run beside each other, and none has work for more.
        env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            output, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate(timeout=limit_s)
            return Outcome(None, output)
    if process.returncode == _WRONG_PACKAGE:
        raise ImportError(output)
    return Outcome(process.returncode, output)


def escaped(mutant: Mutant, outcome: Outcome) -> str | None:
    """Why a mutant is not caught; None: its test failed, and for the reason it should."""
    if outcome.code is None:
        return f"its test hung for {LIMIT_S:g} s"
    if outcome.code == 0:
        return "its test passes"
    if outcome.code != 1:
        return f"pytest ended with {outcome.code}, so the test was not run"
    broken = re.search(rf"^E +({'|'.join(_BROKEN)})\b", outcome.failure, flags=re.MULTILINE)
    if broken:
        return f"the code does not run with it: {broken[1]}"
    if mutant.says not in outcome.failure:
        return f"its test failed, and not with {mutant.says!r}"
    return None
