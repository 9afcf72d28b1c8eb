"""Made-up data is named by the right sentence; honest environments are left alone."""

from __future__ import annotations

import copy
import itertools
import json
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import suspicious_envs
from headrace.core import seeding
from headrace.core.specs import leaves
from headrace.envs.hockey import settings as _hockey  # noqa: F401 - registers headrace/Hockey-v0
from headrace.lanes.lane import LaneBlock, LaneWriter
from headrace.lanes.layout import INFO_KEYS, STEP, Geometry
from headrace.learners.evidence import Columns, Finding, listed, mix
from headrace.learners.oddities import Expected
from headrace.learners.suspicion import Suspicion


class Bench:
    """Lanes that are played with random actions, in the order in which one collector would."""

    def __init__(self, envs, expected=None, *, chunk=16, push=1.0):
        self.envs, self.chunk, self.push = envs, chunk, push
        space, actions = envs[0].observation_space, envs[0].action_space
        g = Geometry(len(envs), 50_000, leaves(space, "obs"), leaves(actions, "action"), chunk, 2)
        self.block = LaneBlock(g, memoryview(bytearray(g.nbytes)))
        self.block.begin()
        self.writers = [LaneWriter(self.block, lane) for lane in range(len(envs))]
        self.running = [False] * len(envs)
        self.rngs = [np.random.default_rng(lane) for lane in range(len(envs))]
        self.suspicion = Suspicion(g.dtype, len(envs), space, actions, expected or Expected(), self.block.info_counts)

    def play(self, steps: int) -> Bench:
        for _ in range(steps // (self.chunk * len(self.envs))):
            for lane in range(len(self.envs)):
                self._chunk(lane)
        return self

    def _chunk(self, lane: int) -> None:
        writer, start = self.writers[lane], self.writers[lane].row
        for _ in range(self.chunk):
            self._step(lane)
        for piece in self.block.pieces(lane, start, writer.row):
            self.suspicion.add(lane, piece)

    def _step(self, lane: int) -> None:
        env, writer = self.envs[lane], self.writers[lane]
        if not self.running[lane]:
            obs, _ = env.reset(seed=seeding.integer(0, "environment", lane, writer.episode + 1))
            writer.begin_episode(self._parts(obs))
        action = self._action(lane)
        obs, reward, terminated, truncated, info = env.step(action)
        for place, key in enumerate(INFO_KEYS):
            self.block.info_counts[lane, place] += bool(info.get(key))
        self.running[lane] = not (terminated or truncated)
        writer.step([np.asarray(action)], float(reward), (bool(terminated), bool(truncated)), self._parts(obs), 1)

    def _parts(self, obs):
        return [np.asarray(leaf.of(obs), leaf.dtype) for leaf in self.block.geometry.observation]

    def _action(self, lane: int):
        space = self.envs[lane].action_space
        if isinstance(space, spaces.Discrete):
            return np.int64(self.rngs[lane].integers(space.n))
        share = np.clip(self.rngs[lane].uniform(-1, 1, space.shape) * self.push, -1, 1)
        return (space.low + (share + 1) / 2 * (space.high - space.low)).astype(space.dtype)

    def found(self) -> dict[str, Finding]:
        self.suspicion.close()
        return {finding.kind: finding for finding in self.suspicion.findings}

    def warnings(self) -> list[str]:
        return [finding.text for finding in self.found().values() if finding.severity == "warning"]


def bench(name: str, lanes: int = 6, expected: Expected | None = None, **options) -> Bench:
    suspicious_envs.Honest.lanes = 0
    return Bench([getattr(suspicious_envs, name)() for _ in range(lanes)], expected, **options)


FABRICATIONS = {
    "TimeoutIsZero": ("placeholder_observation", "an all-zero observation came", "times with reward -0.05"),
    "NoisyZeros": ("stand_in_step", "the reward was exactly -0.1 in", "are nearly zero (at most 0.0"),
    "DeadLanes": ("stuck_lane", "lanes 1 and 4: every observation", "is the same (all zero), while other lanes change"),
    "CatchAll": ("info_error", 'info["error"] was set in 5,952 steps (lanes 0, 1, 2, 3, 4 and 5)', "trained on"),
    "OwnSeed": ("same_seed", "lanes 0, 1, 2, 3, 4 and 5 begin the same episodes", "ignores the seed"),
    "Recording": ("same_in_lanes", "lanes 0, 1, 2, 3, 4 and 5 return the same observations", "ignore actions"),
    "Replayed": ("replayed", "sequences of 8 observations and rewards came more than once in one lane", "ignores actions"),
    "NotShared": ("constant_observation", "the whole observation did not change in", "is zero in every field"),
    "TimeIsTheEnd": ("limit_terminates", "terminated episodes have exactly 50 steps", "must be reported as truncated"),
    "Placeholder": ("placeholder_observation", "one same observation came", "may return a placeholder"),
    "Dummy": ("info_dummy", 'info["dummy"] was set in 1,968 steps (lanes 1 and 4)', "trained on"),
    "Beyond": ("outside_bounds", "observations lie outside the declared bounds", "declared -2 to 2"),
    "Camera": ("zero_part", "obs.camera was all zero in 2,000 rows of 6 lanes", "other parts"),
}  # fmt: skip
"""What each makes up, and the warning that must name it."""


@pytest.mark.thin(13)
@pytest.mark.parametrize("name", FABRICATIONS)
def test_fabrication_is_named(name):
    kind, *parts = FABRICATIONS[name]
    found = bench(name).play(6_000).found()
    assert kind in found, {key: finding.text for key, finding in found.items()}
    assert found[kind].severity == "warning"
    for part in parts:
        assert part in found[kind].text


@pytest.mark.thin(13)
@pytest.mark.parametrize("name", FABRICATIONS)
def test_nothing_else_is_warned_about(name):
    allowed = {FABRICATIONS[name][0], *({"same_seed"} if name == "Recording" else ())}
    found = bench(name).play(6_000).found()
    assert {kind for kind, finding in found.items() if finding.severity == "warning"} <= allowed


def test_honest_environment_gives_no_finding_at_all():
    assert bench("Honest").play(12_000).found() == {}


def test_lanes_that_draw_from_the_same_beginnings_are_not_taken_for_copies():
    played = bench("FewBeginnings", lanes=12, chunk=50).play(40_000)
    assert "same_seed" not in played.found()


def test_agents_of_one_environment_may_see_the_same():
    agents = bench("SharedSight", expected=Expected(agents=2)).play(6_000)
    assert not agents.found().keys() & {"same_seed", "same_in_lanes"}
    alone = bench("SharedSight").play(6_000)
    assert alone.found().keys() >= {"same_seed", "same_in_lanes"}


@pytest.mark.parametrize(("name", "kind"), [("OwnSeed", "same_seed"), ("Recording", "same_in_lanes")])
def test_environments_of_agents_that_are_copies_of_each_other_are_named(name, kind):
    assert kind in bench(name, expected=Expected(agents=2)).play(6_000).found()


def test_lanes_that_are_in_step_may_meet_by_chance():
    assert "same_in_lanes" not in bench("Clocked").play(6_000).found()


HONEST = {
    "Pendulum-v1": {}, "MountainCarContinuous-v0": {}, "CartPole-v1": {}, "Acrobot-v1": {}, "MountainCar-v0": {},
    "headrace/Hockey-v0 NORMAL": {"mode": "NORMAL"}, "headrace/Hockey-v0 SHOOTING": {"mode": "TRAIN_SHOOTING"},
    "headrace/Hockey-v0 DEFENSE": {"mode": "TRAIN_DEFENSE"},
}  # fmt: skip


@pytest.mark.thin(16)
@pytest.mark.parametrize("push", [1.0, 3.0])
@pytest.mark.parametrize("name", HONEST)
def test_no_false_alarm(name, push):
    """``push`` above 1 puts most actions on their bounds, as a trained policy does."""
    with warnings.catch_warnings(action="ignore"):
        envs = [gymnasium.make(name.partition(" ")[0], **HONEST[name]) for _ in range(6)]
    played = Bench(envs, push=push).play(5_000)
    assert played.warnings() == []


# Single checks


@pytest.mark.parametrize(
    ("centre", "move", "dtype", "told"),
    [
        (1.7e9, 50, np.float64, "different values 1 is left; subtract an offset from it in the environment"),
        (5.4e6, 0.2, np.float64, "around it) has steps of 0.5: of 2,000 different values 1 is left"),
        (1.7e9, 50, np.int32, "around it) has steps of 128: of "),
        (0, 0.2, np.float64, None),
        (1.7e9, 1e5, np.float64, None),
        (1e7, 2, np.int64, None),  # the same in float32
        (1.0, 1e-15, np.float64, None),  # how a constant comes out of a simulation
        (1.7e9, 50, np.float32, None),  # lost before it came
        (1.0 - 5e-8, 5e-8, np.float64, None),  # the cosine of a small angle: the sine beside it says all
        (2**40, 2, np.int64, "1 is left"),  # a share of 1e-12, but these are numbers that somebody counted
    ],
)
def test_what_float32_cannot_tell_apart_is_named(centre, move, dtype, told):
    rng = np.random.default_rng(0)
    space, action = spaces.Box(-(2**31), 2**31 - 1, (2,), dtype), spaces.Discrete(2)
    g = Geometry(1, 4_000, leaves(space, "obs"), leaves(action, "action"), 16, 2)
    rows = np.zeros(2_000, g.dtype)
    rows["t"], rows["kind"] = np.arange(2_000), STEP
    rows["obs"] = np.stack([rng.normal(0, 100, 2_000), centre + rng.uniform(-move, move, 2_000)], axis=1)
    suspicion = Suspicion(g.dtype, 1, space, action, Expected())
    suspicion.add(0, rows)
    found = {finding.kind: finding for finding in suspicion.findings}
    assert ("lost_in_float32" in found) == (told is not None)
    if told is not None:
        finding = found["lost_in_float32"]
        assert (finding.severity, finding.facts["fields"]) == ("warning", ["obs[1]"])
        assert told in finding.text


def test_declared_constant_is_named_by_its_index():
    finding = bench("OneField").play(3_000).found()["constant_field"]
    assert (finding.severity, finding.facts["fields"]) == ("info", ["obs[5]"])
    assert finding.text.startswith("obs[5] did not change in ")
    assert finding.text.endswith(" rows of 6 lanes (value 9)")


def test_few_rewards_are_told_with_their_shares():
    finding = bench("FewRewards").play(6_000).found()["few_rewards"]
    assert finding.severity == "info"
    assert finding.text.startswith("the reward takes only 2 values in ")
    assert finding.text.endswith(" steps: 0 (99.7 %) and 1 (0.255 %)")


def test_reward_of_zero_is_worth_a_note_and_after_long_a_warning():
    played = bench("NoReward")
    assert played.play(4_000).suspicion.findings[0].severity == "info"
    kinds = {finding.kind: finding for finding in played.play(8_000).suspicion.findings}
    assert kinds["zero_reward"].severity == "warning"
    assert kinds["zero_reward"].text == "the reward was 0 in all of 11,766 steps: there is nothing to learn from yet"


def test_zero_reward_is_forgotten_when_another_one_comes():
    played = bench("NoReward")
    played.play(4_000)
    for env in played.envs:
        env.__class__ = suspicious_envs.Honest
    assert "zero_reward" not in played.play(4_000).found()


def test_no_end_is_told_unless_the_task_goes_on_for_ever():
    text = bench("NeverEnds", lanes=2).play(12_000).warnings()
    assert len(text) == 1
    assert text[0].startswith("no episode has ended since the run began: every one of 2 lanes has made 6,000 steps")
    assert text[0].endswith("set env.max_episode_steps, or env.continuing = true if meant")
    assert bench("NeverEnds", lanes=2, expected=Expected(continuing=True)).play(12_000).warnings() == []


def test_known_limit_is_believed_sooner():
    class Sometimes(suspicious_envs.Honest):
        def step(self, action):
            obs, reward, _, late, info = super().step(action)
            return obs, reward, late or self.rng.random() < 0.03, False, info

    def warned(limit):
        suspicious_envs.Honest.lanes = 0
        return Bench([Sometimes() for _ in range(6)], Expected(max_episode_steps=limit)).play(8_000).warnings()

    assert warned(None) == []  # a fifth of the episodes are that long: that may be chance
    assert "(env.max_episode_steps)" in warned(50)[0]


def test_clipped_observations_are_worth_a_note():
    found = bench("Clipped").play(3_000).found()
    assert (found["at_bounds"].severity, "outside_bounds" in found) == ("info", False)


def test_saturated_actions_are_told_late_only():
    early = bench("Honest", push=100.0, expected=Expected(acting_from=5_000)).play(12_000).found()
    assert "saturated_actions" not in early
    late = bench("Honest", push=100.0, expected=Expected(acting_from=1_000)).play(12_000).found()
    assert late["saturated_actions"].severity == "info"
    assert "99 % of the actions" in late["saturated_actions"].text


# Whatever a space may be


SPACES = [
    spaces.Discrete(4), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3), spaces.Box(-1.0, 1.0, (), np.float32),
    spaces.Box(0, 3, (2, 2), np.uint8), spaces.Box(-np.inf, np.inf, (3,), np.float64), spaces.Box(0.0, 0.0, (1,)),
    spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0.0, 1.0, (20,), np.float32)}),
    spaces.Tuple((spaces.Box(-1e38, 1e38, (2,), np.float32), spaces.MultiBinary(2))),
]  # fmt: skip


