"""Orders of priority for repairing hosts: how they are encoded, whether a repair obeys them, and what obeying pays.

A *workflow* is an order of the five types of hosts. A *fix* is a Remove or a Restore; it complies or not. Nothing here knows an
environment: arrays have a row for each of N copies.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from headrace.core.config import Section
from headrace.core.errors import ConfigError, HeadraceError
from headrace.envs.cage2 import network as net

Order = tuple[str, ...]
Rule = Literal["final", "original"]

ORDERS: Final[tuple[Order, ...]] = tuple(itertools.permutations(net.TYPES))
"""All 120."""
ENCODING_BITS: Final = len(net.TYPES) ** 2

NO_FIX_RATE: Final = 0.5
"""Compliance of an episode without a fix, by definition."""

TERMS: Final = ("environment", "alignment", "no_fix_penalty", "step_bonus")
"""What a reward is the sum of, in this order, see `total`; ``info`` has each as ``reward_`` and its name."""

FIX_TYPE: Final = np.array(
    [net.TYPE_OF[action.host] if action.kind in (net.REMOVE, net.RESTORE) else -1 for action in net.ACTIONS]
)
"""[action] -> type of the host that it fixes; -1: it fixes nothing."""


def total(terms: Mapping[str, Any]) -> Any:
    """The reward that the terms are: added from left to right, so that a copy's is bit for bit that of one environment.

    Python's own ``sum`` makes up for rounding since 3.12, and would differ from arrays in the last bit.

    Args:
        terms: All of `TERMS`, numbers or arrays of one shape.
    """
    return functools.reduce(operator.add, (terms[name] for name in TERMS))


class Alignment(Section):
    """What obeying an order pays."""

    alignment_lambda: float = Field(default=30.0, ge=0)
    """Reward of a whole episode in which every fix complies."""
    no_fix_penalty: float = Field(default=0.2, ge=0)
    """Share of ``alignment_lambda`` that an episode without a fix loses in its last step."""
    step_bonus: float = Field(default=0.0, ge=0)
    """Reward of a fix that complies, and penalty of one that does not."""
    rule: Rule = "final"
    """final: the fixed type must be the first of the order that has a red session when blue acts. original: every type
    before it must have been fixed earlier in the episode, whatever red does."""
    count_foothold: bool = True
    """Whether User0 counts for the final rule. Red is always there, so that "user" is always compromised."""


def checked_order(order: Sequence[str]) -> Order:
    """The order itself, as a tuple.

    Raises:
        ConfigError: It has not each of the five types once.
    """
    if not isinstance(order, str) and sorted(map(str, order)) == sorted(net.TYPES):
        return tuple(order)
    raise ConfigError(
        "a workflow is an order of the five types of hosts",
        fix="Name each type once, the most important first.",
        found=repr(order)[:200],
        types=", ".join(net.TYPES),
    )


def encode(order: Sequence[str]) -> NDArray[np.uint8]:
    """Five one-hot vectors, one for each place of the order, [25]."""
    code = np.zeros((len(net.TYPES), len(net.TYPES)), np.uint8)
    for place, name in enumerate(checked_order(order)):
        code[place, net.TYPES.index(name)] = 1
    return code.reshape(-1)


def decode(code: Sequence[int] | NDArray[Any]) -> Order:
    """The order that `encode` made it from.

    Raises:
        ConfigError: It was made from none.
    """
    rows = np.asarray(code).reshape(len(net.TYPES), -1)
    return checked_order([net.TYPES[place] for place in rows.argmax(axis=1).tolist()])


def complies_finally(order: Sequence[str], kind: int, compromised: int) -> bool:
    """The final rule.

    Args:
        order: The most important type first.
        kind: Type that is fixed, by its place in `network.TYPES`.
        compromised: Types with a red session, as bits.
    """
    if not compromised:
        return True
    first = next(net.TYPES.index(name) for name in order if compromised >> net.TYPES.index(name) & 1)
    return kind == first


def complies_originally(order: Sequence[str], kind: int, fixed: int) -> bool:
    """The original rule.

    Args:
        order: The most important type first.
        kind: Type that is fixed, by its place in `network.TYPES`.
        fixed: Types that were fixed earlier in the episode, as bits.
    """
    before = order[: order.index(net.TYPES[kind])]
    return all(fixed >> net.TYPES.index(name) & 1 for name in before)


def compliance_table(order: Sequence[str], rule: Rule) -> NDArray[np.bool_]:
    """Whether a fix complies: [type, types compromised (or fixed earlier) as bits]."""
    complies = complies_finally if rule == "final" else complies_originally
    kinds, masks = range(len(net.TYPES)), range(1 << len(net.TYPES))
    return np.array([[complies(order, kind, mask) for mask in masks] for kind in kinds])


def rate(compliant: NDArray[np.int64], fixes: NDArray[np.int64], without: float) -> NDArray[np.float64]:
    """Share of the fixes that comply; ``without`` where there are none."""
    return np.where(fixes > 0, compliant / np.maximum(fixes, 1), without)


class Compliance:
    """How far each of N copies has obeyed its order: in this episode, and in all so far.

    Args:
        orders: One for each copy.
        alignment: By which rule, and what it pays.
    """

    def __init__(self, orders: Sequence[Sequence[str]], alignment: Alignment) -> None:
        self.alignment = alignment
        self.give(orders)
        copies = len(self.orders)
        self.episodes = self.episodes_without_fix = self.fixes_with_nothing_compromised = 0
        """Of the episodes that are over; of all fixes, if the rule is judged by the true state."""
        self.fixes_by_type, self.compliant_by_type = np.zeros((2, len(net.TYPES)), np.int64)
        """Of all fixes, [5] each."""
        self._every = np.arange(copies)
        self.begin()

    @property
    def uses_true_state(self) -> bool:
        """Whether the rule is judged by what red has; otherwise nobody need find that out."""
        return self.alignment.rule == "final"

    def give(self, orders: Sequence[Sequence[str]]) -> None:
        """Go on with other orders, one for each copy."""
        self.orders = tuple(checked_order(order) for order in orders)
        tables = {order: compliance_table(order, self.alignment.rule) for order in set(self.orders)}
        self._tables = np.stack([tables[order] for order in self.orders])  # [N, 5, 32]
        self.codes = np.stack([encode(order) for order in self.orders])
        """The orders as a policy sees them, [N, 25]."""

    def begin(self) -> None:
        """Every copy begins an episode."""
        copies = len(self.orders)
        self.fixes, self.compliant = np.zeros((2, copies), np.int64)
        """Of this episode, [N]."""
        self._fixed = np.zeros(copies, np.int64)
        self._before = np.zeros(copies)
        self.judged, self.complied = np.zeros((2, copies), np.bool_)
        """Who fixed something in this step, and whose fix complied, [N]."""

    @property
    def rates(self) -> NDArray[np.float64]:
        """Compliance of this episode so far, [N]; 0.5 where nothing was fixed."""
        return rate(self.compliant, self.fixes, NO_FIX_RATE)

    def judge(self, actions: NDArray[np.int64], compromised: NDArray[Any]) -> None:
        """What a step adds.

        Args:
            actions: Blue's, [N].
            compromised: Types with a red session when blue chose them, as bits, [N]; the original rule does not read it.
        """
        kinds = FIX_TYPE[actions]
        self.judged = kinds >= 0
        self._before = rate(self.compliant, self.fixes, 0.0)
        if not self.judged.any():
            self.complied = np.zeros_like(self.judged)
            return
        masks = compromised if self.uses_true_state else self._fixed
        self.complied = self._tables[self._every, kinds, masks] & self.judged
        self.fixes = self.fixes + self.judged
        self.compliant = self.compliant + self.complied
        self._fixed = self._fixed | self.judged << np.maximum(kinds, 0)
        np.add.at(self.fixes_by_type, kinds[self.judged], 1)
        np.add.at(self.compliant_by_type, kinds[self.complied], 1)
        if self.uses_true_state:
            self.fixes_with_nothing_compromised += int(np.sum(self.judged & (np.asarray(compromised) == 0)))

    def terms(self, rewards: NDArray[np.float64], ended: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
        """What the step pays, by term, [N] each.

        The alignment is lambda times the change of the rate, which is 0 until the first fix: over an episode with a fix it
        sums up to lambda times its compliance.

        Args:
            rewards: The environment's, [N].
            ended: Whose episode ends with this step, [N].
        """
        settings = self.alignment
        without = self._end(ended)
        return {
            "environment": rewards,
            "alignment": settings.alignment_lambda * (rate(self.compliant, self.fixes, 0.0) - self._before),
            "no_fix_penalty": np.where(without, -settings.no_fix_penalty * settings.alignment_lambda, 0.0),
            "step_bonus": settings.step_bonus * (2.0 * self.complied - self.judged) + 0.0,  # no -0.0
        }

    def cut(self) -> None:
        """The episode of every copy was ended by somebody else, after some steps: it counts, and nothing is paid any more."""
        self._end(np.ones(len(self.orders), np.bool_))

    def _end(self, ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Count these episodes; which of them have no fix, [N]."""
        without: NDArray[np.bool_] = ended & (self.fixes == 0)
        self.episodes += int(ended.sum())
        self.episodes_without_fix += int(without.sum())
        return without

    def counts(self) -> dict[str, int | dict[str, int]]:
        """What compliance is made of, since the beginning: a high rate of few fixes is another thing than of many.

        Fixes with nothing compromised are there by the final rule only, since the original one does not look.
        """
        found: dict[str, int | dict[str, int]] = {
            "episodes": self.episodes,
            "episodes_without_fix": self.episodes_without_fix,
            "fixes": int(self.fixes_by_type.sum()),
            "compliant": int(self.compliant_by_type.sum()),
            "fixes_by_type": dict(zip(net.TYPES, self.fixes_by_type.tolist(), strict=True)),
            "compliant_by_type": dict(zip(net.TYPES, self.compliant_by_type.tolist(), strict=True)),
        }
        if self.uses_true_state:
            found["fixes_with_nothing_compromised"] = self.fixes_with_nothing_compromised
        return found


