"""Makes the engine of a run: the model's configuration from its folder, the weights from a published version."""

from __future__ import annotations

from pathlib import Path

from headrace.core.errors import ComponentError
from headrace.llm.config import RLConfig
from headrace.llm.engine.engine import Engine
from headrace.llm.messages import Completion, Failure, GenerationRequest, PublishedWeights


def build_engine(config: RLConfig, model_folder: Path, published: PublishedWeights) -> Engine:
    """An engine that serves ``published``.

    Args:
        config: Of the run.
        model_folder: Holds the model's configuration.
        published: What is served first.

    Raises:
        ConfigError: The folder holds no model that can be served.
        HeadraceError: The weights cannot be read, or do not fit.
    """
    from headrace.llm.tiny import load_model
    from headrace.llm.weights import read

    section = config.inference
    _, tensors = read(published.folder, published.run_id)
    model = load_model(model_folder, tensors, dtype=config.model.dtype).to(section.device)
    engine = Engine(
        model,
        slots=section.slots,
        context_tokens=config.model.context_tokens,
        max_waiting=section.max_waiting,
        kv_reuse=section.kv_reuse,
    )
    engine.load(published)
    return engine


def prove(engine: Engine) -> Completion:
    """One real generation: what an engine has to have done before it is called ready.

    Raises:
        ComponentError: It did not come about.
    """
    answers: list[Completion | Failure] = []
    wanted = GenerationRequest(id="proof", prompt_ids=(0,), max_tokens=2)
    engine.submit([wanted], lambda _, answer: answers.append(answer))
    while engine.step():
        pass
    if not answers or isinstance(answers[0], Failure):
        raise ComponentError(
            "the model that was loaded generates nothing",
            answer=answers[0] if answers else "none",
            fix="look at its weights: their scores are not finite, or its context has no room",
        )
    return answers[0]
