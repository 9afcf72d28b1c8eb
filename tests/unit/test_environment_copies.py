"""A copied or unpickled environment goes on as the one it was made of, or copying it raises."""

from __future__ import annotations

import copy
import pickle

import gymnasium
import numpy as np
import pytest

import headrace  # noqa: F401 - registers the environments
from headrace.envs.cage2.vector import CAGE2Vector
from headrace.envs.cage2.workflow import workflow_vector
from headrace.envs.treasurehunt import TreasureHuntParallel
from headrace.envs.treasurehunt.vector import TreasureHuntVector

BEFORE, AFTER = 3, 50
GEMS = {"spawn_prob": 0.2, "bone_spawn_prob": 0.1, "max_turns": 30}
RED = {"red": ("b_line", "meander"), "max_steps": 30}
BREAKS = {"size": 10, "num_simulations": 3, "rasters": 3, "break_step": 2, "step_limit": 20}
ENVIRONMENTS = {
    "treasure hunt": lambda: gymnasium.make("headrace/TreasureHunt-v0", **GEMS),
    "treasure hunt, vector": lambda: TreasureHuntVector(4, num_agents=2, random_order=True, **GEMS),
    "treasure hunt, parallel": lambda: TreasureHuntParallel(num_agents=3, random_order=True, **GEMS),
    "fuel break": lambda: gymnasium.make("headrace/FuelBreak-v0", **BREAKS),
    "fuel break, other fires": lambda: gymnasium.make("headrace/FuelBreak-v0", common_ignitions=False, **BREAKS),
    "cage2": lambda: gymnasium.make("headrace/CAGE2-v0", **RED),
    "cage2, vector": lambda: CAGE2Vector(3, **RED),
    "cage2, workflow": lambda: gymnasium.make("headrace/CAGE2Workflow-v0", **RED),
    "cage2, workflow vector": lambda: workflow_vector(3, **RED),
}
WAYS = {"deepcopy": copy.deepcopy, "pickle": lambda env: pickle.loads(pickle.dumps(env))}


def bits(value):
    """A value of any depth, with arrays as their bytes."""
    if isinstance(value, dict):
        return {key: bits(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [bits(part) for part in value]
    array = np.asarray(value)
    return str(array.dtype), array.shape, array.tobytes()


def play(env, steps, seed=None):
    """What comes back, one after another, of actions that are the same in every play."""
    many = isinstance(env, TreasureHuntParallel)
    space = gymnasium.spaces.Dict(env.action_spaces) if many else env.action_space
    space.seed(5)
    found = [] if seed is None else [bits(env.reset(seed=seed))]
    for _ in range(steps):
        returned = env.step(space.sample())
        found.append(bits(returned))
        if not isinstance(env, gymnasium.vector.VectorEnv) and (not env.agents if many else any(returned[2:4])):
            found.append(bits(env.reset()))
    return found


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("build", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_a_copy_goes_on_as_the_environment_would(build, way):
    env = build()
    play(env, BEFORE, seed=3)
    other = way(env)
    assert play(other, AFTER) == play(env, AFTER)
    assert play(other, AFTER, seed=8) == play(env, AFTER, seed=8)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("build", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_a_copy_made_before_the_first_episode_plays_as_any_other(build, way):
    template = build()
    assert play(way(template), AFTER, seed=8) == play(template, AFTER, seed=8)


@pytest.mark.parametrize("build", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_a_copy_and_its_original_share_nothing(build):
    env, alone = build(), build()
    play(env, BEFORE, seed=3)
    play(alone, BEFORE, seed=3)
    play(copy.deepcopy(env), AFTER)
    assert play(env, AFTER) == play(alone, AFTER)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_hockey_game_cannot_be_copied_and_says_so(way):
    env = gymnasium.make("headrace/Hockey-v0")
    env.reset(seed=3)
    with pytest.raises(TypeError, match="Swig"):
        way(env)
    env.close()
