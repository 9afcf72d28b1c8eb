"""What the short runs behind a plan are like, and what their counters come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.core.clock import FakeClock
from headrace.core.errors import ConfigError
from headrace.runtime.advisor import Plan, configured
from headrace.runtime.config import describes_language_model, load_config
from headrace.runtime.planning import Reading, Readings, measure, short_run
from headrace.runtime.presets import presets
from headrace.runtime.progress import Progress
from headrace.runtime.rehearsal import Pace
from headrace.telemetry.board import Board


@pytest.mark.parametrize("name", [name for name in presets() if not describes_language_model(name)])
@pytest.mark.parametrize("plan", [Plan("inline"), Plan("lockstep"), Plan("async")])
def test_every_preset_can_be_planned(name, plan):
    config = load_config(name)
    short = configured(config, plan, short_run(config, 3.0))
    assert short is not None
    assert (short.run.schedule, short.run.run_duration_s, short.collect.random_steps) == (plan.schedule, 3.0, 0)
    assert (short.evaluation.episodes, short.checkpoint.enabled) == (0, False)
    assert config.on_policy or short.replay.learning_starts <= config.env.lanes * config.collect.chunk_steps
    same = ("env", "agents", "learn", "deadlines", "supervision", "record", "algorithm")
    assert [getattr(short, part) for part in same] == [getattr(config, part) for part in same]
    assert short.replay.ratio == config.replay.ratio


def test_what_inline_refuses_is_not_measured(tmp_path):
    config = load_config("fuelbreak-dqn", {"run.schedule": "async"})
    odd = config.model_copy(update={"env": config.env.model_copy(update={"id": None})})
    with pytest.raises(ConfigError, match="cannot be run under inline") as refused:
        measure(odd, 1.0, tmp_path)
    assert "--schedule inline" in refused.value.fix
    assert list(tmp_path.iterdir()) == []


def readings(*found: tuple[float, int, int]) -> Readings:
    return Readings(Path(), FakeClock(), [Reading(*one) for one in found])


def test_speed_is_taken_from_the_first_change_after_the_warm_up_to_the_last():
    found = readings((5.0, 100, 0), (6.0, 200, 10), (7.0, 900, 20), (8.5, 1000, 30), (10.5, 1200, 130))
    assert found.pace(warm_s=2.0) == Pace(100.0, 50.0)
    assert found.pace(warm_s=1.0) == Pace(300 / 3.5, 110 / 3.5)


def test_where_little_happens_all_of_it_counts():
    found = readings((5.0, 100, 0), (6.0, 200, 10), (10.0, 300, 30))
    assert found.pace(warm_s=3.0) == Pace(25.0, 5.0)


@pytest.mark.parametrize("found", [[], [(5.0, 100, 0), (6.0, 200, 0)], [(5.0, 100, 0), (6.0, 200, 10)]])
def test_what_did_not_change_twice_while_learning_has_no_speed(found):
    assert readings(*found).pace(warm_s=1.0) is None


def test_counters_are_read_whenever_they_have_changed(tmp_path):
    path, clock = tmp_path / "board", FakeClock(10.0)
    with Board.create(path, [("learner", "learner")]) as board, Readings(path, clock) as found:
        slot = board.slot("learner")
        for steps, updates in ((0, 0), (50, 0), (50, 5), (80, 6)):
            slot.count("env_steps", steps)
            slot.count("updates", updates)
            clock.advance(1.0)
            found.on_progress(Progress(wall_s=0.0, env_steps=0))
    assert found.found == [Reading(12.0, 50, 0), Reading(14.0, 80, 6)]
    assert found.start_s == 2.0


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["no-such-preset"], "[CFG-001] there is no preset no-such-preset"),
        (["cartpole-dqn", "--set", "env.lane=3"], "[CFG-001] unknown key env.lane"),
        (["cartpole-dqn", "--seconds", "0.5"], "Usage: headrace plan"),
        (["cartpole-dqn", "--check", "1"], "Usage: headrace plan"),
        (["cartpole-dqn", "--check", "3", "--no-check"], "[CFG-001] --check and --no-check contradict each other"),
        (["cartpole-dqn", "--secs", "5"], "[CFG-001] headrace plan has no option --secs"),
    ],
)
def test_mistakes_are_told_before_anything_starts(arguments, first, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as left:
        main(["plan", *arguments])
    printed, errors = capsys.readouterr()
    assert (left.value.code, printed) == (2, "")
    assert errors.startswith(first)
    assert list(tmp_path.iterdir()) == []
