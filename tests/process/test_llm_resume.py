"""Language-model runs that go on from a checkpoint, and components that are started alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from click import Abort
from click.testing import CliRunner

from headrace.cli.main import main
from headrace.core.errors import ConfigError, RunDirectoryError
from headrace.llm.launch import launcher
from headrace.llm.launch.alone import begin_alone
from headrace.llm.launch.launcher import launch
from headrace.llm.launch.place import LanguageRun, read_endpoints
from headrace.llm.launch.starting import begin, resume
from headrace.llm.loading import Source, load_rl_config
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import _last_sign_ns, read_run
from headrace.telemetry.blame import Condition
from headrace.telemetry.board import Board
from llm_launch_support import Launches, launches, llm_server
from llm_stand_ins import TARGETS, keep
from run_support import events

__all__ = ["launches", "llm_server"]

pytestmark = pytest.mark.process

LIMIT_S = 60.0  # bounds a failure


@pytest.fixture
def stand_ins(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Every launch is of stand-ins."""
    monkeypatch.setattr(launcher, "Targets", lambda: TARGETS)
    init = launcher.Launch.__init__

    def with_stand_ins(self, *args, **more):
        init(self, *args, **{"targets": TARGETS, **more})

    monkeypatch.setattr(launcher.Launch, "__init__", with_stand_ins)
    return launches


def go(what, on_line=None):
    with what.place:
        return launch(what, on_line)


def test_an_interrupted_run_goes_on_where_its_trainer_saved(stand_ins, tmp_path):
    run = tmp_path / "run"
    config = load_rl_config([], {"run.steps": 4, "env.kwargs": {"who": "trainer", "fault": "fail", "at": 2}})
    first = go(begin(config, run, "x"))
    assert (first["outcome"], first["steps"]) == ("failed", 2)
    (run / "weights" / "7").mkdir()  # of a past that is forgotten
    again = load_rl_config([], {"run.steps": 5, "env.kwargs": {"who": "trainer", "fault": "fail", "at": 2}})
    with LanguageRun.resume(run) as place:
        (place.path / "config.toml").write_text(
            (place.path / "config.toml").read_text().replace("at = 2", "at = 77\nfrom = 2")
        )
    with pytest.raises(ConfigError, match="would change what is learned"):
        resume(run, again)
    what = resume(run, None)
    assert what.resume == run / "checkpoints" / "2"
    assert (what.run_id, what.sessions) == (first["run_id"], 2)
    second = go(what)
    assert (second["outcome"], second["steps"], second["sessions"]) == ("completed", 4, 2), second["error"]
    assert second["run_id"] == first["run_id"]
    assert not (run / "weights" / "7").exists()
    assert (second["sft"], what.tally.tokens) == (first["sft"], 4 * 8.0), "two steps of each session"
    assert (run / "earlier" / "beyond-1" / "weights" / "7").is_dir()
    assert [event["component"] for event in events(run, "started")].count("warm-start") == 1
    assert second["evaluations"][0]["win_rate"] == 0.25
    keep(run / "checkpoints" / "4", first["run_id"])
    with pytest.raises(ConfigError, match="nothing to do: the run has its 4 steps"):
        resume(run, None)
    assert not LanguageRun.open(run).is_live()


def kept(run):
    """All that a run has learned and tells of itself."""
    left = [path for name in ("weights", "checkpoints") for path in (run / name).rglob("*") if path.is_file()]
    files = {path: path.read_bytes() for path in [*left, run / "summary.json"]}
    return files, sorted((run / "metrics.jsonl").read_bytes().splitlines())


def tree(run):
    """All that is there; of files also what they hold, but for the number in the lock."""
    found = {path.relative_to(run): path.read_bytes() if path.is_file() else None for path in run.rglob("*")}
    return {path: data for path, data in found.items() if path.name != "lock"}


