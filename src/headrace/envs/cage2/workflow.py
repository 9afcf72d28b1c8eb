"""Environments that follow a workflow: the order is part of the observation, and obeying it is part of the reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, TypedDict, Unpack

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from headrace.core.errors import ConfigError, HeadraceError
from headrace.envs.cage2.env import OBSERVATION_BITS, CAGE2Env
from headrace.envs.cage2.network import CHECKED, TYPES
from headrace.envs.cage2.settings import Opponent
from headrace.envs.cage2.vector import CAGE2Vector, Step
from headrace.envs.cage2.workflows import (
    ENCODING_BITS,
    FIX_TYPE,
    NO_FIX_RATE,
    TERMS,
    Alignment,
    Compliance,
    RewardLedger,
    Rule,
    check_return,
    checked_order,
    total,
)

WORKFLOW_BITS = OBSERVATION_BITS + ENCODING_BITS
_FIXES = (FIX_TYPE >= 0).tolist()
_NOTHING = dict.fromkeys(TERMS, 0.0)
Orders = Sequence[str] | Sequence[Sequence[str]]


class Keywords(TypedDict, total=False):
    """What the entry points take: fields of `Settings` and of `Alignment`."""

    red: Opponent | Sequence[Opponent]
    max_steps: int | None
    alignment_lambda: float
    no_fix_penalty: float
    step_bonus: float
    rule: Rule
    count_foothold: bool


class WorkflowEnv(gymnasium.Wrapper[NDArray[np.uint8], SupportsIndex, NDArray[np.uint8], SupportsIndex]):
    """One copy that follows an order of priority.

    Observation, uint8 [77]: the environment's 52 bits and the order's 25. The reward is the sum of `workflows.TERMS`, each of
    which ``info`` has, as it has ``compliance`` and ``fixes`` of the episode so far, and in a step with a fix ``compliant``,
    0.0 or 1.0. By the final rule what complies is judged by the true state in which blue acts, in the step itself.

    Args:
        env: A `CAGE2Env`, or a `CybORGEnv`; wrappers in between may change anything but rewards.
        order: The types of hosts, the most important first.
        alignment: By which rule, and what obeying pays.

    Raises:
        ConfigError: The order is none; or the rule is judged by the true state, and the environment does not tell it.
    """

    def __init__(
        self,
        env: gymnasium.Env[NDArray[np.uint8], SupportsIndex],
        order: Sequence[str],
        alignment: Alignment | None = None,
    ) -> None:
        super().__init__(env)
        self._compliance = Compliance([order], alignment or Alignment())
        self.observation_space = spaces.Box(0, 1, (WORKFLOW_BITS,), np.uint8)
        self.ledger = RewardLedger()
        """Sums of the reward's terms, of all steps so far."""
        self._network: Any = env.unwrapped
        if self._compliance.uses_true_state and not getattr(self._network, "true_state", True):
            raise ConfigError(
                "a workflow is judged by the true state, which the environment does not tell",
                fix='Build it without true_state=False, or judge by the rule "original".',
                rule=self._compliance.alignment.rule,
            )
        self._summed = 0.0
        self._steps = 0
        self._limit: int | None = None
        self._open = False  # an episode has steps, and is not counted yet

    @property
    def order(self) -> tuple[str, ...]:
        """The order that is followed now."""
        return self._compliance.orders[0]

    @property
    def compliance(self) -> float:
        """Share of the fixes of this episode that comply; 0.5 without a fix."""
        fixes = self._compliance.fixes.item()
        return self._compliance.compliant.item() / fixes if fixes else NO_FIX_RATE

    @property
    def fixes(self) -> float:
        """Fixes of this episode."""
        return float(self._compliance.fixes.item())

    @property
    def compliant_fixes(self) -> float:
        """Those of them that comply."""
        return float(self._compliance.compliant.item())

    def counts(self) -> dict[str, int | dict[str, int]]:
        """What compliance is made of, since the beginning; see `workflows.Compliance.counts`."""
        return self._compliance.counts()

    def truncate_after(self, steps: int) -> None:
        """End episodes after so many steps, if the environment does not end them before.

        A limit around this environment would end them behind its back, and take the last step from it, in which it pays.
        """
        self._limit = steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: As the environment's.
            options: ``order`` replaces the order, from this episode on; others go to the environment.

        Raises:
            ConfigError: The order is none, or the environment refuses the rest; the episode in progress goes on with its order.
        """
        order, options = _split(options)
        orders = None if order is None else [checked_order(order)]
        seen, info = self.env.reset(seed=seed, options=options)
        if self._open:
            self._compliance.cut()
        if orders is not None:
            self._compliance.give(orders)
        self._compliance.begin()
        self._summed, self._steps, self._open = 0.0, 0, False
        return self._extended(seen), info

    def step(self, action: SupportsIndex) -> tuple[NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """One step.

        Raises:
            ConfigError: ``action`` is no integer from 0 to 144; nothing has happened.
            HeadraceError: No episode is in progress; or wrappers have changed its rewards.
        """
        if self._limit is not None and self._steps >= self._limit:
            raise HeadraceError(
                "WorkflowEnv.step() was called while no episode was in progress",
                fix="Call reset() first, and again after a step that returned truncated.",
                steps_taken=self._steps,
            )
        number = CHECKED.one("WorkflowEnv", action)
        judged, fixes = self._compliance, _FIXES[number]
        looks = fixes and judged.uses_true_state
        compromised = self._network.compromised_types(foothold=judged.alignment.count_foothold) if looks else 0
        seen, reward, terminated, truncated, info = self.env.step(number)
        self._steps += 1
        truncated = truncated or self._steps == self._limit
        ended = terminated or truncated
        self._open = not ended
        self._summed += float(reward)
        if ended:
            check_return(self._summed, self._network.episode_return)
        if fixes or ended:
            judged.judge(np.array([number]), np.array([compromised]))
            terms = judged.terms(np.array([float(reward)]), np.array([ended]))
            paid = {name: float(values[0]) for name, values in terms.items()}
        else:  # most steps: nothing is judged, so only the environment pays
            paid = _NOTHING | {"environment": float(reward)}
        self.ledger.add(paid)
        info = info | {f"reward_{name}": value for name, value in paid.items()}
        info |= {"compliance": self.compliance, "fixes": self.fixes}
        if fixes:
            info["compliant"] = float(judged.complied[0])
        return self._extended(seen), total(paid), terminated, truncated, info

    def _extended(self, seen: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.concatenate([seen, self._compliance.codes[0]])


class WorkflowVector(VectorWrapper):
    """Copies that follow an order of priority each; as `WorkflowEnv`, with arrays.

    Args:
        env: A `CAGE2Vector`.
        order: One order for every copy, or one for each.
        alignment: By which rule, and what obeying pays.
    """

    env: CAGE2Vector

    def __init__(self, env: CAGE2Vector, order: Orders, alignment: Alignment | None = None) -> None:
        super().__init__(env)
        self._compliance = Compliance(_for_each(order, env.num_envs), alignment or Alignment())
        self.single_observation_space = spaces.Box(0, 1, (WORKFLOW_BITS,), np.uint8)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.ledger = RewardLedger()
        """Sums of the reward's terms, of all steps and copies so far."""
        self._summed = np.zeros(env.num_envs)
        self._open = False  # episodes have steps, and are not counted yet

    @property
    def orders(self) -> tuple[tuple[str, ...], ...]:
        """The orders that are followed now, one for each copy."""
        return self._compliance.orders

    @property
    def compliance(self) -> NDArray[np.float64]:
        """Share of the fixes of this episode that comply, [N]; 0.5 without a fix."""
        return self._compliance.rates

    @property
    def fixes(self) -> NDArray[np.int64]:
        """Fixes of this episode, [N]."""
        return self._compliance.fixes

    def counts(self) -> dict[str, int | dict[str, int]]:
        """What compliance is made of, over all copies; see `workflows.Compliance.counts`."""
        return self._compliance.counts()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Begin an episode in every copy; see `WorkflowEnv.reset`, where ``order`` may also be one for each copy."""
        order, options = _split(options)
        orders = None if order is None else [checked_order(one) for one in _for_each(order, self.num_envs)]
        seen, info = self.env.reset(seed=seed, options=options)
        if self._open:
            self._compliance.cut()
        if orders is not None:
            self._compliance.give(orders)
        self._begin()
        return self._extended(seen), info

    def step(self, actions: NDArray[np.integer]) -> Step:
        """One step of every copy, or a reset after the last one of an episode, in which every term is 0."""
        chosen = CHECKED.many("WorkflowVector", actions, self.num_envs).astype(np.int64, copy=False)
        judged = self._compliance
        resets = self.env.over
        compromised: NDArray[np.uint8] = np.zeros(self.num_envs, np.uint8)
        if judged.uses_true_state:
            compromised = self.env.compromised_types(foothold=judged.alignment.count_foothold)
        seen, rewards, terminations, truncations, info = self.env.step(chosen)
        if resets:
            self._begin()
            terms = {name: np.zeros(self.num_envs) for name in TERMS}
        else:
            self._summed += rewards
            self._open = not truncations.any()
            if not self._open:
                for summed, told in zip(self._summed.tolist(), self.env.episode_returns.tolist(), strict=True):
                    check_return(summed, told)
            judged.judge(chosen, compromised)
            terms = judged.terms(rewards, terminations | truncations)
        self.ledger.add(terms)
        return self._extended(seen), total(terms), terminations, truncations, info | self._info(terms)

    def _info(self, terms: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
        """Arrays by key, each with a mask of who has it, as Gymnasium's vector environments return them."""
        judged, everyone = self._compliance, np.ones(self.num_envs, np.bool_)
        values: dict[str, NDArray[Any]] = {f"reward_{name}": term for name, term in terms.items()}
        values |= {"compliance": judged.rates, "fixes": judged.fixes.astype(np.float64)}
        info = values | {f"_{key}": everyone for key in values}
        if judged.judged.any():
            info |= {"compliant": judged.complied.astype(np.float64), "_compliant": judged.judged}
        return info

    def _begin(self) -> None:
        self._compliance.begin()
        self._summed = np.zeros(self.num_envs)
        self._open = False

    def _extended(self, seen: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return np.concatenate([seen, self._compliance.codes], axis=1)


def workflow_env(
    order: Sequence[str] = TYPES, *, render_mode: str | None = None, **settings: Unpack[Keywords]
) -> WorkflowEnv:
    """Build ``headrace/CAGE2Workflow-v0``: a `CAGE2Env` that follows ``order``; keywords are its and those of `Alignment`."""
    own, alignment = _parted(settings)
    return WorkflowEnv(CAGE2Env(render_mode=render_mode, **own), order, alignment)


def workflow_vector(
    num_envs: int = 1, *, order: Orders = TYPES, render_mode: str | None = None, **settings: Unpack[Keywords]
) -> VectorEnv[Any, Any, Any]:
    """The same for many copies."""
    own, alignment = _parted(settings)
    return WorkflowVector(CAGE2Vector(num_envs, render_mode=render_mode, **own), order, alignment)


def _parted(settings: Any) -> tuple[Any, Alignment]:
    mine = {key: value for key, value in settings.items() if key in Alignment.model_fields}
    return {key: value for key, value in settings.items() if key not in mine}, Alignment(**mine)


def _split(options: dict[str, Any] | None) -> tuple[Any, dict[str, Any] | None]:
    """The option that is the workflow's, and the others."""
    if not options or "order" not in options:
        return None, options
    return options["order"], {key: value for key, value in options.items() if key != "order"} or None


def _for_each(order: Any, copies: int) -> list[Any]:
    """An order for each copy; whether they are orders is checked where they are used."""
    orders = [order] * copies if all(isinstance(part, str) for part in order) else list(order)
    if len(orders) != copies:
        raise ConfigError(
            "WorkflowVector takes one order for all copies, or one for each copy",
            fix="Pass as many orders as there are copies, or one.",
            orders=len(orders),
            copies=copies,
        )
    return orders
