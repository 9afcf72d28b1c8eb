"""What on-policy schedules decide when chunks arrive, collectors are lost, or the run stops: no process, no wait, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest

from headrace.collectors.worker import CollectorWorker
from headrace.core.clock import FakeClock
from headrace.core.errors import ComponentStalled
from headrace.ipc.channel import Channel, MessagePipe
from headrace.lanes.credits import CREDIT_BYTES, Commit, commit_bytes
from headrace.lanes.rollouts import Arrived
from headrace.runtime.assembly import rate_limiter
from headrace.runtime.config import ExperimentConfig, load_config
from headrace.runtime.lockstep import Rounds
from headrace.runtime.overlapped import Overlapped
from headrace.runtime.training import Training
from headrace.supervision.messages import Command, Stop
from headrace.telemetry.board import Activity, Board
from schedule_support import FakeGroups, FakeKeeper

CHUNK = 4
GROUPS = 4
UPDATES = 2
"""Of one epoch set."""


@dataclass
class FakeLearner:
    """Trains on all chunks of the lowest number, or on as many of the oldest policies as there are groups."""

    config: ExperimentConfig
    log: list[str] = field(default_factory=list)
    env_steps: int = 0
    updates: int = 0
    version: int = 1
    writing: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Chunk that a group's collector is at, and its transitions so far."""
    arrived: list[Arrived] = field(default_factory=list)
    left: int = 0
    complete: bool = False
    during: list[Callable[[], None]] = field(default_factory=list)
    """What happens in each update that follows."""

    def __post_init__(self) -> None:
        self.limiter = rate_limiter(self.config)

    @property
    def at_rest(self) -> bool:
        return not self.left

    @property
    def due(self) -> bool:
        return bool(self.left) or self.complete

    def commit(self, commit: Commit) -> None:
        self.log.append(f"commit {commit.group}.{commit.chunk}")
        if not commit.last:
            self.env_steps += CHUNK
            self.arrived.append(Arrived(commit.group, commit.chunk, commit.version, (0,)))

    def salvage(self, group: int) -> int:
        chunk, made = self.writing.pop(group, (0, 0))
        self.log.append(f"salvage {group}")
        self.env_steps += made
        if made:
            self.arrived.append(Arrived(group, chunk, self.version, (0,)))
        return made

    def round_over(self) -> None:
        self.complete = bool(self.arrived)

    def update(self) -> None:
        if self.during:
            self.during.pop(0)()
        if not self.left:
            self._open()
        self.left -= 1
        self.updates += 1

    def publish(self) -> int:
        if self.updates // UPDATES >= self.version:
            self.version = self.updates // UPDATES + 1
        return self.version

    def _open(self) -> None:
        rollout = self.config.rollout
        lowest = min(one.chunk for one in self.arrived)
        if rollout.order == "chunk":
            taken = [one for one in self.arrived if one.chunk == lowest]
        else:
            taken = sorted(self.arrived, key=lambda one: one.version)[:GROUPS]
        assert max(self.version - one.version for one in taken) <= rollout.max_policy_lag
        self.arrived = [one for one in self.arrived if one not in taken]
        self.log.append("train " + " ".join(f"{one.group}.{one.chunk}" for one in taken))
        self.left, self.complete = UPDATES, False


@dataclass
class Groups(FakeGroups):
    """Of which the granted chunks arrive once, also where a limit is raised before they have been committed."""

    granted: list[tuple[int, int, int, int]] = field(default_factory=list)  # type: ignore[assignment]
    """(group, chunk, limit, version)"""
    begun: dict[int, int] = field(default_factory=dict)

    def grant(self, group: int, chunk: int, limit: int, version: int) -> None:
        self.granted.append((group, chunk, limit, version))
        if group not in self.mute:
            for number in range(max(chunk, self.begun.get(group, 0)), limit):
                self.arrive(group, number, version)
        self.begun[group] = limit

    def stop(self) -> list[int]:
        for group in self.present():
            self.arrive(group, 99, last=True)
        return self.present()