def completed(run):
    """A run with a result; whoever goes on with it meets a fault before anything is learned."""
    config = load_rl_config([], {"run.steps": 2, "env.kwargs": {"who": "orchestrator", "fault": "none", "at": 77}})
    first = go(begin(config, run, "x"))
    assert first["outcome"] == "completed", first["error"]
    keep(run / "checkpoints" / "2", first["run_id"])
    (run / "weights" / "7").mkdir()
    (run / "weights" / "7" / "manifest.json").write_text("of a past that is forgotten")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "updates": 7, "loss/mean": 0.1}\n')
    config_file = run / "config.toml"
    config_file.write_text(config_file.read_text().replace("at = 77", "at = -1\nfrom = 2").replace("none", "fail"))


@pytest.mark.parametrize("fault", ["fail", "stop"])
def test_a_result_stays_where_a_run_is_gone_on_with_and_learns_nothing(stand_ins, tmp_path, fault):
    run = tmp_path / "run"
    completed(run)
    before, config = kept(run), (run / "config.toml").read_bytes()

    def interrupt(line):
        if fault == "stop" and line.text == "inference is ready":
            os.kill(os.getpid(), signal.SIGTERM)

    lines = []
    what = resume(run, load_rl_config([Source(str(run / "config.toml"))], {"run.steps": 79}))
    assert (kept(run), (run / "config.toml").read_bytes()) == (before, config)
    told = go(what, lambda line: (lines.append(line), interrupt(line)))
    assert told["outcome"] == ("failed" if fault == "fail" else "interrupted")
    assert kept(run) == before
    assert (run / "config.toml").read_bytes() == config
    text = "nothing was learned since the run was gone on with: it stays as it was, with its earlier summary"
    assert [event["text"] for event in events(run, "kept")] == [text]
    assert text in [line.text for line in lines]
    assert len(events(run, "verdict")) == (fault == "fail")


def test_a_result_stays_where_a_run_is_gone_on_with_and_its_port_is_taken(stand_ins, tmp_path):
    run = tmp_path / "run"
    completed(run)
    before = kept(run)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["rl", "--resume", "--run-dir", str(run), "--steps", "79", "--inference.port", str(port)]
        with pytest.raises(ConfigError, match="is taken"):
            CliRunner().invoke(main, words, standalone_mode=False, catch_exceptions=False)
    assert kept(run) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("where", ["a session before", "the first resume"])
def test_whoever_ends_it_before_it_has_its_board_finds_everything_as_it_was(
    stand_ins, tmp_path, monkeypatch, error, where
):
    run = tmp_path / "run"
    completed(run)
    (run / "rollouts" / "on their way").write_text("a batch")
    if where == "a session before":
        (run / "earlier").mkdir()
        (run / "earlier" / "config-1.toml").write_text("of the first session")
    before = tree(run)
    aside = []

    def end(*_):
        aside.append(sorted(path.name for path in (run / "earlier").iterdir()))
        assert (run / "summary.json").exists()
        raise error

    monkeypatch.setattr(Board, "create", end)
    words = ["rl", "--resume", "--run-dir", str(run), "--steps", "79"]
    with pytest.raises(Abort if error is KeyboardInterrupt else error):
        CliRunner().invoke(main, words, standalone_mode=False, catch_exceptions=False)
    assert {name.partition("-")[0] for name in aside[0]} == {"beyond", "config", "metrics"}
    assert tree(run) == before


def test_a_failure_tells_how_it_failed_last(stand_ins, tmp_path):
    run = tmp_path / "run"
    config = load_rl_config([], {"run.steps": 4, "env.kwargs": {"who": "trainer", "fault": "fail", "at": 2}})
    go(begin(config, run, "x"))
    config_file = run / "config.toml"
    config_file.write_text(config_file.read_text().replace('"trainer"', '"orchestrator"').replace("at = 2", "at = -1"))
    assert go(resume(run, None))["culprit"] == "orchestrator"
    assert LanguageRun.open(run).read_summary()["culprit"] == "orchestrator"


