"""The doctor on boards of language-model runs, as they were recorded or might be."""

from __future__ import annotations

import pytest

from board_support import component, look
from headrace.llm.launch.children import plan_of
from headrace.llm.loading import load_rl_config
from headrace.monitor.doctor import diagnose
from headrace.monitor.reader import read_plan
from headrace.monitor.snapshot import Snapshot
from headrace.runtime.config import dump_toml
from headrace.telemetry.blame import Condition
from headrace.telemetry.board import Activity, State
from headrace.telemetry.looks import ELSEWHERE, Process

SUPERVISOR = component("supervisor", Activity.WAIT_CHILD, 0.0)
WARM = component("warm-start", Activity.NONE, 0.0, state=State.ENDED)
PLAN = plan_of(load_rl_config([]))


def trainer(since_s=9.0, **more):
    return component("trainer", Activity.WAIT_BATCH, since_s, waits_on="orchestrator", need=1, **more)


def orchestrator(since_s=9.0, **more):
    return component("orchestrator", Activity.WAIT_COMPLETIONS, since_s, waits_on="inference", need=96, have=12, **more)


def verdict(*views, at_s=10.0, before=None, processes=None):
    first = look(at_s - 0.8, *(before or views), processes=processes)
    supervisor = component("supervisor", Activity.WAIT_CHILD, at_s)
    second = look(at_s, *(supervisor if view.id == "supervisor" else view for view in views), processes=processes)
    return diagnose(Snapshot(looks=(first, second), plan=PLAN))


def test_a_run_that_gets_on_says_how_fast_and_who_waits():
    before = (
        SUPERVISOR,
        WARM,
        component("inference", Activity.GENERATE, 9.0),
        trainer(updates=3),
        orchestrator(episodes=800),
    )
    after = (
        SUPERVISOR,
        WARM,
        component("inference", Activity.GENERATE, 9.9),
        trainer(9.8, updates=5),
        orchestrator(9.8, episodes=1600),
    )
    found = verdict(*after, before=before)
    assert found.state is Condition.HEALTHY
    assert found.verdict == (
        "the run gets on: 1,000.0 rollouts/s and 2.5 updates/s; "
        "trainer has waited 0.2 s for a batch of orchestrator (0 of 1 are there)"
    )


def test_a_server_that_is_stuck_in_a_pass_is_to_blame_for_those_who_wait():
    found = verdict(
        SUPERVISOR, WARM, component("inference", Activity.GENERATE, 2.0, pid=7), trainer(), orchestrator(), at_s=40.0
    )
    assert (found.state, found.culprit) == (Condition.STALLED, "inference")
    assert found.verdict == (
        "inference has been inside generate for 38.0 s (limit 60 s), and trainer and orchestrator wait for it"
    )
    assert "deadlines.generate_s" in found.remedy


def test_a_server_that_is_alive_and_does_nothing_is_to_blame():
    found = verdict(
        SUPERVISOR, WARM, component("inference", Activity.WAIT_REQUESTS, 2.0), trainer(), orchestrator(), at_s=40.0
    )
    assert (found.state, found.culprit) == (Condition.STALLED, "inference")
    assert (
        "for completions of inference (12 of 96 are there), which does nothing (wait.requests, 38.0 s)" in found.verdict
    )


def test_alarms_are_repeated_of_a_run_that_gets_on_and_of_one_that_is_over():
    busy = component("trainer", Activity.UPDATE, 9.5, updates=3)
    event = {"t_s": 3.0, "kind": "alarm", "component": "orchestrator", "what": "attempts_fail", "text": "10 % failed"}
    looks = (look(10.0, component("supervisor", Activity.WAIT_CHILD, 10.0), busy),)
    found = diagnose(Snapshot(looks=looks, plan=PLAN, events=(event,)))
    assert found.state is Condition.HEALTHY
    assert found.verdict.endswith("; 1 alarm was raised")
    assert "10 % failed" in found.evidence
    summary = {"outcome": "completed", "did": "3 steps", "alarms": [{"kind": "mostly_filtered", "text": "90 %"}] * 2}
    found = diagnose(Snapshot(looks=looks, plan=PLAN, summary=summary))
    assert found.state is Condition.FINISHED
    assert found.evidence == ("90 %", "90 %")


def test_a_server_that_nobody_asks_is_no_trouble():
    busy = component("trainer", Activity.UPDATE, 9.5, updates=3)
    waiting = component("orchestrator", Activity.WAIT_POLICY, 9.5, waits_on="trainer", need=4, have=3)
    found = verdict(SUPERVISOR, WARM, component("inference", Activity.WAIT_REQUESTS, 1.0), busy, waiting)
    assert found.state is Condition.HEALTHY


