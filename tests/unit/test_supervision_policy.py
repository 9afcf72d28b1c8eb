"""Restart decisions and missed deadlines, without a process and without waiting."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.core.errors import (
    ComponentDied,
    ComponentError,
    ComponentStalled,
    ConfigError,
    EnvironmentRaised,
    NonFiniteValue,
    ObservationMismatch,
    RunDirectoryError,
    UnsupportedSpace,
)
from headrace.supervision.policy import ALIVE, WATCHED, Life, Phase, RestartPolicy, overdue
from headrace.supervision.spec import (
    ChildSpec,
    Exited,
    GiveUp,
    LeaveOut,
    Nothing,
    Overdue,
    Restart,
    RestartBudget,
    describe_exit,
)
from headrace.telemetry.board import Activity, SlotView, State

BUDGET = RestartBudget(max_restarts=3, window_s=60.0, backoff_s=0.5)


def spec(**changes) -> ChildSpec:
    return ChildSpec(**({"id": "c", "kind": "collector", "target": "m:f", "payload": lambda _: None} | changes))


def died(exit_code: int = -9, **changes) -> Exited:
    return Exited(**({"id": "c", "exit_code": exit_code, "how": describe_exit(exit_code)} | changes))


@pytest.fixture
def policy():
    policy = RestartPolicy(BUDGET)
    policy.note_ready("c")
    return policy


@pytest.mark.parametrize("exit_code", [0, 1, 3, -9, -11])
def test_whoever_was_asked_to_go_may_go(policy, exit_code):
    assert policy.decide(spec(), died(exit_code, asked=True), 0.0) == Nothing("c")


FULL = RunDirectoryError("the checkpoint cannot be written", fix="make room")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"done": True}, True),
        ({}, True),  # it left in order; whether that is enough is for whoever knows what it was to say
        ({"exit_code": 1, "error": FULL}, False),
        ({"exit_code": -9}, False),
        ({"exit_code": -9, "stalled": "stop for 20.1 s (limit 20 s)"}, False),
        ({"exit_code": -9, "dismissed": True}, True),
        ({"exit_code": -9, "was_ready": False}, True),  # it had nothing to lose yet
        ({"exit_code": 1, "was_ready": False, "error": FULL}, True),
    ],
)
def test_one_that_was_asked_to_go_and_does_not_finish_is_not_as_expected(policy, facts, expected):
    event = died(**({"exit_code": 0, "asked": True, "was_ready": True} | facts))
    assert event.expected is expected
    assert policy.decide(spec(), event, 0.0) == Nothing("c"), "nobody is started that was to leave"


@pytest.mark.parametrize("exit_code", [0, 1, -9, -11])
def test_every_exit_unasked_is_a_fault_also_with_code_0(policy, exit_code):
    assert policy.decide(spec(), died(exit_code), 0.0) == Restart("c", 0.5)


@pytest.mark.parametrize(("exit_code", "expected"), [(0, True), (1, False), (-9, False), (-11, False)])
def test_whoever_was_done_is_not_started_again_but_only_exit_0_is_as_expected(policy, exit_code, expected):
    event = died(exit_code, done=True)
    assert event.expected is expected
    assert policy.decide(spec(), event, 0.0) == Nothing("c")


def test_a_stalled_child_is_a_fault_like_any_other(policy):
    assert policy.decide(spec(), died(stalled="env.step for 31 s (limit 30 s)"), 0.0) == Restart("c", 0.5)


@pytest.mark.parametrize("exited", [died(1), died(0), died(stalled="start for 61 s (limit 60 s)")])
def test_a_child_that_was_never_ready_fails_at_once(exited):
    assert RestartPolicy(BUDGET).decide(spec(), exited, 0.0) == GiveUp("c", "it has never become ready")


def test_any_number_of_restarts_can_be_counted():
    budget = RestartBudget(max_restarts=10_000, window_s=1e9, backoff_s=0.0)
    policy = RestartPolicy(budget)
    policy.note_ready("c")
    assert {policy.decide(spec(), died(), float(now_s)).after_s for now_s in range(1100)} == {0.0}


def test_an_incarnation_that_never_became_ready_uses_the_budget_if_an_earlier_one_did(policy):
    policy.decide(spec(), died(), 0.0)
    assert policy.decide(spec(), died(1, incarnation=1), 1.0) == Restart("c", 1.0)


@pytest.mark.parametrize("cls", [ObservationMismatch, NonFiniteValue, UnsupportedSpace, ConfigError])
def test_what_would_fail_again_is_not_tried_again(policy, cls):
    exited = died(1, error=cls("lane 3 broke its contract", fix="fix the environment"))
    assert policy.decide(spec(), exited, 0.0) == GiveUp("c", "trying again would fail again")
    assert policy.restarts("c") == 0


@pytest.mark.parametrize("cls", [EnvironmentRaised, ComponentDied, ComponentStalled])
def test_what_may_go_better_next_time_is_tried_again(policy, cls):
    assert policy.decide(spec(), died(1, error=cls("it failed", fix="see why")), 0.0) == Restart("c", 0.5)


def test_backoff_doubles_and_the_fourth_death_within_the_window_ends_the_run(policy, clock):
    waits_s = []
    for _ in range(3):
        waits_s.append(policy.decide(spec(), died(), clock.now()).after_s)
        clock.advance(19.9)
    assert waits_s == [0.5, 1.0, 2.0]
    assert policy.decide(spec(), died(), clock.now()) == GiveUp("c", "it ended again after 3 restarts within 60 s")


def test_old_restarts_are_forgiven(policy, clock):
    for _ in range(10):
        assert policy.decide(spec(), died(), clock.now()) == Restart("c", 0.5)
        clock.advance(60.0)


def test_components_do_not_use_up_each_others_budget(policy):
    policy.note_ready("d")
    for _ in range(3):
        policy.decide(spec(), died(), 0.0)
    assert policy.decide(spec(id="d"), died(id="d"), 0.0) == Restart("d", 0.5)


def test_a_child_may_have_a_budget_of_its_own(policy):
    learner = spec(budget=RestartBudget(max_restarts=0))
    assert policy.decide(learner, died(), 0.0) == GiveUp("c", "it may not be started again")


def test_the_run_goes_on_without_an_insignificant_child(policy):
    helper = spec(significant=False, budget=RestartBudget(max_restarts=0))
    assert policy.decide(helper, died(), 0.0) == Nothing("c", "it may not be started again")


@pytest.mark.parametrize("exited", [died(), died(incarnation=3)])
def test_a_child_that_was_killed_before_it_was_ready_may_find_more_memory_next_time(exited):
    policy = RestartPolicy(BUDGET)
    assert policy.decide(spec(), exited, 0.0) == Restart("c", 0.5)
    for _ in range(2):
        policy.decide(spec(), exited, 0.0)
    assert policy.decide(spec(), exited, 0.0) == GiveUp("c", "it ended again after 3 restarts within 60 s")


@pytest.mark.parametrize(
    "exited",
    [died(-11), died(stalled="start for 61 s (limit 60 s)"), died(error=ComponentDied("it failed", fix="see why"))],
)
def test_other_ends_before_it_was_ready_stay_hopeless(exited):
    assert RestartPolicy(BUDGET).decide(spec(), exited, 0.0) == GiveUp("c", "it has never become ready")


def test_an_expendable_child_is_left_out_when_its_budget_is_spent(policy):
    for _ in range(3):
        assert isinstance(policy.decide(spec(expendable=True), died(), 0.0), Restart)
    reason = "it ended again after 3 restarts within 60 s"
    assert policy.decide(spec(expendable=True), died(), 0.0) == LeaveOut("c", reason)


def test_an_expendable_child_that_cannot_be_helped_ends_the_run(policy):
    broken = died(1, error=NonFiniteValue("reward is nan", fix="mend it"))
    assert policy.decide(spec(expendable=True), broken, 0.0) == GiveUp("c", "trying again would fail again")


def test_what_is_forgiven_is_given_again(policy):
    for _ in range(3):
        policy.decide(spec(), died(), 0.0)
    policy.forgive("c")
    policy.forgive("never seen")
    assert policy.restarts("c") == 0
    assert policy.decide(spec(), died(), 0.0) == Restart("c", 0.5)


def test_a_spent_budget_is_told_apart_from_none_at_all(policy):
    for _ in range(3):
        policy.decide(spec(), died(), 0.0)
    assert policy.decide(spec(), died(), 0.0).spent
    assert not policy.decide(spec(id="d", budget=RestartBudget(max_restarts=0)), died(id="d"), 0.0).spent


# --- deadlines ---------------------------------------------------------------------------------------------------


def view(activity: Activity, since_s: float, **changes) -> SlotView:
    fields = {
        "id": "collector-1", "kind": "collector", "index": 1, "pid": 41, "incarnation": 0, "state": State.RUNNING,
        "activity": activity, "lane": -1, "step": -1, "waits_on": None, "need": 0, "have": 0, "deadline_s": 0.0,
        "since_ns": int(since_s * 1e9), "counters": {},
    }  # fmt: skip
    return SlotView(**(fields | changes))


LIMITS = {"collector-1": {Activity.ENV_STEP: 30.0}}


@pytest.mark.parametrize(
    ("seen", "now_s", "expected"),
    [
        (view(Activity.ENV_STEP, 100.0), 130.0, None),
        (view(Activity.ENV_STEP, 100.0), 131.0, Overdue("collector-1", "env.step", 31.0, 30.0)),
        (view(Activity.POLICY, 100.0), 900.0, None),  # no limit was given
        (view(Activity.ENV_STEP, 100.0, id="collector-2"), 900.0, None),
        (view(Activity.ENV_STEP, 900.0), 100.0, None),  # a board from before the machine was restarted
    ],
)
def test_overdue_is_who_exceeds_the_limit_of_its_activity(seen, now_s, expected):
    found = overdue([seen], LIMITS, int(now_s * 1e9))
    assert found == ([] if expected is None else [(expected, seen.since_ns)])


def test_an_overdue_sentence_says_what_how_long_the_limit_and_where():
    [(late, _)] = overdue([view(Activity.ENV_STEP, 0.0, lane=2, step=17)], LIMITS, int(31.26e9))
    assert str(late) == "env.step for 31.3 s (limit 30 s), lane 2, step 17"


# --- exits in words ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_code", "words"),
    [
        (0, "exit code 0"),
        (3, "exit code 3"),
        (-11, "killed by SIGSEGV"),
        (-9, "killed by SIGKILL (often the out-of-memory killer)"),
        (-40, "killed by signal 40"),
    ],
)
def test_exit_codes_in_words(exit_code, words):
    assert describe_exit(exit_code) == words


def test_an_unexplained_death_becomes_an_error_with_its_last_line():
    error = died(-9, pid=41, incarnation=2, log_tail=["first", "last"]).to_error()
    assert str(error) == (
        "[SUP-001] c ended although nobody asked it to: killed by SIGKILL (often the out-of-memory killer)\n"
        "  pid: 41\n"
        "  incarnation: 2\n"
        "  last line: last\n"
        "  fix: read the last lines of logs/c.log"
    )


def test_a_stall_becomes_an_error_that_names_the_deadline_and_the_place():
    error = died(
        -9, pid=41, stalled="env.step for 31 s (limit 30 s), lane 2", stuck_in="fire.py:88 in spread"
    ).to_error()
    assert str(error) == (
        "[SUP-002] c was busy with env.step for 31 s (limit 30 s), lane 2\n"
        "  pid: 41\n"
        "  incarnation: 0\n"
        "  stuck in: fire.py:88 in spread\n"
        "  fix: read its stacks in stacks/; raise the deadline if it is only slow"
    )


def test_what_a_child_reported_is_its_error():
    reported = ObservationMismatch("lane 3 broke its contract", fix="fix the environment")
    assert died(1, error=reported).to_error() is reported


# --- the life of a child -----------------------------------------------------------------------------------------


def test_an_illegal_move_raises_and_changes_nothing():
    life = Life("c")
    life.move(Phase.STARTING)
    life.move(Phase.DUMPING)
    with pytest.raises(ComponentError) as caught:
        life.move(Phase.READY)
    assert life.phase is Phase.DUMPING
    assert str(caught.value) == (
        "[SUP-000] c cannot become ready while it is dumping\n"
        "  possible: ended, killed\n"
        "  fix: start only what is not running; if Headrace did this by itself, file a bug"
    )


class LifeMachine(RuleBasedStateMachine):
    """Any order of moves, legal or not, against what must hold in every one."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Life("c")
        self.starts = 0
        self.late = False

    @rule(to=st.sampled_from(Phase))
    def move(self, to):
        before = (self.life.phase, self.life.incarnation, self.life.was_ready, self.life.asked)
        try:
            self.life.move(to)
        except ComponentError:
            assert (self.life.phase, self.life.incarnation, self.life.was_ready, self.life.asked) == before
            return
        if to is Phase.STARTING:
            assert before[0] not in ALIVE, "two processes of one component"
            self.starts += 1
            self.late = False
        if to in {Phase.DUMPING, Phase.KILLED}:
            self.late = True

    @invariant()
    def an_incarnation_is_a_start(self):
        assert self.life.incarnation == self.starts - 1

    @invariant()
    def a_missed_deadline_is_never_taken_back(self):
        assert not (self.late and self.life.phase in WATCHED)

    @invariant()
    def ready_is_only_who_said_so(self):
        assert self.life.phase is not Phase.READY or self.life.was_ready

    @invariant()
    def stopping_is_only_who_was_asked(self):
        assert self.life.phase is not Phase.STOPPING or self.life.asked


