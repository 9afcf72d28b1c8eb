"""Presets are found, described, and accepted by the configuration they are for."""

from __future__ import annotations

import re

import pytest

import headrace.runtime.presets as presets_module
from headrace.core.errors import ConfigError, EnvironmentNotBuilt
from headrace.envs.building import build_copy
from headrace.envs.hockey import HockeyEnv
from headrace.llm.loading import Source, load_rl_config
from headrace.runtime.config import describes_language_model, load_config
from headrace.runtime.presets import preset_folder, presets, resolve
from headrace.runtime.rundir import RunDirectory
from hiding import hide

NAMES = [
    "cage2-ppo", "cartpole-dqn", "cartpole-ppo", "fuelbreak-dqn", "halfcheetah-ppo", "halfcheetah-sac", "hockey-demo",
    "hockey-td3", "lunarlander-dqn", "lunarlander-ppo", "pendulum-sac", "pendulum-td3", "treasurehunt-iqn",
    "treasurehunt-iqn-small",
]  # fmt: skip
LANGUAGE = ["reverse-text-grpo", "wordle-grpo"]
"""Of language models: another kind of configuration."""
MUJOCO = ("halfcheetah-ppo", "halfcheetah-sac")
"""Their environment needs a package that need not be there."""


@pytest.mark.parametrize("name", NAMES)
def test_preset_loads_and_is_described(name):
    load_config(name)
    assert len(presets()[name].description) > 20
    assert not presets()[name].description.startswith("#")


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_model_preset_loads_and_is_described(name):
    assert describes_language_model(name)
    config = load_rl_config([Source(name)])
    assert config.sft.steps
    assert len(presets()[name].description) > 20


@pytest.mark.parametrize("name", NAMES)
def test_other_presets_are_not_taken_for_language_models(name):
    assert not describes_language_model(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in MUJOCO])
def test_environment_of_a_preset_is_built(name):
    config = load_config(name)
    env = build_copy(config.env, config.agents.count)
    env.close()


@pytest.mark.parametrize("name", ["hockey-demo", "hockey-td3"])
def test_hockey_presets_say_who_plays_the_other_side(name):
    """Neither figures nor comments should hang on a default; whoever is no idler moves in every mode."""
    kwargs = load_config(name).env.kwargs
    env = HockeyEnv(**kwargs)
    try:
        seen = [env.reset(seed=1)[0]] + [env.step([0.0] * 4)[0] for _ in range(40)]
        assert (seen[0][6:9] != seen[-1][6:9]).any() == (kwargs["opponent"] != "idle")
    finally:
        env.close()


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        *((name, "mujoco", "mujoco") for name in MUJOCO),
        *((name, "pygame", "lunarlander") for name in NAMES if name.startswith("lunarlander")),
    ],
)
def test_extra_that_a_preset_needs_is_named_where_it_is_missing(monkeypatch, name, package, extra):
    hide(monkeypatch, package, importers=("gymnasium.envs.mujoco", "gymnasium.envs.box2d"))
    config = load_config(name)
    with pytest.raises(EnvironmentNotBuilt, match="is not installed") as caught:
        build_copy(config.env, config.agents.count)
    assert caught.value.fix == f"pip install 'PATH_OF_THE_CLONE[{extra}]'"
    assert f"the extra {extra}" in presets()[name].description


@pytest.mark.parametrize("name", LANGUAGE)
def test_language_model_presets_say_which_extra_they_need(name):
    assert "the extra llm" in presets()[name].description


def test_no_preset_is_without_a_test():
    assert set(presets()) == {*NAMES, *LANGUAGE}


def test_unknown_preset_names_the_nearest_and_lists_all():
    with pytest.raises(ConfigError) as caught:
        resolve("hokey-td3")
    assert str(caught.value) == (
        "[CFG-001] there is no preset hokey-td3\n"
        "  nearest: hockey-td3\n"
        f"  presets: {', '.join(presets())}\n"
        "  fix: headrace train hockey-td3"
    )


def test_file_comes_before_a_preset_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pendulum-td3").write_text("")
    assert resolve("pendulum-td3").read_text() == ""


@pytest.mark.parametrize("name", ["mine.toml", "somewhere/mine"])
def test_missing_file_is_not_taken_for_a_preset(name):
    with pytest.raises(ConfigError, match=re.escape(f"{name} is not there")):
        resolve(name)


def test_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is a folder"):
        resolve(tmp_path)


def test_folder_of_a_run_is_refused_with_both_ways_on(tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    (run / "config.toml").touch()
    with pytest.raises(ConfigError) as raised:
        resolve(run)
    assert str(raised.value) == (
        f"[CFG-001] {run} is the folder of a run; a configuration is a TOML file\n"
        "  fix: it left nothing to go on from; begin it again in its directory: "
        f"headrace train --resume --run-dir '{run}'; or begin another like it: name '{run}/config.toml'"
    )


def test_folder_of_a_live_run_is_refused_without_a_way_to_resume_it(tmp_path):
    with RunDirectory.create(tmp_path / "run", load_config("pendulum-td3")) as run:
        with pytest.raises(ConfigError) as raised:
            resolve(run.path)
        assert raised.value.fix == (
            f"see how it gets on: headrace monitor {run.path}; or begin another like it: name {run.config_file}"
        )


def test_folder_of_a_run_with_a_damaged_summary_is_refused_as_a_folder(tmp_path):
    (tmp_path / "config.toml").touch()
    (tmp_path / "board").touch()
    (tmp_path / "summary.json").write_text("[")
    with pytest.raises(ConfigError) as raised:
        resolve(tmp_path)
    assert raised.value.fix == f"begin another like it: name {tmp_path}/config.toml"


def test_installed_package_carries_its_presets(tmp_path, monkeypatch):
    package = tmp_path / "site" / "headrace"
    (package / "configs").mkdir(parents=True)
    (package / "configs" / "one.toml").write_text("# The first line.\n[run]\n")
    (package / "configs" / "two.toml").write_text("[run]\n")
    monkeypatch.setattr(presets_module, "__file__", str(package / "runtime" / "presets.py"))
    assert {name: preset.description for name, preset in presets().items()} == {"one": "The first line.", "two": ""}


def test_missing_presets_say_where_they_were_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(presets_module, "__file__", str(tmp_path / "a" / "b" / "headrace" / "runtime" / "presets.py"))
    with pytest.raises(ConfigError, match=r"looked in: .*configs, .*configs"):
        preset_folder()
