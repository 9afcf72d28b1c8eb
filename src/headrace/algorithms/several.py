"""Several policies, each learned by an algorithm of its own, as one algorithm."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.base import Algorithm, Arrays, Transitions
from headrace.core.errors import NonFiniteValue

_SHARED = "exploration_scale"
"""The array that is the same for all: a schedule over environment steps, which they have in common."""


class Several:
    """Fulfils `Algorithm` by members that do, one a policy.

    Args:
        members: One for each policy, in their order, of one configuration and the same spaces; two at least.
    """

    def __init__(self, members: Sequence[Algorithm]) -> None:
        self._members = tuple(members)
        self.policy = replace(members[0].policy, policy_of=tuple(range(len(members))))
        self.updates = 0

    def update(self, batch: Transitions) -> NDArray[np.float32] | None:
        """One update of every member, each with its own share of the batch.

        Args:
            batch: As many transitions of each policy, policy by policy.

        Returns:
            See `Algorithm.update`.

        Raises:
            NonFiniteValue: Of a member, which has not changed; those before it have made this update.
        """
        found = []
        for policy, (member, share) in enumerate(zip(self._members, self._shares(batch), strict=True)):
            try:
                found.append(member.update(share))
            except NonFiniteValue as error:
                raise NonFiniteValue(error.what, fix=error.fix, policy=policy, **error.facts) from None
        self.updates += 1
        measured = [errors for errors in found if errors is not None]
        return np.concatenate(measured) if len(measured) == len(found) else None

    def _shares(self, batch: Transitions) -> Iterator[Transitions]:
        each, left = divmod(len(batch.reward), len(self._members))
        assert not left, f"{len(batch.reward)} transitions for {len(self._members)} policies"
        for start in range(0, each * len(self._members), each):
            rows = slice(start, start + each)
            yield Transitions(
                obs=_only(batch.obs, rows),
                action=_only(batch.action, rows),
                reward=batch.reward[rows],
                discount=batch.discount[rows],
                next_obs=_only(batch.next_obs, rows),
                weight=None if batch.weight is None else batch.weight[rows],
            )

    def observe(self, obs: Arrays, env_steps: int, policies: NDArray[np.intp] | None = None) -> None:
        """See `Algorithm.observe`; a member sees the observations of its own policy alone."""
        count = len(next(iter(obs.values()), ()))
        of = np.zeros(count, np.intp) if policies is None else policies
        for policy, member in enumerate(self._members):
            member.observe(_only(obs, of == policy), env_steps)

    def policy_arrays(self) -> dict[str, NDArray[Any]]:
        """See `Algorithm.policy_arrays`; a copy, but for ``exploration_scale``."""
        found = [member.policy_arrays() for member in self._members]
        return {
            name: array if name == _SHARED else np.stack([arrays[name] for arrays in found])
            for name, array in found[0].items()
        }

    def metrics(self) -> dict[str, float]:
        """Means over the members that have measured, by TensorBoard name, and each one's as ``train/<policy>/<name>``."""
        values: dict[str, list[float]] = {}
        single: dict[str, float] = {}
        for policy, member in enumerate(self._members):
            for name, value in member.metrics().items():
                values.setdefault(name, []).append(value)
                section, _, rest = name.rpartition("/")
                single["/".join(filter(None, (section, str(policy), rest)))] = value
        return {name: sum(found) / len(found) for name, found in values.items()} | single

    def weights_sha256(self) -> str:
        """Hash of the members' hashes, in their order."""
        return hashlib.sha256(" ".join(member.weights_sha256() for member in self._members).encode()).hexdigest()

    def ledger(self) -> dict[str, float]:
        """What each member has done and declares, by names that say which: what one leaves out no other makes up for."""
        found: dict[str, float] = {"updates": self.updates}
        for policy, member in enumerate(self._members):
            of = f"of_policy_{policy}"
            for name, value in member.ledger().items():
                found[_with(of, name)] = value
            found[f"updates_{of}_declared"] = self.updates
        return found

    def state(self) -> dict[str, NDArray[Any]]:
        """All it takes to go on exactly here: each member's, as ``<policy>.<name>``. Live where theirs are; copy to keep."""
        found = {
            f"{policy}.{name}": array
            for policy, member in enumerate(self._members)
            for name, array in member.state().items()
        }
        return {**found, "counters": np.array([self.updates], np.int64)}

    def load_state(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from `state`, as saved by as many members of the same configuration and spaces."""
        for policy, member in enumerate(self._members):
            prefix = f"{policy}."
            member.load_state(
                {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            )
        self.updates = int(arrays["counters"][0])


def _only(arrays: Arrays, rows: slice | NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
    return {name: array[rows] for name, array in arrays.items()}


def _with(of: str, name: str) -> str:
    """``q_steps`` of a policy: ``q_of_policy_1_steps``. The ending stays, by which the ledger knows what is counted."""
    if name == "updates":
        return f"{name}_{of}"
    plain = name.removesuffix("_declared")
    what, _, ending = plain.rpartition("_")
    return "_".join(filter(None, (what, of, ending))) + name.removeprefix(plain)
