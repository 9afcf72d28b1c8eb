"""The verdict on what a board shows, in whole sentences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from board_support import PLAN, component, look
from headrace.telemetry.blame import Condition, blame
from headrace.telemetry.board import COUNTERS, Activity, SlotView, State
from headrace.telemetry.looks import ELSEWHERE, Flow, Look, Plan, Process, cycle, path

SUPERVISOR = component("supervisor", Activity.WAIT_CHILD, 99.9, need=1)


def credit(name: str, since_s: float, **more) -> SlotView:
    return component(name, Activity.WAIT_CREDIT, since_s, waits_on="learner", need=1, **more)


def rows(since_s: float, on: str = "collector-0", need: int = 2, **more) -> SlotView:
    return component("learner", Activity.WAIT_ROWS, since_s, waits_on=on, need=need, **more)


def stepping(name: str, since_s: float, lane: int = 3, step: int = 1742, **more) -> SlotView:
    return component(name, Activity.ENV_STEP, since_s, lane=lane, step=step, **more)


def running(**changes: Process) -> dict[str, Process]:
    names = ["supervisor", "learner", "collector-0", "collector-1"]
    return {name: Process(10 + at, alive=True, cpu_s=1.0) for at, name in enumerate(names)} | changes


def twice(*views: SlotView, plan: Plan = PLAN, processes: dict[str, Process] | None = None):
    """The verdict on a board on which nothing moves between second 99 and second 100 but the supervisor."""
    before = replace(SUPERVISOR, since_ns=SUPERVISOR.since_ns - 10**9)
    looks = [look(99.0, before, *views, processes=processes), look(100.0, SUPERVISOR, *views, processes=processes)]
    return blame(looks, plan)


# The five systems' stalls.


def test_a_queue_that_nobody_drains_because_the_learner_is_stopped():
    learner = component("learner", Activity.UPDATE, 88.0, step=958, env_steps=5_000, updates=958)
    found = twice(
        learner, credit("collector-0", 88.0), credit("collector-1", 88.5),
        processes=running(learner=Process(4711, alive=True, stopped=True)),
    )  # fmt: skip
    assert (found.condition, found.culprit) == (Condition.STALLED, "learner")
    assert found.sentence == (
        "learner is stopped by a signal (SIGSTOP, Ctrl-Z or a debugger) inside update 958, "
        "and collector-0 and collector-1 wait for it"
    )
    assert "collector-0 has waited 12.0 s for credit of learner (0 of 1 are there)" in found.evidence
    assert "kill -CONT 4711" in found.remedy


def test_a_warm_up_that_is_longer_than_the_buffer():
    plan = replace(PLAN, capacity=500)
    found = twice(rows(88.0, env_steps=500), credit("collector-0", 88.5), plan=plan)
    assert (found.condition, found.culprit) == (Condition.DEADLOCKED, "learner")
    assert found.sentence == (
        "learner has waited 12.0 s for rows of collector-0 (0 of 2 are there), "
        "and collector-0 has waited 11.5 s for credit of learner (0 of 1 are there): neither can go on, "
        "for the learner starts at 1,000 environment steps, has 500, and the replay holds 500"
    )
    assert found.remedy.startswith("lower replay.learning_starts or raise replay.capacity")


def test_collectors_that_died_of_an_exception_and_are_not_started_again():
    dead = [component(f"collector-{n}", Activity.ENV_STEP, 50.0, state=State.FAILED, restarts=2) for n in range(2)]
    found = twice(rows(60.0, on="supervisor", need=0, env_steps=300), *dead)
    assert (found.condition, found.culprit) == (Condition.DEAD, "collector-0")
    assert found.sentence == (
        "learner has waited 40.0 s for rows, and no collector is left: collector-0 and collector-1 ended after 4 restarts"
    )


def test_a_trainer_that_waits_for_an_inference_server_that_has_exited():
    trainer = component("trainer", Activity.WAIT_ROWS, 55.0, waits_on="orchestrator", need=8, updates=12)
    middle = component("orchestrator", Activity.WAIT_RESULTS, 60.0, waits_on="inference", need=8, have=3)
    server = component("inference", Activity.POLICY, 58.0, state=State.ENDED)
    found = twice(trainer, middle, server)
    assert (found.condition, found.culprit) == (Condition.DEAD, "inference")
    assert found.sentence == (
        "orchestrator has waited 40.0 s for results of inference (3 of 8 are there), which has ended"
    )
    assert "trainer has waited 45.0 s for rows of orchestrator (0 of 8 are there)" in found.evidence


def test_a_hundred_environments_behind_a_barrier():
    plan = replace(PLAN, group_size=50)
    found = twice(
        rows(80.0, on="collector-1", need=1, env_steps=2_000, updates=1_000),
        credit("collector-0", 79.0), stepping("collector-1", 85.0, lane=77, step=40), plan=plan,
    )  # fmt: skip
    assert (found.condition, found.culprit) == (Condition.STALLED, "collector-1")
    assert found.sentence == (
        "collector-1 has been inside env.step of lane 77, step 40 for 15.0 s (limit 30 s), "
        "and learner and collector-0 wait for it"
    )
    assert found.evidence[0] == "49 other lanes of its group wait for lane 77"


# Kinds of verdicts.


def test_a_deadlock_is_a_ring_in_which_nobody_moves():
    found = twice(rows(88.0, env_steps=5_000, updates=9), credit("collector-0", 88.5))
    assert (found.condition, found.culprit) == (Condition.DEADLOCKED, "learner")
    assert found.sentence == (
        "learner has waited 12.0 s for rows of collector-0 (0 of 2 are there), "
        "and collector-0 has waited 11.5 s for credit of learner (0 of 1 are there): neither can go on"
    )


def test_a_learner_that_waits_for_nobody_in_particular_needs_those_who_wait_for_it():
    """Found in an on-policy run whose collectors were all replaced: it was called healthy."""
    nobody, lately = (component("learner", Activity.WAIT_ROWS, at, env_steps=5_000, updates=9) for at in (88.0, 96.0))
    found = twice(nobody, credit("collector-0", 88.5), credit("collector-1", 88.0))
    assert (found.condition, found.culprit) == (Condition.DEADLOCKED, "collector-0")
    assert found.sentence == (
        "collector-0 has waited 11.5 s for credit of learner (0 of 1 are there), "
        "and learner has waited 12.0 s for rows: neither can go on"
    )
    assert twice(lately, credit("collector-0", 88.5)).condition is Condition.HEALTHY
    assert (
        twice(nobody, credit("collector-0", 88.5), stepping("collector-1", 99.0)).condition is not Condition.DEADLOCKED
    )


def test_a_ring_that_is_a_moment_old_is_no_deadlock():
    found = twice(rows(99.2, env_steps=5_000, updates=9), credit("collector-0", 99.3))
    assert found.condition is Condition.HEALTHY


def test_a_ring_is_no_deadlock_while_another_collector_is_at_work():
    # The learner names one collector, and would go on with the rows of any.
    found = twice(rows(97.0, env_steps=5_000, updates=9), credit("collector-0", 97.0), stepping("collector-1", 97.0))
    assert found.condition is Condition.HEALTHY


def test_a_ring_is_no_deadlock_while_another_collector_gets_credit_now_and_then():
    waits, stands = rows(97.0, env_steps=5_000, updates=9), credit("collector-0", 97.0)
    looks = [
        look(99.0, waits, stands, credit("collector-1", 98.9)),
        look(100.0, waits, stands, credit("collector-1", 99.9)),
    ]
    assert blame(looks, PLAN).condition is Condition.HEALTHY


def test_a_long_activity_in_which_something_is_counted_is_not_stuck():
    def views(at_s: float, episodes: int) -> tuple[SlotView, ...]:
        learner = component("learner", Activity.UPDATE, at_s, env_steps=5_000, updates=episodes)
        return learner, component("evaluator", Activity.EVALUATE, -400.0, episodes=episodes)

    assert blame([look(99.0, *views(98.9, 7)), look(100.0, *views(99.9, 8))], PLAN).condition is Condition.HEALTHY
    assert twice(*views(99.9, 7)).culprit == "evaluator"


def spent(cpu_s: float | None, *, runnable: bool = False) -> list[Look]:
    views = (rows(88.0, env_steps=5_000), stepping("collector-0", 87.6))
    before, after = (Process(12, alive=True, cpu_s=used, runnable=runnable) for used in (1.0, cpu_s))
    return [
        look(99.0, *views, processes=running(**{"collector-0": before})),
        look(100.0, *views, processes=running(**{"collector-0": after})),
    ]


@pytest.mark.parametrize(
    ("cpu_s", "clause"),
    [
        (1.98, " and uses 98% of a core: it spins without getting on"),
        (1.0, " and uses 0% of a core: it waits for something outside the run"),
        (1.4, " and uses 40% of a core"),
        (None, ""),
    ],
)
def test_a_component_that_is_stuck_spins_or_waits(cpu_s, clause):
    found = blame(spent(cpu_s), PLAN)
    assert (found.condition, found.culprit) == (Condition.STALLED, "collector-0")
    assert found.sentence == (
        f"collector-0 has been inside env.step of lane 3, step 1742 for 12.4 s (limit 30 s){clause}, "
        "and learner waits for it"
    )
    assert "py-spy dump" in found.remedy
    assert "raise deadlines.step_s" in found.remedy


def test_an_environment_in_a_worker_is_named_and_its_collector_not_called_stuck():
    waits = component("collector-0", Activity.WAIT_ENV, 87.6, lane=3, step=1742)
    found = twice(rows(87.6, on="collector-0", need=1, env_steps=2_000, updates=1_000), waits)
    assert (found.condition, found.culprit) == (Condition.STALLED, "collector-0")
    assert "collector-0 has been inside wait.env of lane 3, step 1742 for 12.4 s (limit 30 s)" in found.sentence
    assert "at its limit it is replaced alone" in found.remedy
    assert "py-spy" not in found.remedy


def test_a_loop_on_a_busy_machine_gets_less_than_a_core():
    found = blame(spent(1.4, runnable=True), PLAN)
    assert " and uses 40% of a core: it spins without getting on, and learner waits for it" in found.sentence


def test_a_learner_in_a_long_update():
    learner = component("learner", Activity.UPDATE, 79.0, step=7, env_steps=5_000, updates=7)
    found = twice(learner, credit("collector-0", 80.0))
    assert found.sentence == ("learner has been inside update 7 for 21.0 s (limit 60 s), and collector-0 waits for it")


def test_a_process_that_is_gone():
    views = (rows(95.9, env_steps=5_000), stepping("collector-0", 95.8, pid=12))
    gone = running(**{"collector-0": Process(12, alive=False)})
    found = twice(*views, processes=gone)
    assert (found.condition, found.culprit) == (Condition.DEAD, "collector-0")
    assert found.sentence == (
        "collector-0 (pid 12) is gone while the board says running: it was inside env.step of lane 3, step 1742 "
        "4.2 s ago, and learner waits for it"
    )


def test_a_process_that_has_been_replaced_between_the_looks_is_not_gone():
    before, after = stepping("collector-0", 98.0, pid=12), stepping("collector-0", 99.9, pid=15, incarnation=1)
    learner = component("learner", Activity.UPDATE, 99.9, env_steps=5_000, updates=9)
    looks = [
        look(99.0, learner, before, processes=running(**{"collector-0": Process(12, alive=False)})),
        look(100.0, learner, after, processes=running(**{"collector-0": Process(15, alive=True)})),
    ]
    assert blame(looks, PLAN).condition is Condition.HEALTHY


def test_a_process_that_has_just_ended_may_not_have_been_noticed_yet():
    views = (
        component("learner", Activity.UPDATE, 99.0, env_steps=5_000, updates=9),
        stepping("collector-0", 99.0, pid=12),
    )
    gone = running(**{"collector-0": Process(12, alive=False)})
    assert blame([look(99.2, *views, processes=running()), look(100.0, *views, processes=gone)], PLAN).condition.well


def test_a_component_that_idles_while_somebody_waits_for_it():
    trainer = component("trainer", Activity.WAIT_ROWS, 60.0, waits_on="orchestrator", need=8)
    found = twice(trainer, component("orchestrator", Activity.IDLE, 59.0))
    assert (found.condition, found.culprit) == (Condition.STALLED, "orchestrator")
    assert found.sentence == (
        "trainer has waited 40.0 s for rows of orchestrator (0 of 8 are there), which does nothing (idle, 41.0 s)"
    )


def test_a_stopped_supervisor():
    stopped = running(supervisor=Process(10, alive=True, stopped=True), learner=Process(11, alive=True, stopped=True))
    found = twice(component("learner", Activity.UPDATE, 99.0), processes=stopped)
    assert (found.condition, found.culprit) == (Condition.STALLED, "supervisor")
    assert found.sentence == (
        "supervisor is stopped by a signal (SIGSTOP, Ctrl-Z or a debugger), so nobody looks after the run; "
        "learner is stopped too"
    )


def test_of_several_stopped_processes_the_one_that_others_wait_for_is_to_blame():
    stopped = {name: Process(n, alive=True, stopped=True) for n, name in enumerate(["collector-0", "collector-1"])}
    found = twice(
        rows(98.0, on="collector-1", env_steps=5_000), stepping("collector-0", 98.0), stepping("collector-1", 98.0),
        processes=running(**stopped),
    )  # fmt: skip
    assert found.culprit == "collector-1"


def test_a_supervisor_that_does_not_look():
    busy = component("supervisor", Activity.NONE, 90.0)
    views = (busy, component("learner", Activity.UPDATE, 99.0, env_steps=5_000, updates=9))
    found = blame([look(99.0, *views), look(100.0, *views)], PLAN)
    assert (found.condition, found.culprit) == (Condition.STALLED, "supervisor")
    assert found.sentence == "supervisor has not looked after the run for 10.0 s"


def fruitless(*others: SlotView, dropped: int = 112, **more: int):
    """An orchestrator that drops twelve rollouts in a second, and others that stand where they stood."""

    def orchestrator(since_s: float, dropped: int) -> SlotView:
        return component("orchestrator", Activity.WAIT_COMPLETIONS, since_s, episodes=5, dropped=dropped, **more)

    looks = [look(99.0, *others, orchestrator(98.9, 100)), look(100.0, *others, orchestrator(99.9, dropped))]
    return blame(looks, PLAN)


def batch(since_s: float) -> SlotView:
    return component("trainer", Activity.WAIT_BATCH, since_s, waits_on="orchestrator", deadline_s=150.0, updates=5)


def test_work_that_comes_to_nothing():
    # A server's keeper tells only that the server lives, and an evaluation is not what the others wait for.
    aside = component("inference", Activity.COMMAND, 99.5), component("evaluator", Activity.EVALUATE, 99.0)
    found = fruitless(batch(40.0), *aside)
    assert (found.condition, found.culprit) == (Condition.LIVELOCKED, "orchestrator")
    assert found.sentence == (
        "orchestrator moves and gets nowhere: 12 dropped within 1.0 s, and not one environment step, update "
        "or evaluation meanwhile, and trainer waits for it"
    )


@pytest.mark.parametrize(
    "trainer",
    [batch(60.0), component("trainer", Activity.UPDATE, 90.0), component("trainer", kind=ELSEWHERE, state=State.EMPTY)],
)
def test_work_of_which_a_part_comes_to_nothing_while_others_are_within_their_time(trainer):
    found = fruitless(trainer, component("inference", Activity.COMMAND, 99.5))
    assert (found.condition, found.culprit) == (Condition.HEALTHY, None)


def command(name: str, activity: Activity = Activity.COMMAND, since_s: float = 99.5, **more) -> SlotView:
    return component(name, activity, since_s, kind="command", **more)


def test_a_program_that_is_started_again_beside_one_that_runs_is_no_livelock():
    before, after = command("helper", restarts=3, faults=3), command("helper", restarts=4, faults=4, incarnation=4)
    found = blame([look(99.0, command("trainer", since_s=98.5), before), look(100.0, command("trainer"), after)])
    assert (found.condition, found.sentence) == (Condition.HEALTHY, "the run gets on: trainer runs and helper runs")


@pytest.mark.parametrize(
    ("since_s", "told"), [(80.0, "20.0 s ago and has 60 s"), (39.0, "61.0 s ago and had 60 s, so it is killed")]
)
def test_a_program_that_is_asked_to_leave_has_its_own_time_for_that(since_s, told):
    leaving = {"state": State.STOPPING, "deadline_s": 60.0}
    trainer = command("trainer", Activity.STOP, since_s, **leaving)
    later = command("server", Activity.STOP, since_s - 1.0, **leaving)
    ended = command("db", Activity.STOP, 30.0, state=State.ENDED)
    waits = command("user", Activity.WAIT_NEEDED, 30.0, state=State.STARTING, waits_on="db")
    found = twice(later, trainer, ended, waits)
    assert (found.condition, found.culprit) == (Condition.HEALTHY, None)
    assert found.sentence == f"the run is ending: trainer was asked to leave {told}"
    assert len(found.evidence) == 1
    assert found.evidence[0].startswith("server was asked to leave ")


def test_a_server_that_is_asked_to_leave_has_its_own_time_for_that():
    def stopping(since_s: float) -> SlotView:
        return component("inference", Activity.STOP, since_s, state=State.STOPPING, deadline_s=15.0)

    assert twice(stopping(86.0)).condition is Condition.HEALTHY
    found = twice(stopping(84.0))
    assert found.sentence == "inference has been inside stop for 16.0 s (limit 15 s)"
    assert "ends it; if it is only slow, raise deadlines.stop_s" in found.remedy


def coming(since_s: float, **more) -> SlotView:
    return command("inference", Activity.WAIT_RESTART, since_s, state=State.STARTING, deadline_s=15.0, **more)


def test_who_waits_for_one_that_is_started_again_soon_does_not_wait_in_vain():
    trainer = command("trainer", Activity.WAIT_PROGRESS, 92.0, waits_on="inference", deadline_s=12.0)
    found = twice(coming(97.7, restarts=1), trainer)
    assert (found.condition, found.culprit) == (Condition.STARTING, "inference")
    assert found.sentence == "inference has failed and is started again in 12.7 s, and trainer waits for it"
    assert found.remedy == "read the end of logs/inference.log for why it failed"


def test_one_that_is_started_again_soon_and_that_nobody_waits_for_holds_nobody_up():
    found = twice(command("trainer", since_s=99.9), coming(97.7))
    assert found.sentence == "the run gets on: trainer runs and inference is started again in 12.7 s"
    learner = component("learner", Activity.UPDATE, 99.0, env_steps=5_000, updates=9)
    pausing = component("collector-0", Activity.WAIT_RESTART, 93.0, state=State.STARTING, deadline_s=15.0)
    assert twice(learner, pausing, stepping("collector-1", 99.0)).condition is Condition.HEALTHY


def test_the_only_one_of_its_kind_that_is_started_again_soon_does_not_start_the_run():
    learner = component("learner", Activity.UPDATE, 99.0, env_steps=5_000, updates=9)
    found = twice(learner, component("collector-0", Activity.WAIT_RESTART, 93.0, state=State.STARTING, deadline_s=15.0))
    assert (found.condition, found.sentence) == (
        Condition.STARTING, "collector-0 has failed and is started again in 8.0 s",
    )  # fmt: skip


def test_silence():
    found = twice(component("learner", Activity.IDLE, 80.0), component("collector-0", Activity.IDLE, 87.7))
    assert (found.condition, found.culprit) == (Condition.STALLED, "collector-0")
    assert found.sentence == (
        "nothing has moved for 12.3 s and nobody waits for anybody; the last to move was collector-0 (idle)"
    )


@pytest.mark.parametrize(
    ("learner", "collector", "sentence"),
    [
        (
            component("learner", Activity.START, 96.8, state=State.STARTING), component("collector-0", state=State.EMPTY),
            "the run is starting: learner has been inside start for 3.2 s (limit 60 s)",
        ),
        (
            component("learner", Activity.PUBLISH, 99.0),
            component("collector-0", Activity.ENV_CONSTRUCT, 98.0, lane=0, state=State.STARTING),
            "the run is starting: collector-0 has been inside env.construct of lane 0 for 2.0 s (limit 60 s)",
        ),
        (
            component("learner", state=State.EMPTY), component("collector-0", state=State.EMPTY),
            "the run is starting: no learner has a process yet",
        ),
    ],
)  # fmt: skip
def test_starting(learner, collector, sentence):
    found = twice(learner, collector)
    assert (found.condition, found.culprit, found.sentence) == (Condition.STARTING, None, sentence)


def test_a_start_that_takes_longer_than_it_may():
    found = twice(component("learner", Activity.START, 30.0, state=State.STARTING))
    assert (found.condition, found.culprit) == (Condition.STALLED, "learner")
    assert found.sentence == "learner has been inside start for 70.0 s (limit 60 s)"


@pytest.mark.parametrize(
    ("stored", "rest"),
    [
        (240, "; 120 more come in each second, so it starts in about 6.3 s"),
        (
            120,
            ", and none came in within the last 1.0 s; collector-0 has been inside env.step of lane 3, step 61 for 0.1 s",
        ),
    ],
)
def test_warming_up(stored, rest):
    looks = [
        look(99.0, rows(98.9, env_steps=120), stepping("collector-0", 98.9, step=60)),
        look(100.0, rows(99.9, env_steps=stored), stepping("collector-0", 99.9, step=61)),
    ]
    found = blame(looks, PLAN)
    assert (found.condition, found.culprit) == (Condition.WARMING_UP, None)
    assert found.sentence == f"the learner starts at 1,000 environment steps and has {stored:,}{rest}"


def test_a_slow_warm_up_is_no_starvation():
    waits = rows(80.0, env_steps=64)
    looks = [
        look(99.0, waits, stepping("collector-0", 98.2, step=40)),
        look(100.0, waits, stepping("collector-0", 99.2, step=41)),
    ]
    assert blame(looks, PLAN).condition is Condition.WARMING_UP


def test_starvation_by_slow_environments():
    waits = rows(88.0, env_steps=5_000, updates=4_000)
    looks = [
        look(98.0, waits, stepping("collector-0", 97.5, step=40), stepping("collector-1", 97.9, step=41)),
        look(100.0, waits, stepping("collector-0", 98.9, step=41), stepping("collector-1", 99.4, step=42)),
    ]
    found = blame(looks, PLAN)
    assert (found.condition, found.culprit) == (Condition.STARVED, "collector-0")
    assert found.sentence == (
        "learner starves: it has waited 12.0 s for rows, and collector-0 and collector-1 make 2.0 environment steps/s; "
        "collector-0 has been inside env.step of lane 3, step 41 for 1.1 s"
    )


def flowing(learner: Activity, collector: Activity, plan: Plan = PLAN) -> str:
    def views(at_s: float, steps: int) -> tuple[SlotView, ...]:
        first = component(
            "learner", learner, at_s, env_steps=steps, updates=steps,
            waits_on="collector-0" if learner is Activity.WAIT_ROWS else None,
        )  # fmt: skip
        waits_on = "learner" if collector is Activity.WAIT_CREDIT else None
        return first, component("collector-0", collector, at_s, env_steps=steps, waits_on=waits_on)

    found = blame([look(98.0, *views(97.9, 5_000)), look(100.0, *views(99.9, 5_240))], plan)
    assert (found.condition, found.culprit) == (Condition.HEALTHY, None)
    return found.sentence


def test_a_slow_consumer_is_by_design():
    assert flowing(Activity.UPDATE, Activity.WAIT_CREDIT) == (
        "the run gets on: 120 environment steps/s and 120 updates/s; "
        "the learner sets the pace, and the collectors wait for it because of the replay ratio of 1"
    )


def test_on_policy_the_lag_that_is_allowed_sets_the_pace():
    sentence = flowing(Activity.UPDATE, Activity.WAIT_CREDIT, Plan(max_policy_lag=0))
    assert sentence.endswith(
        "the learner sets the pace, and the collectors wait for it because of rollout.max_policy_lag 0"
    )


def test_environments_that_set_the_pace():
    assert flowing(Activity.WAIT_ROWS, Activity.ENV_STEP) == (
        "the run gets on: 120 environment steps/s and 120 updates/s; "
        "the environments set the pace, and the learner waits for their rows"
    )


def test_nobody_sets_the_pace():
    assert flowing(Activity.UPDATE, Activity.ENV_STEP) == ("the run gets on: 120 environment steps/s and 120 updates/s")


def test_training_that_is_over_while_the_last_policy_is_evaluated():
    found = twice(
        component("learner", Activity.CHECKPOINT, 80.0, state=State.ENDED),
        component("collector-0", Activity.ENV_CLOSE, 80.0, state=State.ENDED),
        component("evaluator", Activity.EVALUATE, 90.0),
    )
    assert found.sentence == "training is over; evaluator has been inside evaluate for 10.0 s"
    assert found.condition is Condition.HEALTHY


def test_one_look_is_enough_for_the_supervisor_that_gives_a_run_up():
    found = blame([look(100.0, SUPERVISOR, rows(10.0), stepping("collector-0", 9.0))], PLAN)
    assert found.culprit == "collector-0"
    assert found.sentence == (
        "collector-0 has been inside env.step of lane 3, step 1742 for 91.0 s (limit 30 s), and learner waits for it"
    )


def test_what_a_replacement_has_counted_counts_from_its_start():
    before, after = component("collector-0", env_steps=500), component("collector-0", env_steps=20, incarnation=1)
    flow = Flow([look(98.0, before), look(100.0, after)], PLAN)
    assert flow.rise(after, "env_steps") == 20
    assert flow.work_rate(after) == 10.0


# The graph.


def test_the_end_of_a_path_is_where_everybody_waits():
    graph = {"a": "b", "b": "c", "d": "c"}
    assert path(graph, "a") == ["b", "c"]
    assert path(graph, "c") == []
    assert cycle(graph) == []
    assert cycle({"x": "a", "a": "b", "b": "a"}) == ["a", "b"]


def test_waits_for_orders_are_no_waits_for_work():
    evaluator = component("evaluator", Activity.WAIT_COMMANDS, 0.0, waits_on="supervisor")
    assert Flow([look(100.0, SUPERVISOR, evaluator)], PLAN).waits() == {}


@given(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("abcdef")))
def test_a_path_ends_and_a_cycle_is_one(graph):
    for start in graph:
        assert len(path(graph, start)) <= 6
    ring = cycle(graph)
    if ring:
        assert [graph[name] for name in ring] == [*ring[1:], ring[0]]
    else:
        assert all(path(graph, start)[-1] not in graph for start in graph)


VIEWS = st.builds(
    component,
    st.sampled_from(["learner", "collector-0", "collector-1", "evaluator", "supervisor", "inference"]),
    st.sampled_from(Activity),
    st.floats(0.0, 100.0),
    state=st.sampled_from(State),
    waits_on=st.sampled_from([None, "learner", "collector-0", "nobody"]),
    lane=st.integers(-1, 3),
    **{name: st.integers(0, 3) for name in COUNTERS},
)
BOARDS = st.lists(VIEWS, max_size=5, unique_by=lambda view: view.id)


@given(BOARDS, BOARDS, st.booleans())
def test_whatever_a_board_says_there_is_a_verdict(before, after, alive):
    processes = {view.id: Process(1, alive=alive) for view in after}
    for looks in ([look(100.0, *after)], [look(99.0, *before), look(100.0, *after, processes=processes)]):
        found = blame(looks, PLAN)
        assert found.sentence
        assert "\n" not in found.sentence
        assert found.condition.well or found.remedy
