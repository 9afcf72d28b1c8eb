"""Settings that would be ignored, or that contradict each other, are refused."""

from __future__ import annotations

import pytest

from headrace.algorithms.configs import TD3Config
from headrace.algorithms.on_policy_configs import PolicyNetworkConfig, PPOConfig, VTraceConfig
from headrace.core.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "settings", "message"),
    [
        (PPOConfig, {"schedule": {"final_lr": 0.0}}, "the schedule is not whole"),
        (PPOConfig, {"schedule": {"decay_steps": 100}}, "the schedule is not whole"),
        (PPOConfig, {"advantage": "return", "gae_lambda": 0.9}, "algorithm.gae_lambda would be ignored"),
        (PPOConfig, {"normalize": {"reward_clip": 5.0}}, "algorithm.normalize.reward_clip would be ignored"),
        (PPOConfig, {"actions": {"cells": 3}}, "chooses no cells"),
        (PPOConfig, {"batch_size": 0}, "batch_size"),
        (PPOConfig, {"clip": None}, "clip"),
        (VTraceConfig, {"actions": {"cells": 3}}, "chooses no cells"),
        (TD3Config, {"exploration": {"theta": 0.3}}, "algorithm.exploration.theta would be ignored"),
        (TD3Config, {"exploration": {"kind": "none", "theta": 0.3}}, "algorithm.exploration.theta would be ignored"),
        (TD3Config, {"exploration": {"kind": "none", "scale": 0.3}}, "algorithm.exploration.scale would be ignored"),
        (
            TD3Config,
            {"exploration": {"kind": "none", "final_scale": 0.1}},
            "algorithm.exploration.final_scale would be ignored",
        ),
        (
            VTraceConfig,
            {"schedule": {"final_clip": 0.1, "decay_steps": 10}},
            "algorithm.schedule.final_clip would be ignored",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(config, settings, message):
    with pytest.raises(ConfigError, match=message):
        config(**settings)


def test_what_is_written_out_is_read_back():
    for config in (
        PPOConfig(),
        PPOConfig(advantage="return", normalize={"rewards": True, "reward_clip": 5.0}),
        PPOConfig(schedule={"final_lr": 0.0, "decay_steps": 5}),
        VTraceConfig(clip=0.2, schedule={"final_clip": 0.0, "decay_steps": 5}),
        TD3Config(exploration={"kind": "none"}),
        TD3Config(exploration={"kind": "ornstein-uhlenbeck", "theta": 0.3, "scale": 0.2}),
    ):
        assert type(config).model_validate(config.model_dump()) == config


def test_part_of_a_network_leaves_the_rest_as_it_is():
    network = PPOConfig(network={"actor": {"activation": "relu"}}).network.actor
    assert network == PolicyNetworkConfig(hidden=[64, 64], activation="relu")
    assert network.network().hidden == [64, 64]