class Bench:
    """A training with fakes around it, and the supervisor's end of its control channel."""

    def __init__(self, **settings: object) -> None:
        base = {
            "env.id": "Pendulum-v1", "env.lanes": GROUPS, "collect.chunk_steps": CHUNK, "run.steps": 48,
            "run.collectors": 2, "run.schedule": "async", "evaluation.every_steps": 0, "algorithm.name": "ppo",
        }  # fmt: skip
        self.config = load_config(None, {**base, **settings})
        self.learner = FakeLearner(self.config)
        self.groups = Groups()
        self.supervisor, control = Channel.pair()
        self.channels = (self.supervisor, control)
        self.training = Training(
            self.learner, self.groups, control, self.config, FakeKeeper(), None, FakeClock()  # type: ignore[arg-type]
        )  # fmt: skip

    def tell(self, *messages: object) -> None:
        """Something that happens: the supervisor sends these."""
        for message in messages:
            self.supervisor.send(message, 1.0)

    def log(self, *kinds: str) -> list[str]:
        return [line for line in self.learner.log if line.split()[0] in kinds]


@pytest.fixture
def bench():
    made: list[Bench] = []

    def make(**settings: object) -> Bench:
        made.append(Bench(**{key.replace("__", "."): value for key, value in settings.items()}))
        return made[-1]

    yield make
    for one in made:
        for channel in one.channels:
            channel.close()


LOST = Command("lost", {"collector": 1})
JOINED = Command("joined", {"collector": 1, "incarnation": 1})


def everybody(chunk: int, groups: Sequence[int] = range(GROUPS)) -> str:
    return "train " + " ".join(f"{group}.{chunk}" for group in groups)


# Ahead of the learner


def test_strictly_on_policy_it_is_lockstep_whoever_was_first(bench):
    b = bench(run__steps=32)
    b.groups.mute = {0, 1, 2, 3}
    b.groups.then = [partial(b.groups.arrive, group, 0) for group in (3, 1, 0)]

    def last() -> None:
        b.groups.mute = set()
        b.groups.arrive(2, 0)

    b.groups.then.append(last)
    Overlapped(b.training).run()
    assert b.groups.granted == [(group, chunk, chunk + 1, chunk + 1) for chunk in (0, 1) for group in range(GROUPS)]
    rounds = [[*(f"commit {group}.{chunk}" for group in range(GROUPS)), everybody(chunk)] for chunk in (0, 1)]
    assert b.log("commit", "train")[:10] == [*rounds[0], *rounds[1]]
    assert b.groups.busy[:4] == [[0, 1, 2, 3], [0, 1, 2], [0, 2], [2]]


def test_rounds_train_when_all_have_been_taken_over(bench):
    b = bench(run__schedule="lockstep", run__steps=32)
    Rounds(b.training).run()
    rounds = [[*(f"commit {group}.{chunk}" for group in range(GROUPS)), everybody(chunk)] for chunk in (0, 1)]
    assert b.log("commit", "train")[:10] == [*rounds[0], *rounds[1]]
    assert (b.learner.updates, b.learner.version) == (4, 3)


def test_with_a_lag_the_next_round_is_collected_while_one_is_trained_on(bench):
    b = bench(rollout__max_policy_lag=1, run__steps=64)
    b.groups.mute = {0, 1, 2, 3}

    def first() -> None:
        for group in range(GROUPS):
            b.groups.arrive(group, 0)

    def others() -> None:
        b.groups.mute = set()
        for group in range(GROUPS):
            b.groups.arrive(group, 1)
            b.groups.arrive(group, 2, 2)

    b.groups.then = [first, others]
    Overlapped(b.training).run()
    assert [grant[1:] for grant in b.groups.granted if grant[0] == 0] == [(0, 2, 1), (1, 3, 2), (3, 4, 3)]
    assert b.log("train") == [everybody(chunk) for chunk in range(4)]


