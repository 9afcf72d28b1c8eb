"""Parts of the launcher that need no process: logs, lines, roots of waits, frozen processes, summaries, directories."""

from __future__ import annotations

import copy
import json
import os
from contextlib import contextmanager

import pytest

from board_support import component, look
from disk_support import in_the_middle_of_writing
from headrace.core.clock import FakeClock
from headrace.core.errors import (
    BatchRefused,
    ComponentStalled,
    ConfigError,
    NothingToTrain,
    RunDirectoryError,
    StaleWeights,
)
from headrace.llm.launch import place
from headrace.llm.launch.children import (
    Shared,
    Targets,
    child_specs,
    components,
    free_port,
    limits,
    listen,
    standstill_s,
)
from headrace.llm.launch.chronicle import Chronicle
from headrace.llm.launch.deciding import full_cast, single_cast
from headrace.llm.launch.following import LogFollower
from headrace.llm.launch.freezes import Freezes
from headrace.llm.launch.launcher import launch
from headrace.llm.launch.place import (
    Endpoints,
    LanguageRun,
    agree_on_run_id,
    read_endpoints,
    write_endpoints,
    write_once,
)
from headrace.llm.launch.rooting import find_root, waits_in_vain
from headrace.llm.launch.starting import begin, history
from headrace.llm.launch.summary import Tally, audited, outcome_of, summarize
from headrace.llm.launch.wording import evaluation_line, step_line
from headrace.llm.loading import load_rl_config
from headrace.llm.payloads import Basics
from headrace.monitor.reader import read_numbers
from headrace.supervision.child import LAUNCHER_MARK, tail
from headrace.telemetry.board import Activity, State
from headrace.telemetry.events import EventLog, read_events
from headrace.telemetry.looks import ELSEWHERE, Plan
from headrace.telemetry.metrics import MetricsSink, read_metrics


def test_lines_of_several_logs_are_followed_from_where_they_ended_before(tmp_path):
    one, two = tmp_path / "a.log", tmp_path / "b.log"
    one.write_text("of an earlier session\n")
    follower = LogFollower({"a": one, "b": two})
    with one.open("a") as file:
        file.write("first\nhal")
    two.write_text("other\n")
    assert list(follower.lines()) == [("a", "first"), ("b", "other")]
    with one.open("a") as file:
        file.write("f\n")
    assert list(follower.lines()) == [("a", "half")]
    assert list(follower.lines()) == []


def test_what_is_told_of_a_component_is_in_its_log_and_is_not_read_from_there(tmp_path):
    log = tmp_path / "a.log"
    follower = LogFollower({"a": log})
    follower.write("a", "is ready")
    follower.write("a", "two\nlines")
    follower.write("supervisor", "has no log")
    assert log.read_text() == "[headrace] is ready\n[headrace] two\n[headrace] lines\n"
    with log.open("a") as file:
        file.write("printed\nhal")
    follower.write("a", "between")
    with log.open("a") as file:
        file.write("f\n")
    assert log.read_text().endswith("printed\nhal\n[headrace] between\nf\n")
    assert list(follower.lines()) == [("a", "printed"), ("a", "half")]
    follower.write("a", "later")
    with log.open("a") as file:
        file.write("[headrace] later\n")  # somebody else's words are shown, whatever they look like
    assert list(follower.lines()) == [("a", "[headrace] later")]
    assert [path.name for path in tmp_path.iterdir()] == ["a.log"]
    assert tail(log, 0) == ["printed", "hal", "f"]  # the last words of a component are its own


def test_the_last_words_of_a_component_are_shown_though_it_has_not_ended_the_line(tmp_path):
    log = tmp_path / "a.log"
    follower = LogFollower({"a": log})
    log.write_text("last words")
    follower.write("a", "it is late")  # which ends the line in the file, and not in what is shown
    assert list(follower.lines()) == []
    assert list(follower.lines("a", "supervisor")) == [("a", "last words")]
    follower.write("a", "it has died, and begins again")
    with log.open("a") as file:
        file.write("of another one\n")
    assert list(follower.lines("a")) == [("a", "of another one")]


