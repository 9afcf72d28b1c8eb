"""``headrace faults``: which faults there are, the short run they are provoked in, and how the judge judges."""

from __future__ import annotations

import functools
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.core.errors import ConfigError
from headrace.runtime.config import describes_language_model, load_config
from headrace.runtime.presets import presets
from headrace.testing import faultrun, provoke
from headrace.testing.faultkinds import KINDS, NEUTRAL, Pace, choose, component_of, expected_words, shrink, under
from headrace.testing.faultrun import Result, Seen, broken_promises

BOOKS = {
    "produced": 100, "committed": 90, "salvaged": 7, "rejected": {"not_finite": 2}, "in_flight": 1, "balanced": True,
    "lanes": [{"produced": 50}, {"produced": 50}],
}  # fmt: skip
SUMMARY = {"books": BOOKS, "restarts": 1}
SOUND = Seen("completed", 0, SUMMARY, "collector-1 killed by SIGKILL, lane 1", happened=True, left={})
KIND = KINDS["step-sigkill"]
WORDS = ["collector-1", "SIGKILL"]


def headrace(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return int(str(left.value.code))


def test_nothing_is_broken_when_everything_held():
    assert list(broken_promises(KIND, SOUND, WORDS)) == []


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (replace(SOUND, happened=False), "the fault did not happen before the run ended"),
        (replace(SOUND, outcome="failed", exit_code=1), "ended as failed, exit code 1; expected completed, 0"),
        (replace(SOUND, sentence="something died"), "what the user reads does not say 'collector-1', 'SIGKILL'"),
        (replace(SOUND, summary=SUMMARY | {"restarts": 0}), "0 restarts; expected 1"),
        (replace(SOUND, left={"processes": ["12 started 3.00: python"]}), "left behind: 12 started 3.00: python"),
    ],
)
def test_each_promise_that_does_not_hold_is_named(seen, said):
    assert list(broken_promises(KIND, seen, WORDS)) == [said]


@pytest.mark.parametrize("change", [{"balanced": False}, {"produced": 101}, {"rejected": {}}])
def test_books_are_counted_again(change):
    (broken,) = broken_promises(KIND, replace(SOUND, summary=SUMMARY | {"books": BOOKS | change}), WORDS)
    assert broken.startswith("the books do not balance: ")


def test_a_lane_that_did_not_get_on_is_named():
    books = BOOKS | {"lanes": [{"produced": 50}, {"produced": KIND.at}]}
    broken = list(broken_promises(KIND, replace(SOUND, summary=SUMMARY | {"books": books}), WORDS))
    assert broken == ["lanes [1] did not get on after the fault"]


def test_every_fault_of_an_environment_is_one_that_it_can_have():
    known = {*provoke.ENDS, *provoke.VALUES, *provoke.REWARDS, *provoke.GOING_ON}
    named = {kind.what for kind in KINDS.values() if kind.what is not None}
    assert named == known


def test_the_run_without_a_fault_comes_first():
    assert [kind.name for kind in choose(("nan-reward", "step-loop"))] == ["none", "step-loop", "nan-reward"]
    assert [kind.name for kind in choose(())] == list(KINDS)


def test_an_unknown_fault_is_refused_with_the_nearest():
    with pytest.raises(ConfigError) as refused:
        choose(("step-lop",))
    assert str(refused.value).startswith("[CFG-001] there is no fault step-lop\n  nearest: step-loop\n  known: none, ")


ALONE = [
    name for name in presets() if not describes_language_model(name) and load_config(name).agents.count == 1
]  # fmt: skip
SETTINGS = [
    ("cartpole-dqn", {"algorithm.batch_size": 66, "algorithm.optimiser.accumulate": 3}),
    ("cartpole-dqn", {"algorithm.batch_size": 80, "algorithm.optimiser.accumulate": 40}),
    ("pendulum-td3", {"env.workers": 3, "env.on_fault": "raise"}),
    ("cartpole-ppo", {"env.workers": "auto"}),
    ("pendulum-sac", {"supervision.learner_death": "resume"}),
    ("pendulum-td3", {"supervision.when_spent": "degrade", "supervision.lane_faults": 1}),
    ("pendulum-td3", {"supervision.max_restarts": 0, "supervision.max_rss_mib": 300.0}),
    ("pendulum-td3", {"replay.n_step": 64, "env.frame_stack": 64, "collect.random_steps": 3}),
    ("pendulum-td3", {"run.schedule": "inline", "env.max_episode_steps": 200, "evaluation.episode_limit": False}),
    ("cartpole-ppo", {"rollout.max_policy_lag": 1, "rollout.order": "arrival", "rollout.whole_episodes": True}),
    ("lunarlander-dqn", {"env.cast_observations": True, "replay.free_running": True}),
]


