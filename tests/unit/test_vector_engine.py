"""The engine over a backend that does what it is told, and a worker's ends of what is shared."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from headrace.core.clock import FakeClock
from headrace.core.errors import ComponentDied, EnvironmentNotBuilt, HeadraceError, RestartBudgetSpent, VectorMisused
from headrace.ipc.channel import Channel, Deadline
from headrace.ipc.shm import SharedBlock
from headrace.vector.complaints import Complaints
from headrace.vector.crew import Crew
from headrace.vector.desk import Batch, Desk
from headrace.vector.endings import ENDING
from headrace.vector.engine import Engine
from headrace.vector.events import Answers, Event, Failure, Moves
from headrace.vector.faults import FaultKind, Interrupted, Problem, broken_contract
from headrace.vector.handle import Handle
from headrace.vector.limits import Limits
from headrace.vector.messages import Abandon, Built, Extras, LeftAlone, Returned
from headrace.vector.pending import Pending
from headrace.vector.pool import Pool, _end, _suspects
from headrace.vector.probes import Stamped
from headrace.vector.renewal import Renewal
from headrace.vector.rows import Rows
from headrace.vector.seats import Late, Seats
from headrace.vector.signals import Signal
from headrace.vector.slab import Kind, Mailbox, Slab, plan
from headrace.vector.slots import Policy, Slots, SlotState
from headrace.vector.spaces import Layout
from headrace.vector.split import Split
from headrace.vector.stepping import Phase
from headrace.vector.taking import take
from headrace.vector.threads import InThreads
from headrace.vector.worker import InTurn

COUNT = 3
ALL = np.arange(COUNT)
BOX = spaces.Box(-9, 9, (1,), np.float32)


class Told:
    """Answers when it is told to; remembers what it was asked."""

    def __init__(self, slab: Slab) -> None:
        self.slab = slab
        self.asked: list[tuple[int, int, Kind, Any]] = []
        self.events: list[Event] = []
        self.refuses: Exception | None = None
        self.asks_rest = False

    def prepare(self, values: Any, _what: str) -> Any:
        return dict(values)

    def submit(self, ids: Any, seqs: Any, resets: Any, _actions: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        for env, seq in zip(ids.tolist(), seqs.tolist(), strict=True):
            self.asked.append((env, seq, Kind(self.slab.kind[env]), resets.get(env)))

    def ask_rest(self, *arguments: Any) -> bool:
        if self.asks_rest:
            self.refuses = None
            self.submit(*arguments)
        return self.asks_rest

    def poll(self, _missing: int, _timeout_s: float) -> list[Event]:
        events, self.events = self.events, []
        assert events, "waits for ever"
        return events

    def answer(self, value: float = 0.0, *, ended: bool = False) -> None:
        """Everything that was asked is answered."""
        asked, self.asked = self.asked, []
        for env, seq, _, _ in asked:
            self.slab.rows[0][env + (seq & 1) * COUNT] = value
            self.slab.reward[env], self.slab.truncated[env], self.slab.terminated[env] = 1.0, ended, False
            self.events.append(Answers(np.array([env]), np.array([seq])))

    def broken_off(self) -> list[int]:
        return []

    def pids(self) -> dict[int, int]:
        return {0: 1}


def scene(mode: AutoresetMode = AutoresetMode.NEXT_STEP, **policy: Any) -> tuple[Engine, Told, FakeClock]:
    layout = Layout(BOX, "obs")
    slab = Slab.private(plan(layout, Layout(spaces.Discrete(2), "action"), COUNT, shared_rows=True)[0])
    told, clock = Told(slab), FakeClock()
    usual = {"raises": False, "per_env": 3, "total": 9, "window_s": 60.0, "backoff_s": 1.0, "longest_pause_s": 9.0}
    rule = Policy(**{**usual, "cuts": mode is not AutoresetMode.SAME_STEP, **policy})
    engine = Engine(told, Rows(layout, slab.rows, check_finite=True), Slots(COUNT, rule), mode, clock)  # type: ignore[arg-type]
    return engine, told, clock


def problem(kind: FaultKind = FaultKind.CONTRACT, pid: int = 1) -> Problem:
    found = broken_contract("step", "obs", "much", "little")
    found.error.facts["pid"] = pid
    return Problem(kind, "step", found.error)


def begun(mode: AutoresetMode = AutoresetMode.NEXT_STEP, **policy: Any) -> tuple[Engine, Told, FakeClock]:
    engine, told, clock = scene(mode, **policy)
    engine.reset(ALL, [5, None, 7], {"level": 1})
    assert [(env, kind, details) for env, _, kind, details in told.asked] == [
        (0, Kind.RESET, (5, {"level": 1})),
        (1, Kind.RESET, (None, {"level": 1})),
        (2, Kind.RESET, (7, {"level": 1})),
    ]
    told.answer(0.5)
    engine.gather(None, COUNT)
    take(engine, ALL, ALL, np.ones(COUNT, np.bool_), {}, copies=True)
    return engine, told, clock


def step(engine: Engine) -> None:
    engine.step(ALL, [np.zeros(COUNT, np.int64)], [])


def taken(engine: Engine) -> tuple[Any, Any]:
    valid = np.ones(COUNT, np.bool_)
    engine.gather(None, COUNT)
    return take(engine, ALL, ALL, valid, {}, copies=True), valid


def test_a_failure_of_an_older_question_breaks_nobody() -> None:
    engine, told, _ = begun()
    step(engine)
    old = told.asked[1][1]
    told.answer(1.0)
    taken(engine)
    step(engine)
    told.answer(2.0)
    told.events.append(Failure(1, old, problem()))
    batch, valid = taken(engine)
    assert valid.all()
    assert batch.observations[:, 0].tolist() == [2.0] * COUNT
    step(engine)
    assert [kind for _, _, kind, _ in told.asked] == [Kind.STEP] * COUNT


def test_a_cut_shows_the_last_valid_observation_and_the_next_step_renews() -> None:
    engine, told, _ = begun()
    step(engine)
    env, seq, _, _ = told.asked.pop(1)
    told.slab.rows[0][env + (seq & 1) * COUNT] = 77.0  # half written when it failed
    told.answer(1.0)
    told.events.append(Failure(env, seq, problem()))
    batch, valid = taken(engine)
    assert valid.tolist() == [True, False, True]
    assert batch.observations[:, 0].tolist() == [1.0, 0.5, 1.0]
    assert (batch.rewards.tolist(), batch.truncations.tolist()) == ([1.0, 0.0, 1.0], [False, True, False])
    assert batch.infos["headrace"]["fault"].tolist() == [None, "contract", None]
    assert batch.infos["headrace"]["valid"].tolist() == [True, False, True]
    step(engine)
    kinds = {env: (kind, details) for env, _, kind, details in told.asked}
    assert kinds[0] == kinds[2] == (Kind.STEP, None)
    assert kinds[1] == (Kind.RENEW, (None, None))  # it never had a seed, so its replacement has none


def test_who_fails_while_it_is_asked_nothing_is_cut_at_its_next_step() -> None:
    engine, told, _ = begun()
    step(engine)
    told.answer(1.0)
    told.events.append(Failure(0, -1, problem(FaultKind.LOST_WITH_WORKER)))
    batch, valid = taken(engine)
    assert valid.all()  # it had answered
    step(engine)
    assert [env for env, *_ in told.asked] == [1, 2]  # nobody is left to ask
    told.answer(2.0)
    batch, valid = taken(engine)
    assert valid.tolist() == [False, True, True]
    assert batch.observations[0, 0] == 1.0


def test_in_the_same_step_a_cut_waits_for_the_replacement() -> None:
    engine, told, _ = begun(AutoresetMode.SAME_STEP)
    step(engine)
    env, seq, _, _ = told.asked.pop(0)
    told.answer(1.0)
    told.events.append(Failure(env, seq, problem()))
    told.poll, real = (lambda *_: engine_asks()), told.poll  # type: ignore[method-assign, assignment]

    def engine_asks() -> list[Event]:
        if told.asked:
            assert [(who, kind) for who, _, kind, _ in told.asked] == [(0, Kind.RENEW)]
            told.answer(9.0)
        return real(0, 0.0)

    batch, valid = taken(engine)
    assert valid.tolist() == [False, True, True]
    assert batch.observations[:, 0].tolist() == [9.0, 1.0, 1.0]
    assert batch.infos["final_obs"][0].tolist() == [0.5]
    assert (batch.rewards[0], batch.terminations[0], batch.truncations[0]) == (0.0, False, True)


def ended_while_it_moves(**policy: Any) -> tuple[Engine, Told]:
    """Same-step: environment 1 is to move, and answers with its episode's last step and the next one's first observation."""
    engine, told, _ = begun(AutoresetMode.SAME_STEP, **policy)
    engine.take_in(Moves((1,)))
    step(engine)
    told.answer(1.0)
    for place, event in enumerate(told.events):
        assert isinstance(event, Answers)
        event.infos = {place: {"level": 1}}
    told.slab.terminated[1] = True
    told.events[1].infos = {1: {ENDING: (np.array([4.0]), {"level": 3}), "level": 7, "old": 1}}  # type: ignore[union-attr]
    return engine, told


def test_where_the_next_episode_begins_in_the_same_step_one_that_moves_begins_it_elsewhere() -> None:
    engine, told = ended_while_it_moves()
    told.poll, real = (lambda *_: engine_asks()), told.poll  # type: ignore[method-assign, assignment]

    def engine_asks() -> list[Event]:
        if told.asked:
            assert [(who, kind) for who, _, kind, _ in told.asked] == [(1, Kind.RENEW)]
            told.answer(9.0)
            told.events[0].infos = {1: {"level": 0}}  # type: ignore[union-attr]
        return real(0, 0.0)

    batch, valid = taken(engine)
    assert valid.all()
    assert batch.observations[:, 0].tolist() == [1.0, 9.0, 1.0]
    assert (batch.rewards.tolist(), batch.terminations.tolist()) == ([1.0] * 3, [False, True, False])
    assert not batch.truncations.any()
    assert (batch.infos["final_obs"][1].tolist(), batch.infos["final_info"]["level"].tolist()) == ([4.0], [0, 3, 0])
    assert batch.infos["level"].tolist() == [1, 0, 1]
    assert "old" not in batch.infos
    left = [engine.faults, engine.renewal.moving, engine.pending, engine.pending.over]
    assert not any(left)
    step(engine)
    told.answer(2.0)
    assert not taken(engine)[0].terminations.any()
    assert [kind for _, _, kind, _ in told.asked] == []


def test_an_end_is_kept_though_the_environment_that_begins_the_next_episode_fails_at_first() -> None:
    engine, told = ended_while_it_moves()
    told.poll, real = (lambda *_: engine_asks()), told.poll  # type: ignore[method-assign, assignment]
    fails = iter([True])

    def engine_asks() -> list[Event]:
        if told.asked and next(fails, False):
            env, seq, _, _ = told.asked.pop()
            told.events.append(Failure(env, seq, problem()))
        told.answer(9.0)
        return real(0, 0.0)

    batch, valid = taken(engine)
    assert valid.all()
    assert (batch.observations[1, 0], batch.rewards[1], batch.terminations[1]) == (9.0, 1.0, True)
    assert batch.infos["final_obs"][1].tolist() == [4.0]
    assert batch.infos["headrace"]["fault"].tolist() == [None, "contract", None]


def test_an_end_is_dropped_if_the_next_episode_cannot_begin_and_the_caller_is_told_by_an_exception() -> None:
    engine, told = ended_while_it_moves(raises=True)
    engine.gather(ALL, 2)
    told.poll, real = (lambda *_: engine_asks()), told.poll  # type: ignore[method-assign, assignment]

    def engine_asks() -> list[Event]:
        env, seq, _, _ = told.asked.pop()
        told.events.append(Failure(env, seq, problem()))
        return real(0, 0.0)

    engine.gather(ALL, COUNT)
    with pytest.raises(HeadraceError, match="declared"):
        engine.complaints.raise_next()
    told.poll = real  # type: ignore[method-assign]
    engine.reset(ALL, [1, 2, 3], None, drops=True)
    told.answer(3.0)
    batch, _ = taken(engine)
    assert batch.rewards.tolist() == [1.0] * 3  # `Told` says so of every answer
    assert not batch.terminations.any()
    assert not any([engine.pending, engine.pending.over])


def test_what_probes_found_in_the_last_step_is_told_though_the_next_episode_begins_elsewhere() -> None:
    pending = Pending(SimpleNamespace(layout=SimpleNamespace(objects=())), 2)  # type: ignore[arg-type]
    yes, no = np.array([True]), np.array([False])
    env = np.array([1])
    pending.stamp(env, {1: "first"}, no, no)
    pending.stamp(env, {1: "last"}, yes, yes)
    pending.over[1] = 1.0, True, False
    pending.stamp(env, {1: "of the reset elsewhere"}, no, no)
    assert pending.probed[1] == Stamped("last", 0, 1)  # type: ignore[arg-type]
    pending.over.clear()
    pending.stamp(env, {1: "then"}, yes, no)
    assert pending.probed[1] == Stamped("then", 1, 1)  # type: ignore[arg-type]


def test_a_pause_holds_up_nobody_else() -> None:
    engine, told, clock = begun(per_env=9)
    for _ in range(2):
        step(engine)
        env, seq, _, _ = told.asked.pop(1)
        told.answer(1.0)
        told.events.append(Failure(env, seq, problem()))
        taken(engine)
        engine.slots.due(clock.now())
        if engine.renewal.broken:
            step(engine)
            held = [env for env in range(COUNT) if engine.slots.state[env] == SlotState.HELD]
            told.answer(1.5)
            if held:
                break
            taken(engine)
    assert held == [1]
    engine.gather(ALL, 2)  # the other two are there
    assert engine.slots.ready().tolist() == [0, 2]
    clock.advance(1.0)
    told.poll, real = (lambda *_: told.answer(3.0) or real(0, 0.0)), told.poll  # type: ignore[method-assign, assignment, func-returns-value]
    batch, valid = taken(engine)
    assert valid.all()
    assert batch.observations[1, 0] == 3.0


def test_a_seed_is_kept_to_also_when_the_replacement_has_to_wait() -> None:
    engine, told, clock = begun(per_env=9)
    for _ in range(3):  # the second one in the window makes a pause
        step(engine)
        env, seq, _, _ = told.asked.pop(next(place for place, one in enumerate(told.asked) if one[0] == 1))
        told.answer(1.0)
        told.events.append(Failure(env, seq, problem()))
        taken(engine)
        if engine.slots._paused_until_s > clock.now():
            break
        engine.reset(ALL[1:2], [None], None)
        told.answer(0.5)
        engine.gather(ALL[1:2], 1)
        take(engine, ALL[1:2], ALL[1:2], np.ones(COUNT, np.bool_), {}, copies=True)
    engine.reset(ALL, [15, 16, 17], None)
    assert [(who, details) for who, _, _, details in told.asked] == [(0, (15, None)), (2, (17, None))]
    told.answer(0.5)
    engine.gather(None, 2)
    clock.advance(1.0)
    told.poll, real = (lambda *_: told.answer(3.0) or real(0, 0.0)), told.poll  # type: ignore[method-assign, assignment, func-returns-value]
    asked: list[Any] = []
    told.submit, submit = (lambda *given: asked.append(given[2]) or submit(*given)), told.submit  # type: ignore[method-assign, assignment, func-returns-value]
    engine.gather(None, COUNT)
    assert asked == [{1: (16, None)}]


def test_without_any_time_there_is_what_has_come_already() -> None:
    engine, told, _ = begun()
    step(engine)
    told.answer(1.0)
    engine.gather(None, COUNT, timeout_s=0.0)
    assert engine.slots.ready().tolist() == [0, 1, 2]


def test_a_spent_budget_is_told_by_every_call() -> None:
    engine, told, _ = begun(per_env=0)
    step(engine)
    told.events.append(Failure(2, told.asked[2][1], problem()))
    for work in (lambda: engine.gather(None, COUNT), lambda: step(engine), lambda: engine.check_idle("x")):
        with pytest.raises(RestartBudgetSpent, match="environment 2 failed 1 times"):
            work()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_questions_that_could_not_be_handed_out_can_be_asked_again(mode: AutoresetMode) -> None:
    engine, told, _ = begun(mode)
    engine.reset(ALL[:1], [None], None)
    told.answer(0.25)
    engine.gather(ALL[:1], 1)
    take(engine, ALL[:1], ALL, np.ones(COUNT, np.bool_), {}, copies=True)
    for work in (lambda: step(engine), lambda: engine.reset(ALL, [1, 2, 3], {"level": 9})):
        told.refuses = OSError("out of something")
        for _ in range(2):
            with pytest.raises(OSError, match="out of something"):
                work()
            assert engine.slots.idle()
            assert not engine.renewal.options
            assert engine.renewal.steps.tolist() == [0] * COUNT
            engine.check_idle("x")
        told.refuses = None
    step(engine)
    told.answer(1.0)
    batch, valid = taken(engine)
    assert valid.all()
    assert batch.observations[:, 0].tolist() == [1.0] * COUNT
    step(engine)
    env, seq, _, _ = told.asked.pop(0)
    told.slab.rows[0][env + (seq & 1) * COUNT] = 77.0  # half written
    told.events.append(Failure(env, seq, problem()))
    told.answer(2.0)
    if mode is AutoresetMode.NEXT_STEP:
        assert taken(engine)[0].observations[:, 0].tolist() == [1.0, 2.0, 2.0]


def test_questions_of_which_one_was_handed_out_are_all_asked() -> None:
    engine, told, _ = begun()
    told.events.append(Failure(1, -1, problem()))
    for event in told.poll(0, 0.0):
        engine.take_in(event)
    told.refuses, told.asks_rest = TimeoutError("too long"), True
    with pytest.raises(TimeoutError, match="too long"):
        step(engine)
    assert [env for env, *_ in told.asked] == [0, 2]
    assert engine.slots.state.tolist() == [SlotState.BUSY, SlotState.READY, SlotState.BUSY]
    assert engine.renewal.steps.tolist() == [1, 1, 1]
    with pytest.raises(VectorMisused, match="is still busy"):
        step(engine)
    told.answer(1.0)
    assert taken(engine)[1].tolist() == [True, False, True]


def test_what_was_to_be_renewed_is_still_to_be_renewed_if_that_could_not_be_asked_for() -> None:
    engine, told, _ = begun()
    told.events.append(Failure(1, -1, problem()))
    engine.gather(ALL, 0)
    for event in told.poll(0, 0.0):
        engine.take_in(event)
    told.refuses = OSError("out of something")
    with pytest.raises(OSError, match="out of something"):
        engine.reset(ALL[1:], [4, 5], None)
    told.refuses = None
    step(engine)
    assert [env for env, *_ in told.asked] == [0, 2]
    told.answer(1.0)
    batch, valid = taken(engine)
    assert valid.tolist() == [True, False, True]
    assert "OSError: out of something" in batch.infos["headrace"]["message"][1]
    engine.reset(ALL, [6, 7, 8], None)
    assert [kind for _, _, kind, _ in told.asked] == [Kind.RESET, Kind.RENEW, Kind.RESET]


def test_a_replacement_that_could_not_be_asked_is_asked_when_it_is_waited_for_again() -> None:
    engine, told, _ = begun()
    engine.reset(ALL, [1, 2, 3], {"level": 2})
    env, seq, _, _ = told.asked.pop(1)
    told.answer(1.0)
    told.events.append(Failure(env, seq, problem()))
    told.refuses = OSError("out of something")
    for _ in range(2):
        with pytest.raises(OSError, match="out of something"):
            engine.gather(ALL, COUNT)
        assert engine.slots.state.tolist() == [SlotState.READY, SlotState.HELD, SlotState.READY]
    told.refuses = None
    told.poll, real = (lambda *_: told.answer(3.0) or real(0, 0.0)), told.poll  # type: ignore[method-assign, assignment, func-returns-value]
    engine.gather(ALL, COUNT)
    batch = take(engine, ALL, ALL, np.ones(COUNT, np.bool_), {}, copies=True)
    assert batch.observations[:, 0].tolist() == [1.0, 3.0, 1.0]


def test_what_this_process_has_answered_is_told_although_workers_could_not_be_asked() -> None:
    def fails(*_: Any) -> Any:
        raise OSError("out of something")

    serial = SimpleNamespace(here=1, submit=lambda *_: None, poll=lambda *_: ["answers"])
    pool = SimpleNamespace(slab=None, later=["earlier"], poll=fails)
    split = Split(serial, pool)  # type: ignore[arg-type]
    split.submit(np.array([0]), np.array([1]), {}, {})
    with pytest.raises(OSError, match="out of something"):
        split.poll(1, 1.0)
    assert pool.later == ["answers", "earlier"]


def test_who_reads_in_a_worker_leaves_alone_what_one_of_its_threads_is_sending() -> None:
    ours, theirs = Channel.pair()
    with ours, theirs:
        assert theirs.try_send(bytes(5_000_000))
        left = len(theirs._unsent)
        assert ours.receive_all() == []  # there is room now
        ours.try_send("a message")
        assert Desk.hear(SimpleNamespace(control=theirs, _aside=[])) == ["a message"]  # type: ignore[arg-type]
        assert len(theirs._unsent) == left > 0


def test_who_sends_in_a_worker_with_threads_is_the_only_one() -> None:
    box, alone = Mailbox(SharedBlock.create(Mailbox.nbytes(COUNT)), COUNT), list[bool]()
    desk = SimpleNamespace(mailbox=box, seats={0: 0})
    in_threads = InThreads(desk)  # type: ignore[arg-type]
    locked = in_threads._publishing.locked
    desk.send = lambda _: alone.append(locked())
    in_threads.send("a message")
    assert alone == [True]
    assert not locked()
    del in_threads, desk
    box.close()


def test_what_cut_an_episode_is_told_and_not_what_met_its_replacement() -> None:
    renewal = Renewal(2)
    first, second = problem(FaultKind.DIED, pid=8), problem(FaultKind.DIED, pid=9)
    renewal.gone(0, first, asked=False)
    renewal.gone(0, second, asked=False)
    assert [fault.error for fault in renewal.late(0)] == [first.error]
    assert renewal.late(0) == []
    renewal.gone(0, second, asked=False)  # the first one has been told
    assert [fault.error for fault in renewal.late(0)] == [second.error]


def test_one_exception_per_incident() -> None:
    complaints = Complaints()
    guilty = problem(FaultKind.DIED, pid=8).of(1, 3)
    for fault in (guilty, problem(FaultKind.LOST_WITH_WORKER, pid=8).of(0, 3), problem(pid=8).of(2, 3)):
        complaints.add(fault)
    complaints.add(problem(FaultKind.LOST_WITH_WORKER, pid=9).of(5, 1))
    told: list[HeadraceError | None] = [complaints.next() for _ in range(4)]
    assert told[0] is guilty.error
    assert told[0].facts["also_lost"] == "environment 0"
    assert [error is None for error in told] == [False, False, False, True]


def test_an_interruption_hits_only_the_call_it_is_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.vector.worker.signal.signal", lambda *_: None)
    box = Mailbox(SharedBlock.create(Mailbox.nbytes(COUNT)), COUNT)
    in_turn = InTurn(SimpleNamespace(mailbox=box))  # type: ignore[arg-type]
    box.marks[0] = -4  # it is over
    box.interrupt(4)
    in_turn._on_interrupt(0, None)
    box.interrupt(4)
    box.marks[0] = 5  # and the next one has begun
    in_turn._on_interrupt(0, None)
    box.interrupt(5)
    with pytest.raises(Interrupted):
        in_turn._on_interrupt(0, None)
    in_turn._on_interrupt(0, None)  # once
    del in_turn
    box.close()


def test_an_interruption_of_a_call_that_has_come_back_moves_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.vector.worker.signal.signal", lambda *_: None)
    published: list[tuple[int, list[Any]]] = []
    monkeypatch.setattr(InTurn, "_publish", lambda _self, _batch, start, returned: published.append((start, returned)))

    class Marks(list[int]):
        """The signal comes between what a call returned and the note that it is over."""

        def __setitem__(self, place: Any, number: Any) -> None:
            if number == -2 and 0 not in self.came:
                self.came.append(0)
                raise Interrupted
            super().__setitem__(place, number)

        came: ClassVar[list[int]] = []

    box = SimpleNamespace(marks=Marks([0]), phases=[Phase.STEP], portions=0)
    in_turn = InTurn(SimpleNamespace(mailbox=box))  # type: ignore[arg-type]
    work = [lambda action, env=env: f"answer of {env} to {action}" for env in range(4)]
    in_turn.run(Batch([0, 1, 2, 3], [1] * 4, work, ["a"] * 4, range(4), frozenset()))  # type: ignore[arg-type]
    assert [one for _, returned in published for one in returned] == [f"answer of {env} to a" for env in range(4)]
    assert [start for start, _ in published] == [0, 2]


def test_only_a_worker_that_steps_an_environment_is_late_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a worker was relieved, some of its environments are stepped by its successor, and both know all of them."""
    watched: dict[int, list[int]] = {}
    monkeypatch.setattr(Pool, "_watch", lambda _self, handle, busy, _now_s: watched.update({handle.index: busy}))
    homes = {0: [0, 2], 1: [1]}
    child = SimpleNamespace(exit_code=None)
    usual = {"ids": [0, 1, 2], "given_up": dict, "giving_up": {}, "worn_out": False, "open": 1, "child": child}
    handles = {index: SimpleNamespace(index=index, **usual) for index in homes}
    server = SimpleNamespace(collect=list, error=None)
    limits = Limits(step_s=1.0, reset_s=1.0, construct_s=1.0, close_s=1.0)
    options = SimpleNamespace(limits=limits, template=SimpleNamespace(eager=False))
    housed = lambda handle: homes[handle.index]  # noqa: E731 - one line of a stand-in
    crew = SimpleNamespace(handles=handles, server=server, options=options, housed=housed, alarm=True)
    slots = SimpleNamespace(state=np.full(COUNT, SlotState.BUSY))
    Pool(crew, None, slots)._look([])  # type: ignore[arg-type]
    assert watched == homes


