"""``headrace monitor RUN``: numbers as lines, whose boards are looked at, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.cli import ending, rlview, watching
from headrace.cli.main import main
from headrace.cli.watching import Sight, number_lines
from headrace.core.errors import ConfigError, RunDirectoryError
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import places, read_numbers, read_run
from headrace.monitor.snapshot import Diagnosis
from headrace.runtime.rundir import RunDirectory
from headrace.telemetry.blame import Condition
from headrace.telemetry.board import Board, State
from headrace.telemetry.header import Header

LANGUAGE = {"run": {"steps": 100}, "orchestrator": {"max_policy_lag": 2}}
SFT = '{"step": 7, "wall_s": 20.4, "sft/loss": 1.96}\n'
ORCHESTRATOR = {
    "step": 4, "updates": 2, "wall_s": 31.5, "train/reward/mean": 0.25, "train/win_rate": 0.125, "off_policy/mean": 0.8,
    "off_policy/max": 2.0, "time/wait_for_policy": 0.11,
}  # fmt: skip
TRAINER = {
    "step": 3, "updates": 3, "wall_s": 32.25, "loss/mean": 0.01, "entropy/mean": 1.5, "mismatch_kl/mean": 2e-3,
    "perf/tokens_per_s": 4669.0, "time/wait_for_batch": 1.45, "off_policy/mean": 0.75,
}  # fmt: skip
BOOKS = {
    "books/requested": 20.0, "books/completed": 16.0, "books/failed": 1.0, "books/stale": 0.0, "books/cancelled": 0.0,
    "books/in_flight": 3.0, "books/trained": 12.0, "books/filtered": 0.0, "books/pending": 4.0, "books/attempts": 21.0,
}  # fmt: skip


def lines(numbers, table=LANGUAGE):
    return dict(number_lines(numbers, table))


def test_a_warm_start_shows_its_steps():
    assert lines({"step": 7.0, "wall_s": 20.4, "sft/loss": 1.96}) == {
        "progress": "step 7 of the warm start, loss 1.960"
    }


def test_progress_waits_lag_and_books_of_a_language_model_run():
    assert lines(ORCHESTRATOR | TRAINER | BOOKS) == {
        "progress": "3 of 100 steps, 32.2 s",
        "reward": "0.250 mean, 12.5 % won",
        "training": "loss 0.0100, entropy 1.500, mismatch KL 2.0e-03, 4,669 tokens/s",
        "policy lag": "0.75 mean, 2 max, 2 allowed",
        "waits": "trainer 1.45 s for the last batch, orchestrator 0.11 s for the last policy",
        "books": "requested 20 = completed 16 + failed 1 + in flight 3; completed 16 = trained 12 + pending 4",
    }


def test_a_run_of_collectors_and_a_learner():
    numbers = {
        "step": 12_000.0, "updates": 11_000.0, "wall_s": 8.0, "time/fps": 1500.0, "headrace/replay_ratio": 1.0,
        "headrace/policy_lag": 1.5, "rollout/ep_rew_mean": -150.0, "headrace/episodes": 60.0,
    }  # fmt: skip
    assert lines(numbers, {"run": {"steps": 15_000}}) == {
        "progress": "12,000 of 15,000 environment steps, 11,000 updates, 8.0 s",
        "rates": "1,500 environment steps/s, replay ratio 1.00",
        "policy lag": "1.5 mean",
        "return": "-150.0, 60 episodes",
    }
    assert lines({}, {}) == {}


def test_the_newest_value_of_each_name_counts_and_a_half_written_line_does_not(tmp_path):
    assert read_numbers(tmp_path) == {}
    rows = "".join(f"{json.dumps(row)}\n" for row in (ORCHESTRATOR, TRAINER | {"loss/mean": None}, TRAINER))
    (tmp_path / "metrics.jsonl").write_text(f'{SFT}{rows}[1]\n{{"step": 9')
    found = read_numbers(tmp_path)
    assert (found["step"], found["updates"], found["off_policy/max"], found["loss/mean"]) == (3.0, 3.0, 2.0, 0.01)


def test_an_evaluation_that_comes_late_does_not_take_the_step_back(tmp_path):
    baseline, learner = (
        {"step": 0, "wall_s": 1.0, "eval/random_mean_reward": -9.0},
        {"step": 5_000, "wall_s": 8.0, "updates": 4_000},
    )
    late = {"step": 1_000, "wall_s": 9.0, "eval/mean_reward": 3.0}
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in (baseline, learner, late)))
    found = read_numbers(tmp_path)
    assert (found["step"], found["updates"], found["eval/mean_reward"], found["wall_s"]) == (5000.0, 4000.0, 3.0, 9.0)
    file.write_text(f"{json.dumps(baseline)}\n")
    assert read_numbers(tmp_path)["step"] == 0.0


def test_components_that_were_started_alone_are_all_shown(tmp_path, capsys):
    (tmp_path / "config.toml").write_text("[orchestrator]\nmax_policy_lag = 1\n")
    for component in ("trainer", "inference"):
        own = tmp_path / "alone" / component
        own.mkdir(parents=True)
        (own / "config.toml").write_text("[orchestrator]\nmax_policy_lag = 1\n")
        Board.create(own / "board", [("supervisor", "supervisor"), (component, component)]).close()
    assert [place.name for place in places(tmp_path)] == ["inference", "trainer"]
    with pytest.raises(RunDirectoryError, match="were started alone, and each has a board of its own"):
        read_run(tmp_path)
    assert main(["monitor", str(tmp_path), "--once"], standalone_mode=False) == 0
    told = capsys.readouterr().out
    assert f"run         {tmp_path}/alone/inference\n" in told
    assert f"run         {tmp_path}/alone/trainer\n" in told


DONE = {"outcome": "completed", "wall_s": 9.0, "error": None, "did": "3 steps"}


def a_place(path: Path, component: str) -> RunDirectory:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.toml").write_text("[orchestrator]\nmax_policy_lag = 1\n")
    with Board.create(path / "board", [("supervisor", "supervisor"), (component, component)]) as board:
        board.slot("supervisor").set_state(State.RUNNING)
    return RunDirectory(path)


def test_a_component_that_lives_alone_in_the_directory_of_a_whole_run_is_shown_and_named(tmp_path, capsys):
    a_place(tmp_path, "trainer").write_summary(DONE)
    a_place(tmp_path / "alone" / "trainer", "trainer")  # alone before, or killed since: nobody holds its lock
    with a_place(tmp_path / "alone" / "inference", "inference") as alone:
        alone.take_lock("wait")
        assert places(tmp_path) == [tmp_path, alone.path]
        found = diagnose(read_run(tmp_path))
        assert found.verdict.endswith("with 3 steps; inference, started alone, is alive in its directory")
        assert found.remedy == f"headrace doctor {alone.path} looks at inference"
        assert found.exit_code == 0
        assert main(["monitor", str(tmp_path), "--once"], standalone_mode=False) == 0
        told = capsys.readouterr().out
        assert "finished: the run completed after 9.0 s" in told
        assert f"run         {alone.path}\n" in told
    assert places(tmp_path) == [tmp_path]
    assert diagnose(read_run(tmp_path)).verdict.endswith("with 3 steps")


def test_a_component_that_fails_while_it_is_watched_is_shown_to_its_end(tmp_path, capsys, monkeypatch):
    a_place(tmp_path, "trainer").write_summary(DONE)
    with a_place(tmp_path / "alone" / "inference", "inference") as alone:
        alone.take_lock("wait")

        def fail(*_: object) -> None:
            alone.write_summary(
                {"outcome": "failed", "wall_s": 5.0, "error": "[SUP-001] inference died\n  fix: read it"}
            )
            alone.close()

        monkeypatch.setattr(watching, "_EVERY_S", dict.fromkeys((True, False), 0.01))
        monkeypatch.setattr(watching, "poll_fds", fail)
        assert main(["monitor", str(tmp_path)], standalone_mode=False) == 1
    assert places(tmp_path) == [tmp_path]
    told = capsys.readouterr().out
    assert told.rindex("finished: the run completed after 9.0 s") < told.rindex(
        "failed: the run failed after 5.0 s: inference died"
    )


@pytest.mark.parametrize(
    ("summary", "then"),
    [
        ({"outcome": "failed", "wall_s": 9.0, "error": "[SUP-001] x\n  fix: go on"}, "go on"),
        (None, "ask the system's log "),
    ],
    ids=["failed", "killed"],
)
def test_before_a_whole_run_goes_on_whoever_lives_beside_it_has_to_end(tmp_path, monkeypatch, summary, then):
    whole = a_place(tmp_path, "trainer")
    if summary is not None:
        whole.write_summary(summary)
    monkeypatch.setattr(Header, "supervisor_alive", lambda _: False)
    with a_place(tmp_path / "alone" / "inference", "inference") as alone:
        alone.take_lock("wait")
        found = diagnose(read_run(tmp_path))
    looks = f"headrace doctor {alone.path} looks at inference"
    assert found.remedy.startswith(f"{looks}; end inference first (Ctrl-C or SIGTERM), then {then}")
    assert found.exit_code == 1


@pytest.mark.parametrize(
    ("kind", "table", "ends"),
    [
        ({"kind": "commands", "why": "the time is over", "processes": {"server": {"stage": "stopped"}}}, {}, "\n  run             RUN"),
        ({}, {}, "next          headrace eval RUN    tensorboard --logdir RUN/tensorboard"),
        ({}, {"orchestrator": {}}, "next          tensorboard --logdir RUN/tensorboard"),
    ],
)  # fmt: skip
def test_a_run_that_is_over_ends_as_its_own_command_says(kind, table, ends, monkeypatch):
    for module in (ending, rlview):
        monkeypatch.setattr(module, "typed", str)
    facts = {"faults": 0, "restarts": 0, "trouble": ""}
    processes = {name: facts | told for name, told in kind.get("processes", {}).items()}
    summary = {"outcome": "completed", "wall_s": 1.0, **kind, "processes": processes}
    found = Diagnosis("it is over", None, Condition.FINISHED)
    text = Sight(Path("RUN"), found, {}, table, summary, over=True).in_words()
    assert text.endswith(ends)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "nothing is named that could be watched"),
        (["RUN", "--log-file", "x.log"], "--log-file is for training that Headrace did not start, and a run was named"),
        (["RUN", "--pid", "1"], "--pid is for training that Headrace did not start, and a run was named"),
        (["RUN", "--silence-s", "10"], "--silence-s is for training that Headrace did not start, and a run was named"),
        (["RUN", "--episode-s", "20"], "--episode-s is for training that Headrace did not start, and a run was named"),
        (["RUN"], "RUN holds no run"),
    ],
)
def test_what_is_refused(arguments, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, RunDirectoryError)) as raised:
        main(["monitor", *arguments], standalone_mode=False)
    assert raised.value.what == what