def test_by_arrival_a_slow_group_is_not_waited_for(bench):
    b = bench(rollout__max_policy_lag=1, rollout__order="arrival", run__steps=64)
    b.groups.mute = {3}

    def at_last() -> None:
        b.groups.mute = set()
        b.groups.arrive(3, 0)
        b.groups.arrive(3, 1)

    b.groups.then = [at_last]
    Overlapped(b.training).run()
    trained = b.log("train")
    assert "3.0" not in trained[0]
    assert "3.0" in " ".join(trained[1:3])
    assert sum(len(line.split()) - 1 for line in trained) * CHUNK == b.learner.env_steps


def test_nothing_is_granted_beyond_what_is_wanted(bench):
    b = bench(rollout__max_policy_lag=3, run__steps=2 * GROUPS * CHUNK)
    Overlapped(b.training).run()
    assert {limit for _, _, limit, _ in b.groups.granted} == {2}
    assert b.learner.env_steps == 2 * GROUPS * CHUNK
    assert not b.learner.arrived


# Lost and joined


@pytest.mark.parametrize("lag", [0, 1])
def test_who_is_lost_in_a_round_is_not_waited_for_and_comes_back(bench, lag):
    b = bench(rollout__max_policy_lag=lag, run__steps=64)
    b.groups.mute = {1, 3}
    b.learner.writing = {3: (0, 2)}

    def come_back() -> None:
        b.groups.mute = set()
        b.tell(JOINED)

    b.learner.during = [lambda: None, come_back]
    b.groups.then = [partial(b.tell, LOST)]
    Overlapped(b.training).run()
    trained = b.log("train")
    assert set(trained[0].split()[1:]) == {"0.0", "2.0", "3.0"}  # the last one is what was salvaged of it
    assert trained[-1] == everybody(max(grant[1] for grant in b.groups.granted))
    assert b.learner.env_steps >= 64


def test_what_a_lost_collector_had_committed_comes_before_what_is_salvaged(bench):
    b = bench(run__steps=16)
    b.groups.mute = {0, 1, 2, 3}
    b.learner.writing = {1: (0, 2)}

    def last_words() -> None:
        b.groups.arrive(3, 0)  # on its way when its process died
        b.tell(LOST)

    def rest() -> None:
        b.groups.mute = set()
        for group in (2, 0):
            b.groups.arrive(group, 0)

    b.groups.then = [last_words, rest]
    Overlapped(b.training).run()
    assert b.log("commit", "salvage", "train")[:6] == [
        "commit 3.0", "salvage 1", "salvage 3", "commit 0.0", "commit 2.0", "train 3.0 1.0 0.0 2.0",
    ]  # fmt: skip


def test_nobody_there_is_waited_for(bench):
    b = bench(run__steps=16)
    b.groups.gone = {0, 1}
    b.groups.then = [partial(b.tell, JOINED)]
    Overlapped(b.training).run()
    assert b.groups.busy[0] == []
    assert b.log("train")[0] == everybody(0, (1, 3))


@pytest.mark.parametrize(("order", "lag"), [("chunk", 0), ("chunk", 1), ("arrival", 1)])
def test_who_is_replaced_before_the_first_step_of_a_round_is_granted_the_next_one(bench, order, lag):
    b = bench(run__steps=8, rollout__max_policy_lag=lag, rollout__order=order)
    b.groups.gone, b.groups.mute = {0}, {1, 3}

    def comes_back() -> None:
        b.groups.mute = set()
        b.tell(JOINED)

    b.groups.then = [partial(b.tell, LOST), comes_back]
    Overlapped(b.training).run()
    assert b.groups.busy[:2] == [[1, 3], []]
    granted = [(group, chunk) for group, chunk, _, _ in b.groups.granted]
    assert granted == [(1, 0), (3, 0), (1, 1), (3, 1)]
    assert b.learner.env_steps == 8


# Stopped