class BudgetMachine(RuleBasedStateMachine):
    """Deaths at any times: never more restarts in any window than the budget allows, never one too few."""

    @initialize(max_restarts=st.integers(0, 4), window_s=st.floats(1.0, 100.0))
    def begin(self, max_restarts, window_s):
        self.now_s = 0.0
        self.granted_s: list[float] = []
        self.over = False
        self.budget = RestartBudget(max_restarts=max_restarts, window_s=window_s, backoff_s=0.1)
        self.policy = RestartPolicy(self.budget)
        self.policy.note_ready("c")

    @rule(by_s=st.floats(0.0, 50.0))
    def time_passes(self, by_s):
        self.now_s += by_s

    @precondition(lambda self: not self.over)
    @rule(exit_code=st.sampled_from([0, 1, -9, -11]))
    def it_dies(self, exit_code):
        recent = [at_s for at_s in self.granted_s if self.now_s - at_s < self.budget.window_s]
        match self.policy.decide(spec(), died(exit_code), self.now_s):
            case Restart("c", after_s):
                assert len(recent) < self.budget.max_restarts
                assert after_s == pytest.approx(0.1 * 2 ** len(recent))
                self.granted_s.append(self.now_s)
            case GiveUp("c"):
                assert len(recent) == self.budget.max_restarts
                self.over = True
            case other:
                pytest.fail(f"a fault was not handled: {other}")

    @rule()
    def it_is_stopped(self):
        assert self.policy.decide(spec(), died(asked=True), self.now_s) == Nothing("c")


TestLife = LifeMachine.TestCase
TestBudget = BudgetMachine.TestCase
