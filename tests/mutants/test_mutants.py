"""Every known bug, planted in a copy of our code, turns its test red; the harness itself is tried first."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from mutant_support import CHECKOUT, Mutant, Outcome, copied, escaped, planted, read, run

MUTANTS = read()
SAMPLE = Mutant(
    "sample",
    (),
    "A clock that goes backwards.",
    "core/clock.py",
    "now_s",
    "later_s",
    "tests/unit/test_x.py::test_y",
    "assert 1 == 2",
)


@pytest.mark.timeout(240)
@pytest.mark.thin(384)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant, tmp_path):
    outcome = run(copied(mutant, tmp_path), [mutant.test])
    reason = escaped(mutant, outcome)
    assert reason is None, f"{mutant.name} escaped: {reason}\n{mutant.bug}\n{mutant.test}\n{outcome.output[-4000:]}"


@pytest.mark.timeout(600)
@pytest.mark.table
def test_without_a_mutant_the_same_tests_pass(tmp_path):
    tests = sorted({mutant.test for mutant in MUTANTS})
    outcome = run(copied(None, tmp_path), tests, limit_s=560)
    assert outcome.code == 0, outcome.output[-4000:]
    assert "skipped" not in outcome.output, outcome.output[-4000:]


def test_every_mutant_can_be_planted():
    """Also those that are not in the cross-section: whoever moves code is told at once."""
    problems = []
    for mutant in MUTANTS:
        source = (CHECKOUT / "src" / "headrace" / mutant.file).read_text()
        try:
            compile(planted(mutant, source), mutant.file, "exec")
        except (ValueError, SyntaxError) as error:
            problems.append(f"{mutant.name}: {error}")
    assert not problems, problems


def test_test_of_every_mutant_exists():
    problems = []
    for mutant in MUTANTS:
        path, _, name = mutant.test.partition("::")
        function = name.partition("[")[0]
        if not re.search(rf"^def {function}\(", (CHECKOUT / path).read_text(), flags=re.MULTILINE):
            problems.append(f"{mutant.name}: there is no {mutant.test}")
    assert not problems, problems


def test_mutants_are_told_apart():
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) > 50


@pytest.mark.parametrize(("source", "count"), [("", 0), ("a now_s and a now_s", 2)])
def test_text_that_is_not_there_exactly_once_is_refused(source: str, count: int):
    with pytest.raises(ValueError, match=f"its text occurs {count} times in core/clock.py, and should exactly once"):
        planted(SAMPLE, source)


def test_mutant_that_changes_nothing_is_refused():
    with pytest.raises(ValueError, match="sample changes nothing"):
        planted(replace(SAMPLE, new=SAMPLE.old), "now_s")


@pytest.mark.parametrize(
    ("code", "output", "reason"),
    [
        (1, "E   AssertionError: x\nE   assert 1 == 2", None),
        (0, "1 passed", "its test passes"),
        (None, "", "its test hung for 200 s"),
        (2, "E   assert 1 == 2", "pytest ended with 2, so the test was not run"),
        (4, "ERROR: not found", "pytest ended with 4, so the test was not run"),
        (1, "E   assert 3 == 4", "its test failed, and not with 'assert 1 == 2'"),
        (1, "assert 1 == 2", "its test failed, and not with 'assert 1 == 2'"),
        (1, "E   NameError: name 'x'\nE   assert 1 == 2", "the code does not run with it: NameError"),
    ],
)
def test_only_the_right_failure_counts(code: int | None, output: str, reason: str | None):
    assert escaped(SAMPLE, Outcome(code, output)) == reason


@pytest.mark.table
def test_package_that_is_not_the_copy_is_noticed(tmp_path):
    """Tests that import the checkout's own package would pass whatever was planted."""
    (tmp_path / "src").mkdir()
    with pytest.raises(ImportError, match="instead of the copy in"):
        run(tmp_path / "src", ["tests/unit/test_files.py"])
