"""What the schedules decide when collectors are lost, come back, or leave: no process, no wait, no clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headrace.core.clock import FakeClock
from headrace.ipc.channel import Channel
from headrace.lanes.credits import Commit
from headrace.runtime.assembly import rate_limiter
from headrace.runtime.asynchronous import FreeRun
from headrace.runtime.config import ExperimentConfig, load_config
from headrace.runtime.lockstep import Rounds
from headrace.runtime.training import Training
from headrace.supervision.messages import Command, Report, Stop
from schedule_support import FakeGroups, FakeKeeper

CHUNK = 4


@dataclass
class FakeLearner:
    """Counts what a learner would do, in the order it is done."""

    config: ExperimentConfig
    log: list[str] = field(default_factory=list)
    env_steps: int = 0
    updates: int = 0
    version: int = 1
    writing: dict[int, int] = field(default_factory=dict)
    """Transitions a group's collector has written and not committed."""
    ready_at: int = 0
    """Steps that are stored when there is a transition to draw."""
    at_rest = True
    arrived = ()

    def __post_init__(self) -> None:
        self.limiter = rate_limiter(self.config)

    @property
    def due(self) -> bool:
        return self.updates < self.limiter.updates_due(self.env_steps) and self.env_steps >= self.ready_at

    def commit(self, commit: Commit) -> None:
        self.log.append(f"commit {commit.group}.{commit.chunk}")
        self.env_steps += 0 if commit.last else CHUNK

    def salvage(self, group: int) -> int:
        self.log.append(f"salvage {group}")
        self.env_steps += self.writing.get(group, 0)
        return self.writing.pop(group, 0)

    def update(self) -> None:
        self.log.append("update")
        self.updates += 1

    def publish(self) -> int:
        self.version += 1
        return self.version


class Bench:
    """A training with fakes around it, and the supervisor's end of its control channel."""

    def __init__(self, **settings: object) -> None:
        base = {
            "env.id": "Pendulum-v1", "env.lanes": 4, "collect.chunk_steps": CHUNK, "run.steps": 32, "run.collectors": 2,
            "replay.learning_starts": 0, "collect.random_steps": 0, "evaluation.every_steps": 0,
        }  # fmt: skip
        self.config = load_config(None, {**base, **settings})
        self.learner = FakeLearner(self.config)
        self.groups = FakeGroups()
        self.supervisor, control = Channel.pair()
        self.channels = (self.supervisor, control)
        self.training = Training(
            self.learner, self.groups, control, self.config, FakeKeeper(), None, FakeClock()  # type: ignore[arg-type]
        )  # fmt: skip

    def tell(self, *messages: object) -> Callable[[], None]:
        """Something that happens: the supervisor sends these."""

        def send() -> None:
            for message in messages:
                self.supervisor.send(message, 1.0)

        return send

    def salvaged(self) -> list[dict[str, int]]:
        return [message.facts for message in self.supervisor.receive_all() if isinstance(message, Report)]

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


def lost(collector: int) -> Command:
    return Command("lost", {"collector": collector})


def joined(collector: int) -> Command:
    return Command("joined", {"collector": collector, "incarnation": 1})


# Rounds


def test_round_takes_groups_over_in_their_order_whoever_was_first(bench):
    b = bench(run__schedule="lockstep", run__steps=16, replay__ratio=0.25)
    b.groups.mute = {0, 1, 2, 3}
    b.groups.then = [lambda g=g: b.groups.arrive(g, 0) for g in (3, 1, 0)]

    def last() -> None:
        b.groups.mute = set()
        b.groups.arrive(2, 0)

    b.groups.then.append(last)
    Rounds(b.training).run()
    assert b.log("commit")[:4] == ["commit 0.0", "commit 1.0", "commit 2.0", "commit 3.0"]
    assert b.learner.updates == 4
    assert b.groups.busy[:4] == [[0, 1, 2, 3], [0, 1, 2], [0, 2], [2]]


def test_collector_lost_in_the_middle_of_a_round_and_joined_again(bench):
    b = bench(run__schedule="lockstep", run__steps=40, replay__ratio=0.25)
    b.groups.mute = {1, 3}
    b.learner.writing = {1: 3, 3: 1}

    def lose() -> None:
        b.groups.mute = {2}
        b.tell(lost(1))()

    def come_back() -> None:
        b.groups.mute = set()
        b.groups.arrive(2, 1)
        b.tell(joined(1))()

    b.groups.then = [lose, come_back]
    Rounds(b.training).run()
    # The first round ends without it, the second has none of its groups, the third has them again.
    assert b.log("commit", "salvage")[:4] == ["commit 0.0", "salvage 1", "salvage 3", "commit 2.0"]
    assert b.log("commit")[2:8] == ["commit 0.1", "commit 2.1", "commit 0.2", "commit 1.2", "commit 2.2", "commit 3.2"]
    assert b.salvaged() == [{"collector": 1, "transitions": 4}]