def test_what_happened_in_earlier_sessions_is_not_taken_for_news(stand_ins, tmp_path):
    run = tmp_path / "run"
    config = load_rl_config([], {"run.steps": 4, "env.kwargs": {"who": "trainer", "fault": "fail", "at": 2, "from": 0}})
    go(begin(config, run, "x"))
    config_file = run / "config.toml"
    config_file.write_text(config_file.read_text().replace("from = 0", "from = 2"))
    with (run / "events.jsonl").open("a") as file:
        for second in range(7_000, 7_005):
            file.write(f'{{"t_s": {second}, "kind": "restarted", "component": "inference", "text": "again"}}\n')
    seen = []
    second = go(resume(run, None), lambda _: seen.append(read_run(run, between_s=0.0, pause=lambda _: None)))
    assert second["wall_s"] > 7_000
    for snapshot in seen:
        assert snapshot.events[0]["kind"] == "resumed"
        assert 0.0 <= max(event["t_s"] for event in snapshot.events) < LIMIT_S
        assert not [event for event in snapshot.events if event["kind"] == "restarted"]
        assert diagnose(snapshot).state is not Condition.LIVELOCKED
    assert seen
    with Board.open(run / "board") as board:  # and killed in this session, it was silent since then
        last_ns = _last_sign_ns(board.header, board.read_all(), seen[-1].events)
        assert board.header.created_ns <= last_ns < board.header.created_ns + LIMIT_S * 1e9


def damaged(path):
    path.write_bytes(path.read_bytes()[:-1])


def test_a_run_goes_on_from_the_newest_checkpoint_that_is_sound_and_says_so(stand_ins, tmp_path):
    run = tmp_path / "run"
    config = load_rl_config([], {"run.steps": 3, "env.kwargs": {"who": "trainer", "fault": "fail", "at": 2, "from": 0}})
    first = go(begin(config, run, "x"))
    config_file = run / "config.toml"
    config_file.write_text(config_file.read_text().replace("at = 2", "at = 77").replace("from = 0", "from = 1"))
    keep(run / "checkpoints" / "1", first["run_id"])
    damaged(run / "checkpoints" / "2" / "state.safetensors")
    damaged(run / "weights" / "1" / "manifest.json")  # can be made again of the checkpoint
    (run / "endpoints.json").write_text("{")  # the board knows whose run it is
    (run / "summary.json").write_text("{")
    with (run / "events.jsonl").open("a") as file:
        file.write('{"kind": "evaluated", "step": "x"}\n')
    what = resume(run, None)
    assert what.resume == run / "checkpoints" / "1"
    second = go(what)
    assert (second["outcome"], second["steps"], second["run_id"]) == ("completed", 3, first["run_id"]), second["error"]
    texts = [alarm["text"] for alarm in second["alarms"]]
    assert texts[0].startswith("checkpoint 2: a checkpoint is damaged, state.safetensors: ")
    assert texts[0].endswith("passed over and put into earlier/; the run goes on from checkpoint 1")
    assert texts[1].startswith("version 1 of the weights is damaged, ")
    assert [event["text"] for event in events(run, "alarm")] == texts
    assert (run / "earlier" / "beyond-1" / "checkpoints" / "2").is_dir()
    assert (run / "earlier" / "beyond-1" / "weights" / "1").is_dir()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("checkpoints/2/manifest.json", "no checkpoint that is sound"),
        ("weights/0/model.safetensors", "version 0 of the weights"),
    ],
)
def test_without_anything_sound_to_go_on_from_the_run_stays_as_it_is(stand_ins, tmp_path, path, says):
    run = tmp_path / "run"
    config = load_rl_config([], {"run.steps": 3, "env.kwargs": {"who": "trainer", "fault": "fail", "at": 2}})
    go(begin(config, run, "x"))
    damaged(run / path)
    before = sorted(run.rglob("*"))
    with pytest.raises(RunDirectoryError, match=says) as caught:
        resume(run, None)
    assert f"--set sft.checkpoint={run} gives" in caught.value.fix
    assert sorted(run.rglob("*")) == before


def test_a_run_without_a_checkpoint_cannot_be_gone_on_with(stand_ins, tmp_path):
    config = load_rl_config([], {"env.kwargs": {"who": "warm-start", "fault": "fail"}})
    go(begin(config, tmp_path / "run", "x"))
    with pytest.raises(RunDirectoryError, match="has no checkpoint to go on from") as caught:
        resume(tmp_path / "run", None)
    assert caught.value.fix == "begin a new run in another directory"  # nothing was published that it could begin with


