"""What is counted against what is declared: each planted defect is named, and an honest run is left alone."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from gymnasium import spaces

from headrace.algorithms.base import Transitions
from headrace.algorithms.flat import FlatAdam
from headrace.algorithms.td3 import TD3
from headrace.lanes.credits import Commit, LaneCommit
from headrace.lanes.rate_limiter import RateLimiter
from headrace.learners.intervals import never_hit
from headrace.learners.ledgerbook import LedgerBook
from headrace.runtime.asynchronous import FreeRun
from headrace.runtime.config import ExperimentConfig, dump_toml, load_config
from headrace.runtime.lockstep import Rounds

GROUPS = 4
CHUNK = 4
OWNERS = ("collector-0", "collector-1", "collector-0", "collector-1")


def config(**changes: object) -> ExperimentConfig:
    base = {
        "env.id": "Pendulum-v1", "env.lanes": GROUPS, "collect.chunk_steps": CHUNK, "run.steps": 600, "run.collectors": 2,
        "replay.learning_starts": 0, "collect.random_steps": 0, "evaluation.every_steps": 0, "learn.publish_every": 10,
        "algorithm.batch_size": 8, "algorithm.actor.hidden": [8], "algorithm.critic.hidden": [8],
    }  # fmt: skip
    return load_config(None, {**base, **{key.replace("__", "."): value for key, value in changes.items()}})


def limiter(settings: ExperimentConfig) -> RateLimiter:
    replay = settings.replay
    ratio = None if replay.free_running else replay.ratio
    return RateLimiter(max(1, replay.learning_starts), ratio, 2 * GROUPS * CHUNK, settings.run.steps)


def wrong(facts: Sequence[dict]) -> dict[str, str]:
    return {one["name"]: one["text"] for one in facts if not one["ok"]}


# --- a real algorithm, updated by a learner that keeps the book


def batch(seed: int) -> Transitions:
    rng = np.random.default_rng(seed)
    obs, following = rng.standard_normal((2, 8, 3)).astype(np.float32)
    action = rng.uniform(-2, 2, (8, 1)).astype(np.float32)
    return Transitions({"obs": obs}, {"action": action}, rng.standard_normal(8), np.full(8, 0.99), {"obs": following})


class Bench:
    """TD3 and its book: one environment step, one update, a policy after every tenth."""

    def __init__(self, **changes: object) -> None:
        self.config = config(**changes)
        self.algorithm = TD3(
            self.config.algorithm, spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-2, 2, (1,), np.float32), 0
        )
        self.book = LedgerBook(self.config, OWNERS)
        self.asked = self.env_steps = self.version = 0
        self.publish()
        self.book.begin(0, 0, 1)

    def publish(self) -> None:
        self.version += 1
        self.book.published(self.version, self.algorithm.updates, self.env_steps, self.algorithm.policy_arrays())

    def make(self, updates: int) -> dict[str, str]:
        """So many updates; what is wrong then."""
        for _ in range(updates):
            self.env_steps += 1
            self.algorithm.observe(batch(self.asked).obs, self.env_steps)
            self.book.stored(self.env_steps, self.algorithm.updates)
            self.algorithm.update(batch(self.asked))
            self.asked += 1
            if self.algorithm.updates % 10 == 0:
                self.publish()
        return wrong(self.facts())

    def facts(self) -> list[dict]:
        return self.book.facts(self.algorithm.ledger(), self.algorithm.updates, self.env_steps, self.asked, 0.0)


def test_two_hundred_plain_updates_are_in_order():
    bench = Bench(algorithm__exploration__scale=0.5, algorithm__exploration__final_scale=0.1,
                  algorithm__exploration__decay_steps=100)  # fmt: skip
    for _ in range(200):
        assert bench.make(1) == {}
    found = {one["name"]: (one["done"], one["declared"]) for one in bench.facts()}
    assert found == {
        "target_actor_moves": (100, 100), "target_critic_moves": (100, 100), "critic_steps": (200, 200),
        "actor_steps": (100, 100), "critic_optimisers": (1, 1), "actor_optimisers": (1, 1), "critic_lr": (3e-4, 3e-4),
        "actor_lr": (3e-4, 3e-4), "updates_counted": (200, 200), "updates": (200, 200), "policies_published": (20, 20),
        "exploration_scale": (pytest.approx(0.1), pytest.approx(0.1)), "checkpoint_age_s": (0.0, 300.0),
    }  # fmt: skip
    assert json.loads(json.dumps(bench.facts())) == bench.facts()
    assert bench.book.news(final=True) == []


def test_double_target_update():
    bench = Bench()
    once = bench.algorithm._move_targets
    bench.algorithm._move_targets = lambda: (once(), once())
    assert bench.make(41) == {
        name: f"the {what} moved 40 times in 41 updates; algorithm.policy_delay 2 declares 20"
        for name, what in (("target_actor_moves", "target actor"), ("target_critic_moves", "target critic"))
    }


def test_one_target_is_moved_in_every_update():
    bench = Bench()
    update = bench.algorithm.update

    def eager(b: Transitions) -> None:
        update(b)
        bench.algorithm._target_critic_flat.lerp_(bench.algorithm._critic_flat, 0.005)

    bench.algorithm.update = eager
    assert list(bench.make(1)) == ["target_critic_moves"]


def test_skipped_target_update():
    bench = Bench()
    bench.algorithm._move_targets = lambda: None
    assert bench.make(1) == {}
    assert bench.make(1)["target_critic_moves"] == (
        "the target critic moved 0 times in 2 updates; algorithm.policy_delay 2 declares 1"
    )


def test_skipped_target_update_by_the_rule_of_sbx():
    bench = Bench(algorithm__rule="sbx")
    assert bench.make(3) == {}
    bench.algorithm._move_targets = lambda: None
    assert bench.make(1)["target_critic_moves"] == (
        'the target critic moved 3 times in 4 updates; algorithm.rule "sbx" declares 4'
    )


def test_optimiser_stepped_twice():
    bench = Bench()
    step = bench.algorithm._adams["critic"].step
    bench.algorithm._adams["critic"].step = lambda: (step(), step())
    assert bench.make(30) == {
        "critic_steps": "the optimiser of the critic has made 60 steps in 30 updates; the algorithm declares 30"
    }


def test_optimiser_made_again():
    bench = Bench()
    assert bench.make(40) == {}
    bench.algorithm._adams["actor"] = FlatAdam(bench.algorithm._actor_flat, 3e-4)
    assert bench.make(20) == {
        "actor_steps": (
            "the optimiser of the actor has made 10 steps in 60 updates; algorithm.policy_delay 2 declares 30; "
            "the count has fallen from 20: it was made again, and its moments began anew"
        ),
        "actor_optimisers": ("2 optimisers were made for the actor, where 1 is declared: each begins without moments"),
    }


def test_optimiser_made_again_inside_and_one_that_is_never_the_same():
    inside, every = Bench(), Bench()
    adam = inside.algorithm._adams["critic"]
    inside.make(10)
    for moment in adam._moments.values():
        moment.zero_()
    assert inside.make(5)["critic_steps"].startswith(
        "the optimiser of the critic has made 5 steps in 15 updates; the algorithm declares 15; the count has fallen"
    )
    update = every.algorithm.update

    def forgetful(b: Transitions) -> None:
        every.algorithm._adams["critic"] = FlatAdam(every.algorithm._critic_flat, 3e-4)
        update(b)

    every.algorithm.update = forgetful
    assert set(every.make(3)) == {"critic_steps", "critic_optimisers"}


def test_learning_rate_that_nobody_declared():
    bench = Bench(algorithm__critic_lr=1e-3)
    bench.algorithm._adams["critic"].lr = 0.1
    assert bench.make(1) == {"critic_lr": "the learning rate of the critic is 0.1; algorithm.critic_lr declares 0.001"}


def test_updates_that_are_counted_twice():
    bench = Bench()
    update = bench.algorithm.update

    def counted_twice(b: Transitions) -> None:
        update(b)
        bench.algorithm.updates += 1

    bench.algorithm.update = counted_twice
    found = bench.make(4)
    assert found["updates_counted"] == "the algorithm counts 8 updates; the learner asked for 4"
    assert "critic_steps" in found


@pytest.mark.parametrize("defect", ["observe", "policy_arrays"])
def test_schedule_that_does_not_reach_the_collectors(defect):
    bench = Bench(algorithm__exploration__scale=0.5, algorithm__exploration__final_scale=0.1,
                  algorithm__exploration__decay_steps=100)  # fmt: skip
    if defect == "observe":
        bench.algorithm.observe = lambda obs, env_steps: None
    else:
        copies = {name: array.copy() for name, array in bench.algorithm.policy_arrays().items()}
        bench.algorithm.policy_arrays = lambda: copies
    assert bench.make(10) == {
        "exploration_scale": (
            "policy 2 explores with scale 0.5; algorithm.exploration declares 0.46 at step 10, at which it was published"
        )
    }


def test_counts_survive_saving_and_so_do_mismatches():
    sound, broken = Bench(), Bench()
    once = broken.algorithm._move_targets
    broken.algorithm._move_targets = lambda: (once(), once())
    for bench in (sound, broken):
        bench.make(10)
        successor = Bench()
        successor.algorithm.load_state({name: array.copy() for name, array in bench.algorithm.state().items()})
        assert successor.algorithm.ledger() == bench.algorithm.ledger()
        successor.asked = successor.env_steps = 10
        successor.book.begin(10, 10, 1)
        assert set(successor.make(5)) == ({"target_actor_moves", "target_critic_moves"} if bench is broken else set())


def test_ledger_is_the_same_whenever_it_is_looked_at():
    one, other = Bench(), Bench()
    for _ in range(12):
        one.make(1)
    other.make(12)
    assert one.algorithm.ledger() == other.algorithm.ledger()


def test_a_mismatch_is_told_once_and_only_when_it_stays():
    bench = Bench()
    bench.algorithm._adams["critic"].lr = 0.1
    bench.facts()
    assert bench.book.news() == []
    bench.facts()
    (told,) = bench.book.news()
    assert (told["name"], told["ok"], told["severity"], told["declared"]) == ("critic_lr", False, "warning", 3e-4)
    assert told["remedy"].startswith("hand the configured rate to the optimiser")
    bench.facts()
    assert bench.book.news() == []
    bench.algorithm._adams["critic"].lr = 3e-4
    assert wrong(bench.facts()) == {}


def test_at_the_end_one_look_is_enough():
    bench = Bench()
    bench.algorithm._adams["critic"].lr = 0.1
    bench.facts()
    assert [one["name"] for one in bench.book.news(final=True)] == ["critic_lr"]
    assert bench.book.news(final=True) == []


def test_counts_without_a_declaration_may_only_rise():
    book = LedgerBook(config(), OWNERS)
    assert book.facts({"alpha_steps": 7, "alpha": 3.0}, 0, 0, 0, 0.0) == book.facts({}, 0, 0, 0, 0.0)
    found = wrong(book.facts({"alpha_steps": 2, "alpha": 1.0}, 0, 0, 0, 0.0))
    assert list(found) == ["alpha_steps"]
    assert "the count has fallen from 7" in found["alpha_steps"]
    # Everything begun anew, declarations too, is no excuse.
    assert list(wrong(book.facts({"alpha_steps": 2, "alpha_steps_declared": 2}, 0, 0, 0, 0.0))) == ["alpha_steps"]


# --- the real schedules, with a learner that only counts


@dataclass
class Part:
    """A group: chunks it may make, the one it makes, those on their way."""

    next: int = 0
    limit: int = 0
    acting: int | None = None
    present: bool = True


class Groups:
    """Collectors that work when they like, each chunk with the newest policy when it begins; `take` gives what has come."""

    def __init__(self, rng: np.random.Generator, version: Callable[[], int]) -> None:
        self.rng, self.version = rng, version
        self.parts = [Part() for _ in range(GROUPS)]
        self.pipe: deque[Commit] = deque()
        self.stopping = False
        self.stuck: dict[int, int] = {}
        """Groups that go on with a policy they have, whatever is published."""

    def grant(self, group: int, chunk: int, limit: int, version: int) -> None:
        part = self.parts[group]
        part.next, part.limit = max(part.next, chunk), max(part.limit, limit)

    def work(self) -> None:
        for group in self.rng.permutation(GROUPS).tolist():
            part = self.parts[group]
            for _ in range(self.rng.integers(0, 4)):
                if not part.present:
                    continue
                if part.acting is not None:
                    self.send(group, last=False)
                elif part.next < part.limit:
                    part.acting = self.stuck.get(group, self.version())

    def send(self, group: int, *, last: bool) -> None:
        part = self.parts[group]
        version = self.version() if part.acting is None else part.acting
        lanes = (LaneCommit(0, 0 if last else CHUNK, 0),)
        self.pipe.append(Commit(0, group, part.next, version, last, lanes))
        part.next, part.acting = part.next + 1, None

    def take(self) -> list[Commit]:
        self.work()
        count = int(self.rng.integers(0, len(self.pipe) + 1))
        return [self.pipe.popleft() for _ in range(count)]

    def wait(self, waiting_for: Sequence[int], control_fd: int) -> None:
        self.work()

    def present(self) -> list[int]:
        return [group for group, part in enumerate(self.parts) if part.present]

    def hurried(self) -> bool:
        return self.stopping

    def stop(self) -> list[int]:
        self.stopping = True
        for group in self.present():
            if self.parts[group].acting is not None:
                self.send(group, last=False)
            self.send(group, last=True)
        return self.present()


class Counting:
    """Learner and training in one: what `LedgerBook` is told, and when, is what the real ones would tell it."""

    def __init__(self, settings: ExperimentConfig, seed: int) -> None:
        self.config, self.rng = settings, np.random.default_rng(seed)
        self.book = LedgerBook(settings, OWNERS)
        self.groups = Groups(self.rng, lambda: self.version)
        self.limiter = limiter(settings)
        self.env_steps = self.updates = self.version = self.asked = 0
        self.published_updates = -1
        self.stop_reason: str | None = None
        self.control_fd = -1
        self.schedule_facts: dict[str, object] = {}
        self.lose = 0.0
        self.looks: list[dict[str, str]] = []
        self.last: list[dict] = []
        every = settings.evaluation.every_steps
        self.next = every
        self.evaluated = 0
        self.publish()
        self.book.begin(0, 0, 1)

    @property
    def learner(self) -> Counting:
        return self

    def run(self) -> Counting:
        (FreeRun if self.config.run.schedule == "async" else Rounds)(self).run()  # type: ignore[arg-type]
        self.freeze()
        self.look()
        return self

    def look(self) -> None:
        self.last = self.book.facts({"updates": self.updates}, self.updates, self.env_steps, self.asked, 0.0)
        self.looks.append(wrong(self.last))

    @property
    def found(self) -> set[str]:
        return {name for look in self.looks for name in look}

    # As a learner.

    arrived = ()

    @property
    def due(self) -> bool:
        return self.updates < self.limiter.updates_due(self.env_steps)

    def commit(self, commit: Commit) -> None:
        self.book.committed(commit, self.updates)
        self.take_in(sum(lane.transitions for lane in commit.lanes))

    def take_in(self, steps: int) -> None:
        self.env_steps += steps
        self.book.stored(self.env_steps, self.updates)

    def update(self) -> None:
        self.updates += 1
        self.asked += 1

    def publish(self) -> int:
        if self.published_updates != self.updates:
            self.version += 1
            self.published_updates = self.updates
            self.book.published(self.version, self.updates, self.env_steps, {})
        return self.version

    # As a training.

    def learn(self, schedule: object) -> None:
        while self.due and not self.groups.hurried():
            self.update()
            self.tick(schedule)

    @property
    def collecting(self) -> bool:
        return self.stop_reason is None and self.env_steps < self.config.run.steps

    @property
    def evaluation_due(self) -> bool:
        return bool(self.config.evaluation.every_steps) and self.env_steps >= self.next

    @property
    def boundary_due(self) -> bool:
        return self.evaluation_due

    def boundary(self, schedule: object = None) -> None:
        if self.evaluation_due and self.updates:
            every = self.config.evaluation.every_steps
            self.next = (self.env_steps // every + 1) * every
            self.freeze()

    def freeze(self) -> None:
        version = self.publish()
        if version != self.evaluated:
            self.evaluated = version
            self.book.frozen()

    def tick(self, schedule: FreeRun | Rounds) -> None:
        self.look()
        if self.rng.random() < self.lose:
            self.lost(schedule)
        for part in self.groups.parts:
            if not part.present and self.rng.random() < 0.3:
                part.present, part.limit = True, part.next
                schedule.on_joined([self.groups.parts.index(part)])

    def lost(self, schedule: FreeRun | Rounds) -> None:
        group = int(self.rng.integers(GROUPS))
        while self.groups.pipe:
            schedule.on_commit(self.groups.pipe.popleft())
        part = self.groups.parts[group]
        written = 0 if part.acting is None else int(self.rng.integers(0, CHUNK))
        part.present, part.acting = False, None
        schedule.on_lost([group])
        self.take_in(written)

    def leave(self, schedule: FreeRun | Rounds) -> None:
        self.lose = 0.0
        self.groups.stop()
        while self.groups.pipe:
            for commit in self.groups.take():
                schedule.on_commit(commit)
            self.look()


@pytest.mark.parametrize("schedule", ["async", "lockstep"])
@pytest.mark.parametrize("seed", range(12))
def test_no_false_alarm_whatever_the_timing(schedule, seed):
    rng = np.random.default_rng(seed)
    run = Counting(
        config(
            run__schedule=schedule,
            run__steps=int(rng.integers(100, 500)),
            replay__learning_starts=int(rng.choice([0, 30, 90])),
            replay__ratio=float(rng.choice([0.02, 0.25, 1.0, 3.0])),
            learn__publish_every=int(rng.choice([1, 3, 10])),
            collect__window_chunks=int(rng.choice([1, 2, 5])),
            evaluation__every_steps=int(rng.choice([3, 16, 50, 100])),
        ),
        seed,
    )
    run.lose = float(rng.choice([0.0, 0.02]))
    run.run()
    assert run.found == set()
    assert run.env_steps >= run.config.run.steps
    assert run.updates > 0


def test_no_false_alarm_when_a_run_is_stopped_early():
    for seed in range(12):
        for schedule in ("async", "lockstep"):
            run = Counting(config(run__schedule=schedule, evaluation__every_steps=20), seed)
            tick, left = run.tick, 3 + seed

            def stopping(given: object, run=run, tick=tick) -> None:
                nonlocal left
                tick(given)
                left -= 1
                if left == 0:
                    run.stop_reason, run.groups.stopping = "interrupted", True

            run.tick = stopping  # type: ignore[method-assign]
            assert run.run().found == set()
            assert run.stop_reason is not None


def test_free_running_has_no_ratio_to_keep():
    run = Counting(config(run__schedule="async", replay__free_running=True), 0).run()
    assert run.found == set()
    assert "updates" not in {one["name"] for one in run.last}


@pytest.mark.parametrize("schedule", ["async", "lockstep"])
def test_policies_that_do_not_reach_a_collector(schedule):
    run = Counting(config(run__schedule=schedule), 1)
    run.groups.stuck = {1: 1}
    run.run()
    assert run.found == {"policy_in_use/collector-1"}
    text = run.looks[-1]["policy_in_use/collector-1"]
    assert text.startswith(
        f"collector-1 acts with policy 1 (group 1) since {run.version - 1} publications, although policy "
    )
    assert text.endswith(" was there before its newest chunk began: new weights do not reach it")


@pytest.mark.parametrize("schedule", ["async", "lockstep"])
def test_policies_that_are_not_published(schedule):
    run = Counting(config(run__schedule=schedule), 2)
    publish = run.publish
    run.publish = lambda: publish() if run.updates < 300 else run.version  # type: ignore[method-assign]
    run.run()
    assert run.found == {"policies_published"}
    assert "policies were published in" in run.looks[-1]["policies_published"]


def test_policies_that_are_published_too_often():
    run = Counting(config(run__schedule="async"), 3)
    update = run.update
    run.update = lambda: (update(), run.publish())  # type: ignore[method-assign]
    run.run()
    assert run.found == {"policies_published"}
    assert run.looks[-1]["policies_published"] == (
        f"{run.updates} policies were published in {run.updates} updates; learn.publish_every 10 declares "
        f"{run.updates // 10}, beside those for evaluations and checkpoints"
    )


@pytest.mark.parametrize("schedule", ["async", "lockstep"])
def test_evaluations_that_are_forgotten(schedule):
    run = Counting(config(run__schedule=schedule, evaluation__every_steps=100), 4)
    boundary = run.boundary
    run.boundary = lambda given: boundary(given) if run.env_steps < 250 else None  # type: ignore[method-assign]
    run.run()
    assert "evaluations" in run.found
    assert run.looks[-1]["evaluations"].endswith("evaluation.every_steps 100 declares 6, beside the one at the end")


def test_evaluations_that_are_made_too_often():
    run = Counting(config(run__schedule="async", evaluation__every_steps=100), 5)
    update = run.update
    run.update = lambda: (update(), run.freeze())  # type: ignore[method-assign]
    run.run()
    assert "evaluations" in run.found


def on_policy_book() -> LedgerBook:
    settings = {"env.id": "CartPole-v1", "algorithm.name": "ppo", "evaluation.every_steps": 100, "env.lanes": GROUPS}
    book = LedgerBook(load_config(None, settings), OWNERS)
    book.begin(0, 0, 1)
    return book


def evaluations(book: LedgerBook, updates: int, env_steps: int) -> bool:
    return "evaluations" not in wrong(book.facts({}, updates, env_steps, updates, 0.0))


def test_an_epoch_set_that_is_long_has_forgotten_no_evaluation():
    book = on_policy_book()
    for version in range(2, 8):
        env_steps, updates = 128 * (version - 1), 6 * (version - 1)
        book.stored(env_steps, updates - 6)
        assert all(evaluations(book, updates - left, env_steps) for left in (5, 4, 3, 2, 1, 0))  # looks while it trains
        book.published(version, updates, env_steps, {})
        if version < 7:
            book.frozen()
    assert not evaluations(book, updates, env_steps)  # the last one was forgotten
    assert book.news(final=True)[0]["text"].startswith("5 policies were frozen for evaluation up to step 768; ")


def test_what_is_frozen_after_rollouts_without_a_step_was_due():
    book, updates = on_policy_book(), 0
    for version in range(2, 9):
        env_steps = 200 * (version - 1)
        updates += 6
        book.stored(env_steps - 100, updates - 6)
        book.frozen()  # of a rollout in which no episode was over
        book.stored(env_steps, updates - 6)
        book.published(version, updates, env_steps, {})
        book.frozen()
        assert evaluations(book, updates, env_steps)


def test_more_updates_than_the_replay_ratio_declares_and_fewer():
    more, fewer = (Counting(config(run__schedule="lockstep"), 6) for _ in range(2))
    update = more.update
    more.update = lambda: (update(), update(), update())  # type: ignore[method-assign]
    assert "updates" in more.run().found
    fewer.limiter = limiter(config(run__schedule="lockstep", replay__ratio=0.5))
    assert fewer.run().found == {"updates"}
    assert fewer.looks[-1]["updates"] == (
        "304 updates in 608 environment steps; replay.ratio 1 from step 1 on declares 608, of which 50 may be outstanding"
    )


def test_successor_of_a_dead_learner_catches_up_without_an_alarm():
    book = LedgerBook(config(run__schedule="async", run__steps=100_000), OWNERS)
    book.begin(100, 5_000, 7, behind=4_900)
    assert wrong(book.facts({}, 101, 5_000, 101, 0.0)) == {}
    book.begin(100, 5_000, 7)
    assert list(wrong(book.facts({}, 101, 5_000, 101, 0.0))) == ["updates"]


def chunk(number: int) -> Commit:
    return Commit(0, 0, number, 1, last=False, lanes=())


def test_updates_that_salvaged_steps_pay_for_belong_to_the_round_that_makes_them():
    book = LedgerBook(config(run__schedule="lockstep"), OWNERS)
    book.begin(0, 0, 1)
    book.committed(chunk(0), 0)
    book.stored(4, 0)
    book.stored(7, 0)  # salvaged between two rounds: three updates are due before the next chunk arrives
    book.committed(chunk(1), 3)
    book.stored(11, 3)
    assert "policies_published" not in wrong(book.facts({}, 3, 11, 3, 0.0))


@pytest.mark.parametrize("salvages", [True, False])
def test_what_was_salvaged_may_be_a_rollout_of_its_own_and_nothing_else_may(salvages):
    settings = {"env.id": "Pendulum-v1", "algorithm.name": "ppo", "run.schedule": "lockstep", "run.collectors": 1}
    book = LedgerBook(load_config(None, settings), OWNERS)
    book.begin(0, 0, 1)
    for number in range(4):
        steps, updates = 4 * number + 4, 2 * number
        book.committed(chunk(number), updates)
        book.stored(steps, updates)
        if salvages:
            book.stored(steps, updates)
        book.published(2 * number + 2, updates + 1, steps, {})
        book.published(2 * number + 3, updates + 2, steps, {})
    assert ("policies_published" in wrong(book.facts({}, 8, 16, 8, 0.0))) is not salvages


def test_a_multiple_that_is_passed_by_salvaged_steps_may_belong_to_either_round():
    book = LedgerBook(config(run__schedule="lockstep", evaluation__every_steps=10), OWNERS)
    book.begin(0, 0, 1)
    book.committed(chunk(0), 0)
    book.stored(12, 0)
    book.published(2, 4, 12, {})
    book.frozen()
    book.committed(chunk(1), 4)
    book.stored(16, 4)
    book.stored(21, 4)  # the round may have ended with 16 steps, or with 21 and nothing new to freeze
    book.committed(chunk(2), 4)
    book.stored(25, 4)
    book.published(3, 5, 25, {})
    assert "evaluations" not in wrong(book.facts({}, 5, 25, 5, 0.0))


# --- checkpoints


def ages(book: LedgerBook, updates: int, env_steps: int, now_s: float) -> dict[str, str]:
    found = book.facts({}, updates, env_steps, updates, now_s)
    return {name: text for name, text in wrong(found).items() if name.startswith("checkpoint")}


def test_checkpoints_that_are_not_written():
    settings = config(checkpoint__every_s=60.0, checkpoint__every_steps=200, deadlines__checkpoint_s=10.0,
                      replay__free_running=True, run__schedule="async")  # fmt: skip
    book = LedgerBook(settings, OWNERS)
    assert ages(book, 0, 5_000, 1_000.0) == {}  # nothing is learned yet
    assert ages(book, 1, 5_000, 1_000.0) == {}
    assert ages(book, 90, 5_400, 1_130.0) == {}
    assert ages(book, 90, 5_401, 1_131.0) == {
        "checkpoint_age_s": "no checkpoint was written for 131 s; checkpoint.every_s declares 60",
        "checkpoint_age_steps": (
            "no checkpoint was written for 401 environment steps; checkpoint.every_steps declares 200"
        ),
    }
    book.checkpointed(90, 5_401, 1_131.0)
    assert ages(book, 91, 5_402, 1_132.0) == {}
    assert ages(book, 91, 5_500, 1_261.0) == {}
    assert list(ages(book, 91, 5_500, 1_262.0)) == ["checkpoint_age_s"]
    book.checkpointed(91, 5_500, 1_262.0, written=False)  # the disk is full
    assert list(ages(book, 91, 5_500, 1_262.0)) == ["checkpoint_age_s"]


def test_steps_that_arrive_at_once_are_allowed_for():
    book = LedgerBook(config(checkpoint__every_s=None, checkpoint__every_steps=10), OWNERS)
    book.begin(1, 100, 1)
    book.stored(160, 2)
    book.checkpointed(2, 160, 0.0)
    assert ages(book, 3, 160 + 20 + 2 * 60, 0.0) == {}
    assert list(ages(book, 3, 160 + 20 + 2 * 60 + 1, 0.0)) == ["checkpoint_age_steps"]


def test_a_run_that_stands_still_needs_no_checkpoint():
    book = LedgerBook(config(checkpoint__every_s=60.0), OWNERS)
    book.checkpointed(90, 500, 100.0)
    assert ages(book, 90, 500, 1e6) == {}
    assert list(ages(book, 91, 500, 1e6)) == ["checkpoint_age_s"]


# --- before the run


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"evaluation__every_steps": 5_000},
            ("evaluation.every_steps 5,000 is never reached: the run has 600 environment steps; only its last policy is "
            "evaluated"),
        ),
        (
            {"learn__publish_every": 1_000},
            ("learn.publish_every 1,000 is never reached: the run has 600 updates; its collectors act with the first "
            "policy only"),
        ),
        (
            {"record__hash_every": 601},
            "record.hash_every 601 is never reached: the run has 600 updates; only its last weights are hashed",
        ),
        (
            {"algorithm__policy_delay": 400, "replay__ratio": 0.5},
            "algorithm.policy_delay 400 is never reached: the run has 300 updates; the actor is never updated",
        ),
        (
            {"checkpoint__every_steps": 601},
            "checkpoint.every_steps 601 is never reached: the run has 600 environment steps",
        ),
        (
            {"checkpoint__every_s": 200.0, "run__run_duration_s": 90.0},
            "checkpoint.every_s 200 is never reached: run.run_duration_s ends the run after 90 s",
        ),
        (
            {"supervision__learner_death": "resume", "run__run_duration_s": 20.0},
            "supervision.learner_save_every_s 30 is never reached: run.run_duration_s ends the run after 20 s",
        ),
        (
            {"env__max_episode_steps": 151},
            "env.max_episode_steps 151 is never reached: each lane makes 150 steps",
        ),
        (
            {"evaluation__every_steps": 15, "run__schedule": "lockstep"},
            ("evaluation.every_steps 15 is finer than the 16 environment steps that arrive at once: not every multiple can "
            "be met"),
        ),
        (
            {"checkpoint__every_steps": 3},
            ("checkpoint.every_steps 3 is finer than the 4 environment steps that arrive at once: not every multiple can "
            "be met"),
        ),
        (
            {"algorithm__exploration__final_scale": 0.0, "algorithm__exploration__decay_steps": 1200},
            ("algorithm.exploration.final_scale 0 is never reached: decay_steps 1,200 is longer than the 600 environment "
            "steps of the run, which end at 0.05"),
        ),
        (
            {
                "algorithm__exploration__final_scale": 0.0, "algorithm__exploration__decay_steps": 400,
                "replay__learning_starts": 100, "collect__random_steps": 50,
            },
            ("exploration stays at 0.1 until step 100, where algorithm.exploration declares 0.075: actions are random up "
            "to step 50 (collect.random_steps), and no policy is published before the first update "
            "(replay.learning_starts)"),
        ),
    ],
)  # fmt: skip
def test_intervals_that_will_never_be_hit(changes, sentence):
    assert never_hit(config(**changes)) == [sentence]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"evaluation__every_steps": 600},
        {"evaluation__every_steps": 608, "run__schedule": "lockstep"},
        {"evaluation__every_steps": 15},
        {"evaluation__every_steps": 16, "run__schedule": "lockstep"},
        {"checkpoint__every_steps": 4},
        {"learn__publish_every": 600},
        {"learn__publish_every": 5_000, "run__schedule": "lockstep"},
        {"learn__publish_every": 5_000, "replay__free_running": True},
        {"evaluation__every_steps": 5_000, "evaluation__episodes": 0},
        {"record__hash_every": 5_000, "record__enabled": False, "checkpoint__enabled": False},
        {"checkpoint__every_steps": 5_000, "checkpoint__enabled": False},
        {"run__run_duration_s": 90.0},
        {"algorithm__exploration__final_scale": 0.0, "algorithm__exploration__decay_steps": 600},
        {"replay__learning_starts": 100, "collect__random_steps": 50},
    ],
)
def test_intervals_that_are_hit_or_do_no_harm(changes):
    assert never_hit(config(**changes)) == []


def test_a_schedule_of_ppo_that_is_longer_than_the_run_is_told():
    found = never_hit(load_config("cartpole-ppo", {"run.steps": 25_000, "evaluation.every_steps": 255}))
    assert found == [
        (
            "algorithm.schedule.final_lr 0 is never reached: decay_steps 100,000 is longer than the 25,088 environment steps of "
            "the run, which end at 0.000749"
        ),
        (
            "algorithm.schedule.final_clip 0 is never reached: decay_steps 100,000 is longer than the 25,088 environment steps "
            "of the run, which end at 0.15"
        ),
        "evaluation.every_steps 255 is finer than the 256 environment steps that arrive at once: not every multiple can be met",
    ]


ON_POLICY = ["cage2-ppo", "cartpole-ppo", "halfcheetah-ppo", "lunarlander-ppo"]


@pytest.mark.parametrize("preset", ["hockey-demo", "hockey-td3", "pendulum-sac", "pendulum-td3"])
def test_a_written_configuration_declares_no_default(preset, tmp_path):
    written = tmp_path / "config.toml"
    written.write_text(dump_toml(load_config(preset)))
    assert never_hit(load_config(written)) == []


@pytest.mark.parametrize("preset", ["hockey-demo", "hockey-td3", "pendulum-sac", "pendulum-td3", *ON_POLICY])
def test_presets_declare_nothing_that_never_happens(preset):
    assert never_hit(load_config(preset)) == []
