"""Makes the engine of a run: the model's configuration from its folder, the weights from a published version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from headrace.core.errors import ComponentError, ConfigError, HeadraceError
from headrace.llm.attending import TOLERATED, in_a_line
from headrace.llm.config import RLConfig
from headrace.llm.engine.engine import Engine, EngineCounts
from headrace.llm.engine.sizes import keeps_sessions
from headrace.llm.messages import Completion, Failure, GenerationRequest, PublishedWeights

_PROVED_COLUMNS = 288
"""Tokens of the text that proves an engine, where the context has as many: beyond windows of 256."""

_BEGUN_SAID = 2
"""Tokens that are said before the cache is used again."""


def build_engine(config: RLConfig, model_folder: Path, published: PublishedWeights) -> Engine:
    """An engine that serves ``published``, and has generated: see `prove`.

    Args:
        config: Of the run.
        model_folder: Holds the model's configuration.
        published: What is served first.

    Raises:
        ConfigError: The folder holds no model that can be served.
        ComponentError: It generates nothing.
        HeadraceError: The weights cannot be read, or do not fit; or files of the model were changed since the run began.
    """
    from headrace.llm.modelfiles import require_same_model
    from headrace.llm.tiny import load_model
    from headrace.llm.weights import read

    section = config.inference
    _, tensors = read(published.folder, published.run_id)
    require_same_model(model_folder, published.folder, published.run_id)
    model = load_model(model_folder, tensors, dtype=config.model.dtype).to(section.device)
    engine = Engine(
        model,
        slots=section.slots,
        context_tokens=config.model.context_tokens,
        max_waiting=section.max_waiting,
        kv_reuse=keeps_sessions(config),
    )
    engine.load(published)
    prove(engine)
    return engine


def prove(engine: Engine) -> Completion:
    """Real generation: what an engine has to have done before anybody uses it.

    A model's own code may look at the shape of a pass, which no list of such models would ever be complete about. So a text
    that goes on from what the cache holds and a shorter, fresh one are passed together, and each is scored alone afterwards.

    Returns:
        The first text's beginning. Nothing is left in flight, nor kept for a session, nor counted.

    Raises:
        ComponentError: It did not come about.
        ConfigError: What the model says of a text depends on what is passed beside it, or it cannot be passed as we do it.
    """
    with _in_our_words(engine):
        answer = _generated(engine)
    engine.counts = EngineCounts(updates=engine.counts.updates)  # nobody asked for what was counted
    return answer


@contextmanager
def _in_our_words(engine: Engine) -> Iterator[None]:
    """Whatever a model's own code raises where it is handed our mask and our cache."""
    try:
        yield
    except (HeadraceError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ConfigError(
            f"{engine.model_name} cannot be served by our engine",
            problem=in_a_line(error),
            fix='use another model, or inference.backend = "vllm", which headrace eval and one process do not use',
        ) from error


def _generated(engine: Engine) -> Completion:
    columns = min(engine.limits.context_tokens, _PROVED_COLUMNS)
    added, said = max(1, columns // 8), max(2, columns // 16)
    begun = max(1, columns - added - said - _BEGUN_SAID)
    answers: list[Completion | Failure] = []
    first = _wanted(engine, "proof", _ids(engine, begun), _BEGUN_SAID)
    engine.submit([first], lambda _, answer: answers.append(answer))
    while engine.step():
        pass
    if not answers or isinstance(answers[0], Failure):
        raise _silent(answers[0] if answers else "none")
    begin = (*first.prompt_ids, *answers[0].token_ids)
    if len(begin) + added + said <= columns:
        further = _wanted(engine, "proof", (*begin, *_ids(engine, added)), said)
        fresh = _wanted(engine, "proof, fresh", _ids(engine, begun // 2 + 1), said)
        _prove_beside(engine, (further, fresh))
    return answers[0]


def _prove_beside(engine: Engine, requests: Sequence[GenerationRequest]) -> None:
    """Pass them together, as far as there are slots, and compare each with itself alone."""
    answers: list[Completion | Failure] = []
    requests = requests[: engine.limits.slots]
    engine.submit(requests, lambda _, answer: answers.append(answer))
    for _ in range(requests[0].max_tokens - 1):  # none ends: a session would be kept for it
        engine.step()
    beside = {request: engine.so_far(request.id) for request in requests}
    engine.cancel([request.id for request in requests])
    if answers:
        raise _silent(answers[0])
    for request, (tokens, logprobs, _) in beside.items():
        alone = engine.score((*request.prompt_ids, *tokens))[-len(tokens) :]
        difference = sum(abs(a - b) for a, b in zip(alone, logprobs, strict=True)) / len(tokens)
        if not difference <= TOLERATED[engine.shape.dtype]:  # NaN is not
            raise ConfigError(
                "what the model says of a text depends on what is passed beside it, so it cannot be sampled from in batches",
                mean_difference_of_logprobs=f"{difference:.3g}",
                tolerated=TOLERATED[engine.shape.dtype],
                tokens=len(request.prompt_ids) + len(tokens),
                fix="use another model: its own code looks at the shape of a pass, e.g. for a mask or for positions of its own",
            )


def _wanted(engine: Engine, name: str, prompt_ids: tuple[int, ...], said: int) -> GenerationRequest:
    return GenerationRequest(id=name, prompt_ids=prompt_ids, max_tokens=said, session=name)


def _ids(engine: Engine, count: int) -> tuple[int, ...]:
    """Tokens, of which neighbours differ."""
    return tuple(7 * place % engine.vocabulary for place in range(count))


def _silent(answer: Completion | Failure | str) -> ComponentError:
    return ComponentError(
        "the model that was loaded generates nothing",
        answer=answer,
        fix="look at its weights: their scores are not finite, or its context has no room",
    )
