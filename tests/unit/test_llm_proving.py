"""Whoever makes an engine for a model that ours cannot serve is told so in our words, before anything is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.core.errors import ConfigError
from headrace.llm.config import RLConfig
from headrace.llm.engine.building import prove
from headrace.llm.engine.engine import Engine
from headrace.llm.evaluating import _engine
from headrace.llm.launch.place import Endpoints, LanguageRun, write_endpoints
from headrace.llm.messages import Probe
from headrace.llm.weights import publish
from llm_serving_support import CONTEXT, VOCABULARY, redrawn, single_thread

SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16}
KINDS: dict[str, dict[str, Any]] = {
    "bloom": {**SHAPE, "n_layer": 2, "n_head": 4},
    "falcon": {**SHAPE, "multi_query": True, "alibi": False, "new_decoder_architecture": False},
    "deepseek_v3": {**SHAPE, **LATENT, **EXPERTS, "intermediate_size": 64, "num_key_value_heads": 4},
    "openai-gpt": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
}
"""Two that take no mask of ours, and two that keep something else than their configuration says."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with single_thread():
        yield


def made(kind: str, settings: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    from_config: Any = AutoModelForCausalLM.from_config
    return redrawn(from_config(AutoConfig.for_model(kind, **settings, **ENDS)), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_our_engine_cannot_serve_is_refused_in_our_words(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be served by our engine\n  problem: .*\n  fix: use another model"):
        prove(Engine(made(kind, KINDS[kind]), slots=2, context_tokens=CONTEXT))


def test_what_a_model_keeps_is_told_beside_what_its_configuration_says() -> None:
    with pytest.raises(ConfigError) as raised:
        prove(Engine(made("falcon", KINDS["falcon"]), slots=2, context_tokens=CONTEXT))
    assert raised.value.facts["problem"] == (
        "ValueError: layer 0 keeps 1 x 8 as keys and 1 x 8 as values of a token, its configuration says 4 x 8"
    )


def test_an_evaluation_does_not_play_with_an_engine_that_is_not_proved(tmp_path: Path) -> None:
    neo = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]}
    model = made("gpt_neo", {"vocab_size": VOCABULARY, **neo, "max_position_embeddings": CONTEXT})
    place = cast("LanguageRun", PlaceOf(tmp_path))
    model.config.save_pretrained(place.model_dir)
    write_endpoints(place.endpoints_file, Endpoints("run"))
    probe = Probe(token_ids=(1, 2), logprobs=(-1.0,))
    publish(model.state_dict(), version=0, weights_dir=place.weights_dir, run_id="run", probe=probe, metadata={})
    config = RLConfig.model_validate({"model": {"context_tokens": CONTEXT}})
    with pytest.raises(ConfigError, match="what the model says of a text depends on what is passed beside it"):
        _engine(config, place, None, lambda _: None)


class PlaceOf:
    """Of a run of which nothing is there but what an engine is made of."""

    def __init__(self, path: Path) -> None:
        self.model_dir, self.weights_dir, self.endpoints_file = (
            path / "model",
            path / "weights",
            path / "endpoints.json",
        )