class Anything(gymnasium.Env):
    """Samples of any spaces; episodes and rewards of any kind."""

    def __init__(self, observation, action, rewards, end):
        self.observation_space, self.action_space = copy.deepcopy(observation), copy.deepcopy(action)
        self.observation_space.seed(0)
        self.rewards, self.end, self.t = itertools.cycle(rewards), end, 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        late = self.t >= self.end
        return self.observation_space.sample(), next(self.rewards), late and self.end % 2 == 0, late, {}


@pytest.mark.table
@settings(max_examples=40, derandomize=True, deadline=None)
@given(
    observation=st.sampled_from(SPACES),
    action=st.sampled_from(
        [spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Discrete(3), spaces.Box(0, 5, (), np.int64)]
    ),
    rewards=st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=12),
    end=st.integers(1, 700),
    lanes=st.integers(1, 3),
)
def test_any_space_and_reward_can_be_judged(observation, action, rewards, end, lanes):
    played = Bench([Anything(observation, action, rewards, end) for _ in range(lanes)], chunk=40).play(720)
    for finding in played.found().values():
        assert json.loads(json.dumps(finding.plain())) == finding.plain()  # as summary.json will have it


# Windows, news, helpers


def test_each_is_news_once_and_again_when_it_changes():
    played = bench("DeadLanes")
    assert [finding.kind for finding in played.play(4_200).suspicion.news()] == ["stuck_lane"]
    assert played.suspicion.news() == []
    played.play(4_200)
    assert played.suspicion.news() == []  # two more windows, and nothing new
    played.envs[0].place = 1
    news = [(finding.kind, finding.facts["lanes"]) for finding in played.play(6_000).suspicion.news()]
    assert news == [("placeholder_observation", [0]), ("stuck_lane", [0, 1, 4])]