def test_the_last_words_after_a_flood_are_shown_too(tmp_path):
    log = tmp_path / "a.log"
    follower = LogFollower({"a": log})
    log.write_text(f"{'x' * 99}\n" * 4_000 + "last words")
    assert list(follower.lines("a"))[-1] == ("a", "last words")


def test_what_was_written_within_a_stretch_that_is_skipped_or_read_in_turns_is_not_shown(tmp_path):
    log = tmp_path / "a.log"
    follower = LogFollower({"a": log})
    for number in range(3):
        with log.open("a") as file:
            file.write("".join(f"line {number}.{at:06d}\n" for at in range(20_000)))
        follower.write("a", "own")
    shown = [text for _ in range(4) for _, text in follower.lines()]
    assert shown[-1] == "line 2.019999"
    assert not any(LAUNCHER_MARK in text for text in shown)
    follower.write("a", "own")
    assert list(follower.lines()) == []


def test_a_log_that_cannot_be_written_costs_a_count(tmp_path):
    follower = LogFollower({"a": tmp_path / "gone" / "a.log"})
    follower.write("a", "one\ntwo")
    assert follower.lost == 2


def test_step_lines_and_alarms_go_into_the_log_of_their_component_whether_or_not_anybody_looks_on(tmp_path):
    log, clock, shown = tmp_path / "trainer.log", FakeClock(), []
    for on_line in (None, shown.append):
        with (
            EventLog(tmp_path / "events.jsonl", clock, clock.now()) as events,
            MetricsSink(tmp_path / "metrics.jsonl", tmp_path / "tensorboard") as metrics,
        ):
            chronicle = Chronicle(events, metrics, Tally(), LogFollower({"trainer": log}), clock, 9, on_line)
            chronicle.report("trainer", "step", {"step": 3, "metrics": {"loss/mean": 0.5}})
            chronicle.report("trainer", "alarm", {"kind": "entropy", "text": "too low"})
            with log.open("a") as file:
                file.write("printed\n")
            chronicle.follow()
    told = "[headrace]      0.0 s  Step 3/9 | Loss 0.5000\n[headrace]      0.0 s  ! too low\nprinted\n"
    assert log.read_text() == told * 2
    assert [(line.text, line.weight) for line in shown] == [
        ("Step 3/9 | Loss 0.5000", "step"),
        ("too low", "alarm"),
        ("printed", "log"),
    ]


def test_a_flood_is_cut_and_its_end_is_shown(tmp_path):
    log = tmp_path / "a.log"
    follower = LogFollower({"a": log})
    log.write_text("".join(f"line {number}\n" for number in range(200_000)))
    lines = [text for _, text in follower.lines()]
    assert lines[0] == f"… more than can be shown here; all of it is in {log}"
    assert lines[-1] == "line 199999"
    assert len(lines) == 201


def test_a_line_without_end_is_shown_all_the_same(tmp_path):
    log = tmp_path / "a.log"
    follower = LogFollower({"a": log})
    log.write_text("x" * 5_000)
    ((_, text),) = follower.lines()
    assert text == "x" * 2_000


def test_step_lines_of_both_sides():
    metrics = {"time/step": 0.42, "loss/mean": 0.0123, "mismatch_kl/mean": 4.2e-8, "is_clipped/mean": 0.01}
    assert step_line(12, 250, metrics, "trainer") == (
        "Step 12/250 | Time 0.42 s | Loss 0.0123 | Mismatch KL 4.2e-08 | Clipped 1.0 %"
    )
    metrics = {"train/reward/mean": 1.25, "train/win_rate": 0.8, "batch/filtered": 3}
    assert step_line(12, 250, metrics, "orchestrator") == "Step 12/250 | Reward 1.250 | Win 80.0 % | Filtered 3"
    metrics = {"batch/failed": 0, "batch/retried": 12}
    assert step_line(12, 250, metrics, "orchestrator") == "Step 12/250 | Failed 0 | Retried 12"