@pytest.mark.parametrize(("preset", "settings"), [*((name, {}) for name in ALONE), *SETTINGS])
def test_whatever_is_configured_can_be_made_short_for_every_fault(preset, settings):
    config = load_config(preset, settings)
    for kind in KINDS.values():
        short = shrink(config, kind, Pace(0.001, {"step_s": 30.0}))
        assert short.env.lanes == 2 * short.env.group_size
        assert short.run.steps <= 1000 or short.run.run_duration_s <= max(6.0, kind.least_s)
        assert short.on_policy or short.replay.capacity < 2000
        assert short.evaluation.episodes == (kind.name == "evaluator-killed")
        assert short.algorithm.batch_size <= 40
        assert short.collect.random_steps <= config.collect.random_steps
        assert short.deadlines.step_s == (1.0 if "step_s" in kind.limited_by else config.deadlines.step_s)
        for key, value in NEUTRAL.items():
            assert functools.reduce(getattr, key.split("."), short) == value, key
        sized = {"batch_size": short.algorithm.batch_size}
        assert short.algorithm == config.algorithm.model_copy(update=sized)
        own = ("id", "factory", "kwargs", "frame_stack", "cast_observations")
        assert [getattr(short.env, key) for key in own] == [getattr(config.env, key) for key in own]


def test_environments_of_many_agents_are_refused_before_anything_is_run(capsys):
    assert headrace("faults", "treasurehunt-iqn") == 2
    out, err = capsys.readouterr()
    assert err.startswith("[CFG-001] faults are provoked in environments of one agent only\n  agents count: 5\n")
    assert out == ""


def test_another_dtype_is_borne_where_observations_are_cast():
    strict, casting = (load_config("pendulum-td3", {"env.cast_observations": cast}) for cast in (False, True))
    changed = [kind.name for kind in KINDS.values() if under(kind, casting) != kind]
    assert changed == ["wrong-dtype"]
    assert all(under(kind, strict) is kind for kind in KINDS.values())
    borne = under(KINDS["wrong-dtype"], casting)
    assert (borne.outcome, borne.exit_code, borne.restarts, borne.says) == ("completed", 0, 0, ())


def test_a_slow_environment_is_given_time():
    pace = Pace(step_s=0.1, deadlines={"step_s": 30.0, "reset_s": 3.0})
    assert pace.limit_s("step_s") == pytest.approx(5.0)
    assert pace.limit_s("reset_s") == pytest.approx(3.0), "never more than the user grants"
    short = shrink(load_config("pendulum-td3"), KINDS["step-loop"], pace)
    assert short.run.run_duration_s == pytest.approx(15.0)
    raising = shrink(load_config("pendulum-td3"), KINDS["step-raises"], replace(pace, run_s=40.0))
    assert raising.run.run_duration_s == 40.0, "what is started again gets as long as the run without a fault"


def test_the_run_without_a_fault_sets_the_pace(monkeypatch, tmp_path):
    paces = {}

    def provoke_fault(config, kind, pace, folder):
        paces[kind.name] = pace
        return Result(kind.name, passed=True, seconds=40.0, sentence="", steps_per_s=4.0)

    monkeypatch.setattr(faultrun, "provoke_fault", provoke_fault)
    list(faultrun.provoke_faults(load_config("pendulum-td3"), choose(("step-raises",)), tmp_path))
    assert (paces["none"].step_s, paces["none"].run_s) == (0.0, 0.0)
    assert (paces["step-raises"].step_s, paces["step-raises"].run_s) == (0.5, 8.0)


@pytest.mark.parametrize("kind", ["collector-stopped", "learner-stopped"])
def test_whoever_waits_gives_up_soon_however_patient_the_user_is_with_others(kind):
    patient = {f"deadlines.{name}": 900.0 for name in ("start_s", "update_s", "checkpoint_s")}
    found = shrink(load_config("pendulum-td3", patient), KINDS[kind], Pace(0.001)).deadlines
    assert (found.credit_limit_s, found.rows_limit_s, found.start_s) == (2.0, 4.0, 60.0)


