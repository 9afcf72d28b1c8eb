"""DQN in the ledger, in the intervals that are never reached, and in the configuration as a whole."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from headrace.algorithms.base import Transitions
from headrace.algorithms.configs import DQNConfig, TD3Config
from headrace.algorithms.dqn import DQN
from headrace.algorithms.flat import FlatAdam
from headrace.core.errors import ConfigError
from headrace.learners.intervals import never_hit
from headrace.learners.ledgerbook import LedgerBook
from headrace.runtime.config import ExperimentConfig, dump_toml, load_config


def config(**changes: object) -> ExperimentConfig:
    base = {
        "env.id": "CartPole-v1", "env.lanes": 4, "collect.chunk_steps": 4, "run.steps": 600, "replay.learning_starts": 0,
        "collect.random_steps": 0, "evaluation.every_steps": 0, "learn.publish_every": 10, "algorithm.name": "dqn",
        "algorithm.batch_size": 8, "algorithm.network.hidden": [8], "algorithm.target.every_updates": 5,
        "algorithm.exploration.decay_steps": 100,
    }  # fmt: skip
    return load_config(None, {**base, **{key.replace("__", "."): value for key, value in changes.items()}})


def batch(seed: int) -> Transitions:
    rng = np.random.default_rng(seed)
    obs, following = rng.standard_normal((2, 8, 3)).astype(np.float32)
    return Transitions(
        {"obs": obs}, {"action": rng.integers(0, 2, 8)}, rng.standard_normal(8), np.full(8, 0.99), {"obs": following}
    )


class Bench:
    """DQN and its book: one environment step, one update, a policy after every tenth."""

    def __init__(self, **changes: object) -> None:
        self.config = config(**changes)
        self.algorithm = DQN(self.config.algorithm, spaces.Box(-np.inf, np.inf, (3,)), spaces.Discrete(2), 0)
        self.book = LedgerBook(self.config, ["collector-0"] * 4)
        self.asked = self.version = 0
        self.publish()
        self.book.begin(0, 0, 1)

    def publish(self) -> None:
        self.version += 1
        self.book.published(self.version, self.algorithm.updates, self.asked, self.algorithm.policy_arrays())

    def make(self, updates: int) -> dict[str, str]:
        """So many updates; what is wrong then."""
        for _ in range(updates):
            self.algorithm.observe({}, self.asked + 1)
            self.book.stored(self.asked + 1, self.algorithm.updates)
            self.algorithm.update(batch(self.asked))
            self.asked += 1
            if self.algorithm.updates % 10 == 0:
                self.publish()
        facts = self.book.facts(self.algorithm.ledger(), self.algorithm.updates, self.asked, self.asked, 0.0)
        return {one["name"]: one["text"] for one in facts if not one["ok"]}


@pytest.mark.parametrize("decay", ["linear", "exponential"])
def test_plain_updates_are_in_order(decay):
    bench = Bench(algorithm__exploration__decay=decay, algorithm__target__every_updates=7)
    for _ in range(120):
        assert bench.make(1) == {}
    names = {one["name"] for one in bench.book._entries and [entry.plain() for entry in bench.book._entries]}
    assert names >= {"target_q_moves", "q_steps", "q_optimisers", "q_lr", "exploration_scale"}


def test_target_that_moves_twice():
    bench = Bench()
    once = bench.algorithm._move_target
    bench.algorithm._move_target = lambda: (once(), once())
    assert bench.make(41) == {
        "target_q_moves": "the target q moved 16 times in 41 updates; algorithm.target.every_updates 5 declares 8"
    }


def test_target_that_never_moves():
    bench = Bench()
    bench.algorithm._move_target = lambda: None
    assert bench.make(4) == {}
    assert list(bench.make(1)) == ["target_q_moves"]


def test_optimiser_that_is_made_again():
    bench = Bench()
    bench.make(20)
    bench.algorithm._q_adam = FlatAdam(bench.algorithm._q_flat, 1e-2)
    assert bench.make(10) == {
        "q_steps": "the optimiser of the q has made 10 steps in 30 updates; the algorithm declares 30; the count has fallen "
        "from 20: it was made again, and its moments began anew",
        "q_optimisers": "2 optimisers were made for the q, where 1 is declared: each begins without moments",
        "q_lr": "the learning rate of the q is 0.01; algorithm.lr declares 0.0003",
    }


def test_epsilon_that_does_not_reach_the_collectors():
    bench = Bench()
    bench.algorithm.observe = lambda obs, env_steps: None
    assert bench.make(10) == {
        "exploration_scale": (
            "policy 2 explores with scale 1; algorithm.exploration declares 0.905 at step 10, at which it was published"
        )
    }


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"algorithm__target__every_updates": 650},
            (
                "algorithm.target.every_updates 650 is never reached: the run has 608 updates; the target network stays as it "
                "began"
            ),
        ),
        (
            {"algorithm__optimiser__lr_final": 1e-5, "algorithm__optimiser__lr_decay_updates": 609},
            (
                "algorithm.optimiser.lr_final 1e-05 is never reached: lr_decay_updates 609 is longer than the 608 updates of the "
                "run"
            ),
        ),
        (
            {"algorithm__exploration__decay_steps": 700},
            (
                "algorithm.exploration.final_epsilon 0.05 is never reached: decay_steps 700 is longer than the 608 environment "
                "steps of the run, which end at 0.175"
            ),
        ),
        (
            {"algorithm__exploration__decay_steps": 500, "algorithm__exploration__begin_steps": 200},
            (
                "algorithm.exploration.final_epsilon 0.05 is never reached: begin_steps 200 and decay_steps 500 are longer than "
                "the 608 environment steps of the run, which end at 0.225"
            ),
        ),
        (
            {"replay__learning_starts": 50},
            (
                "exploration stays at 1 until step 50, where algorithm.exploration declares 0.525: actions are random up to "
                "step 0 (collect.random_steps), and no policy is published before the first update (replay.learning_starts)"
            ),
        ),
    ],
)
def test_what_is_never_reached_is_told(changes, line):
    assert never_hit(config()) == []
    changes = {"run__schedule": "lockstep", **changes}
    found = [one for one in never_hit(config(**changes)) if "updates;" in one or "exploration" in one or "lr" in one]
    assert found == [line]


def test_random_steps_beside_a_mask_are_refused_for_that_even_in_a_run_shorter_than_them():
    short = {"env.id": "CartPole-v1", "algorithm.name": "dqn", "algorithm.actions.mask_leaf": "obs", "run.steps": 2000}
    with pytest.raises(ConfigError) as caught:
        load_config(None, {**short, "replay.learning_starts": 500, "collect.random_steps": 10_000})
    assert caught.value.fix.startswith("set collect.random_steps = 0;")


def test_an_exploration_that_random_actions_hide_is_told():
    hidden = {"collect__random_steps": 300, "replay__learning_starts": 300, "algorithm__exploration__decay_steps": 300}
    assert [one for one in never_hit(config(**hidden)) if "exploration" in one] == [
        (
            "algorithm.exploration is over at step 300, before the policy acts for the first time, and it then acts at 0.05: "
            "actions are random up to step 300 (collect.random_steps); lower that, or raise decay_steps"
        )
    ]
    seen = {**hidden, "algorithm__exploration__decay_steps": 301}
    assert [one for one in never_hit(config(**seen)) if "exploration" in one] == []
    first_policy = [
        one for one in never_hit(config(**{**hidden, "replay__learning_starts": 301})) if "exploration" in one
    ]
    assert [one.partition(",")[0] for one in first_policy] == ["exploration stays at 1 until step 301"]


def test_nothing_is_told_where_the_schedule_begins_with_learning():
    assert never_hit(config(replay__learning_starts=50, algorithm__exploration__begin_steps=50)) == []


# --- the configuration


def test_an_algorithm_is_chosen_by_name_and_td3_without_one():
    assert isinstance(config().algorithm, DQNConfig)
    assert isinstance(load_config(None, {"env.id": "Pendulum-v1", "algorithm.batch_size": 3}).algorithm, TD3Config)
    assert isinstance(load_config(None, {"env.id": "Pendulum-v1"}).algorithm, TD3Config)


def test_what_is_written_is_read_back(tmp_path):
    file = tmp_path / "config.toml"
    first = config(algorithm__map__leaf="obs", algorithm__network__hidden=[256, 256], algorithm__actions__cells=2)
    file.write_text(dump_toml(first))
    assert load_config(file) == first
    assert load_config(first, {"algorithm.lr": 0.5}).algorithm.lr == 0.5


def test_a_key_of_another_algorithm_is_unknown_and_the_nearest_is_of_this_one():
    with pytest.raises(ConfigError) as caught:
        config(algorithm__critic_lr=0.1)
    assert caught.value.what == "unknown key algorithm.critic_lr"
    assert caught.value.facts.get("nearest") in (None, "algorithm.lr")
    with pytest.raises(ConfigError, match=r"unknown key algorithm.exploration.scale"):
        config(algorithm__exploration__scale=0.1)


def test_an_algorithm_that_is_not_there():
    with pytest.raises(ConfigError) as caught:
        config(algorithm__name="dqm")
    assert str(caught.value) == (
        "[CFG-001] algorithm.name must be one of 'td3', 'sac', 'dqn', 'iqn', 'ppo', 'vtrace'\n"
        "  value: 'dqm'\n"
        "  meaning: Hyperparameters; ``algorithm.name`` says which algorithm.\n"
        "  fix: give algorithm.name a value that is one of 'td3', 'sac', 'dqn', 'iqn', 'ppo', 'vtrace'"
    )
    with pytest.raises(ConfigError, match="algorithm must be a section with keys of its own"):
        load_config(None, {"env.id": "CartPole-v1", "algorithm": 3})


@pytest.mark.parametrize("key", ["algorithm__actions__cells", "algorithm__actions__mask_leaf"])
def test_random_actions_of_the_space_are_refused_where_they_are_none(key):
    changes = {key: {"algorithm__actions__cells": 3, "algorithm__actions__mask_leaf": "obs.mask"}[key]}
    assert config(**changes).collect.random_steps == 0
    with pytest.raises(ConfigError, match="the first actions would be drawn from the whole action space"):
        config(collect__random_steps=100, **changes)
    assert config(collect__random_steps=100).collect.random_steps == 100
