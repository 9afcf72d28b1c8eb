"""Stacks, successors and returns from windows of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import UnsupportedSpace
from headrace.core.specs import leaves
from headrace.lanes.derive import observe, stack, stacked_space, transitions
from headrace.lanes.layout import CUT, FINAL, LOST, STEP, row_dtype
from sampling_support import Filled

OBS = leaves(spaces.Box(-np.inf, np.inf, (), np.float32), "obs")
ACTION = leaves(spaces.Discrete(3), "action")


def window(
    obs: list[float], t: list[int], kinds: list[int], rewards: list[float], ended: tuple[str, int] | None = None
) -> Any:
    """One window of rows, [1, W]."""
    rows = np.zeros((1, len(obs)), row_dtype(OBS, ACTION))
    rows["obs"], rows["t"], rows["kind"], rows["reward"] = obs, t, kinds, rewards
    if ended is not None:
        rows[ended[0]][0, ended[1]] = True
    return rows


@given(st.integers(1, 6), st.lists(st.integers(0, 8), min_size=1, max_size=5))
def test_place_j_back_holds_the_frame_of_row_i_minus_the_smaller_of_j_and_t(depth: int, t: list[int]) -> None:
    frames = np.arange(len(t) * depth * 2).reshape(len(t), depth, 2)
    found = stack(frames, np.array(t))
    for b, step in enumerate(t):
        for back in range(depth):
            assert found[b, depth - 1 - back].tolist() == frames[b, depth - 1 - min(back, step)].tolist()


def test_f084_the_acting_side_pads_a_stack_as_the_learning_side_does() -> None:
    rows = window([6, 6, 6, 0, 1], [0, 0, 0, 0, 1], [FINAL, FINAL, FINAL, STEP, STEP], [0] * 5)
    acted_on = observe(rows[:, :4], OBS, rows["t"][:, 3])
    learned_from = transitions(rows, OBS, ACTION, 4, 0.9)
    assert acted_on["obs"].tolist() == [[0, 0, 0, 0]]
    assert learned_from.obs["obs"].tolist() == acted_on["obs"].tolist()
    assert learned_from.next_obs["obs"].tolist() == [[0, 0, 0, 1]]


def test_without_a_stack_an_observation_has_no_extra_axis() -> None:
    rows = window([4, 5], [0, 1], [STEP, STEP], [1, 1])
    assert observe(rows[:, :1], OBS, rows["t"][:, 0])["obs"].shape == (1,)
    assert observe(rows, OBS, rows["t"][:, 1])["obs"].shape == (1, 2)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("flag", "discount"), [("terminated", 0.0), ("truncated", 0.5)])
def test_an_end_bootstraps_unless_the_task_terminated(steps: int, flag: str, discount: float) -> None:
    rows = window([1, 2, 90, 91][: steps + 1], [0, 1, 0, 1][: steps + 1],
                  [STEP, FINAL, STEP, STEP][: steps + 1], [3, 0, 50, 50][: steps + 1], (flag, 0))  # fmt: skip
    found = transitions(rows, OBS, ACTION, 1, 0.5)
    assert (found.reward.tolist(), found.discount.tolist()) == ([3.0], [discount])
    assert found.next_obs["obs"].tolist() == [2]


def test_a_row_that_terminated_and_was_truncated_counts_as_terminated() -> None:
    rows = window([1, 2], [0, 1], [STEP, FINAL], [3, 0], ("terminated", 0))
    rows["truncated"][0, 0] = True
    assert transitions(rows, OBS, ACTION, 1, 0.5).discount.tolist() == [0.0]


def test_a_return_of_n_steps_is_discounted_step_by_step() -> None:
    rows = window([1, 2, 3, 4], [0, 1, 2, 3], [STEP] * 4, [1, 10, 100, 1000])
    found = transitions(rows, OBS, ACTION, 1, 0.5)
    assert found.reward.tolist() == [1 + 5 + 25]
    assert found.discount.tolist() == [0.125]
    assert found.next_obs["obs"].tolist() == [4]


# --- whatever ends in between, against a reference that goes through one episode at a time


@dataclass(frozen=True)
class Told:
    """An episode as somebody would tell it."""

    rewards: list[float]
    frames: list[float]
    """One more than rewards."""
    end: str
    """terminated, truncated, cut, or lost; a lost one may have no step at all."""


def stored(episodes: list[Told], depth: int) -> tuple[Any, list[tuple[int, int, int]]]:
    """Rows [R] as a lane holds them, and of each transition its row, its episode and its step."""
    rows = np.zeros(depth - 1 + sum(len(told.frames) for told in episodes), row_dtype(OBS, ACTION))
    places, at = [], depth - 1
    for number, told in enumerate(episodes):
        steps = len(told.rewards)
        part = rows[at : at + steps + 1]
        part["obs"], part["t"], part["episode"] = told.frames, np.arange(steps + 1), number
        part["reward"][:steps], part["kind"][:steps] = told.rewards, STEP
        part["kind"][steps] = {"cut": CUT, "lost": LOST}.get(told.end, FINAL)
        if told.end in ("terminated", "truncated"):
            part[told.end][steps - 1] = True
        places += [(at + step, number, step) for step in range(steps)]
        at += steps + 1
    return rows, places


def told_stack(told: Told, step: int, depth: int) -> Any:
    frames = [told.frames[max(0, step - back)] for back in range(depth - 1, -1, -1)]
    return frames if depth > 1 else frames[0]


NUMBERS = st.floats(-1e3, 1e3, width=32)
ENDS = st.sampled_from(["terminated", "truncated", "cut", "lost"])


@st.composite
def lanes_told(draw: st.DrawFn) -> list[Told]:
    found = []
    for _ in range(draw(st.integers(1, 6))):
        end = draw(ENDS)
        steps = draw(st.integers(0 if end == "lost" else 1, 7))
        numbers = st.lists(NUMBERS, min_size=steps, max_size=steps)
        found.append(Told(draw(numbers), [*draw(numbers), draw(NUMBERS)], end))
    return found


@settings(max_examples=200, report_multiple_bugs=False)
@given(lanes_told(), st.integers(1, 4), st.integers(1, 5), st.floats(0, 1))
def test_transitions_equal_a_slow_reference_whatever_ends_in_between(
    episodes: list[Told], depth: int, steps: int, gamma: float
) -> None:
    rows, places = stored(episodes, depth)
    rows = np.concatenate(
        [rows, np.zeros(steps, rows.dtype)]
    )  # a window is never cut off; what is not written is no step
    windows = [rows[row - depth + 1 : row + steps + 1] for row, _, _ in places]
    if not windows:
        return
    found = transitions(np.stack(windows), OBS, ACTION, depth, gamma)
    for place, (_, number, step) in enumerate(places):
        told = episodes[number]
        taken = min(steps, len(told.rewards) - step)
        reward = math.fsum(gamma**k * told.rewards[step + k] for k in range(taken))
        terminated = told.end == "terminated" and step + taken == len(told.rewards)
        assert found.reward[place] == pytest.approx(reward, rel=1e-12, abs=1e-9)
        assert found.discount[place] == pytest.approx(0.0 if terminated else gamma**taken, rel=1e-12)
        assert found.obs["obs"][place].tolist() == told_stack(told, step, depth)
        assert found.next_obs["obs"][place].tolist() == told_stack(told, step + taken, depth)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(np.array([-1, 0], np.float32), np.array([1, 5], np.float32)),
        spaces.Box(0, 255, (2, 2, 3), np.uint8),
        spaces.Box(0, 1, (), np.float64),
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary((2, 2)),
    ],
    ids=str,
)
def test_a_stack_of_members_is_a_member_of_the_stacked_space(space: spaces.Space[Any]) -> None:
    space.seed(3)
    stacked = stacked_space(space, 3)
    frames = np.stack([np.asarray(space.sample(), space.dtype) for _ in range(3)])
    assert stacked.contains(frames)
    assert stacked.shape == (3, *(space.shape or ()))
    assert stacked.dtype == space.dtype
    assert stacked_space(space, 1) is space


def test_spaces_of_spaces_are_stacked_part_by_part() -> None:
    inner = spaces.Box(0, 1, (2,), np.float32)
    found = stacked_space(spaces.Dict({"a": inner, "b": spaces.Tuple((spaces.Discrete(2),))}), 2)
    assert [leaf.shape for leaf in leaves(found, "obs")] == [(2, 2), (2,)]


def test_what_cannot_be_stacked_is_refused() -> None:
    with pytest.raises(UnsupportedSpace, match=r"cannot be stacked\n  found: Text.*\n  fix: set env.frame_stack = 1"):
        stacked_space(spaces.Text(5), 2)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9)), min_size=1, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_what_is_derived_is_what_one_finds_by_walking_along_the_rows(
    frame_stack: int, n_step: int, lanes: list[tuple[int, int]], seed: int
) -> None:
    filled, rng = Filled(len(lanes), 60, frame_stack=frame_stack, n_step=n_step), np.random.default_rng(seed)
    for lane, (steps, length) in enumerate(lanes):
        filled.add(lane, steps + 40, length)  # around the end of the ring
    rows = filled.block.rows
    rows["reward"] = rng.standard_normal(rows.shape)
    rows["terminated"] = (rows["kind"] == STEP) & (rng.random(rows.shape) < 0.3)
    g, places, starts = filled.replay.geometry, [], []
    for lane in range(len(lanes)):
        rows[lane, g.ring_rows :] = rows[lane, : g.mirror_rows]
        for row in range(*filled.replay.resident(lane)):
            if rows[lane, row % g.ring_rows]["kind"] == STEP:
                places.append(filled.replay.place(lane, row))
                starts.append((lane, row))
    windows = filled.replay.windows(np.array(places))
    before = windows.tobytes()
    found = transitions(windows, g.observation, g.action, frame_stack, 0.9)
    assert windows.tobytes() == before, "a record looks at them afterwards"
    for b, (lane, row) in enumerate(starts):
        stretch = [rows[lane, (row + k) % g.ring_rows] for k in range(n_step + 1)]
        taken = next((k for k in range(n_step) if stretch[k]["kind"] != STEP), n_step)
        wanted = sum(stretch[k]["reward"] * 0.9**k for k in range(taken))
        assert found.reward[b] == pytest.approx(wanted)
        assert found.discount[b] == (0.0 if stretch[taken - 1]["terminated"] else pytest.approx(0.9**taken))
        for obs, at in ((found.obs, row), (found.next_obs, row + taken)):
            t = int(rows[lane, row % g.ring_rows]["t"]) + at - row
            stack_of = [rows[lane, (at - min(j, t)) % g.ring_rows]["obs"] for j in reversed(range(frame_stack))]
            assert obs["obs"][b].tolist() == (stack_of if frame_stack > 1 else stack_of[0])