def test_what_a_lost_collector_had_committed_comes_before_what_is_salvaged(bench):
    b = bench(run__schedule="lockstep", run__steps=16)
    b.groups.mute = {0, 1, 3}

    def last_words() -> None:
        b.groups.arrive(3, 0)  # on its way when its process died
        b.tell(lost(1), Stop("enough"))()

    b.groups.then = [lambda: b.groups.arrive(0, 0), last_words]
    b.groups.stop = list
    Rounds(b.training).run()
    assert b.log("commit", "salvage") == ["commit 0.0", "commit 3.0", "salvage 1", "salvage 3", "commit 2.0"]


def test_both_collectors_lost_at_once(bench):
    b = bench(run__schedule="lockstep", run__steps=16)
    b.groups.mute = {0, 1, 2, 3}

    def come_back() -> None:
        b.groups.mute = set()
        b.tell(joined(0))()

    b.groups.then = [b.tell(lost(1), lost(0)), come_back]
    Rounds(b.training).run()
    assert b.log("salvage") == ["salvage 1", "salvage 3", "salvage 0", "salvage 2"]
    assert b.groups.busy[1] == []  # nobody is there to be waited for
    assert b.log("commit")[:2] == ["commit 0.1", "commit 2.1"]


@pytest.mark.parametrize("schedule", ["lockstep", "async"])
def test_collector_lost_while_the_run_stops(bench, schedule):
    b = bench(run__schedule=schedule)
    b.groups.mute = {1, 3}
    b.learner.writing = {1: 2}
    b.groups.then = [b.tell(Stop("interrupted")), b.tell(lost(1))]
    run = Rounds(b.training) if schedule == "lockstep" else FreeRun(b.training)
    run.run()
    assert b.log("salvage") == ["salvage 1", "salvage 3"]
    assert b.salvaged() == [{"collector": 1, "transitions": 2}]
    assert b.training.stop_reason == "interrupted"
    assert not b.groups.then


def test_stop_lets_a_round_end_so_that_the_run_can_go_on_from_there(bench):
    b = bench(run__schedule="lockstep", replay__ratio=1.0)
    b.groups.mute = {2}
    b.groups.then = [b.tell(Stop("interrupted")), lambda: b.groups.arrive(2, 0)]
    b.groups.then += [lambda: b.groups.arrive(2, 1, last=True)]
    rounds = Rounds(b.training)
    rounds.run()
    assert b.learner.updates == 16
    assert (rounds.state(), rounds.exact) == ({"chunk": 1}, True)


def test_an_end_that_hurries_does_not_wait_for_a_round(bench):
    b = bench(run__schedule="lockstep")
    b.groups.mute = {2}

    def hurry() -> None:
        b.groups.hurry = True

    b.groups.then = [b.tell(Stop("interrupted")), hurry, lambda: b.groups.arrive(2, 0, last=True)]
    rounds = Rounds(b.training)
    rounds.run()
    assert b.learner.updates <= 1 + 8
    assert "commit 2.0" in b.log("commit")
    assert not rounds.exact


@pytest.mark.parametrize("lose", [False, True])
def test_a_round_that_is_ended_before_its_first_step_counts_as_not_begun(bench, lose):
    """Unless a collector was lost in it: that cuts an episode."""
    b = bench(run__schedule="lockstep")
    b.groups.mute = {0, 1, 2, 3}

    def hurry() -> None:
        b.groups.hurry = True

    b.groups.then = [b.tell(lost(1))] if lose else []
    b.groups.then += [b.tell(Stop("interrupted")), hurry]
    for group in (0, 2) if lose else (0, 1, 2, 3):
        b.groups.then.append(lambda group=group: b.groups.arrive(group, 0, last=True))
    rounds = Rounds(b.training)
    rounds.run()
    assert (b.learner.env_steps, b.learner.updates) == (0, 0)
    assert (rounds.state(), rounds.exact) == (({"chunk": 1}, False) if lose else ({"chunk": 0}, True))


# Free runs


def test_warm_up_is_bounded_by_the_window_alone(bench):
    b = bench(
        run__schedule="async",
        run__steps=200,
        replay__learning_starts=24,
        replay__slack_steps=32,
        collect__window_chunks=2,
    )
    b.groups.mute = {0, 1, 2, 3}
    free = FreeRun(b.training)
    free._grant()
    assert sorted(b.groups.granted) == [(group, 2, 1) for group in range(4)]
    for group in range(4):
        free.on_commit(Commit(0, group, 0, 1, last=False, lanes=()))
        free._grant()
        assert b.groups.granted[-1] == (group, 3, 1)  # each chunk that arrives is replaced at once


def test_lost_credit_goes_to_others(bench):
    b = bench(run__schedule="async", run__steps=16, collect__window_chunks=4)
    b.groups.mute = {1, 3}
    b.groups.then = [b.tell(lost(1))]
    FreeRun(b.training).run()
    assert b.learner.env_steps == 16
    assert {line.split(".")[0] for line in b.log("commit")} == {"commit 0", "commit 2"}