def test_an_evaluation_in_words():
    facts = {"version": 40, "win_rate": 0.85, "low": 0.791, "high": 0.902, "mean_reward": 1.32, "episodes": 120}
    assert evaluation_line(facts) == (
        "evaluation of version 40: 85.0 % won (79.1 to 90.2 %), mean reward 1.320, 120 episodes"
    )


CHAIN = (
    component("trainer", Activity.WAIT_BATCH, 0.0, waits_on="orchestrator", need=1),
    component("orchestrator", Activity.WAIT_COMPLETIONS, 1.0, waits_on="inference", need=96, have=12),
    component("inference", Activity.GENERATE, 2.0),
)


def test_the_root_of_a_wait_is_at_the_end_of_its_chain():
    later = (component("trainer", Activity.NONE, 312.0, state=State.FAILED), *CHAIN[1:])
    root = find_root([look(312.0, *CHAIN), look(313.0, *later)], "trainer", Plan())
    assert root is not None
    assert root.culprit == "inference"
    assert root.sentence == (
        "trainer has waited 312 s for a batch of orchestrator (0 of 1 are there), and orchestrator has waited 311 s for "
        "completions of inference (12 of 96 are there); inference has been inside generate for 310 s"
    )
    assert find_root([look(313.0, *later)], "trainer", Plan()) is None


def test_a_ring_of_waits_has_no_innocent_end():
    ring = (CHAIN[0], component("orchestrator", Activity.WAIT_POLICY, 1.0, waits_on="trainer", need=1))
    root = find_root([look(20.0, *ring)], "trainer", Plan())
    assert root is not None
    assert root.sentence.endswith("none of them can go on")


def test_somebody_waits_for_what_is_gone_for_good():
    assert waits_in_vain(look(10.0, *CHAIN), frozenset({"inference"}), 2.0) == ("orchestrator", "inference")
    assert waits_in_vain(look(10.0, *CHAIN), frozenset({"trainer"}), 2.0) is None
    assert waits_in_vain(look(2.0, *CHAIN), frozenset({"inference"}), 2.0) is None


def test_a_process_is_told_of_once_when_it_was_stopped_for_long_enough():
    stopped = {7}
    freezes = Freezes(4.0, stopped.__contains__)
    views = (component("inference", pid=7), component("trainer", pid=8))
    assert freezes.look(views, 0.0) == []
    assert freezes.look(views, 3.9) == []
    assert freezes.look(views, 5.0) == ["inference"]
    assert freezes.look(views, 6.0) == []
    stopped.clear()
    assert freezes.look(views, 7.0) == []
    stopped.add(7)
    assert freezes.look(views, 8.0) == []
    assert freezes.look(views, 12.5) == ["inference"]


BOOKS = {
    "requested": 20, "completed": 14, "failed": {"timeout": 2, "environment": 1}, "stale": 1, "cancelled": 1,
    "in_flight": 1, "trained": 8, "filtered": {"zero_advantage": 4}, "pending": 2,
}  # fmt: skip


def test_books_balance_or_do_not():
    assert audited(BOOKS)["balanced"]
    assert not audited(BOOKS | {"requested": 21})["balanced"]
    assert not audited(BOOKS | {"pending": 1})["balanced"]
    assert audited(None) is None


def test_the_books_of_a_live_run_are_among_its_numbers(tmp_path):
    """Whoever looks on from outside sees nothing of what the launcher keeps in its memory."""
    clock = FakeClock()
    with (
        EventLog(tmp_path / "events.jsonl", clock, clock.now()) as events,
        MetricsSink(tmp_path / "metrics.jsonl", tmp_path / "tensorboard") as metrics,
    ):
        chronicle = Chronicle(events, metrics, Tally(), LogFollower({}), clock, 100, None)
        chronicle.report("orchestrator", "rollout_books", BOOKS)
    found = read_numbers(tmp_path)
    assert {name: found[f"books/{name}"] for name in ("requested", "failed", "filtered", "pending")} == {
        "requested": 20.0, "failed": 3.0, "filtered": 4.0, "pending": 2.0
    }  # fmt: skip