def test_a_worker_that_ends_while_others_build_ends_the_start() -> None:
    """It has built all it is to build, and nobody would look after it later."""
    built = Built([], {}, None)
    handles = {
        index: SimpleNamespace(index=index, name=f"worker-{index}", ids=[index], replies=replies, read=lambda: None)
        for index, replies in enumerate([[built], []])
    }
    ends = iter([[], [SimpleNamespace(id="worker-0", exit_code=-9)]])
    crew = Crew.__new__(Crew)
    crew._launched, crew.handles = Deadline(60.0), handles  # type: ignore[assignment]
    crew.server = SimpleNamespace(collect=lambda: next(ends), error=None)  # type: ignore[assignment]
    crew.wait = lambda _s: None  # type: ignore[method-assign]
    with pytest.raises(EnvironmentNotBuilt, match="worker-0 ended while it built environments 0: killed by SIGKILL"):
        crew.built()


def test_a_worker_wakes_us_when_all_it_has_are_answered_though_more_are_wanted() -> None:
    box = Mailbox(SharedBlock.create(Mailbox.nbytes(COUNT)), COUNT)
    signals = Signal.create(), Signal.create()
    handle = Handle(0, [0, 1], SimpleNamespace(close=lambda: None), box, signals, threaded=False)  # type: ignore[arg-type]
    handle.order(np.array([0, 1]), 0.0)
    assert handle.wake_after(7)
    assert [box.answer_one(0), box.answer_one(1)] == [False, True]
    assert not handle.wake_after(7)
    assert handle.take().tolist() == [0, 1]
    assert (handle.open, handle.unanswered) == (0, 0)
    handle.close()


