"""A server that is started again between two turns of many games: without policy lag it answers as one that was not, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.llm.engine.building import build_engine
from headrace.llm.engine.engine import Engine
from headrace.llm.messages import Completion, GenerationRequest
from headrace.llm.weights import look
from language_support import RUN_ID, prepare, tiny_config

GAMES, TURNS = 6, 4


@pytest.mark.parametrize("lag", [0, 1])
def test_what_a_turn_comes_to_does_not_depend_on_what_the_server_remembers(tmp_path: Path, lag: int) -> None:
    config = tiny_config()
    section = config.orchestrator.model_copy(update={"max_policy_lag": lag})
    basics = prepare(config.model_copy(update={"orchestrator": section}), tmp_path)
    published = look(basics.weights / "0", RUN_ID)

    def started() -> Engine:
        return build_engine(basics.config, basics.model, published)

    one = started()
    undisturbed = played([one] * TURNS)
    again = played([(first := started()), first, (second := started()), second])
    assert (one.counts.reused_tokens > 0) is (lag > 0)
    assert undisturbed == again or lag


def played(servers: list[Engine]) -> list[Completion]:
    """Completions of all games, one server for each turn."""
    texts = [[1 + (5 * game + place) % 20 for place in range(3 + game)] for game in range(GAMES)]
    found: list[Completion] = []
    for turn, server in enumerate(servers):
        answers: dict[int, Completion] = {}
        requests = [
            GenerationRequest(
                id=f"{game}/{turn}", prompt_ids=tuple(text), max_tokens=4, seed=7 * game + turn, session=f"{game}"
            )
            for game, text in enumerate(texts)
        ]
        server.submit(requests, lambda place, answer, into=answers: into.__setitem__(place, answer))
        while server.step():
            pass
        for game, text in enumerate(texts):
            text += [*answers[game].token_ids, 2, 3]
            found.append(answers[game])
    return found