@pytest.mark.parametrize("hurry", [False, True])
def test_an_epoch_set_that_is_open_is_completed_when_the_run_stops(bench, hurry):
    b = bench(run__steps=1000)

    def stop() -> None:
        b.groups.hurry = hurry
        b.tell(Stop("interrupted"))

    b.learner.during = [lambda: None, lambda: None, stop]
    Overlapped(b.training).run()
    assert b.training.stop_reason == "interrupted"
    assert (b.learner.updates, b.learner.at_rest) == (2 * UPDATES, True)
    assert b.log("train") == [everybody(0), everybody(1)]


def test_what_a_stop_finds_unfinished_is_taken_over_and_left_to_the_next_session(bench):
    b = bench(run__steps=1000, rollout__max_policy_lag=1)
    b.groups.mute = {3}
    b.groups.then = [partial(b.tell, Stop("enough"))]
    Overlapped(b.training).run()
    assert not b.log("train")
    assert [(one.group, one.chunk) for one in b.learner.arrived] == [(g, chunk) for g in range(3) for chunk in (0, 1)]
    assert b.groups.busy == [[0, 1, 2, 3], [3]]  # and for that one nobody waited once it was to stop


@pytest.mark.parametrize("driver", [Overlapped, Rounds])
def test_a_run_that_goes_on_trains_first_on_what_was_left(bench, driver):
    b = bench(run__steps=48, run__schedule="async" if driver is Overlapped else "lockstep")
    b.learner.arrived = [Arrived(group, 4, 1, (0,)) for group in range(GROUPS)]
    b.learner.env_steps = 16
    b.training.schedule_facts = {"chunks": [5] * GROUPS, "chunk": 5}
    run = driver(b.training)
    run.run()
    assert b.log("commit", "train")[0] == everybody(4)
    assert b.groups.granted[0] == (0, 5, 6, 2)
    assert b.log("train") == [everybody(chunk) for chunk in (4, 5, 6)]
    assert run.state() == ({"chunks": [7] * GROUPS} if driver is Overlapped else {"chunk": 7})


def test_rounds_that_hurry_leave_what_has_arrived_to_the_next_session(bench):
    b = bench(run__schedule="lockstep", run__steps=1000)
    b.groups.mute = {2}

    def hurry() -> None:
        b.groups.hurry = True
        b.tell(Stop("interrupted"))

    b.groups.then = [hurry]
    rounds = Rounds(b.training)
    rounds.run()
    assert not b.log("train")
    assert sorted(one.group for one in b.learner.arrived) == [0, 1, 3]
    assert not rounds.exact


# Whom a collector blames


@pytest.fixture
def waiting(tmp_path):
    """A collector that waits for credit, of a learner that can be made to do something."""
    with Board.create(
        tmp_path / "board", [(name, name) for name in ("supervisor", "learner", "collector-0", "collector-1")]
    ) as board:
        credit, commits = MessagePipe.create(CREDIT_BYTES), MessagePipe.create(commit_bytes(1))
        supervisor, control = Channel.pair()
        slot = board.slot("collector-0")
        yield board.slot("learner"), CollectorWorker({}, 0, credit, commits, control, board, slot)
        for one in (credit, commits, supervisor, control):
            one.close()


@pytest.mark.parametrize("on", ["collector-0", None])
def test_a_learner_that_waits_for_this_very_collector_or_stands_still_is_blamed(waiting, on):
    slot, worker = waiting
    if on is None:
        slot.enter(Activity.UPDATE, -1, 7)
    else:
        slot.waiting(Activity.WAIT_ROWS, on=on, need=1, have=0, deadline_s=9.0)
    with pytest.raises(ComponentStalled, match=r"collector-0 waited 0 s for credit, and the learner did nothing"):
        worker._wait(0.0)


@pytest.mark.parametrize("on", ["collector-1", "supervisor"])
def test_a_learner_that_waits_for_somebody_else_is_not_blamed(waiting, on):
    slot, worker = waiting
    slot.waiting(Activity.WAIT_ROWS, on=on, need=1, have=0, deadline_s=9.0)
    worker._wait(0.0)
