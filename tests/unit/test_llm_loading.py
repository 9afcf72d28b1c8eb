"""Language-model configurations: files over files, components, dotted keys; and the words of the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.cli.rlargs import overrides_of, parse
from headrace.core.errors import ConfigError
from headrace.llm.config import RLConfig
from headrace.llm.loading import (
    Source,
    differences,
    load_rl_config,
    write_effective,
)
from headrace.runtime.config import describes_language_model, dump_toml, load_config


@pytest.fixture
def file(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_a_table_given_for_a_section_changes_the_keys_it_states(file):
    one = file("a.toml", "[trainer.loss]\nclip_low = 0.1\n[env]\nkwargs = {a = 1, b = 2}\n")
    given = {"trainer": {"loss": {"clip_high": 0.3}}, "env.kwargs": {"a": 3}}
    config = load_rl_config([Source(one)], given)
    assert (config.trainer.loss.clip_low, config.trainer.loss.clip_high) == (0.1, 0.3)
    assert config.env.kwargs == {"a": 3}


def test_arguments_of_an_environment_are_such_as_a_file_gives_back(file):
    config = load_rl_config([], {"env.kwargs": {"sep": "\u2028", "words": ("a", "b")}})
    assert config.env.kwargs == {"sep": "\u2028", "words": ["a", "b"]}
    assert load_rl_config([Source(file("again.toml", dump_toml(config)))]) == config
    with pytest.raises(ConfigError, match="an argument of the environment cannot be written"):
        load_rl_config([], {"env.kwargs": {"f": print}})


def test_later_files_are_laid_over_earlier_ones_key_by_key(file):
    one = file("a.toml", "[run]\nsteps = 7\nseed = 1\n[trainer.loss]\nclip_low = 0.1\n")
    two = file("b.toml", "[run]\nseed = 2\n[trainer.loss]\nclip_high = 0.3\n")
    config = load_rl_config([Source(one), Source(two)])
    assert (config.run.steps, config.run.seed) == (7, 2)
    assert (config.trainer.loss.clip_low, config.trainer.loss.clip_high) == (0.1, 0.3)


def test_a_components_file_holds_its_keys_or_whole_sections(file):
    own = file("t.toml", "lr = 1e-3\n[loss]\nkind = 'cispo'\n[model]\nhidden = 32\n")
    config = load_rl_config([Source(own, "trainer")])
    assert (config.trainer.lr, config.trainer.loss.kind, config.model.hidden) == (1e-3, "cispo", 32)


def test_components_cannot_be_told_different_things(file):
    one = file("t.toml", "lr = 1e-3\n[model]\nhidden = 32\n")
    two = file("i.toml", "port = 8001\n[model]\nhidden = 64\n")
    with pytest.raises(ConfigError) as caught:
        load_rl_config([Source(one, "trainer"), Source(two, "inference")])
    assert str(caught.value) == (
        "[CFG-001] two files say different things about model.hidden\n"
        f"  first: 32 in {one}\n"
        f"  second: 64 in {two}\n"
        "  fix: say it in one of them, or in a file for the whole run (@ FILE)"
    )


def test_unknown_keys_are_refused_with_the_nearest(file):
    with pytest.raises(ConfigError) as caught:
        load_rl_config([Source(file("t.toml", "learning_rate = 1e-3\nlrr = 1.0\n"), "trainer")])
    assert "unknown key trainer.learning_rate" in str(caught.value)
    with pytest.raises(ConfigError, match=r"nearest: orchestrator.max_policy_lag"):
        load_rl_config([], {"orchestrator.max_policy_lg": "1"})
    with pytest.raises(ConfigError, match="has no section trainr"):
        load_rl_config([Source(file("a.toml", "[trainr]\nlr = 1.0\n"))])


def test_zero_is_a_value_and_not_nothing(file):
    one = file("a.toml", "[orchestrator]\nmax_policy_lag = 4\n[evaluation]\nevery_steps = 5\n")
    config = load_rl_config([Source(one)], {"orchestrator.max_policy_lag": "0", "evaluation.every_steps": 0})
    assert (config.orchestrator.max_policy_lag, config.evaluation.every_steps) == (0, 0)


def test_every_zero_of_the_command_line_reaches_the_run():
    words = [
        "--orchestrator.max-policy-lag", "0", "--evaluation.every_steps=0", "--orchestrator.max_retries", "0",
        "--inference.max_waiting", "0", "--supervision.inference_restarts", "0", "--checkpoint.every-steps", "0",
        "--orchestrator.backoff_s", "0", "--trainer.loss.clip_low", "0", "--run.seed", "0", "--evaluation.temperature", "0.0",
    ]  # fmt: skip
    sources, given = parse(words, "rl")
    config = load_rl_config(sources, overrides_of([], {"seed": None}, given))
    dumped = config.model_dump()
    for key in given:
        section, *names = key.split(".")
        value = dumped[section]
        for name in names:
            value = value[name]
        assert value == 0, key
    defaults = RLConfig().model_dump()
    assert sum(dumped[name] != defaults[name] for name in dumped) == 6  # each section but run, whose seed is 0 anyway


LIMITED = {
    "orchestrator.max_policy_lag": 0,
    "orchestrator.groups_per_step": 3,
    "orchestrator.group_size": 4,
    "inference.slots": 5,
    "inference.max_waiting": 7,
}


@pytest.mark.parametrize(
    "more",
    [
        {"orchestrator.groups_in_flight": 9},
        {"orchestrator.groups_in_flight": 3},
        {"orchestrator.groups_in_flight": 2, "evaluation.problems": 6, "evaluation.samples": 2},
        {"orchestrator.groups_in_flight": 2},  # of all problems that there are
        {"evaluation.problems": 1},
        {"run.schedule": "inline"},
    ],
)
def test_without_lag_the_server_holds_all_that_plays(more):
    load_rl_config([], {**LIMITED, **more})
    for fewer in ({"inference.slots": 4}, {"inference.max_waiting": 6}):
        with pytest.raises(ConfigError, match="asked for in one call, and the server never takes as many"):
            load_rl_config([], {**LIMITED, **more, **fewer})


@pytest.mark.parametrize(
    "without",
    [
        {"orchestrator.max_policy_lag": 1},
        {"inference.backend": "vllm", "model.heads": 2},
        {"inference.backend": "external", "inference.url": "http://a:1"},
        {"orchestrator.groups_in_flight": 2, "evaluation.problems": 4, "evaluation.samples": 2},
    ],
)
def test_what_is_never_asked_for_in_one_call_may_be_more_than_the_server_holds(without):
    load_rl_config([], {**LIMITED, "inference.max_waiting": 3, **without})


def test_a_batch_that_the_server_never_takes_is_told_with_what_to_set():
    with pytest.raises(ConfigError) as caught:
        load_rl_config([], {**LIMITED, "inference.max_waiting": 6})
    assert str(caught.value) == (
        "[CFG-001] without policy lag all rollouts that play are asked for in one call, and the server never takes as many\n"
        "  asked at once: 12, in training\n"
        "  taken at most: 11: inference.slots 5 + inference.max_waiting 6\n"
        "  fix: set inference.max_waiting = 7, or make orchestrator.groups_per_step smaller"
    )
    load_rl_config([], {**LIMITED, "inference.max_waiting": 7})


def test_an_evaluation_may_not_last_longer_than_the_trainer_waits():
    with pytest.raises(ConfigError, match="the trainer would give up during an evaluation that is in time"):
        load_rl_config([], {"deadlines.batch_s": 240.0})
    assert load_rl_config([], {"deadlines.batch_s": 240.5}).deadlines.batch_s == 240.5


def test_the_effective_configuration_is_read_back_by_every_command(tmp_path):
    config = load_rl_config([Source("wordle-grpo")], {"inference.port": "8001"})
    paths = write_effective(config, tmp_path / "dry")
    assert [path.name for path in paths] == ["config.toml", "inference.toml", "orchestrator.toml", "trainer.toml"]
    assert load_rl_config([Source(str(paths[0]))]) == config
    for path in paths[1:]:
        assert load_rl_config([Source(str(path))]) == config
        assert load_rl_config([Source(str(path), path.stem)]) == config
    together = [Source(str(path), path.stem) for path in paths[1:]]
    assert load_rl_config(together) == config


def test_an_environment_of_ones_own_is_written_and_read_back(tmp_path):
    config = load_rl_config([], {"env.factory": "mine:make"})
    assert (config.env.name, config.env.factory) == (None, "mine:make")
    (path, *_) = write_effective(config, tmp_path)
    assert load_rl_config([Source(str(path))]) == config
    with pytest.raises(ConfigError, match=r"env\.name and env\.factory are both set"):
        load_rl_config([], {"env.factory": "mine:make", "env.name": "wordle"})


def test_what_is_a_language_model_configuration(file):
    assert describes_language_model("wordle-grpo")
    assert not describes_language_model("pendulum-td3")
    assert describes_language_model(file("a.toml", "[orchestrator]\n"))
    assert not describes_language_model(file("b.toml", "[orchestrator\n"))
    assert not describes_language_model("no-such-preset")


def test_differences_name_keys_and_both_values():
    one = load_rl_config([], {"run.steps": 3, "trainer.lr": 0.1})
    two = load_rl_config([], {"run.steps": 4, "trainer.lr": 0.2})
    assert differences(one, two, frozenset({"run.steps"})) == {"trainer.lr": "0.1 here, 0.2 there"}


def test_words_become_files_and_keys():
    words = ["@", "a.toml", "@b.toml", "--trainer", "@", "t.toml", "--inference.port", "8001", "--run.seed=3", "c"]
    assert parse(words, "rl") == (
        [Source("a.toml"), Source("b.toml"), Source("t.toml", "trainer"), Source("c")],
        {"inference.port": "8001", "run.seed": "3"},
    )
    assert parse(["--orchestrator.max-policy-lag", "0"], "rl")[1] == {"orchestrator.max_policy_lag": "0"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["@"], "@ is followed by no file"),
        (["--trainer", "t.toml"], "--trainer names no file"),
        (["--inference.port"], "--inference.port has no value"),
        (["--inference.port", "--run.seed", "1"], "--inference.port has no value"),
        (["--stps", "3"], "headrace rl has no option --stps"),
        (["--run.seed", "1", "--run.seed", "2"], "run.seed is given twice"),
    ],
)
def test_words_that_mean_nothing_are_refused(words, problem):
    with pytest.raises(ConfigError) as caught:
        parse(words, "rl")
    assert caught.value.what == problem


def test_a_key_that_is_given_in_two_ways_is_refused():
    with pytest.raises(ConfigError, match=r"run\.steps is given twice"):
        overrides_of(["run.steps=3"], {"steps": 4}, {})
    assert overrides_of(["trainer.lr = 0.1"], {"steps": 4, "seed": None}, {"run.seed": "1"}) == {
        "run.seed": "1",
        "trainer.lr": "0.1",
        "run.steps": 4,
    }


def test_launcher_and_commands_load_neither_torch_nor_transformers():
    script = (
        "import sys, headrace.cli.rl, headrace.cli.check, headrace.llm.preflight, headrace.llm.launch.alone, "
        "headrace.llm.launch.starting, headrace.cli.rlview; "
        "print([name for name in ('torch', 'transformers', 'uvicorn', 'aiohttp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_configuration_of_the_other_kind_is_called_that_both_ways():
    with pytest.raises(ConfigError) as caught:
        load_rl_config([Source("pendulum-td3")])
    assert str(caught.value) == (
        "[CFG-001] pendulum-td3 describes no language-model run\n"
        "  sections: algorithm, collect, replay: those of a run with collectors and a learner\n"
        "  fix: headrace train pendulum-td3"
    )
    with pytest.raises(ConfigError) as caught:
        load_config("wordle-grpo")
    assert caught.value.what == (
        "wordle-grpo describes a language-model run, which has no collectors, no lanes and no record"
    )
    assert "headrace train, plan, eval and doctor" in caught.value.fix


def test_temperatures_by_which_scores_become_infinite_are_refused():
    for key in ("sampling.temperature", "evaluation.temperature"):
        for temperature in (1e-31, 1e-40, 5e-324):
            with pytest.raises(ConfigError, match="temperature"):
                load_rl_config([], {key: temperature})
        load_rl_config([], {key: 1e-30})
    load_rl_config([], {"evaluation.temperature": 0.0})