def test_an_info_stands_where_its_environment_does() -> None:
    engine, told, _ = begun()
    step(engine)
    told.answer(1.0)
    for event in told.events:
        assert isinstance(event, Answers)
        env = int(event.ids[0])
        event.infos = {env: {"who": env}}
    engine.gather(None, COUNT)
    valid = np.ones(COUNT, np.bool_)
    first = take(engine, ALL[1:], ALL[1:], valid, {}, copies=True)
    second = take(engine, ALL[:1], ALL[:1], valid, {}, copies=True)
    assert (first.infos["who"].tolist(), first.infos["_who"].tolist()) == ([1, 2], [True, True])
    assert (second.infos["who"].tolist(), second.infos["_who"].tolist()) == ([0], [True])


def test_an_info_belongs_to_the_answer_it_was_sent_with() -> None:
    said: list[Any] = []

    def receive_all() -> list[Any]:
        found = said[:]
        said.clear()
        return found

    child = SimpleNamespace(close=lambda: None, control=SimpleNamespace(receive_all=receive_all))
    box = Mailbox(SharedBlock.create(Mailbox.nbytes(COUNT)), COUNT)
    handle = Handle(0, [0, 1], child, box, (Signal.create(), Signal.create()), threaded=True)  # type: ignore[arg-type]
    said.append(Extras([0, 1], [4, 4], {1: {"n": 4}}))
    assert handle.extras_of(1, 3) is None
    found = handle.extras_of(1, 4)
    assert found is not None
    assert found.infos == {1: {"n": 4}}
    assert handle.extras_of(1, 5) is None  # what belongs to it has not come
    said.append(Extras([1], [5], {1: {"n": 5}}))
    found = handle.extras_of(1, 5)
    assert found is not None
    assert found.infos == {1: {"n": 5}}
    handle.close()


