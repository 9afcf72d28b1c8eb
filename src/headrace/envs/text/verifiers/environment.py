"""An environment of ``verifiers`` behind `TextEnvironment`: dataset, answers and rewards are its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headrace.core.errors import ConfigError, EnvironmentRaised
from headrace.envs.guest import Guest, GuestProcess
from headrace.envs.text.protocol import Judgement, Message, Problem, Reply, Split, Transcript
from headrace.envs.text.verifiers.results import Outcome

_GUEST = Guest(
    "verifiers",
    Path(__file__).with_name("guest.py"),
    "name an interpreter with verifiers, and an environment for its version that is installed there",
)
_MOST_OUTCOMES = 4096

Key = tuple[str, tuple[str, ...]]
"""A problem's id, and what the model has said so far."""


class VerifiersEnvironment:
    """Runs a verifiers environment in its own interpreter, and has its rollouts answered by whoever asks here.

    Rollouts there go on from message to message. One that is not at hand, because another one has gone on from there or the
    process was started again, is begun anew and told everything again; where the environment draws at random and answers
    otherwise than before, the episode fails.

    Args:
        environment: What ``verifiers.load_environment`` is called with.
        python: Path of the interpreter that has verifiers and the environment; None: this one.
        kwargs: Further arguments of ``load_environment``.
        path: Folders in which that interpreter finds modules, beside its own.
        most: Problems of each split, the first so many.
        solved_above: Reward from which an episode counts as a win.
        start_s: Seconds it may take to be built.
        call_s: Seconds a call may take.

    Raises:
        ConfigError: The interpreter cannot be started.
        EnvironmentNotBuilt: The environment could not be loaded.
    """

    def __init__(  # noqa: PLR0913 - a configuration's keys
        self,
        *,
        environment: str,
        python: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        path: Sequence[str] = (),
        most: int = 2000,
        solved_above: float = 1.0,
        start_s: float = 120.0,
        call_s: float = 30.0,
    ) -> None:
        if most < 1:
            raise ConfigError("verifiers needs at least one problem", most=most, fix="set most to at least 1")
        self._solved_above = solved_above
        self._call_s = call_s
        settings = {"environment": environment, "kwargs": dict(kwargs or {}), "most": most, "path": list(path)}
        self._guest = GuestProcess(_GUEST, python or sys.executable, settings, start_s)
        self.evaluates_seen = not self._guest.built["separate"]
        """Whether it has no evaluation split of its own, and evaluation asks for the problems that are trained on."""
        self._most_sessions = int(self._guest.built["most_sessions"])
        """Rollouts that stand still there; the oldest are given up for new ones."""
        self._problems: dict[Split, tuple[Problem, ...]] = {}
        self._standing: dict[Key, list[int]] = {}
        self._outcomes: dict[Key, Outcome] = {}

    def close(self) -> None:
        """End the interpreter; calling it again does nothing. It also ends with this process."""
        self._guest.close()

    def dataset(self, split: Split) -> Sequence[Problem]:
        """Its rows, in its order."""
        if split not in self._problems:
            found = self._ask({"op": "dataset", "split": split})
            self._problems[split] = tuple(
                Problem(f"{split}:{row}", _messages(opening), {"content": content})
                for row, (opening, content) in enumerate(zip(found["openings"], found["rows"], strict=True))
            )
        return self._problems[split]

    def step(self, problem: Problem, transcript: Transcript) -> Reply:
        """What it answers.

        Raises:
            EnvironmentRaised: It raised; or it goes on from other messages than those of the transcript, which are what the
                model is trained on.
        """
        *before, last = _said(problem, transcript)
        told = transcript[: _told(problem, transcript)]
        event = self._say((problem.id, tuple(before)), problem, last, told)
        return Reply(done=True) if "done" in event else Reply(_messages(event["messages"])[len(told) :])

    def reward(self, problem: Problem, transcript: Transcript) -> Judgement:
        """Its own reward. An episode that was cut is ended there as one that has become too long.

        Raises:
            EnvironmentRaised: The rollout failed there; such a one has no reward, and 0 would be one.
        """
        key = (problem.id, tuple(_said(problem, transcript)))
        outcome = self._outcomes.get(key)
        if outcome is None:
            event = self._say(key, problem, None)
            if "done" not in event:
                raise EnvironmentRaised(
                    "a rollout of verifiers goes on although there is no room for another message",
                    problem=problem.id,
                    fix="have the environment end where its client raises OverlongPromptError",
                )
            outcome = Outcome.of(event["done"])
        if outcome.reward is None:
            raise EnvironmentRaised(
                "a rollout of verifiers failed", problem=problem.id, error=outcome.error, fix="read its error"
            )
        solved = outcome.reward >= self._solved_above
        return Judgement({"reward": outcome.reward}, solved=solved, facts=outcome.metrics)

    def _say(self, key: Key, problem: Problem, text: str | None, told: Transcript = ()) -> Mapping[str, Any]:
        """Go on from ``key`` with a message of the model, or with the end of what there is room for; all so far is ``told``."""
        session = self._session(key, problem)
        if isinstance(session, Mapping):
            return session
        event = self._ask({"op": "say", "session": session, "text": text})
        asked = _messages(event.get("messages", ()))
        place = _first_other(told, asked)
        if place is not None and "done" not in event:
            raise self._refused(
                session,
                "goes on from other messages than were said",
                problem=problem.id,
                place=place,
                said=told[place],
                asked=asked[place] if place < len(asked) else "nothing",
                fix="have it add messages and change none, and draw nothing: it may be told everything again",
            )
        said = key if text is None else (key[0], (*key[1], text))
        self._note(said, session, event)
        return event

    def _session(self, key: Key, problem: Problem) -> int | Mapping[str, Any]:
        """A rollout that stands at ``key``; or how it ended, if it ended before it came there."""
        if self._standing.get(key):
            return self._taken(key)
        split, _, row = problem.id.partition(":")
        opened = self._ask({"op": "open", "split": split, "row": int(row)})
        if "messages" in opened and _messages(opened["messages"]) != problem.opening:
            raise self._refused(
                opened["session"],
                "asks something else than its problem is opened with",
                problem=problem.id,
                asked=opened["messages"],
                fix="have it open every rollout of a problem with the same messages, drawn from nothing",
            )
        session, event, so_far = opened["session"], opened, 0
        while "done" not in event and so_far < len(key[1]):
            event = self._ask({"op": "say", "session": session, "text": key[1][so_far]})
            so_far += 1
        if "done" in event:
            self._remember(key, event["done"])
            return event
        return int(session)

    def _refused(self, session: int, what: str, *, fix: str, **facts: object) -> EnvironmentRaised:
        """Why a rollout is given up."""
        self._ask({"op": "drop", "session": session})
        return EnvironmentRaised(f"a rollout of verifiers {what}", **facts, fix=fix)

    def _note(self, key: Key, session: int, event: Mapping[str, Any]) -> None:
        if "done" in event:
            self._remember(key, event["done"])
            return
        self._standing.setdefault(key, []).append(session)
        if sum(map(len, self._standing.values())) > self._most_sessions:
            self._ask({"op": "drop", "session": self._taken(next(iter(self._standing)))})

    def _taken(self, key: Key) -> int:
        standing = self._standing[key]
        session = standing.pop(0)
        if not standing:
            del self._standing[key]
        return session

    def _remember(self, key: Key, outcome: Mapping[str, Any]) -> None:
        self._outcomes[key] = Outcome.of(outcome)
        if len(self._outcomes) > _MOST_OUTCOMES:
            del self._outcomes[next(iter(self._outcomes))]

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return self._guest.ask(request, self._call_s)


def _messages(plain: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    return tuple(Message(message["role"], message["content"]) for message in plain)


def _first_other(told: Transcript, asked: Transcript) -> int | None:
    """The place of the first message that was told and is not asked with, if any.

    Of the model's messages only the place counts: what it said is known here.
    """
    for place, message in enumerate(told):
        found = asked[place] if place < len(asked) else None
        if found is None or found.role != message.role:
            return place
        if message.role != "assistant" and found.content != message.content:
            return place
    return None


def _said(problem: Problem, transcript: Transcript) -> list[str]:
    """The model's messages."""
    return [message.content for message in transcript[len(problem.opening) :] if message.role == "assistant"]


def _told(problem: Problem, transcript: Transcript) -> int:
    """Messages up to the model's last, that included."""
    return max(
        (place + 1 for place, message in enumerate(transcript) if message.role == "assistant"),
        default=len(problem.opening),
    )
