"""A program of its own that tries what a component would do: environment, texts, shared folder; without a network.

``python -m headrace.llm.trying CONFIG FOLDER PARENT`` reads a configuration and writes ``FOLDER/tried.json``, a list of findings.
A fresh interpreter, because what the launcher has imported already would hide what is missing.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, get_args

from headrace.core.errors import HeadraceError
from headrace.core.files import write_whole
from headrace.envs.text.asking import problems_of, shown_by
from headrace.envs.text.building import build_text_environment, check_environment
from headrace.envs.text.protocol import Split
from headrace.ipc import printing
from headrace.llm.config import RLConfig
from headrace.llm.finding import Finding, Verdict
from headrace.llm.guarding import Guard, Guarded, end_with
from headrace.llm.loading import Source, load_rl_config

NONCE, ANSWER, TRIED = "nonce", "answer", "tried.json"


def go_offline() -> None:
    """Have every attempt to reach another machine fail, so that what needs a download is found here."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError("headrace check has no network: training must not depend on a download")

    socket.getaddrinfo = refuse
    socket.socket.connect = refuse  # type: ignore[method-assign]


def limit_of(config: RLConfig) -> float:
    """Seconds that a whole trial may take, all calls of the environment together."""
    return 2 * config.deadlines.start_s + 4 * config.deadlines.env_s


def built(config: RLConfig, component: str, guard: Guard) -> Any:
    """The environment, built under its limit, with a limit for each call."""
    section, deadlines = config.env, config.deadlines
    label = section.name or section.factory or "the environment"
    with guard.within(f"building the environment {label}", deadlines.start_s, "deadlines.start_s"):
        env = build_text_environment(section.name, section.factory, section.kwargs, component=component)
    return Guarded(env, guard, label, deadlines.env_s)


def try_environment(config: RLConfig, guard: Guard) -> list[Finding]:
    """Build it, look at its datasets, play a scripted episode of each split."""
    section = config.env
    env = built(config, "orchestrator", guard)
    label = section.name or section.factory or "the environment"
    with guard.within(f"looking at what {label} gave", config.deadlines.start_s, "deadlines.start_s"):
        seen = check_environment(env, label=label)
    found = [
        Finding(
            "environment",
            Verdict.OK,
            f"{seen.train_problems:,} problems to train on, {seen.eval_problems:,} to evaluate, "
            f"an episode of {seen.messages} messages played twice alike",
        ),
        *(Finding("environment", Verdict.WARNING, note) for note in seen.notes),
    ]
    if config.sft.steps_to_make and not seen.has_teacher:
        found.append(
            Finding(
                "environment", Verdict.FAILED, "the warm start needs a teacher, and this environment has none",
                "set sft.steps = 0, or give the environment a method demonstration(problem, seed)",
            )
        )  # fmt: skip
    return found


def try_texts(config: RLConfig, folder: Path, guard: Guard) -> list[Finding]:
    """Make or load the tokenizer as two components would, and compare what both make of an episode."""
    env = built(config, "warm-start", guard)
    with guard.within("making its texts into tokens", config.deadlines.start_s, "deadlines.start_s"):
        return _compare_texts(config, folder, env)


def _compare_texts(config: RLConfig, folder: Path, env: Any) -> list[Finding]:
    from headrace.llm import tiny
    from headrace.llm.demonstrations import first_of
    from headrace.llm.fitting import check_characters, check_texts
    from headrace.llm.rendering import Renderer

    tiny.make_model_folder(config.model, env, folder / "model", config.run.seed)
    of_server, of_trainer = (Renderer(tiny.load_tokenizer(folder / "model")) for _ in range(2))
    problem = first_of(problems_of(env, "train"))
    ids = of_server.opening(problem.opening)
    if ids != of_trainer.opening(problem.opening):
        return [Finding("texts", Verdict.FAILED, "the same opening became different tokens in two processes")]
    longest = max(
        check_texts(of_server, problems_of(env, split), config.model.context_tokens) for split in get_args(Split)
    )
    if config.sft.steps_to_make:
        shown = shown_by(env, "demonstration", problem, 0)
        check_characters(of_server, shown, f"the demonstration of problem {problem.id}")
    room = config.model.context_tokens - longest
    if room < config.sampling.max_tokens:
        return [
            Finding(
                "texts", Verdict.FAILED,
                f"the longest opening has {longest:,} tokens, which leaves {room:,} of {config.model.context_tokens:,} for answers",
                "raise model.context_tokens, or lower sampling.max_tokens",
            )
        ]  # fmt: skip
    text = f"tokenizer and chat template agree with each other; openings of up to {longest:,} tokens leave {room:,}"
    return [Finding("texts", Verdict.OK, text)]


def answer_nonce(folder: Path) -> list[Finding]:
    """Read what the launcher has left, and answer by a file that appears by its renaming."""
    nonce = (folder / NONCE).read_bytes()
    write_whole(folder / ANSWER, [nonce[::-1]])
    return []


def tried(name: str, trial: Callable[[], list[Finding]]) -> list[Finding]:
    """What a trial finds; what it raises is a finding."""
    try:
        return trial()
    except HeadraceError as error:
        facts = "; ".join(f"{key.replace('_', ' ')} {value}" for key, value in error.facts.items())
        return [Finding(name, Verdict.FAILED, f"{error.what}{f' ({facts})' if facts else ''}", error.fix)]
    except Exception as error:  # noqa: BLE001 - a process border: user code may raise anything, and that is the finding
        return [Finding(name, Verdict.FAILED, f"{type(error).__name__}: {error}", "correct what the message names")]


def main(config_file: str, folder: Path) -> None:
    """Try everything, write what was found."""
    config = load_rl_config([Source(config_file)])
    found = tried("folder", lambda: answer_nonce(folder))
    go_offline()
    with Guard(folder, limit_of(config)) as guard:
        environment = tried("environment", lambda: try_environment(config, guard))
        found += environment
        if all(one.verdict is not Verdict.FAILED for one in environment):
            found += tried("texts", lambda: try_texts(config, folder, guard))
    write_whole(folder / TRIED, [json.dumps([asdict(one) for one in found]).encode()])


if __name__ == "__main__":
    end_with(sys.argv[-1])
    printing.keep_printing()
    main(sys.argv[1], Path(sys.argv[2]))
    # The answer is written; a thread of the environment that does not end would keep the interpreter from leaving.
    os._exit(0)
