"""How far collectors may be ahead of an on-policy learner, and when a rollout is complete. Numbers in, numbers out.

Versions and rollouts count alike: each rollout that is trained on is followed by one publication. An action of a policy
that is trained on ``l`` publications later has a lag of ``l``, and none may have one above ``max_policy_lag``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headrace.lanes.rollouts import Arrived


class Grant(NamedTuple):
    """A group may collect its chunks up to, and not including, ``limit``."""

    group: int
    chunk: int
    """The first of those that it was granted and has not committed."""
    limit: int


class Pace:
    """What every group has been granted.

    Args:
        groups: How many there are.
        chunk_steps: Environment steps of one chunk of one group, over its lanes.
        max_policy_lag: See `headrace.core.config.RolloutConfig`.
        ordered: Whether a rollout is made of the chunks of one number; otherwise of those that arrived first.
    """

    def __init__(self, groups: int, chunk_steps: int, max_policy_lag: int, *, ordered: bool) -> None:
        self._chunk_steps = chunk_steps
        self._lag = max_policy_lag
        self._ordered = ordered
        self._next = [0] * groups
        """Number of the next chunk that each group is granted."""
        self._out: list[list[tuple[int, int]]] = [[] for _ in range(groups)]
        """(chunk, version when it was granted) of what each group has not committed, oldest first."""

    @property
    def busy(self) -> list[int]:
        """Groups that are awaited."""
        return [group for group, out in enumerate(self._out) if out]

    def state(self) -> list[int]:
        """Number of the next chunk of each group, where none is outstanding."""
        return list(self._next)

    def go_on(self, chunks: Sequence[int]) -> None:
        """Begin from a `state`."""
        self._next = list(chunks)

    def on_commit(self, group: int) -> None:
        """The oldest outstanding chunk of a group arrived."""
        self._out[group].pop(0)

    def on_lost(self, group: int) -> None:
        """A group's collector is gone; it is awaited no more."""
        self._out[group].clear()

    def grant(self, version: int, room: int, arrived: Sequence[Arrived], present: Sequence[int]) -> list[Grant]:
        """Grant what the lag allows.

        Args:
            version: The newest published policy.
            room: Environment steps that are wanted and have not been committed.
            arrived: What is there and was not trained on.
            present: Groups whose collector is there to take it.

        Returns:
            One for each group that was granted anything.
        """
        raised: set[int] = set()
        wanted = self._rounds if self._ordered else self._singles
        for group, chunk in wanted(room, arrived, present):
            self._out[group].append((chunk, version))
            self._next[group] = chunk + 1
            raised.add(group)
        return [Grant(group, self._out[group][0][0], self._next[group]) for group in sorted(raised)]

    def complete(self, version: int, arrived: Sequence[Arrived], present: Sequence[int]) -> bool:
        """Whether the next rollout can be gathered."""
        if not arrived:
            return False
        if self._ordered:
            return self._lowest_is_whole(min(one.chunk for one in arrived))
        size, out = len(self._out), [since for own in self._out for _, since in own]
        if not out:
            return True  # nothing else is on its way
        arrived = [one for one in arrived if one.has_steps]
        if len(arrived) < min(size, len(present)):
            return False
        left = sorted([*sorted(one.version for one in arrived)[size:], *out])
        # Whoever comes as number n in the line is trained on n // size rollouts after the next one.
        return all(version + 1 + number // size - since <= self._lag for number, since in enumerate(left))

    def _lowest_is_whole(self, chunk: int) -> bool:
        return not any(number <= chunk for out in self._out for number, _ in out)

    def _rounds(self, room: int, arrived: Sequence[Arrived], present: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Whole rounds: the same number to every group that is there."""
        known = [*(number for out in self._out for number, _ in out), *(one.chunk for one in arrived)]
        chunk = max(self._next)
        # Of a round in which every group was lost before its first step nothing is left, and none waits for it.
        first = min(known, default=chunk)
        while present and chunk <= first + self._lag and room > self._outstanding_steps():
            for group in present:
                yield group, chunk
            chunk = max(self._next)

    def _singles(self, room: int, arrived: Sequence[Arrived], present: Sequence[int]) -> Iterator[tuple[int, int]]:
        """One chunk at a time, to the group that has the fewest; what waits is never more than the lag lets be trained on."""
        waiting = [sum(one.group == group and one.has_steps for one in arrived) for group in range(len(self._out))]
        total, most = sum(waiting), len(self._out) * (self._lag + 1)
        while room > self._outstanding_steps() and total + sum(map(len, self._out)) < most:
            free = [
                group
                for group in present
                if len(self._out[group]) <= self._lag and len(self._out[group]) + waiting[group] < self.window
            ]
            if not free:
                return
            group = min(free, key=lambda group: (len(self._out[group]), self._next[group], group))
            yield group, self._next[group]

    @property
    def window(self) -> int:
        """Most chunks of one group that are outstanding or not trained on."""
        return window_chunks(self._lag, ordered=self._ordered)

    def _outstanding_steps(self) -> int:
        return sum(map(len, self._out)) * self._chunk_steps


def window_chunks(max_policy_lag: int, *, ordered: bool) -> int:
    """Most chunks of one group that may be outstanding or not trained on.

    In order, as many as the lag spans. By arrival the fast ones stand in for the slow, up to twice that.
    """
    return (max_policy_lag + 1) * (1 if ordered else 2)
