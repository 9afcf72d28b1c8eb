"""The proof of what is served, with real engines that compute in the type that is published."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from headrace.core.errors import StaleWeights
from headrace.llm.engine.engine import Engine
from headrace.llm.messages import Generator, PublishedWeights, ServedWeights
from headrace.llm.orchestration.policies import serve
from headrace.llm.tiny import served_copy
from headrace.llm.weights import make_probe
from llm_serving_support import CONTEXT, VOCABULARY, llama
from llm_training_support import rl_config

TEXT = [place * 7 % VOCABULARY for place in range(40)]


class Serves:
    """A server of one model, whatever it is given.

    Args:
        model: That it serves.
        sha256: It says that this is in its memory; empty: it cannot tell.
    """

    def __init__(self, model: Any, sha256: str) -> None:
        self._engine = Engine(model, slots=2, context_tokens=CONTEXT)
        self._sha256 = sha256

    async def update_weights(self, published: PublishedWeights, timeout_s: float) -> ServedWeights:
        return ServedWeights(version=published.version, sha256=self._sha256)

    async def score(self, token_ids: Sequence[int], timeout_s: float) -> tuple[float, ...]:
        return self._engine.score(token_ids)


def moved(model: Any, by: float) -> Any:
    """A copy after as much learning as moves every number of it."""
    draws = torch.Generator().manual_seed(0)
    learned = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in learned.parameters():
            parameter.add_(by * torch.randn(parameter.shape, generator=draws).sign())
    return learned


def difference(published: Any, served: Any, dtype: str, sha256: str = "") -> float:
    """What the proof finds with the tolerance of this type."""
    version = PublishedWeights(
        version=1, folder=Path("w1"), sha256="sum", run_id="run", probe=make_probe(published, TEXT)
    )
    generator = cast("Generator", Serves(served, sha256))
    tolerance = rl_config(model={"dtype": dtype}).probe_tolerance
    return asyncio.run(serve(generator, version, server="inference", timeout_s=60.0, tolerance=tolerance))


def test_rounding_in_bfloat16_is_no_other_version() -> None:
    """Trainer and engine compute the same in other orders, and round between them."""
    published = served_copy(llama(), "bfloat16")
    assert 1e-3 < difference(published, copy.deepcopy(published), "bfloat16") < 0.25
    assert difference(llama(), llama(), "float32") < 1e-4


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_layer_that_was_not_loaded_is_found_by_the_probe_alone(dtype: str) -> None:
    old, new = (served_copy(model, dtype) for model in (llama(), moved(llama(), 0.02)))
    served = copy.deepcopy(new)
    served.model.layers[0].load_state_dict(old.model.layers[0].state_dict())
    with pytest.raises(StaleWeights, match="the old weights, or some of them, are still served"):
        difference(new, served, dtype)


def test_a_server_whose_memory_is_right_is_not_said_to_serve_old_weights() -> None:
    with pytest.raises(StaleWeights) as caught:
        difference(llama(), served_copy(llama(), "bfloat16"), "float32", sha256="sum")
    assert "old weights" not in str(caught.value)
    assert "so it computes in another precision, or otherwise, than the trainer" in caught.value.fix


def test_what_is_set_counts_in_place_of_what_the_type_needs() -> None:
    assert rl_config(supervision={"probe_tolerance": 0.01}, model={"dtype": "bfloat16"}).probe_tolerance == 0.01
