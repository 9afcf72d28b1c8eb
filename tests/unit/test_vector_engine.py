"""The engine over a backend that does what it is told, and a worker's ends of what is shared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from headrace.core.clock import FakeClock
from headrace.core.errors import ComponentDied, HeadraceError, RestartBudgetSpent
from headrace.ipc.shm import SharedBlock
from headrace.vector.complaints import Complaints
from headrace.vector.engine import Engine
from headrace.vector.events import Answers, Event, Failure
from headrace.vector.faults import FaultKind, Interrupted, Problem, broken_contract
from headrace.vector.handle import Handle
from headrace.vector.rows import Rows
from headrace.vector.signals import Signal
from headrace.vector.slab import Kind, Mailbox, Slab, plan
from headrace.vector.slots import Policy, Slots, SlotState
from headrace.vector.spaces import Layout
from headrace.vector.taking import take
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

    def submit(self, ids: Any, seqs: Any, resets: Any, _actions: Any) -> None:
        for env, seq in zip(ids.tolist(), seqs.tolist(), strict=True):
            self.asked.append((env, seq, Kind(self.slab.kind[env]), resets.get(env)))

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


def test_a_spent_budget_is_told_by_every_call() -> None:
    engine, told, _ = begun(per_env=0)
    step(engine)
    told.events.append(Failure(2, told.asked[2][1], problem()))
    for work in (lambda: engine.gather(None, COUNT), lambda: step(engine), lambda: engine.check_idle("x")):
        with pytest.raises(RestartBudgetSpent, match="environment 2 failed 1 times"):
            work()


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
    box.marks[0] = 5  # and the next one has begun
    in_turn._on_interrupt(0, None)
    box.interrupt(5)
    with pytest.raises(Interrupted):
        in_turn._on_interrupt(0, None)
    in_turn._on_interrupt(0, None)  # once
    del in_turn
    box.close()


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


def test_errors_of_lost_ones_are_of_a_component() -> None:
    from headrace.vector import losses

    lost = losses.lost_with("worker-1", 77, -9, {12}).of(3, 9)
    assert isinstance(lost.error, ComponentDied)
    assert lost.message.startswith(
        "[SUP-001] lost with worker-1, which environment 12 held up or ended\n  env: 3\n  step: 9\n  pid: 77\n"
    )
    for culprits, says in ((set(), "no environment"), ({4, 2}, "one of environments 2, 4")):
        text = str(losses.lost_with("worker-1", 77, -9, culprits).error)
        assert f"which ended (killed by SIGKILL (often the out-of-memory killer)), and {says} is known" in text