class RewardLedger:
    """Sums of every term of a reward over a run, and whether the environment's is what the environment says."""

    def __init__(self, terms: Sequence[str] = TERMS) -> None:
        self.totals = dict.fromkeys(terms, 0.0)
        """Sum of each term."""
        self.steps = dict.fromkeys(terms, 0)
        """In how many steps each was not zero."""

    def add(self, terms: Mapping[str, NDArray[np.float64] | float]) -> None:
        """Add one step's terms: numbers, or arrays over copies."""
        for name, values in terms.items():
            if isinstance(values, float):
                self.totals[name] += values
                self.steps[name] += values != 0
            else:
                self.totals[name] += float(values.sum())
                self.steps[name] += int(np.count_nonzero(values))

    def dead(self) -> list[str]:
        """Terms that have never been anything but zero."""
        return [name for name, steps in self.steps.items() if not steps]


def check_return(summed: float, told: float) -> None:
    """Compare the rewards that a workflow was handed with the environment's own return of the same episode.

    Raises:
        HeadraceError: They differ: something in between changed the rewards, or handed over sums instead of steps.
    """
    if summed != told:
        raise HeadraceError(
            "the rewards of an episode do not sum up to the environment's own return",
            fix="Put what changes rewards outside the workflow, and let no wrapper hand over cumulative rewards.",
            summed=summed,
            environments_return=told,
        )
