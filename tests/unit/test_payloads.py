"""What processes are handed: sizes that all of them take from the one configuration."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from headrace.core.specs import leaves
from headrace.runtime.config import load_config
from headrace.runtime.payloads import EnvSpaces


@pytest.mark.parametrize("frame_stack", [1, 2, 5])
def test_policy_sees_as_many_frames_as_the_lanes_hand_out(frame_stack: int):
    """Acting and learning build their networks from the same space, and every process its lanes from the same sizes."""
    config = load_config("pendulum-td3", {"env.frame_stack": frame_stack})
    found = EnvSpaces(spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-1, 1, (1,), np.float32))
    geometry = found.geometry(config)
    assert geometry.frame_stack == frame_stack
    [leaf] = leaves(found.policy(config).observation_space, "obs")
    assert leaf.shape == ((frame_stack, 3) if frame_stack > 1 else (3,))
    assert leaf.dtype == geometry.observation[0].dtype
