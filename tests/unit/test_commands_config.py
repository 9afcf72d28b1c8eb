"""The file of `headrace supervise`: what is understood, and what is refused before anything starts."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from headrace.commands.config import (
    ProcessConfig,
    ProgressConfig,
    ReadyConfig,
    RestartConfig,
    SuperviseConfig,
    SuperviseRunConfig,
    load,
)
from headrace.core.errors import ConfigError

WHOLE = """
[run]
name = "prime"
run_duration_s = 60.0

[process.inference]
command = "serve --model 'my model'"
env = { CUDA_VISIBLE_DEVICES = "0" }
ready = { http = "http://127.0.0.1:8000/health", json_holds = { status = "ok" }, start_s = 30.0 }
progress = { http = "http://127.0.0.1:8000/metrics", metric = "generation_tokens_total", progress_s = 20.0 }
stop_signal = "SIGINT"

[process.trainer]
command = ["train", "--now"]
needs = ["inference"]
lifetime = "until-done"
restart = { max = 2, window_s = 60.0, backoff_s = 0.5 }
"""


def written(folder, text):
    file = folder / "run.toml"
    file.write_text(text)
    return file


def refused(folder, text):
    with pytest.raises(ConfigError) as caught:
        load(written(folder, text))
    return caught.value


def test_a_file_is_read(tmp_path):
    config = load(written(tmp_path, WHOLE))

    inference, trainer = config.process["inference"], config.process["trainer"]
    assert inference.command == ["serve", "--model", "my model"]
    assert inference.cwd == str(tmp_path)
    assert inference.stop_number == 2
    assert trainer.needs == ["inference"]
    assert trainer.ready.alive_s == 1.0
    assert trainer.restart.max == 2


def test_an_array_of_tables_means_the_same(tmp_path):
    array = WHOLE.replace("[process.inference]", '[[process]]\nname = "inference"')
    array = array.replace("[process.trainer]", '[[process]]\nname = "trainer"')

    assert load(written(tmp_path, array)) == load(written(tmp_path, WHOLE))


def test_the_effective_configuration_is_read_back(tmp_path):
    config = load(written(tmp_path, WHOLE))

    assert SuperviseConfig.model_validate(tomllib.loads(config.to_toml())) == config


def test_an_unknown_key_is_named_with_the_nearest(tmp_path):
    error = refused(tmp_path, '[process.trainer]\ncomand = "x"\ncommand = "x"')

    assert str(error) == (
        "[CFG-001] unknown key comand\n  process: trainer\n  nearest: command\n  fix: write command, or remove it"
    )


def test_a_need_that_nobody_meets_is_named_with_the_nearest(tmp_path):
    error = refused(
        tmp_path, '[process.inference]\ncommand = "x"\n[process.trainer]\ncommand = "x"\nneeds = ["inferense"]'
    )

    assert error.what == "trainer needs 'inferense', and no process is called so"
    assert error.facts["nearest"] == "inference"


def test_needs_in_a_ring_are_refused(tmp_path):
    text = "".join(f'[process.{a}]\ncommand = "x"\nneeds = ["{b}"]\n' for a, b in ("ab", "bc", "cb"))

    assert refused(tmp_path, text).facts["ring"] == "b -> c -> b"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('ready = { log = "x", file = "y" }', "ready needs exactly one sign"),
        ("ready = { start_s = 3.0 }", "ready needs exactly one sign"),
        ("progress = { progress_s = 3.0 }", "progress needs exactly one sign"),
        ('ready = { log = "(" }', "log is no regular expression"),
        ('fail_pattern = "("', "fail_pattern is no regular expression"),
        ('ready = { http = "localhost:80" }', "http must be a URL"),
        ('ready = { http = "http://[::1/health" }', "http must be a URL"),
        ('ready = { http = "http://localhost:99999/" }', "http must be a URL"),
        ('ready = { http = "http://a..b/health" }', "http must be a URL"),
        ('progress = { http = "http://x/m" }', "progress.http and exactly one of"),
        ('progress = { log = "x", pending = "y" }', "progress.pending is of no use"),
        ('ready = { log = "x", shared = true }', "ready.shared is of no use"),
        ('ready = { log = "x", json_holds = {} }', "ready.json_holds is of no use"),
        ('progress = { log = "x", metric = "y" }', "progress.http and exactly one of"),
        ("ready = { alive_s = 9.0, start_s = 3.0 }", "it could never be ready"),
        ("ready = { done = true }", "ready.done is for a process that ends"),
        ('stop_signal = "SIGTREM"', "stop_signal 'SIGTREM' is no signal"),
        ('cwd = "nowhere"', "the folder of p does not exist"),
        ('lifetime = "for ever"', "lifetime must be 'run' or 'until-done'"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, line, what):
    assert what in refused(tmp_path, f'[process.p]\ncommand = "x"\n{line}').what


@pytest.mark.parametrize("command", ['""', "[]", "'a \"b'"])
def test_a_command_that_is_none_is_refused(tmp_path, command):
    assert refused(tmp_path, f"[process.p]\ncommand = {command}").what.startswith("command")


def test_what_is_missing_or_no_table_or_no_text_is_said_to_be(tmp_path):
    assert str(refused(tmp_path, '[process.p]\ncwd = "."')) == (
        "[CFG-001] command is missing\n  process: p\n  fix: set command"
    )
    assert refused(tmp_path, 'process = "x"').what == "process must be tables, one for each process"
    (tmp_path / "latin.toml").write_bytes('[process.p]\ncommand = "café"'.encode("latin-1"))
    with pytest.raises(ConfigError, match="not written in UTF-8") as caught:
        load(tmp_path / "latin.toml")
    assert caught.value.fix == "name a TOML file, and save it in UTF-8"


def test_a_file_that_is_not_there_is_refused_and_no_preset_is_proposed(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        load(tmp_path / "nosuch")
    assert refused.value.fix == "name a TOML file that exists and is readable"


def test_a_mark_at_the_beginning_of_a_file_is_passed_over(tmp_path):
    assert list(load(written(tmp_path, '\ufeff[process.p]\ncommand = "x"')).process) == ["p"]


@pytest.mark.parametrize(
    "text", ["", '[[process]]\ncommand = "x"', '[process.supervisor]\ncommand = "x"', "process.p = 3"]
)
def test_a_file_without_usable_names_is_refused(tmp_path, text):
    assert "process" in refused(tmp_path, text).what


def test_the_guides_file_is_understood(tmp_path):
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "supervise.md").read_text()
    [block] = re.findall(r"^```toml\n(.*?)^```", guide, flags=re.MULTILINE | re.DOTALL)

    config = load(written(tmp_path, block))
    assert {name: process.needs for name, process in config.process.items()} == {
        "inference": [], "orchestrator": ["inference"], "trainer": ["orchestrator"],
    }  # fmt: skip


def test_the_guide_speaks_of_every_key():
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "supervise.md").read_text()
    sections = ProcessConfig, ReadyConfig, ProgressConfig, RestartConfig, SuperviseRunConfig
    keys = {key for section in sections for key in section.model_fields}
    assert keys - {"probe_s", "name"} == {key for key in keys if re.search(rf"\b{key}\b", guide)} - {"name"}