@contextmanager
def chronicle(folder, tally):
    """One that writes into a folder."""
    clock = FakeClock()
    with (
        EventLog(folder / "events.jsonl", clock, clock.now()) as events,
        MetricsSink(folder / "metrics.jsonl", folder / "tensorboard") as metrics,
    ):
        yield Chronicle(events, metrics, tally, LogFollower({}), clock, 100, None)


def test_the_books_of_a_run_that_was_gone_on_with_are_under_its_step(tmp_path):
    with chronicle(tmp_path, Tally.going_on(40)) as told:
        told.report("orchestrator", "rollout_books", BOOKS)
        told.report("orchestrator", "batch", {"step": 40, "metrics": {}})
        told.report("orchestrator", "rollout_books", BOOKS)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "books/requested" in line] == [40, 41]


def test_the_rate_of_a_session_is_that_of_its_own_steps():
    tally = Tally.going_on(40)
    tally.note_step(50, {})
    config, facts = load_rl_config([]), {"run_id": "r", "wall_s": 5.0, "training_s": 5.0, "lost_lines": {}}
    summary = summarize(config, tally, None, facts, interrupted=False)
    assert (summary["steps"], summary["throughput"]) == (50, {"steps_per_s": 2.0})


def test_a_version_that_is_evaluated_again_after_a_resume_is_listed_once(tmp_path):
    with chronicle(tmp_path, Tally()) as told:
        for version, rate in ((0, 0.25), (2, 0.5), (2, 0.75)):
            told.report("orchestrator", "evaluation", {"version": version, "step": version, "win_rate": rate})
        assert [(one["version"], one["win_rate"]) for one in told.tally.evaluations] == [(0, 0.25), (2, 0.75)]


def test_what_was_shipped_and_not_trained_on_is_not_called_trained(tmp_path):
    books = BOOKS | {"trained": 8, "filtered": {}, "pending": 6}
    with chronicle(tmp_path, Tally()) as told:
        for step in (0, 1):
            told.report("orchestrator", "batch", {"step": step, "metrics": {"batch/samples": 4}})
        told.report("trainer", "step", {"step": 1, "metrics": {}})
        told.report("orchestrator", "rollout_books", books)
        told.tally.settle()
        ended = told.tally.books
        told.report("trainer", "step", {"step": 3, "metrics": {}})
        told.report("orchestrator", "batch", {"step": 2, "metrics": {"batch/samples": 4}})  # told late
        told.tally.settle()
    assert (ended["trained"], ended["shipped"]) == (4, 4)
    assert audited(ended)["balanced"]
    assert told.tally.books == ended


def test_the_outcome_follows_from_the_error():
    assert outcome_of(None, interrupted=False) == ("completed", 0)
    assert outcome_of(None, interrupted=True) == ("interrupted", 130)
    assert outcome_of(ComponentStalled("x", fix="y"), interrupted=True) == ("stalled", 3)


@pytest.mark.parametrize("kind", [NothingToTrain, StaleWeights, BatchRefused])
def test_a_run_in_which_nothing_stood_still_is_not_called_stalled(kind):
    assert outcome_of(kind("x", fix="y"), interrupted=False) == ("failed", 3)


def of_step(mean, most, tokens):
    return {"off_policy/mean": mean, "off_policy/max": most, "batch/trained_tokens": tokens}


def test_the_lag_is_measured_over_all_tokens():
    tally = Tally()
    tally.note_step(1, of_step(1.0, 2.0, 300.0))
    tally.note_step(2, of_step(0.0, 1.0, 100.0))
    config, facts = load_rl_config([]), {"run_id": "r", "wall_s": 5.0, "training_s": 5.0, "lost_lines": {}}
    found = summarize(config, tally, None, facts, interrupted=False)["policy_lag"]
    assert (tally.steps, found["mean"], found["max"]) == (2, 0.75, 2.0)


