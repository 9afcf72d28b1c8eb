"""Environments that change torch for their whole process, as physics and models written in it do."""

from __future__ import annotations

from typing import Any

import gymnasium

_ENTERED: list[Any] = []
"""Never left; one that is thrown away would put back what was before it, wherever that happens."""


class Setting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sets all that torch keeps for a process or a thread, and is rewarded by whether that is still so.

    Args:
        where: ``construct``, ``reset`` or ``step``: once, in the third one.
    """

    def __init__(self, where: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1", max_episode_steps=10))
        self._left, self._where = 3, where
        self._set_it = False
        if where == "construct":
            self._set()

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        if self._where == "reset" and not self._set_it:
            self._set()
        return self.env.reset(**given)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        import torch

        observation, _, terminated, truncated, info = self.env.step(action)
        self._left -= 1
        if self._where == "step" and self._left == 0:
            self._set()
        made = torch.ones(1)
        found = (made.dtype == torch.float64, made.is_meta, made.is_inference(), torch.get_num_threads() == 3)
        return observation, float(sum(found)), terminated, truncated, info

    def _set(self) -> None:
        import torch

        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_num_threads(3)
        torch.use_deterministic_algorithms(mode=True)
        torch.set_grad_enabled(False)
        mode = torch.inference_mode()
        mode.__enter__()
        _ENTERED.append(mode)
        self._set_it = True


def setting(where: str) -> Setting:
    return Setting(where)