def test_inline_becomes_async_and_lockstep_stays():
    for schedule, used in (("inline", "async"), ("lockstep", "lockstep"), ("async", "async")):
        config = load_config("pendulum-td3", {"run.schedule": schedule})
        assert shrink(config, KINDS["none"], Pace()).run.schedule == used


def test_words_name_lane_step_and_the_collector_that_has_the_lane():
    alone = shrink(load_config("pendulum-td3"), KINDS["step-sleep"], Pace())
    pairs = shrink(load_config("pendulum-td3", {"env.group_size": 2}), KINDS["step-sleep"], Pace())
    assert (component_of(alone), component_of(pairs)) == ("collector-1", "collector-0")
    assert expected_words(KINDS["nan-reward"], alone) == ["field: reward", "lane: 1", "step: 11"]
    assert expected_words(KINDS["step-sleep"], pairs) == ["collector-0", "env.step for ", "lane 1"]


class Staged:
    """Results as a run of faults would give them."""

    def __init__(self, *results: Result) -> None:
        self.results = results

    def __call__(self, config, kinds, folder):
        self.folder = folder
        yield from self.results


GOOD = Result("none", passed=True, seconds=2.5, sentence="run completed")
NOT_HERE = Result("out-of-range", passed=True, seconds=1.0, sentence="", skipped="the environment has no such value")


def test_what_the_command_prints_when_all_is_well(monkeypatch, capsys):
    staged = Staged(GOOD, NOT_HERE)
    monkeypatch.setattr(faultrun, "provoke_faults", staged)
    assert headrace("faults", "pendulum-td3") == 0
    assert capsys.readouterr().out == (
        "pass  none                    2.5 s  run completed\n"
        "skip  out-of-range            1.0 s  the environment has no such value\n"
        "every promise held (2 faults)\n"
    )
    assert not staged.folder.exists()


def test_a_failure_is_told_and_its_run_kept(monkeypatch, capsys, tmp_path):
    kept = Path(tmp_path / "step-loop")
    bad = Result("step-loop", passed=False, seconds=3.0, sentence="?", broken=("0 restarts; expected 1",), run=kept)
    monkeypatch.setattr(faultrun, "provoke_faults", Staged(GOOD, bad))
    assert headrace("faults", "pendulum-td3") == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "FAIL  step-loop               3.0 s  ?",
        "      0 restarts; expected 1",
        f"      run  {kept}",
        "1 of 2 faults: a promise did not hold",
    ]
    assert headrace("faults", "pendulum-td3", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["passed"] is False
    assert told["faults"][1] == {
        "kind": "step-loop", "passed": False, "seconds": 3.0, "sentence": "?", "broken": ["0 restarts; expected 1"],
        "skipped": None, "run": str(kept),
    }  # fmt: skip


def test_list_tells_every_fault_in_a_line(capsys):
    assert headrace("faults", "pendulum-td3", "--list") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(KINDS)


def test_list_tells_programs_too_and_only_what_was_named(capsys):
    assert headrace("faults", "pendulum-td3", "--list", "--json", "--kind", "step-loop") == 0
    told = json.loads(capsys.readouterr().out)["faults"]
    assert told == [{"kind": name, "meaning": KINDS[name].meaning} for name in ("none", "step-loop")]


def test_signals_of_the_parent_end_as_a_command_ends():
    ends = {kind.number: (kind.outcome, kind.exit_code) for kind in KINDS.values() if kind.where == "parent"}
    assert ends == {
        signal.SIGINT: ("interrupted", 130),
        signal.SIGTERM: ("interrupted", 130),
        signal.SIGSTOP: ("completed", 0),
        signal.SIGKILL: ("killed", -9),
    }


@pytest.mark.parametrize("happened", [False, True])
def test_an_interrupted_run_leaves_no_file(happened, monkeypatch, tmp_path):
    def interrupted(short, kind, path, marker):
        path.mkdir()
        (path / "config.toml").touch()
        if happened:
            marker.touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(faultrun, "_here", interrupted)
    with pytest.raises(KeyboardInterrupt):
        faultrun.provoke_fault(load_config("pendulum-td3"), KINDS["step-raises"], Pace(), tmp_path)
    assert list(tmp_path.iterdir()) == []