def test_a_run_that_is_gone_on_with_knows_what_its_earlier_sessions_told(tmp_path):
    """As one that was not interrupted; what came after the checkpoint is forgotten."""

    def tell(told, steps):
        for step in steps:
            metrics = of_step(float(step), 2.0 * step, 10.0 * step)
            told.report("orchestrator", "batch", {"step": step - 1, "metrics": metrics})  # it tells the lag as well
            told.report("trainer", "step", {"step": step, "metrics": metrics | {"loss/mean": 0.0}})
            told.report("trainer", "alarm", {"kind": "entropy", "text": f"low in {step}", "step": step, "value": 0.1})

    with chronicle(tmp_path, Tally()) as told:
        told.report("warm-start", "sft", {"step": 4, "steps": 5, "loss": 0.75})
        told.report("warm-start", "alarm", {"kind": "demonstrations_cut", "text": "1 was cut", "cut": 1})
        told.done("warm-start", {"sft_steps": 5, "loss": 0.5, "cut": 1})
        tell(told, (1, 2))
        known = copy.deepcopy(told.tally)
        told.report(
            "orchestrator", "alarm", {"kind": "filtered", "text": "all of 3", "step": 2}
        )  # 2 are made: of the third
        tell(told, (3,))
    found = history(read_events(tmp_path / "events.jsonl"), read_metrics(tmp_path / "metrics.jsonl"), 2)
    for name in ("alarms", "sft_steps", "sft_loss", "lag_sum", "lag_max", "tokens"):
        assert getattr(found, name) == getattr(known, name), name
    assert (found.sft_steps, found.sft_loss, found.lag_sum / found.tokens, len(found.alarms)) == (5, 0.5, 50 / 30, 3)


def test_what_a_session_forgot_stays_forgotten_when_a_later_one_goes_on_from_further():
    """A resume from 10 forgets what 12 was; the one from 30 does not bring it back."""
    told = "evaluated 10, evaluated 12, resumed 10, evaluated 13, evaluated 10, evaluated 11, evaluated 31"
    events = []
    for kind, number in (one.split() for one in told.split(", ")):
        facts = {"checkpoint": number} if kind == "resumed" else {"version": int(number), "step": int(number)}
        events.append({"kind": kind, "component": "supervisor", "win_rate": len(events) / 10, **facts})
    events.append({"kind": "resumed", "component": "trainer", "version": 0})  # the trainer's own word for it
    found = history(events, [], 30)
    assert [(one["version"], one["win_rate"]) for one in found.evaluations] == [(10, 0.4), (11, 0.5), (13, 0.3)]
    assert (found.steps, found.begun) == (30, 30)


def test_whoever_comes_first_gives_the_run_its_id(tmp_path):
    path = tmp_path / "endpoints.json"
    first = agree_on_run_id(path)
    assert agree_on_run_id(path) == first
    write_endpoints(path, Endpoints(first.run_id, "http://127.0.0.1:1"))
    assert agree_on_run_id(path).inference == "http://127.0.0.1:1"
    assert list(tmp_path.iterdir()) == [path]
    path.write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"endpoints.json cannot be read"):
        read_endpoints(path)


def test_a_directory_whose_run_never_made_a_step_is_used_again(tmp_path):
    config = load_rl_config([])
    path = tmp_path / "run"
    with LanguageRun.create_as("x", path, config, "runs") as run:
        (run.weights_dir / "0").mkdir()
        run.model_dir.mkdir()
        write_endpoints(run.endpoints_file, Endpoints("1"))
        run.write_summary({"outcome": "failed"})
    with LanguageRun.create_as("x", path, config, "runs") as run:
        assert {found.name for found in (path / "earlier" / "1").iterdir()} >= {"weights", "model", "endpoints.json"}
        assert list(run.weights_dir.iterdir()) == []
        (run.weights_dir / "1").mkdir()
        run.write_summary({"outcome": "failed"})
    with pytest.raises(RunDirectoryError, match="already holds a finished run"):
        LanguageRun.create_as("x", path, config, "runs")


