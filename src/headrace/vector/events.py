"""What comes back from where environments run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.vector.faults import Problem
from headrace.vector.infos import Columns
from headrace.vector.messages import Extras
from headrace.vector.probes import Evaluated
from headrace.vector.slab import Slab

Ids = NDArray[np.int64]


@dataclass(slots=True)
class Answers:
    """Event: these have answered; what they said lies in the slab, and here what is not the same size every time."""

    ids: Ids
    seqs: Ids
    infos: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By environment; only those that are not empty."""
    columns: list[Columns] = field(default_factory=list)
    """Infos of other environments."""
    objects: dict[int, list[Any]] = field(default_factory=dict)
    """By environment: parts of the observation that are no arrays."""
    rows: dict[int, list[Any]] = field(default_factory=dict)
    """By environment: its observation's arrays, where they do not lie in the slab."""

    probes: dict[int, Evaluated] = field(default_factory=dict)
    """By environment: what probes found."""

    def note(self, env: int, extras: Extras) -> None:
        """Add what was sent along with the answer of one environment."""
        if env in extras.infos:
            self.infos[env] = extras.infos[env]
        if env in extras.objects:
            self.objects[env] = extras.objects[env]
        if env in extras.rows:
            self.rows[env] = extras.rows[env]
        if env in extras.probes:
            self.probes[env] = extras.probes[env]


@dataclass(frozen=True, slots=True)
class Failure:
    """Event: an environment is gone, whether it was asked something or not."""

    env: int
    seq: int
    """Of the question it did not answer; -1 if it was asked nothing."""
    problem: Problem


@dataclass(frozen=True, slots=True)
class Moves:
    """Event: these are still well, but are to begin their next episode elsewhere, as new environments."""

    ids: tuple[int, ...]


Event = Answers | Failure | Moves


class Backend(Protocol):
    """Where environments run."""

    slab: Slab
    here: int
    """How many of them, the first ones, run in this process: a call of theirs that is broken off goes on nowhere."""

    def prepare(self, values: Mapping[int, Any], what: str) -> dict[int, Any]:
        """Options or actions as `submit` takes them.

        Args:
            values: By environment.
            what: They are, for an error.

        Raises:
            VectorMisused: One of them cannot be handed to its environment; nothing has changed.
        """
        ...

    def submit(
        self, ids: Ids, seqs: Ids, resets: Mapping[int, tuple[int | None, Any]], actions: Mapping[int, Any]
    ) -> None:
        """Hand questions out that are in the slab. If it raises, `ask_rest` tells whether anybody was asked.

        Args:
            ids: To whom, ascending.
            seqs: Their numbers.
            resets: Seed and prepared options of those of kind RESET and RENEW.
            actions: Prepared, where they are objects.
        """
        ...

    def ask_rest(
        self, ids: Ids, seqs: Ids, resets: Mapping[int, tuple[int | None, Any]], actions: Mapping[int, Any]
    ) -> bool:
        """After an exception out of `submit`: whether anybody was asked. Then everybody is.

        What was asked is answered with these numbers, which must not be given out a second time.

        Args:
            ids: As they were given to `submit`, and so are the others.
            seqs: See there.
            resets: See there.
            actions: See there.
        """
        ...

    def poll(self, missing: int, timeout_s: float) -> list[Event]:
        """What has come in; waits for something if nothing has, at most ``timeout_s``.

        Args:
            missing: How many answers are enough to come back with.
            timeout_s: At most so long.
        """
        ...

    def call(
        self, name: str, data: Any, ids: list[int], gone: Mapping[int, int | None], *, sets: bool
    ) -> dict[int, Any]:
        """Call a method, or read or set an attribute, of environments that are asked nothing else.

        Args:
            name: Of it.
            data: Arguments and keyword arguments, or the values to set by environment.
            ids: Of whom.
            gone: Those that have failed and were not renewed, with seeds: where nothing is left of them, or something is
                to be set, new ones are built, reset with that and asked; the next reset goes on with these.
            sets: Whether it is to be set.

        Raises:
            HeadraceError: It did not work for one of them.
        """
        ...

    def broken_off(self) -> Sequence[int]:
        """After an exception: environments in this process whose calls it broke off, each once.

        Nobody goes on with these, nor knows what they did.
        """
        ...

    def close(self, timeout_s: float) -> None:
        """Be done with all environments; takes at most about ``timeout_s``."""
        ...

    def pids(self) -> dict[int, int]:
        """Process ids by worker; empty in this process."""
        ...
