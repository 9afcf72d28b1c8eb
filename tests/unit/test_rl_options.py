"""Options of the language-model commands: each has those that mean something there, and says so of the others."""

from __future__ import annotations

import pytest

from headrace.cli.main import main
from headrace.core.errors import ConfigError

EVERYWHERE = {"words", "seed", "run_dir", "settings", "quiet", "dry_run"}
WORKER = EVERYWHERE | {"steps", "run_duration", "resume"}
OPTIONS = {
    "rl": WORKER | {"schedule"},
    "sft": EVERYWHERE,  # it ends after sft.steps; to resume it would be to train further
    "trainer": WORKER,
    "orchestrator": WORKER | {"url"},
    "inference": EVERYWHERE,  # it serves until it is told to stop
}


@pytest.mark.parametrize("command", OPTIONS)
def test_a_command_lists_the_options_that_mean_something_there(command):
    found = main.get_command(None, command)
    assert {one.name for one in found.params} == OPTIONS[command]


@pytest.mark.parametrize(
    ("command", "option", "nearest"),
    [
        ("inference", "--steps", None),
        ("inference", "--resume", None),
        ("sft", "--schedule", None),
        ("sft", "--sed", "--seed"),
        ("trainer", "--stps", "--steps"),
        ("trainer", "--url", None),
    ],
)
def test_an_option_of_another_command_is_refused_by_name(command, option, nearest):
    with pytest.raises(ConfigError) as raised:
        main([command, "@", "wordle-grpo", option, "3"], standalone_mode=False)
    assert raised.value.what == f"headrace {command} has no option {option}"
    assert raised.value.facts.get("nearest") == nearest
    assert f"headrace {command} --help lists the options" in raised.value.fix


@pytest.mark.parametrize("component", ["trainer", "orchestrator", "inference"])
def test_the_configuration_of_a_component_is_printed_without_a_run(component, capsys):
    assert main([component, "@", "wordle-grpo", "--seed", "7", "--dry-run"], standalone_mode=False) == 0
    printed = capsys.readouterr().out
    assert "seed = 7\n" in printed
    assert "importing" not in printed