def test_too_few_rows_say_nothing():
    assert bench("NotShared").play(480).found() == {}


def test_findings_do_not_depend_on_the_size_of_chunks():
    kinds = [sorted(bench("TimeoutIsZero", chunk=chunk).play(6_000).found()) for chunk in (1, 8, 100)]
    assert kinds[0] == kinds[1] == kinds[2]


class Picture(suspicious_envs.Honest):
    """A dark picture with six bright dots, at places of which nobody looks at each one."""

    frozen = False

    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (96, 96, 3), np.uint8)

    def seen(self):
        picture = np.zeros((96, 96, 3), np.uint8)
        picture.reshape(-1)[1:7] = 7 if self.frozen else self.rng.integers(1, 256, 6)
        return picture


@pytest.mark.table
def test_large_observations_are_told_apart_as_a_whole():
    suspicious_envs.Honest.lanes = 0
    played = Bench([Picture() for _ in range(2)]).play(1_200)
    assert played.found() == {}
    for env in played.envs:
        env.frozen = True
    finding = played.play(1_200).found()["constant_observation"]
    assert finding.facts["all_zero"] is False
    assert finding.facts["rows"] < 1_000  # a window of 27 KiB rows is smaller than one of vectors


def test_columns_are_named_and_bounded_by_their_leaf():
    space = spaces.Dict({
        "eye": spaces.Box(0, 255, (2, 2), np.uint8),
        "arm": spaces.Box(-1.0, np.inf, (2,), np.float32),
        "mode": spaces.Discrete(3),
    })  # fmt: skip
    columns = Columns.of(space, "obs")
    assert columns.names == (
        "obs.arm[0]", "obs.arm[1]", "obs.eye[0,0]", "obs.eye[0,1]", "obs.eye[1,0]", "obs.eye[1,1]", "obs.mode",
    )  # fmt: skip
    assert columns.low.tolist() == [-1.0, -1.0, *[-np.inf] * 5]
    assert columns.high.tolist() == [np.inf] * 7


def test_digests_differ_for_neighbouring_small_numbers():
    grid = np.stack(np.meshgrid(np.arange(60.0), np.arange(60.0)), axis=-1).reshape(-1, 2)
    assert len(np.unique(mix(grid.view(np.uint64)))) == 3_600


@pytest.mark.parametrize(
    ("names", "text"),
    [([], ""), ([1], "1"), ([1, 2], "1 and 2"), ([1, 2, 3], "1, 2 and 3"), (range(9), "0, 1, 2, 3, 4, 5 and 3 more")],
)
def test_names_are_listed_as_one_would_say_them(names, text):
    assert listed(list(names)) == text
