"""Random streams of a lane: a chunk's draws are its own, whatever came before it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headrace.algorithms.configs import ExplorationConfig
from headrace.algorithms.exploration import lane_noise
from headrace.collectors.streams import LaneStreams

SPACE = spaces.Box(-1.0, 1.0, (2,), np.float32)
KINDS = ("gaussian", "ornstein-uhlenbeck")


class NoisyActor:
    def __init__(self, kind: Any = "gaussian") -> None:
        self._kind = kind

    def noise(self, generator):
        return lane_noise(ExplorationConfig(kind=self._kind), 2, generator)


class UniformActor:
    """Has the generator itself for noise."""

    def noise(self, generator):
        return generator


def streams(kind: str = "gaussian", *, seed: int = 3, lane: int = 0, incarnation: int = 0) -> LaneStreams:
    return LaneStreams(seed, lane, incarnation, NoisyActor(kind), SPACE)


def draws(stream: LaneStreams, chunk: int, count: int = 3, carry: np.ndarray | None = None) -> list[float]:
    """Exploration and random actions of a chunk's first steps."""
    stream.begin_chunk(chunk, random_actions=True)
    if carry is not None:
        stream.noise.carry[:] = carry
    out, found = np.zeros(2, np.float32), []
    for _ in range(count):
        stream.noise.draw(out)
        found += [*out.tolist(), *stream.random_actions.sample().tolist()]
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [[], [0], [0, 1, 2, 3], [9, 2]], ids=str)
def test_a_chunk_does_not_depend_on_those_before_it(kind: str, before: list[int]):
    stream = streams(kind)
    for chunk in before:
        draws(stream, chunk, count=chunk + 1)
    carry = np.full_like(stream.noise.carry, 0.5)
    assert draws(stream, 4, carry=carry) == draws(streams(kind), 4, carry=carry)


def test_what_crosses_a_chunks_end_is_the_carry_alone():
    stream = streams("ornstein-uhlenbeck")
    draws(stream, 0)
    carry = stream.noise.carry.copy()
    assert carry.any()
    assert draws(stream, 1) == draws(streams("ornstein-uhlenbeck"), 1, carry=carry)
    assert draws(stream, 1) != draws(streams("ornstein-uhlenbeck"), 1)


def test_lanes_incarnations_chunks_and_seeds_draw_differently():
    found = [
        draws(streams(seed=seed, lane=lane, incarnation=incarnation), chunk)
        for seed, lane, incarnation, chunk in itertools.product((3, 4), (0, 1), (0, 1), (0, 1, 2))
    ]
    numbers = [number for several in found for number in several]
    assert len(set(numbers)) == len(numbers) == 24 * 12


def test_a_long_chunk_does_not_reach_the_draws_of_the_next():
    stream = streams()
    stream.begin_chunk(0, random_actions=False)
    long, first = np.zeros(200_000, np.float32), np.zeros(64, np.float32)
    stream.noise.draw(long)
    stream.begin_chunk(1, random_actions=False)
    stream.noise.draw(first)
    assert not np.isin(first[:4], long).all()


def test_random_actions_are_the_lanes_own():
    space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    space.seed(1)
    expected = space.sample().tolist()
    space.seed(1)
    LaneStreams(3, 0, 0, NoisyActor(), space).begin_chunk(0, random_actions=True)
    assert space.sample().tolist() == expected


@pytest.fixture(scope="module")
def uniforms() -> np.ndarray:
    """The first 32 draws of 400 chunks of 160 lanes, [lanes, chunks, 32]."""
    lanes = [LaneStreams(11, lane, 0, UniformActor(), SPACE) for lane in range(160)]
    found = np.empty((160, 400, 32))
    for lane, chunk in itertools.product(range(160), range(400)):
        lanes[lane].begin_chunk(chunk, random_actions=False)
        found[lane, chunk] = lanes[lane].noise.random(32)
    return found


@pytest.mark.parametrize("steps", [1, 8, 32])
def test_explored_steps_of_a_lane_spread_as_independent_draws_do(uniforms: np.ndarray, steps: int):
    """The ratio has a deviation of 0.11. Chunks that begin 2**64 draws apart came to 1.83, 1.54 and 1.59."""
    explored = (uniforms[:, :, :steps] < 0.05).sum((1, 2))
    assert 0.7 < np.var(explored) / (400 * steps * 0.05 * 0.95) < 1.3


def test_draws_at_one_place_of_a_lanes_chunks_are_independent(uniforms: np.ndarray):
    """Autocorrelation over chunks, at every place of a chunk and every lag."""
    for lane in uniforms[:4]:
        centred = lane - lane.mean(0)
        power = np.abs(np.fft.fft(centred, 800, axis=0)) ** 2  # twice as long: the end does not meet the beginning
        correlation = np.fft.ifft(power, axis=0).real[:400] / (centred**2).sum(0)
        assert np.abs(correlation[1:]).max() < 5 / np.sqrt(400)
