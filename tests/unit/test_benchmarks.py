"""What becomes of the figures of `headrace bench`, and what is refused before anything is measured."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from headrace.benchmarks import end_to_end, learners
from headrace.benchmarks.judging import Judge
from headrace.benchmarks.ours import training as configuration
from headrace.benchmarks.ours import updating
from headrace.benchmarks.processes import complaint, interpreters
from headrace.benchmarks.report import compare, in_words, less_is_better, take_turns, to_json
from headrace.benchmarks.sides import PLAIN, ZOO, in_windows
from headrace.benchmarks.tasks import ASYNC, BFLOAT16, EPISODES, INLINE, TASKS
from headrace.cli import bench
from headrace.cli.main import main
from headrace.core.errors import ConfigError
from headrace.runtime.config import load_config
from headrace.runtime.evaluation import Player


def headrace(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    return left.value.code


def rates(*values: float | None) -> list[dict]:
    return [{"rate": value, "cpu_rate": value} for value in values]


def training(steps: int, wall_s: float, *, reached: bool = True, returned: float = 0.0) -> dict:
    return {
        "steps": steps,
        "wall_s": wall_s,
        "reached": reached,
        "return": returned,
        "updates_per_s": 10.0,
        "version": "2.9",
    }


def judged(steps: int, wall_s: float, evaluation_s: float = 1.0, **more) -> dict:
    """Of a peer, which evaluates itself."""
    return training(steps, wall_s, **more) | {"evaluation_s": evaluation_s}


def test_sides_take_turns_and_the_first_round_is_thrown_away():
    asked = []

    def side(name):
        asked.append(name)
        return len(asked)

    assert take_turns(2, lambda: side("a"), lambda: side("b")) == [[3, 5], [4, 6]]
    assert asked == ["a", "b"] * 3


def test_a_row_has_medians_their_ratio_and_the_spread():
    row = compare("td3", "work", (ZOO, "2.9"), ([30.0, 10.0, 20.0], [5.0, 4.0, 40.0]), "updates/s")
    assert (row.ours, row.theirs, row.ratio) == (20.0, 5.0, 4.0)
    assert row.spread == {"ours": [10.0, 30.0], "theirs": [4.0, 40.0]}
    assert less_is_better(row).ratio == 0.25


def test_a_window_ends_when_its_seconds_are_over_and_counts_what_was_done():
    found = in_windows(lambda: 3)({"seconds": 0.02})
    assert found["rate"] > 0
    assert found["cpu_rate"] > 0
    assert in_windows(lambda: 3)({"seconds": 0.0})["rate"] == 0.0


@pytest.fixture
def measured():
    sides = {side.name: side for side in learners.sides_of("td3")}
    return {
        sides[learners.OURS]: rates(150.0, 160.0, 140.0),
        sides[learners.HALVED]: rates(200.0, 210.0, 190.0),
        sides[ZOO]: rates(100.0, 90.0, 110.0),
        sides[learners.MANY_A_CALL]: rates(160.0, 160.0, 160.0),
    }


def test_each_of_ours_stands_beside_each_peer_with_what_is_promised(measured):
    versions = dict.fromkeys((ZOO, learners.MANY_A_CALL), "1.0")
    found = {(row.name, row.peer): row for row in learners.rows("td3", 1, measured, versions)}
    single, halved = "td3, headrace, 1 thread", "td3, headrace, bfloat16, 1 thread"
    assert {key: (row.ratio, row.target) for key, row in found.items()} == {
        (single, ZOO): (1.5, 1.5),
        (single, learners.MANY_A_CALL): (0.9375, 0.95),
        (halved, ZOO): (2.0, 2.1),
        (halved, learners.MANY_A_CALL): (1.25, None),
    }
    assert (
        found[single, ZOO].note
        == "beside stable-baselines3 1.50 per CPU second; not equal: it draws its batches itself"
    )
    words = "\n".join(in_words(list(found.values()), {"cpus": 2}))
    assert "target 1.5 met" in words
    assert "target 0.95 MISSED" in words


def test_nothing_is_promised_of_several_threads(measured):
    assert {row.target for row in learners.rows("td3", 2, measured, {ZOO: "1", learners.MANY_A_CALL: "1"})} == {None}


def test_where_processor_time_is_unknown_nothing_is_said_of_it():
    ours, compiled, zoo, plain = learners.sides_of("ppo")
    assert compiled.name == learners.COMPILED
    assert learners.AHEAD in [side.name for side in learners.sides_of("ppo", threads=2)]
    found = {ours: [{"rate": 400.0, "cpu_rate": None}], zoo: rates(100.0), plain: rates(100.0)}
    row = next(learners.rows("ppo", 1, found, {ZOO: "1", PLAIN: "1"}))
    assert (row.ratio, row.target, row.unit) == (4.0, 4.0, "steps/s")
    assert "CPU" not in row.note
    assert "not equal" in row.note


def test_trainings_to_a_target_are_compared_by_steps_seconds_and_updates():
    found = {
        INLINE: [training(7_000, 30.0), training(8_000, 40.0), training(9_000, 50.0)],
        ZOO: [judged(7_500, 80.0, evaluation_s=4.0, reached=False), judged(7_500, 80.0, 6.0, reached=False)],
    }
    rows = {row.unit: row for row in end_to_end.rows("pendulum-td3", TASKS["pendulum-td3"], found)}
    assert set(rows) == {"steps", "s", "updates/s"}
    assert rows["steps"].ratio == 7_500 / 8_000
    assert (rows["s"].ratio, rows["s"].target) == (2.0, 1 / 0.6)
    assert rows["s"].note == (
        "inline reached it 3 of 3 times, stable-baselines3 reached it 0 of 2 times; "
        "stable-baselines3's training stood still for its evaluations for 5.0 s, ours are made beside it"
    )


@pytest.mark.parametrize(("own", "where"), [(50.0, "below"), (150.0, "inside"), (300.0, "above")])
def test_without_a_target_the_note_says_where_our_return_lies(own, where):
    found = {ASYNC: [training(1, 1.0, returned=own)], ZOO: [judged(1, 1.0, returned=r) for r in (100.0, 200.0)]}
    row = next(end_to_end.rows("halfcheetah-sac", TASKS["halfcheetah-sac"], found))
    assert (row.unit, row.ours) == ("return", own)
    assert f"{where} what stable-baselines3 reached over its seeds (2), 100.0 to 200.0" in row.note


def test_every_promise_is_of_a_side_and_a_peer_that_there_are():
    for work, ours, peer in learners.PROMISED:
        assert {ours, peer} <= {side.name for side in learners.sides_of(work)}
    for task in TASKS.values():
        for ours, peer, key in task.promised:
            assert ours in task.ours
            assert peer in task.peers
            assert key in end_to_end.TO_TARGET


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.algorithm in ("td3", "sac")])
def test_peers_have_the_hyperparameters_of_the_preset(name):
    zoo, config = TASKS[name].zoo, load_config(TASKS[name].preset)
    algorithm, starts = config.algorithm, zoo["learning_starts"]
    assert zoo["learning_rate"] == algorithm.actor_lr == algorithm.critic_lr
    assert (zoo["batch_size"], zoo["gamma"], zoo["tau"]) == (algorithm.batch_size, algorithm.gamma, algorithm.tau)
    assert (starts, starts) == (config.replay.learning_starts, config.collect.random_steps)
    assert zoo["gradient_steps"] / zoo["train_freq"] == config.replay.ratio


def test_what_this_version_lacks_is_told_and_nobody_is_started(monkeypatch):
    told = []
    sides = [
        learners.Side(learners.OURS, "nowhere", ours=True, further={"precision": "float3"}),
        learners.Side(ZOO, "nowhere"),
    ]
    monkeypatch.setattr(learners, "sides_of", lambda *_: sides)
    comparison = learners.Comparison([], 1, 0.1, told.append)
    assert comparison.rows("td3", 1) == []
    assert list(comparison.absent) == ["headrace, td3"]
    assert told == []


def test_an_end_to_end_task_without_any_of_ours_trains_no_peer(monkeypatch):
    def refuse(task, ours):
        raise ConfigError("there is no preset yet", fix="wait")

    monkeypatch.setattr(end_to_end, "training", refuse)
    comparison = end_to_end.Comparison([], 1, None, (), pytest.fail)
    assert comparison.rows("cartpole-ppo") == []
    assert comparison.absent == dict.fromkeys(
        ("async, 2 cores, cartpole-ppo", "inline, cartpole-ppo"), "there is no preset yet"
    )


def test_the_same_work_as_everybody_else():
    section = updating("dqn", "float32").algorithm
    assert (section.batch_size, section.network.hidden, section.target.double) == (256, [256, 256], False)


def test_an_algorithm_nobody_knows_is_refused():
    with pytest.raises(ConfigError):
        updating("td3", BFLOAT16.upper())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["learners", "td4"], "headrace bench learners knows no td4\n  nearest: td3"),
        (["learners", "td3", "--rounds", "0"], "0 is not in the range"),
        (["learners", "--seconds", "none"], "not a valid float"),
        (["learners", "--peers", "nowhere"], "--peers nowhere is no virtual environment"),
        (["learners", "--json", "nowhere/figures.json"], "--json nowhere/figures.json cannot be written"),
        (["learners", "--round", "3"], "write --rounds"),
        (["end-to-end", "cartpole-ppp"], "nearest: cartpole-ppo"),
        (["end-to-end", "cartpole-ppo", "--side", "nobody"], "knows no nobody"),
        (["learner"], "No such command 'learner'"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_measured(arguments, text, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert headrace("bench", *arguments) == 2
    out, err = capsys.readouterr()
    assert text in err
    assert out == ""


def told(json_file, rows=()):
    with bench._told(str(json_file), {"sb3": "not installed"}) as found:
        found += rows


def test_figures_are_in_their_file_once_it_is_whole(tmp_path, capsys):
    file = tmp_path / "figures.json"
    row = compare("td3", "Wörk", (ZOO, "2.9"), ([2.0], [1.0]), "updates/s")
    with bench._told(str(file), {}) as rows:
        rows.append(row)
        assert list(tmp_path.iterdir()) == []
    assert json.loads(file.read_text(encoding="utf-8"))["rows"][0]["environment"] == "Wörk"
    assert "td3" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("before", [True, False])
def test_a_disk_that_takes_no_figures_is_told_before_they_are_measured_or_after_they_were_told(
    tmp_path, capsys, monkeypatch, before
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bench, "stage" if before else "write_whole", full)
    with pytest.raises(ConfigError, match="cannot be written"):
        told(tmp_path / "figures.json")
    assert ("no figures of sb3: not installed\n" in capsys.readouterr().out) is not before


def test_figures_may_go_into_what_is_no_file(tmp_path):
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    told(link)
    told("/dev/null")
    assert Path("/dev/null").is_char_device()
    assert link.is_symlink()
    reader, writer = os.pipe()
    told(f"/dev/fd/{writer}")
    os.close(writer)
    with os.fdopen(reader) as written:
        assert json.load(written)["rows"] == []


def test_interpreters_are_looked_for_here_then_where_named_then_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("named", ".peers-b", ".peers-a", "other"):
        (tmp_path / folder / "bin").mkdir(parents=True)
        (tmp_path / folder / "bin" / "python").touch(mode=0o755)
    found = interpreters([tmp_path / "named", tmp_path / "other" / "bin" / "python"])
    assert [path.relative_to(tmp_path).parts[0] for path in found[1:]] == ["named", "other", ".peers-a", ".peers-b"]


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        ("", "it ended without a word"),
        ("Traceback (most recent call last):\nOSError: [Errno 5] x\n", "OSError: [Errno 5] x"),
        (
            "a warning\n  File x\nheadrace.core.errors.ConfigError: [CFG-001] it cannot run\n  found: x\n  fix: set learn.precision\n",
            "[CFG-001] it cannot run; fix: set learn.precision",
        ),
        ("[CFG-001] first\n  fix: one\n[ENV-004] second\n  fix: two", "[ENV-004] second; fix: two"),
        ("[CFG-001] it cannot run\n", "[CFG-001] it cannot run"),
        ("[2026-12-01] a line of a log\nkilled", "killed"),
    ],
)
def test_a_side_that_ended_says_why_in_one_line(printed, told):
    assert complaint(printed) == told


def test_json_has_the_machine_and_every_field_of_a_row():
    row = compare("td3", "work", (ZOO, "2.9"), ([2.0], [1.0]), "updates/s")
    told = to_json([row], {"cpus": 2})
    assert told["machine"] == {"cpus": 2}
    assert told["rows"][0] | {"spread": None} == {
        "name": "td3", "environment": "work", "peer": ZOO, "peer_version": "2.9", "ours": 2.0, "theirs": 1.0,
        "unit": "updates/s", "ratio": 2.0, "spread": None, "target": None, "note": "",
    }  # fmt: skip


class Brake:
    """Pushes against the pendulum's speed, the last number of an observation."""

    def act(self, obs, noise=None):
        return {"action": -obs["obs"][:, -1:] / 8.0}


def test_all_sides_are_judged_by_the_same_episodes():
    """Found with a judge of its own seeds, whose ten pendulums were worth 38 points more than the average ten."""
    task = TASKS["pendulum-td3"]
    config = load_config(configuration(task, task.ours[INLINE]), {"run.seed": 3})
    ours = Player(gymnasium.make(task.env), config, task.env, Brake()).play(EPISODES)
    judge = Judge(task, 3, gymnasium.make(task.env), lambda obs: Brake().act({"obs": obs[None]})["action"][0])
    judge.look(500)
    assert judge.newest == pytest.approx(np.mean(ours.returns))
    found = judge.found(600)
    assert found["evaluation_s"] == judge.spent_s > 0.0
