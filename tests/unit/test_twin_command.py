"""``headrace twin`` before its first run: what it refuses, and that nothing is left of that."""

from __future__ import annotations

import pytest

from headrace.cli.main import main


@pytest.fixture
def told(capsys, monkeypatch, tmp_path):
    """Run the command in an empty folder; its exit code and what it says on standard error."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(["twin", *arguments])
        printed, errors = capsys.readouterr()
        assert printed == ""
        return left.value.code, errors

    return run


def test_a_preset_that_ends_by_the_clock_needs_steps(told, tmp_path):
    code, errors = told("hockey-demo", "--json")
    assert code == 2
    assert errors == (
        "[CFG-001] the twins would end after different numbers of steps: the clock ends them\n"
        "  run duration s: 90\n"
        "  fix: give --steps N, and no run.run_duration_s beside it\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_steps_take_the_clock_away(told, tmp_path):
    """Refused for something that is looked at after the clock."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    code, errors = told("hockey-demo", "--steps", "9000", "--out", "full")
    assert (code, errors.splitlines()[0]) == (2, "[CFG-002] full is not empty")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


def test_schedules_without_the_reference_are_refused(told, tmp_path):
    code, errors = told("pendulum-td3", "--schedules", "lockstep, async")
    assert (code, "fix: name inline" in errors) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_an_out_that_is_a_file_is_refused(told, tmp_path):
    (tmp_path / "file").touch()
    code, errors = told("pendulum-td3", "--out", "file")
    assert (code, "[CFG-002] file cannot be used for the runs" in errors) == (2, True)
