"""Real verifiers, in its own interpreter, against our server: what it got, and what we make of what failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.envs.text.verifiers import Outcome, Tally, tally
from verifiers_support import GUESTS, interpreter, served, told

pytestmark = [pytest.mark.verifiers, pytest.mark.process, pytest.mark.timeout(600)]

LONG_PROMPTS = 8
ROWS = 32


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(scope="module")
def version_0(request: pytest.FixtureRequest, root: str) -> Any:
    python = interpreter(request.config, "0.3")
    return told(python, "play_v0.py", root, str(GUESTS / "guest.py"), str(LONG_PROMPTS))


@pytest.fixture(scope="module")
def version_1(request: pytest.FixtureRequest, root: str) -> Any:
    return told(interpreter(request.config, "0.4"), "play_v1.py", root, str(GUESTS / "guest_v1.py"))


def outcomes(played: Any) -> list[Outcome]:
    return [Outcome.of(output) for output in played["outputs"]]


def test_version_0_is_answered_and_what_failed_among_it_is_no_reward(version_0: Any) -> None:
    plain = version_0["plain"]
    found = tally(outcomes(plain))
    said = [text for text in plain["said"] if text is not None]
    assert found.judged == len(said) == ROWS
    assert all(text.strip() for text in said)
    assert len(set(said)) > 1
    right = sum(1.0 + len(text) / 100 for text in said) / ROWS
    assert found.mean_reward == pytest.approx(right)
    assert found.failed == {"nothing was said: prompt_too_long": LONG_PROMPTS}
    # What verifiers itself says, and why we do not take its word for it.
    assert plain["mean"] == pytest.approx(right * ROWS / (ROWS + LONG_PROMPTS))


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ("unsupported", "Error code: 400 - top_k is not supported"),
        ("busy", "Error code: 503 - 0 requests wait already"),
        ("empty", "EmptyModelResponseError"),
    ],
)
def test_version_0_marks_what_failed_and_it_has_no_mean(version_0: Any, asked: str, error: str) -> None:
    played = version_0[asked]
    assert set(played["theirs"]) == {0.0}
    found = tally(outcomes(played))
    assert (found.judged, found.mean_reward) == (0, None)
    assert sum(found.failed.values()) == ROWS + LONG_PROMPTS
    # The server says that a setting is wrong, or that it is busy, before it looks at prompts.
    assert sum(count for text, count in found.failed.items() if error in text) >= ROWS


def test_version_1_is_answered_by_streams(version_1: Any) -> None:
    found = outcomes(version_1["single"])
    said = version_1["single"]["said"]
    assert [len(texts) for texts in said] == [1] * 4
    assert [outcome.reward for outcome in found] == pytest.approx([1.0 + len(text) / 100 for (text,) in said])
    assert all(text for (text,) in said)


def test_version_1_of_several_messages_and_an_error_in_its_scoring(version_1: Any) -> None:
    *judged, first, second = outcomes(version_1["several"])  # the last of its three tasks cannot be judged
    assert [outcome.metrics["turns"] for outcome in judged] == [4.0] * 4
    assert all(len(texts) == 4 for texts in version_1["several"]["said"])
    assert {outcome.error for outcome in (first, second)} == {"TaskError: task Digit scoring: ValueError: planted"}
    assert tally([*judged, first, second]) == Tally(4, 0.0, {first.error: 2})


def test_version_1_marks_what_the_server_refused(version_1: Any) -> None:
    found = tally(outcomes(version_1["unsupported"]))
    assert (found.judged, found.mean_reward) == (0, None)
    assert all("upstream 400" in error and "top_k is not supported" in error for error in found.failed)