def test_what_a_thread_brings_that_was_given_up_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    laid_down: list[int] = []
    monkeypatch.setattr(InThreads, "_lay_down", lambda _self, batch, place, *_: laid_down.append(batch.seqs[place]))
    box, begun, over = Mailbox(SharedBlock.create(Mailbox.nbytes(COUNT)), COUNT), threading.Event(), threading.Event()
    told: list[Any] = []
    desk = SimpleNamespace(mailbox=box, seats={0: 0}, send=told.append, renew=told.append, wake=lambda: None)
    in_threads = InThreads(desk)  # type: ignore[arg-type]

    def work(_action: Any) -> None:
        begun.set()
        assert over.wait(timeout=20.0)

    def asked(seq: int, what: Any) -> Batch:
        return Batch([0], [seq], [what], [None], range(1), frozenset())

    in_threads.run(asked(1, work))
    assert begun.wait(timeout=20.0)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "env-0"]
    in_threads.abandon(0, box.marks[0])
    over.set()
    thread.join(timeout=20.0)
    assert not thread.is_alive()
    assert [type(one) for one in told] == [LeftAlone, int]
    in_threads.run(asked(2, lambda _action: over.clear()))  # another thread, in which the next question is answered
    in_threads.close()
    for thread in [thread for thread in threading.enumerate() if thread.name == "env-0"]:
        thread.join(timeout=20.0)
    assert laid_down == [2]
    del in_threads, desk
    box.close()