def test_a_server_that_was_stopped_by_a_signal():
    processes = {"inference": Process(7, alive=True, stopped=True)}
    found = verdict(
        SUPERVISOR,
        WARM,
        component("inference", Activity.GENERATE, 2.0, pid=7),
        trainer(),
        orchestrator(),
        processes=processes,
    )
    assert found.verdict.startswith("inference is stopped by a signal (SIGSTOP, Ctrl-Z or a debugger) inside generate")


def test_trainer_and_orchestrator_that_wait_for_each_other():
    waiting = component("orchestrator", Activity.WAIT_POLICY, 2.0, waits_on="trainer", need=4, have=3)
    found = verdict(
        SUPERVISOR, WARM, component("inference", Activity.WAIT_REQUESTS, 1.0), trainer(2.0), waiting, at_s=20.0
    )
    assert found.state is Condition.DEADLOCKED


@pytest.mark.parametrize("warm", [(), (WARM,)])
def test_a_server_alone_that_nobody_asks_is_idle(warm):
    others = (component(name, kind=ELSEWHERE, state=State.EMPTY) for name in ("orchestrator", "trainer"))
    found = verdict(SUPERVISOR, *warm, component("inference", Activity.WAIT_REQUESTS, 3.0), *others)
    assert (found.state, found.culprit, found.exit_code, found.remedy) == (Condition.HEALTHY, None, 0, "")
    assert found.verdict == "inference is idle and waits for requests: nobody has asked for anything for 7.0 s"


def test_a_server_whose_own_run_asks_nothing_any_more_stands_still():
    ended = (component(name, state=State.ENDED) for name in ("orchestrator", "trainer"))
    found = verdict(SUPERVISOR, component("inference", Activity.WAIT_REQUESTS, 3.0), *ended)
    assert found.state is Condition.STALLED


def test_a_component_of_another_launcher_is_no_culprit():
    alone = (SUPERVISOR, trainer(2.0), component("orchestrator", kind=ELSEWHERE, state=State.EMPTY))
    found = verdict(*alone, at_s=40.0)
    assert found.state is Condition.HEALTHY


def test_a_run_that_begins_with_a_warm_start():
    views = (
        SUPERVISOR,
        component("warm-start", Activity.WARM_START, 2.0),
        *(component(name, state=State.EMPTY) for name in ("inference", "trainer", "orchestrator")),
    )
    found = verdict(*views)
    assert (found.state, found.verdict) == (Condition.STARTING, "the run is starting: no inference has a process yet")


def test_the_end_of_a_run_in_words():
    summary = {"outcome": "completed", "wall_s": 12.0, "did": "3 steps of the trainer and 24 rollouts", "updates": 3}
    found = diagnose(Snapshot(summary=summary))
    assert found.verdict == "the run completed after 12.0 s with 3 steps of the trainer and 24 rollouts"


def test_the_last_lines_of_a_culprit_are_evidence():
    error = (
        "[SUP-001] trainer ended although nobody asked it to: exit code 0\n"
        "  pid: 7\n"
        "  last lines of trainer: \n"
        "    step 3: loss 0.1\n"
        "    fix: nothing\n"
        "  fix: read the last lines of logs/trainer.log"
    )
    events = ({"kind": "verdict", "component": "trainer", "text": "x", "t_s": 1.0},)
    found = diagnose(Snapshot(summary={"outcome": "failed", "error": error, "wall_s": 1.0}, events=events))
    assert (found.culprit, found.state) == ("trainer", Condition.FAILED)
    assert found.remedy == "read the last lines of logs/trainer.log"
    assert "last lines of trainer: \n    step 3: loss 0.1\n    fix: nothing" in found.evidence


def test_limits_come_from_the_runs_own_file(tmp_path):
    config = load_rl_config([], {"deadlines.generate_s": 7.0, "supervision.inference_restarts": 3})
    (tmp_path / "config.toml").write_text(dump_toml(config))
    plan = read_plan(tmp_path / "config.toml")
    assert plan.limit_s(Activity.GENERATE) == 7.0
    assert plan.limit_s(Activity.WAIT_BATCH) == config.deadlines.batch_s
    assert (plan.max_restarts, plan.learning_starts) == (3, None)


@pytest.mark.parametrize("activity", [Activity.GENERATE, Activity.WAIT_BATCH, Activity.WARM_START])
def test_every_activity_has_a_limit_where_the_file_tells_none(activity):
    assert plan_of(load_rl_config([])).limit_s(activity) > 0.0
