"""Random streams derived from the run's one seed, each by its name.

Two streams with different names are independent, the same name gives the same stream in any
process, and adding a stream never moves another one. Nothing in Headrace draws from a global
generator; `seed_global_generators` exists for environments that do.
"""

from __future__ import annotations

import random
import zlib

import numpy as np

STREAMS = 2
"""Version of what a seed gives, as records have it. 1, or none: chunks of a lane began 2**64 draws apart, see ADR 8."""


def sequence(seed: int, name: str, *keys: int) -> np.random.SeedSequence:
    """The seed sequence of stream ``name``, e.g. ``sequence(7, "environment", lane, episode)``."""
    return np.random.SeedSequence(entropy=seed, spawn_key=(zlib.crc32(name.encode()), *keys))


def generator(seed: int, name: str, *keys: int) -> np.random.Generator:
    """A numpy generator on stream ``name``."""
    return np.random.Generator(np.random.PCG64(sequence(seed, name, *keys)))


def integer(seed: int, name: str, *keys: int) -> int:
    """One 31-bit seed from stream ``name``, for libraries that want a number."""
    return int(sequence(seed, name, *keys).generate_state(1, np.uint32)[0] >> 1)


def seed_global_generators(seed: int, name: str, *keys: int) -> None:
    """Seed ``random`` and ``np.random``, for environments that draw from them."""
    value = integer(seed, name, *keys)
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - the legacy generator is exactly what is meant