def test_a_thread_whose_part_of_a_call_is_over_is_late_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call may last longer than a step, and whoever waits for the others is not to blame for that."""
    watched: list[list[int]] = []
    monkeypatch.setattr(Pool, "_watch", lambda _self, _handle, busy, _now_s: watched.append(busy))
    box = Mailbox(SharedBlock.create(Mailbox.nbytes(COUNT)), COUNT)
    seats = Seats([0, 1, 2], box, threaded=True)
    child = SimpleNamespace(ended=lambda: False)
    handle = SimpleNamespace(index=0, replies=[], child=child, seats=seats)
    options = SimpleNamespace(limits=None, template=SimpleNamespace(eager=False))
    pool = Pool(SimpleNamespace(handles={0: handle}, options=options), None, None)  # type: ignore[arg-type]
    for marks in ((0, 0, 0), (-5, 7, 0), (-5, -7, -3)):
        for place, mark in enumerate(marks):
            box.marks[place] = mark
        assert pool._reply(0, [0, 1, 2]) is None
    assert watched == [[0, 1, 2], [1], [0, 1, 2]]
    del seats, handle, pool
    box.close()


def test_who_ends_a_worker_with_threads_in_a_call_is_known_until_the_reply_was_read() -> None:
    """In a call nobody is asked a question; and who has answered one may be in it still as far as its place tells."""
    said: list[Any] = []

    def receive_all() -> list[Any]:
        found = said[:]
        said.clear()
        return found

    child = SimpleNamespace(close=lambda: None, pid=7, control=SimpleNamespace(receive_all=receive_all))
    box = Mailbox(SharedBlock.create(Mailbox.nbytes(COUNT)), COUNT)
    handle = Handle(0, [0, 1, 2], child, box, (Signal.create(), Signal.create()), threaded=True)  # type: ignore[arg-type]
    limits = Limits(step_s=1.0, reset_s=1.0, construct_s=1.0, close_s=1.0)

    def guilty() -> list[tuple[int, str]]:
        found = _suspects(handle, [0, 1, 2], _end(handle, 5, None), handle.awaits(lambda _env: False))
        return [(env, problem.phase) for env, problem in found.items()]

    for place, mark in enumerate((4, -5, 6)):
        box.marks[place], box.phases[place] = mark, Phase.CALL
    assert guilty() == [(env, "step") for env in range(3)]  # anybody, for nobody is in a call
    handle.called = {0: 8, 1: 8, 2: 9}  # the first of two was broken off by Ctrl-C
    assert guilty() == [(0, "call"), (2, "call")]
    late = handle.seats.longest(handle.awaits(lambda _env: False), limits, 5.0)
    assert late is not None
    assert late.env == 0
    said.append(Returned(8, {}))
    handle.read()
    assert guilty() == [(2, "call")]
    said.append(Returned(9, {}))
    handle.read()
    assert guilty() == [(env, "step") for env in range(3)]
    handle.close()


def test_a_call_that_took_its_worker_down_is_over_when_that_end_is_known() -> None:
    """Otherwise whoever asks next finds a worker that is gone."""
    child = SimpleNamespace(ended=lambda: True, exit_code=None)
    reports = iter([None, 5, 5])
    server = SimpleNamespace(collect=lambda: setattr(child, "exit_code", next(reports)), error=None)
    handle, options = (
        SimpleNamespace(replies=[], child=child),
        SimpleNamespace(limits=None, template=SimpleNamespace(eager=False)),
    )
    crew = SimpleNamespace(handles={0: handle}, options=options, server=server, alarm=False)
    pool = Pool(crew, None, None)  # type: ignore[arg-type]
    assert pool._reply(0, [1]) is None
    lost = pool._reply(0, [1])
    assert lost is not None
    assert lost.problem is not None
    assert (lost.problem[0], crew.alarm) == (1, True)
    server.error = ComponentDied("the server is gone", fix="none")
    with pytest.raises(ComponentDied, match="the server"):
        pool._reply(0, [1])


def test_a_thread_that_is_given_up_in_a_call_costs_the_call_and_nobody_else() -> None:
    box, begun, over = Mailbox(SharedBlock.create(Mailbox.nbytes(COUNT)), COUNT), threading.Event(), threading.Event()
    renewed: list[int] = []
    desk = SimpleNamespace(
        mailbox=box, seats={0: 0, 1: 1}, send=lambda _message: None, renew=renewed.append, hear_abandons=list
    )
    in_threads = InThreads(desk)  # type: ignore[arg-type]

    def heard() -> list[Abandon]:
        return [Abandon(1, box.marks[1])] if begun.is_set() and not renewed else []

    def work(env: int) -> str:
        if env == 1:
            begun.set()
            assert over.wait(timeout=20.0)
        return "value"

    desk.hear_abandons = heard
    values, problem = in_threads.each(Phase.CALL, [0, 1], work)
    assert (values, renewed) == ({0: "value"}, [1])
    assert problem is not None
    assert (problem[0], problem[1].kind, problem[1].phase) == (1, FaultKind.HUNG, "call")
    (stuck,) = [thread for thread in threading.enumerate() if thread.name == "env-1"]
    values, problem = in_threads.each(Phase.CALL, [0, 1], lambda env: env)
    assert (values, problem) == ({0: 0, 1: 1}, None)
    newest = box.marks[1]
    over.set()
    stuck.join(timeout=20.0)
    assert not stuck.is_alive()
    assert box.marks[1] == newest < 0  # it says nothing any more in a place that is another thread's
    in_threads.close()
    for thread in [thread for thread in threading.enumerate() if thread.name in ("env-0", "env-1")]:
        thread.join(timeout=20.0)
    del in_threads, desk
    box.close()


def test_what_is_said_while_a_call_is_made_is_heard_after_it() -> None:
    ours, theirs = Channel.pair()
    with ours, theirs:
        for message in ("one", Abandon(1, 2), "two"):
            ours.try_send(message)
        desk: Any = SimpleNamespace(control=theirs, _aside=[])
        desk.hear = lambda: Desk.hear(desk)
        assert Desk.hear_abandons(desk) == [Abandon(1, 2)]
        ours.try_send("three")
        assert Desk.hear(desk) == ["one", "two", "three"]
        assert Desk.hear(desk) == []


def test_errors_of_lost_ones_are_of_a_component() -> None:
    from headrace.vector import losses

    end = losses.End("worker-1", 77, -9)
    lost = losses.lost_with(end, {12}).of(3, 9)
    assert isinstance(lost.error, ComponentDied)
    assert lost.message.startswith(
        "[SUP-001] lost with worker-1, which environment 12 held up or ended\n  env: 3\n  step: 9\n  pid: 77\n"
    )
    why = "and one of environments 2, 4 ended it"
    for exit_code, says in (
        (-9, f"killed by SIGKILL (often the out-of-memory killer)), {why}, or somebody else did\n"),
        (3, f"exit code 3), {why}\n"),
    ):
        end = losses.End("worker-1", 77, exit_code)
        assert f"lost with worker-1, which ended ({says}" in str(losses.lost_with(end, {4, 2}).error)


def test_of_a_worker_that_we_ended_it_is_told_why_and_where_its_threads_were() -> None:
    dump = SimpleNamespace(
        where=lambda: "signals.py:9 in wait", threads=lambda: ["cam.py:3 in grab", "signals.py:9 in wait"]
    )
    for env, number in ((None, 0), (1, -4)):  # in no call, or waiting for its thread to begin
        late = Late(env, Phase.STEP, 2.0, 1.0, number)
        handle = SimpleNamespace(
            name="worker-1", child=SimpleNamespace(pid=77), culprit=late, dump=dump, was_stopped=False, unheard=False,
            seats=SimpleNamespace(inside=lambda _busy: [(0, Phase.STEP)]),
        )  # fmt: skip
        end = _end(handle, -9, None)  # type: ignore[arg-type]
        several = _suspects(handle, [0, 1], end, lambda _env: True)  # type: ignore[arg-type]
        assert {env: problem.kind for env, problem in several.items()} == dict.fromkeys(
            (0, 1), FaultKind.LOST_WITH_WORKER
        )
        text = str(several[0].error)
        assert (
            "lost with worker-1, which Headrace ended: no sign of life for 2 s (limit 1 s), and one of environments 0, 1"
            in text
        )
        assert "stuck in: cam.py:3 in grab; signals.py:9 in wait" in text
        assert "SIGKILL" not in text
        [alone] = _suspects(handle, [1], end, lambda _env: True).values()  # type: ignore[arg-type]
        assert alone.kind is FaultKind.HUNG
        assert "the process of environment 1 gave no sign of life for 2 s (limit 1 s)" in str(alone.error)


def test_what_befalls_a_replacement_is_told_behind_what_cut_the_episode() -> None:
    engine, told, _ = begun(AutoresetMode.SAME_STEP)
    step(engine)
    cut, seq, _, _ = told.asked.pop(0)
    told.answer(1.0)
    told.events.append(Failure(cut, seq, problem()))
    told.poll, real = (lambda *_: engine_asks()), told.poll  # type: ignore[method-assign, assignment]

    def engine_asks() -> list[Event]:
        if told.asked:
            [(env, seq, _, _)] = told.asked
            if len(engine.faults) < 3:
                told.asked.clear()
                told.events.append(Failure(env, seq, problem(FaultKind.LOST_WITH_WORKER)))
            told.answer(9.0)
        return real(0, 0.0)

    batch, valid = taken(engine)
    assert valid.tolist() == [False, True, True]
    assert [fault.kind for fault in engine.faults] == ["contract", "lost-with-worker", "lost-with-worker"]
    told_of = batch.infos["headrace"]
    assert (told_of["fault"][0], told_of["step"][0]) == ("contract", 1)
    assert told_of["message"][0] == "\nand then: ".join(fault.message for fault in engine.faults)


def test_a_reset_that_is_refused_after_an_exception_drops_nothing() -> None:
    engine, told, _ = begun(raises=True)
    step(engine)
    asked = {env: seq for env, seq, *_ in told.asked}
    told.asked = told.asked[:1]
    told.answer(2.0)
    told.events.append(Failure(1, asked[1], problem()))
    engine.gather(ALL[:2], 2)
    with pytest.raises(HeadraceError, match="declared"):
        engine.complaints.raise_next()
    with pytest.raises(VectorMisused):
        engine.reset(ALL, [None] * COUNT, None, drops=True)
    assert engine.slots.state.tolist() == [SlotState.READY, SlotState.FAILED, SlotState.BUSY]
    engine.reset(ALL[1:2], [None], None, drops=True)
    assert engine.slots.state.tolist() == [SlotState.IDLE, SlotState.BUSY, SlotState.BUSY]


def test_failures_of_any_number_leave_the_last_valid_observation() -> None:
    engine, told, _ = begun(raises=True)
    for _ in range(3):
        engine.reset(ALL[:1], [None], None)
        env, seq, *_ = told.asked.pop()
        told.slab.rows[0][env + (seq & 1) * COUNT] = 77.0  # half written
        engine.take_in(Failure(env, seq, problem()))
        assert engine.pending.last_valid(0).tolist() == [0.5]
