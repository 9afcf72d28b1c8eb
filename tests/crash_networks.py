"""Critic networks that misbehave in the learner: ``crash_networks:<place>__<what>``, e.g. ``update__sigkill``.

A factory is only called with sizes, so what goes wrong is in its name. Places: ``import``, ``build``, ``update``.
"""

from __future__ import annotations

from typing import Any

from headrace.testing import provoke

UPDATES = 20
"""Batches that a network lets pass."""


def __getattr__(name: str) -> Any:
    place, found, what = name.partition("__")
    what = what.replace("_", "-")
    if not found or place not in ("import", "build", "update"):
        raise AttributeError(name)
    if place == "import":
        provoke.ENDS[what]()

    def factory(inputs: int, outputs: int) -> Any:
        import torch

        if place == "build":
            provoke.ENDS[what]()

        class Network(torch.nn.Linear):
            passed = 0

            def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
                out = super().forward(input)
                Network.passed += len(input) > 2  # two rows are how a new network is looked at
                if place == "update" and Network.passed > UPDATES:
                    if what == "nan":
                        return out * float("nan")
                    provoke.ENDS[what]()
                return out

        return Network(inputs, outputs)

    return factory