@pytest.mark.table
def test_components_started_alone_find_each_other(tmp_path):
    """Each has a launcher of its own; the server serves until it is told to stop."""
    run = tmp_path / "run"
    script = Path(__file__).parents[1] / "llm_alone.py"
    with ExitStack() as stack:
        programs = {}
        for name in ("trainer", "orchestrator", "inference"):
            programs[name] = subprocess.Popen([sys.executable, str(script), name, str(run)])
            stack.callback(programs[name].kill)
        assert programs["trainer"].wait(timeout=LIMIT_S) == 0
        assert programs["orchestrator"].wait(timeout=LIMIT_S) == 0
        programs["inference"].terminate()
        assert programs["inference"].wait(timeout=LIMIT_S) == 130
    trained, shipped, served = (
        json.loads((run / "alone" / name / "summary.json").read_text())
        for name in ("trainer", "orchestrator", "inference")
    )
    assert (trained["outcome"], trained["steps"]) == ("completed", 2)
    assert (shipped["outcome"], shipped["books"]["balanced"]) == ("completed", True)
    assert served["outcome"] == "interrupted"
    endpoints = read_endpoints(run / "endpoints.json")
    assert endpoints is not None
    assert {trained["run_id"], shipped["run_id"], served["run_id"]} == {endpoints.run_id}
    warm = [event["component"] for name in programs for event in events(run / "alone" / name, "started")]
    assert warm.count("warm-start") == 1


@pytest.mark.table
def test_a_launcher_that_is_killed_leaves_nobody_behind(tmp_path):
    script = Path(__file__).parents[1] / "llm_alone.py"
    with subprocess.Popen(
        [sys.executable, str(script), "all", str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if line.startswith("trainer Step 2/"):
                break
        others = psutil.Process(program.pid).children(recursive=True)
        program.kill()
    assert len(others) >= 4  # fork server, inference, orchestrator, trainer
    _, alive = psutil.wait_procs(others, timeout=LIMIT_S)
    assert alive == []


def test_a_component_that_was_told_something_else_is_refused(stand_ins, tmp_path):
    config = load_rl_config([])
    with begin_alone("trainer", config, tmp_path / "run", url=None, resume=False).place:
        other = load_rl_config([], {"model.hidden": 32, "inference.port": 8001})
        with pytest.raises(ConfigError) as caught:
            begin_alone("inference", other, tmp_path / "run", url=None, resume=False)
        assert "model.hidden: 32 here, 64 there" in str(caught.value)
        with pytest.raises(RunDirectoryError, match="in use by a run that is alive"):
            begin_alone("trainer", config, tmp_path / "run", url=None, resume=False)


def test_the_command_prints_every_components_lines_and_the_summary(stand_ins, tmp_path):
    run = tmp_path / "run"
    words = ["rl", "@", "wordle-grpo", "--run-dir", str(run), "--steps", "2", "--env.kwargs", "{}"]
    done = CliRunner().invoke(main, words, standalone_mode=False)
    assert done.return_value == 0, done.output
    lines = done.output.splitlines()
    assert f"run           {run}" in lines[:2]  # the first may say that something is being imported
    assert f"  trainer       {run}/logs/trainer.log" in lines
    assert any(line.endswith("trainer       Step 2/2 | Loss 0.1000 | Off-Policy 0 max") for line in lines)
    assert any("orchestrator  evaluation of version 2: 75.0 % won" in line for line in lines)
    assert "  books         requested 16 = completed 16; completed 16 = trained 16" in lines


def test_train_recognises_a_language_model(stand_ins, tmp_path):
    words = [
        "train",
        "wordle-grpo",
        "--run-dir",
        str(tmp_path / "run"),
        "--steps",
        "2",
        "--quiet",
        "--set",
        "env.kwargs={}",
    ]
    done = CliRunner().invoke(main, words, standalone_mode=False)
    assert done.return_value == 0, done.output
    assert done.output.startswith("completed after ")
    with pytest.raises(ConfigError, match="a language-model run has no collectors"):
        CliRunner().invoke(
            main, ["train", "wordle-grpo", "--collectors", "2"], standalone_mode=False, catch_exceptions=False
        )