def test_components_of_others_have_a_place_on_the_board_to_be_waited_for():
    assert components(single_cast("trainer", warm_start=False)) == [
        ("supervisor", "supervisor"),
        ("trainer", "trainer"),
        ("inference", ELSEWHERE),
        ("orchestrator", ELSEWHERE),
    ]
    whole = full_cast(warm_start=True, inference=True, inline=False)
    assert [name for name, _ in components(whole)] == [
        "supervisor", "warm-start", "inference", "trainer", "orchestrator",
    ]  # fmt: skip


def _fill(pipe: int) -> None:
    while True:
        os.write(pipe, b"x" * 4096)


def test_wake_pipes_never_block_a_writer():
    with Shared(load_rl_config([]), serves=True) as shared:
        assert shared.endpoint is not None
        assert shared.endpoint.startswith("http://127.0.0.1:")
        write = shared.fds("orchestrator")["shipped"]
        with pytest.raises(BlockingIOError):
            _fill(write)
        assert shared.fds("inference").keys() == {"listen"}
    shared.close()
    assert 0 < free_port("127.0.0.1") < 65536


def test_a_wait_outlives_the_limit_that_ends_it_by_itself():
    deadlines = load_rl_config([]).deadlines
    found = limits(deadlines, 120.0)
    assert found[Activity.WAIT_BATCH] > deadlines.batch_s
    assert found[Activity.WAIT_POLICY] > deadlines.policy_s
    assert standstill_s(deadlines) > found[Activity.WAIT_BATCH]


def test_what_workers_may_finish_when_they_are_told_to_stop_has_a_limit_of_its_own(tmp_path):
    config = load_rl_config([])
    basics = Basics(config=config, run=tmp_path, run_id="r")
    with Shared(config, serves=True) as shared:
        inline = full_cast(warm_start=True, inference=True, inline=True)
        specs = [
            *child_specs(basics, full_cast(warm_start=True, inference=True, inline=False), shared, Targets(), None),
            *child_specs(basics, inline, shared, Targets(), None),
        ]
    assert {spec.id for spec in specs if Activity.CHECKPOINT in spec.finishes} == {"orchestrator", "trainer", "twin"}
    assert {spec.id for spec in specs if not spec.finishes} == {"warm-start", "inference"}
    assert all(set(spec.deadlines) >= spec.finishes for spec in specs)
    assert not any(activity.label.startswith("wait") for spec in specs for activity in spec.finishes)


def test_of_several_who_make_a_file_the_first_one_counts(tmp_path):
    write_once(tmp_path / "config.toml", b"first")
    write_once(tmp_path / "config.toml", b"second")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"config.toml": b"first"}


def test_of_several_who_make_a_file_at_once_in_containers_nobody_finds_half_of_it(tmp_path, monkeypatch):
    """They share a disk, and their processes have the same numbers."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    in_the_middle_of_writing(monkeypatch, lambda: write_once(tmp_path / "config.toml", b"second"))
    write_once(tmp_path / "config.toml", b"first")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"config.toml": b"second"}


def test_a_run_whose_port_is_taken_leaves_nothing(tmp_path):
    with listen("127.0.0.1", 0) as taken:
        what = begin(load_rl_config([], {"inference.port": taken.getsockname()[1]}), tmp_path / "run", "x")
        with what.place:
            with pytest.raises(ConfigError, match="is taken by another program"):
                launch(what)
            assert what.place.discard_if_empty()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_finds_no_room_for_its_id_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise RunDirectoryError("endpoints.json cannot be written", fix="make room")

    monkeypatch.setattr(place, "write_endpoints", full)
    with pytest.raises(RunDirectoryError):
        begin(load_rl_config([]), tmp_path / "run", "x")
    assert list(tmp_path.iterdir()) == []


def test_the_pipes_of_a_run_wait_for_nobody_and_are_not_inherited(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "pipe2", raising=False)  # not every system has it
    with Shared(load_rl_config([]), serves=False) as shared:
        fds = [*shared.fds("trainer").values(), *shared.fds("orchestrator").values()]
        assert len(set(fds)) == 4
        assert not any(os.get_blocking(fd) or os.get_inheritable(fd) for fd in fds)
