"""What the end of a component is told as."""

from __future__ import annotations

from pathlib import Path

from headrace.llm.launch.blaming import error_of
from headrace.llm.launch.place import LanguageRun
from headrace.supervision.spec import Exited


def told(**facts) -> str:
    event = Exited(**{"id": "orchestrator", "exit_code": 7, "how": "exit code 7"} | facts)
    return str(error_of(event, "nobody can take its place", None, LanguageRun(Path("/nowhere"))))


def test_an_environment_that_ends_its_process_is_named():
    text = told(call="step", lane=12, step=3)
    assert "[SUP-001] orchestrator ended although nobody asked it to: exit code 7" in text
    assert "  inside: a call of the environment, for rollout g12.3\n" in text


def test_one_that_ends_by_itself_is_in_no_environment():
    assert "inside" not in told()