@pytest.mark.parametrize("schedule", ["lockstep", "async"])
def test_goes_on_to_its_target_without_a_collector_that_is_left_out(bench, schedule):
    b = bench(run__schedule=schedule, run__steps=48, replay__ratio=0.25)
    b.groups.mute = {1, 3}
    b.groups.then = [b.tell(lost(1), Command("left_out", {"groups": [1, 3]}))]
    (Rounds(b.training) if schedule == "lockstep" else FreeRun(b.training)).run()
    assert b.groups.left_out == [1, 3]
    assert b.learner.env_steps >= 48
    assert b.learner.updates == 12


def test_last_commit_is_made_without_credit(bench):
    b = bench(run__schedule="async", run__steps=64)
    free = FreeRun(b.training)
    free.on_commit(Commit(0, 1, 0, 1, last=True, lanes=()))
    assert free._book.committed == [0] * 4


def test_joined_again_goes_on_where_it_was(bench):
    b = bench(run__schedule="async", run__steps=64, replay__slack_steps=32)
    free = FreeRun(b.training)
    free.on_commit(Commit(0, 1, 0, 1, last=False, lanes=()))
    free.on_lost(b.groups.lost(1))
    free.on_joined(b.groups.joined(1, 1))
    free._grant()
    assert (1, 3, 1) in b.groups.granted
    assert [commit.chunk for commit in b.groups.arriving if commit.group == 1] == [1, 2]


def test_first_update_comes_with_the_commit_that_makes_it_possible(bench):
    b = bench(run__schedule="async", run__steps=32, replay__learning_starts=12, replay__ratio=0.25)
    FreeRun(b.training).run()
    first = b.learner.log.index("update")
    assert b.learner.log[:first].count("update") == 0
    assert b.learner.updates == 1 + (b.learner.env_steps - 12) // 4


def test_free_running_ends_with_collecting(bench):
    b = bench(run__schedule="async", run__steps=16, replay__free_running=True)
    b.groups.mute = {0, 1, 2, 3}
    b.groups.then = [lambda: b.groups.arrive(0, 0)]
    b.groups.stop = list
    update = b.learner.update

    def updated() -> None:
        update()
        assert b.learner.updates < 100, "never ends"
        if b.learner.updates % 3 == 0:
            b.groups.arrive(b.learner.updates // 3, 0)

    b.learner.update = updated
    FreeRun(b.training).run()
    assert b.learner.env_steps == 16
    assert b.learner.updates == 9  # while more steps were wanted


def test_collecting_is_one_round_ahead_while_the_learner_has_something_to_do(bench):
    b = bench(run__schedule="async", run__steps=400, collect__window_chunks=20)
    b.groups.mute = {0, 1, 2, 3}
    free = FreeRun(b.training)
    free._grant()
    assert free._book.outstanding_steps == 20  # 16 beyond the first, in whole chunks
    free._let_ahead()  # it has made no update yet
    assert free._book.outstanding_steps == 20
    free._worked = True
    free._let_ahead()
    assert free._book.outstanding_steps == 24
    free._let_ahead()  # it still waits for the same
    assert free._book.outstanding_steps == 24


def test_all_of_the_slack_is_granted_where_nobody_would_collect(bench):
    b = bench(run__schedule="async", run__steps=400, collect__window_chunks=20, replay__learning_starts=64)
    b.learner.env_steps = 82
    free = FreeRun(b.training)
    free._grant()
    assert free._book.outstanding_steps == 0
    free._let_ahead()
    assert free._book.outstanding_steps == 16  # to 64 and two rounds


def test_a_slack_that_was_asked_for_is_kept_to(bench):
    b = bench(run__schedule="async", run__steps=400, collect__window_chunks=20, replay__slack_steps=40)
    b.groups.mute = {0, 1, 2, 3}
    free = FreeRun(b.training)
    free._grant()
    assert free._book.outstanding_steps == 44


STARVED = {"run__schedule": "async", "replay__learning_starts": 4, "replay__slack_steps": CHUNK, "replay__n_step": 5}
"""Collecting may be eight steps ahead of the first update, which are spread over four lanes."""


def test_collecting_goes_on_while_an_update_is_due_and_no_lane_holds_its_steps(bench):
    b = bench(run__steps=64, replay__ratio=0.25, **STARVED)
    b.learner.ready_at = 4 * 5
    FreeRun(b.training).run()
    first = b.learner.log.index("update")
    assert len([line for line in b.learner.log[:first] if line.startswith("commit")]) >= 5
    assert b.learner.updates == 1 + (b.learner.env_steps - 4) // 4


def test_collecting_does_not_run_away_from_updates_that_cannot_be_made(bench):
    b = bench(run__steps=4000, **STARVED)
    b.learner.ready_at = 10**6
    b.groups.then = [b.tell(Stop("enough"))]
    FreeRun(b.training).run()
    ahead = b.learner.limiter.steps_allowed(0, starved=True)
    assert ahead <= sum(CHUNK for line in b.log("commit") if not line.endswith(".99")) < ahead + CHUNK
