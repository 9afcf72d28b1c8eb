"""The Modal example, as far as it can be checked without Modal: it compiles, its commands exist, its own functions work."""

from __future__ import annotations

import ast
import types
from pathlib import Path
from unittest.mock import MagicMock

import click

from headrace.cli.main import main
from headrace.llm.loading import Source, load_rl_config
from modal_support import EXAMPLE, modal_example

__all__ = ["modal_example"]


def commands() -> list[list[str]]:
    """Every list in the source that begins with ``headrace``; a word that is no constant is empty."""
    tree = ast.parse(EXAMPLE.read_text())
    lists = [node.elts for node in ast.walk(tree) if isinstance(node, ast.List)]
    words = [[str(one.value) if isinstance(one, ast.Constant) else "" for one in elements] for elements in lists]
    return [line for line in words if line and line[0] == "headrace"]


def test_every_command_it_runs_exists_with_these_options() -> None:
    found = commands()
    assert len(found) == 2
    context = click.Context(main)
    for _, name, *rest in found:
        command = main.get_command(context, name)
        assert command is not None, name
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= known


def test_its_preset_is_one() -> None:
    assert load_rl_config([Source("wordle-grpo")]).run.steps


def test_it_says_that_it_was_never_run() -> None:
    assert "ONLY SYNTAX-CHECKED" in ast.get_docstring(ast.parse(EXAMPLE.read_text()))
    assert "only syntax-checked" in (EXAMPLE.parents[1] / "docs" / "guides" / "llm.md").read_text()


def test_a_run_begins_goes_on_and_ends(modal_example: types.ModuleType, tmp_path: Path) -> None:
    run = tmp_path / "one"
    begin = ["headrace", "rl", "@", "wordle-grpo", "--run-dir", str(run)]
    assert modal_example.command_for(run, "wordle-grpo") == begin
    run.mkdir()  # cut short before its first checkpoint
    assert modal_example.command_for(run, "wordle-grpo") == begin
    assert [path.name for path in tmp_path.iterdir()] == ["one-lost-1"]
    (run / "checkpoints" / "50").mkdir(parents=True)
    (run / "checkpoints" / "50" / "manifest.json").touch()
    assert modal_example.command_for(run, "wordle-grpo") == ["headrace", "rl", "--resume", "--run-dir", str(run)]
    (run / "summary.json").write_text('{"outcome": "interrupted"}')
    assert "--resume" in modal_example.command_for(run, "wordle-grpo")
    (run / "summary.json").write_text('{"outcome": "completed"}')
    assert modal_example.command_for(run, "wordle-grpo") is None


def test_a_mirror_forgets_what_the_run_has_removed(modal_example: types.ModuleType, tmp_path: Path) -> None:
    run, target = tmp_path / "run", tmp_path / "volume" / "run"
    for name in ("checkpoints/50", "weights/50", "rollouts", "weights/.51.part"):
        (run / name).mkdir(parents=True)
    for name in ("config.toml", "lock", "checkpoints/50/manifest.json", "rollouts/batch-50"):
        (run / name).write_text(name)
    modal_example.mirror(run, target)
    found = {str(path.relative_to(target)) for path in target.rglob("*")}
    assert found == {
        "config.toml",
        "checkpoints",
        "checkpoints/50",
        "checkpoints/50/manifest.json",
        "weights",
        "weights/50",
    }
    (run / "checkpoints" / "50").rename(run / "checkpoints" / "60")
    (run / "config.toml").write_text("new")
    modal_example.mirror(run, target)
    assert [path.name for path in (target / "checkpoints").iterdir()] == ["60"]
    assert (target / "config.toml").read_text() == "new"


def test_the_launcher_is_told_once_and_everything_is_kept(modal_example: types.ModuleType, tmp_path: Path) -> None:
    modal_example.VOLUME = tmp_path / "volume"
    training = modal_example.Training()
    training.run = tmp_path / "run"
    (training.run / "logs").mkdir(parents=True)
    process = training.process = MagicMock(**{"poll.return_value": None})
    training.leave()
    training.leave()
    process.terminate.assert_called_once_with()
    assert (tmp_path / "volume" / "run" / "logs").is_dir()
    assert modal_example.runs.commit.call_count == 2
