"""Options of the language-model commands: each has those that mean something there, and says so of the others."""

from __future__ import annotations

import pytest

from headrace.cli.main import main
from headrace.core.errors import ConfigError, RunDirectoryError
from headrace.core.extras import EXTRAS
from headrace.llm.launch import launcher, starting
from headrace.llm.launch.place import LanguageRun
from headrace.llm.loading import Source, load_rl_config
from hiding import hide

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


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A run as its start leaves it; nothing can be started or gone on with."""

    def started(*_: object, **__: object) -> None:
        raise AssertionError("a dry run starts nothing")

    for module, name in ((starting, "begin"), (starting, "resume"), (launcher, "launch")):
        monkeypatch.setattr(module, name, started)
    config = load_rl_config([Source("wordle-grpo")], {"run.seed": 7})
    with LanguageRun.create_as("test", tmp_path / "run", config, "runs") as place:
        pass
    return place


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ([], "seed = 7\n"),
        (["--steps", "77000"], "steps = 77000\n"),
        (["@", "wordle-grpo", "--seed", "7"], "seed = 7\n"),
    ],
)
def test_a_dry_run_of_going_on_says_with_what_and_changes_nothing(prepared, capsys, words, printed):
    before = prepared.config_file.read_bytes()
    line = ["rl", *words, "--resume", "--run-dir", str(prepared.path), "--dry-run"]
    assert main(line, standalone_mode=False) == 0
    assert printed in capsys.readouterr().out
    assert prepared.config_file.read_bytes() == before


@pytest.mark.parametrize("words", [["--trainer.lr", "3e-3"], ["@", "wordle-grpo", "--seed", "8"]])
def test_a_dry_run_of_going_on_refuses_what_going_on_would(prepared, words):
    before = prepared.config_file.read_bytes()
    with pytest.raises(ConfigError, match="a run goes on as it began"):
        main(["rl", *words, "--resume", "--run-dir", str(prepared.path), "--dry-run"], standalone_mode=False)
    assert prepared.config_file.read_bytes() == before


def test_a_dry_run_of_going_on_needs_a_run(prepared, tmp_path):
    with pytest.raises(ConfigError, match="--resume does not say which run to go on with"):
        main(["rl", "--resume", "--dry-run"], standalone_mode=False)
    with pytest.raises(RunDirectoryError, match="holds no run"):
        main(["rl", "--resume", "--run-dir", str(tmp_path / "none"), "--dry-run"], standalone_mode=False)


@pytest.mark.parametrize("live", [False, True])
def test_a_dry_run_writes_into_no_run(prepared, live):
    before = prepared.config_file.read_bytes()
    line = ["rl", "@", "wordle-grpo", "--trainer.lr", "1e-4", "--run-dir", str(prepared.path), "--dry-run"]
    if live:
        prepared.take_lock("-")
    with prepared, pytest.raises(RunDirectoryError, match="is alive" if live else "already holds a run"):
        main(line, standalone_mode=False)
    assert prepared.config_file.read_bytes() == before


def test_a_dry_run_may_write_again_what_it_has_written(tmp_path, capsys):
    for rate in ("1e-4", "2e-4"):
        line = ["rl", "@", "wordle-grpo", "--trainer.lr", rate, "--run-dir", str(tmp_path / "dry"), "--dry-run"]
        assert main(line, standalone_mode=False) == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        str(tmp_path / "dry" / name)
        for name in ("config.toml", "configs/inference.toml", "configs/orchestrator.toml", "configs/trainer.toml")
    ]
    assert "lr = 0.0002" in (tmp_path / "dry" / "config.toml").read_text()


@pytest.mark.parametrize("quiet", [(), ("--quiet",)])
def test_a_run_hands_over_at_every_turn_what_its_reader_had_no_room_for(tmp_path, monkeypatch, quiet):
    turns = []

    def launch(what, on_line, on_turn):
        on_turn()
        return {"outcome": "completed", "exit_code": 0}

    monkeypatch.setattr(launcher, "launch", launch)
    monkeypatch.setattr("headrace.cli.rl.pass_on", lambda: turns.append("handed over"))
    words = ["rl", "@", "wordle-grpo", "--run-dir", str(tmp_path / "run"), *quiet]
    assert main(words, standalone_mode=False) == 0
    assert turns == ["handed over"]


ANY = ["@", "wordle-grpo"]


@pytest.mark.parametrize(
    "words",
    [
        ["rl", *ANY, "--run-dir", "new"], ["sft", *ANY, "--run-dir", "new"], ["train", "wordle-grpo", "--run-dir", "new"],
        *(["trainer", *ANY, "--run-dir", "new"], ["orchestrator", "--run-dir", "run"], ["inference", "--run-dir", "run"]),
        ["rl", "--resume", "--run-dir", "run"], ["train", "--resume", "--run-dir", "run"],
        ["check", "wordle-grpo", "--run-dir", "new"], ["plan", "wordle-grpo"], ["eval", "run"],
    ],
)  # fmt: skip
def test_without_its_extra_nothing_is_begun(prepared, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    hide(monkeypatch, *EXTRAS["llm"])
    with pytest.raises(ConfigError) as caught:
        main(words, standalone_mode=False)
    assert caught.value.what == "language-model runs need the extra llm"
    assert caught.value.facts == {"missing": ", ".join(EXTRAS["llm"])}
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["rl", "trainer"])
def test_a_configuration_is_printed_without_the_extra(monkeypatch, capsys, command):
    hide(monkeypatch, *EXTRAS["llm"])
    assert main([command, *ANY, "--dry-run"], standalone_mode=False) == 0
    assert "[trainer]" in capsys.readouterr().out
