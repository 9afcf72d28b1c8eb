"""All that can be found out about a language-model run in seconds, before it is started for hours."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.core.cores import usable_cores
from headrace.core.errors import ConfigError, HeadraceError
from headrace.core.files import write_whole
from headrace.llm.config import RLConfig
from headrace.llm.engine.sizes import BYTES_OF, ModelSize, cache_rows, keeps_sessions
from headrace.llm.finding import Finding, Verdict
from headrace.llm.guarding import IMPORT_S, found_dead, last_line, run_apart
from headrace.llm.launch.children import Targets, listen
from headrace.llm.launch.launcher import Launch, launch
from headrace.llm.launch.starting import begin
from headrace.llm.planning import refuse, require_heard
from headrace.llm.trying import ANSWER, NONCE, TRIED, limit_of, tried
from headrace.runtime.config import dump_toml

_FLOAT_BYTES = 4
_OPTIMISER_COPIES = 4
"""Of every parameter in the trainer: itself, its gradient, and Adam's two moments."""
_ACTIVATIONS_PER_LAYER = 24
"""Numbers kept for backward per token, layer and unit of width, about."""
_LOGITS = 3
"""Numbers kept per token and token of the vocabulary: scores, their logarithms, gradients."""
_PROCESS_BYTES = 400e6
"""Of a process that has imported torch and transformers, about; much of it is shared."""
_VERSIONS_KEPT = 8
_SCARCE_BYTES = 256e6
_SLOW_S = 2.0
_OUTPUT = "output"

OnFinding = Callable[[Finding], None]


def check(
    config: RLConfig,
    folder: Path,
    on_finding: OnFinding,
    *,
    available_bytes: int,
    short_run: bool = True,
    targets: Targets | None = None,
) -> list[Finding]:
    """Look at everything, the quick things first.

    Args:
        config: Of the run.
        folder: In which run directories are to be made; made if missing, and gone again afterwards, with what was tried there.
        on_finding: Told of each as it is found.
        available_bytes: Of memory, for all processes of a run together.
        short_run: Whether to end with a real run of one step.
        targets: Of its processes; None: ours.

    Returns:
        All findings.
    """
    found: list[Finding] = []

    def tell(findings: list[Finding]) -> None:
        found.extend(findings)
        for one in findings:
            on_finding(one)

    tell([Finding("configuration", Verdict.OK, "the sections agree with each other")])
    tell(check_start(config))
    tell(check_port(config))
    tell(check_threads(config, usable_cores()))
    with gone_again(folder):
        tell(tried("model", lambda: check_room(config, folder, available_bytes)))
        for findings in _try_apart(config, folder):
            tell(findings)
        if short_run and all(one.verdict is not Verdict.FAILED for one in found):
            tell(tried("one step", lambda: check_step(config, folder, targets)))
    return found


@contextlib.contextmanager
def gone_again(folder: Path) -> Iterator[None]:
    """Inside, ``folder`` may be made; afterwards it is gone again, and what was made above it, unless somebody uses it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):  # never made, or a run has begun in it
                path.rmdir()


def check_start(config: RLConfig) -> list[Finding]:
    """Whether what training begins with can be learned from, as far as the configuration alone tells."""
    path, sft = config.model.path, config.sft
    if path is None and not sft.steps and sft.checkpoint is None:
        text = "the model is drawn at random and not warmed up; groups whose rewards are all equal teach nothing, and it seldom gets another"
        return [Finding("model", Verdict.WARNING, text, "set sft.steps, sft.checkpoint or model.path")]
    if path is None:
        text = "made from nothing, then warmed up"
        return [
            Finding(
                "model", Verdict.OK, text if sft.checkpoint is None else f"begins with the weights of {sft.checkpoint}"
            )
        ]
    kept = [
        f"{name} = {getattr(section, field)}"
        for name, section, field in (
            ("model.context_tokens", config.model, "context_tokens"),
            ("sampling.max_tokens", config.sampling, "max_tokens"),
        )
        if field not in section.model_fields_set
    ]
    if kept:
        text = f"it is {path}, with limits meant for a tiny model: {', '.join(kept)}"
        return [Finding("model", Verdict.WARNING, text, "set both as long as its episodes and messages may be")]
    return [Finding("model", Verdict.OK, f"it is {path}")]


def check_port(config: RLConfig) -> list[Finding]:
    """Whether the server can listen where it is told to."""
    section = config.inference
    if section.backend == "external":
        return [Finding("port", Verdict.OK, f"none is needed: the server is {section.url}")]
    try:
        with listen(section.host, section.port) as sock:
            port = sock.getsockname()[1]
    except ConfigError as error:
        return [Finding("port", Verdict.FAILED, error.what, error.fix)]
    chosen = "any that is free" if section.port == 0 else str(port)
    return [Finding("port", Verdict.OK, f"{section.host} can be listened on, port {chosen}")]


def check_threads(config: RLConfig, cores: int) -> list[Finding]:
    """Whether components that compute at the same time have a core for each of their threads."""
    inline = config.run.schedule == "inline"
    threads = {"trainer": config.trainer.threads}
    if config.inference.backend == "headrace":
        threads["inference"] = config.inference.threads
    total = max(threads.values()) if inline else sum(threads.values())
    told = ", ".join(f"{name} {count}" for name, count in threads.items())
    if total > cores:
        return [
            Finding(
                "threads", Verdict.WARNING,
                f"{told}: {total} threads compute on {cores} core{'' if cores == 1 else 's'}, and each waits for the others at every step",
                "set inference.threads and trainer.threads so that their sum is at most the number of cores",
            )
        ]  # fmt: skip
    return [Finding("threads", Verdict.OK, f"{told}, on {cores} core{'' if cores == 1 else 's'}")]


def memory_of(config: RLConfig, size: ModelSize) -> dict[str, float]:
    """Bytes of this machine's memory that each component is expected to need, about; what lies on a GPU is not among them."""
    trainer, inference = config.trainer, config.inference
    needs = {"orchestrator": _PROCESS_BYTES, "trainer": _PROCESS_BYTES + size.parameters * _FLOAT_BYTES}
    if trainer.device == "cpu":
        per_token = size.cache.layers * size.hidden * _ACTIVATIONS_PER_LAYER + size.vocabulary * _LOGITS
        kept = size.parameters * (_OPTIMISER_COPIES - 1) + trainer.tokens_per_pass * per_token
        needs["trainer"] += kept * _FLOAT_BYTES
    if inference.backend == "headrace":
        bytes_each = BYTES_OF[config.model.dtype]
        needs["inference"] = _PROCESS_BYTES + size.parameters * bytes_each
        if inference.device == "cpu":
            rows = cache_rows(inference.slots, kv_reuse=keeps_sessions(config))
            needs["inference"] += math.prod(size.cache.block(rows, config.model.context_tokens)) * bytes_each
    return needs


def check_room(config: RLConfig, folder: Path, available_bytes: int) -> list[Finding]:
    """Whether a model of this size has room, in memory and on the disk.

    Raises:
        ConfigError: How large it is cannot be told.
    """
    size = ModelSize.of(config.model)
    return [*check_memory(config, size, available_bytes), *check_disk(config, size, folder)]


def check_memory(config: RLConfig, size: ModelSize, available_bytes: int) -> list[Finding]:
    """Whether the machine has room for models, caches and activations."""
    needs = memory_of(config, size)
    total = sum(needs.values())
    told = ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in needs.items())
    text = (
        f"a model of {size.parameters:,} parameters needs about {total / 1e9:.1f} GB ({told}), "
        f"{available_bytes / 1e9:.1f} GB are free"
    )
    if total > available_bytes:
        fix = "lower inference.slots, model.context_tokens or trainer.tokens_per_pass"
        fix += f"{', set inference.kv_reuse = false,' if keeps_sessions(config) else ','} or take a smaller model"
        return [Finding("memory", Verdict.WARNING, text, fix)]
    return [Finding("memory", Verdict.OK, text)]


def check_disk(config: RLConfig, size: ModelSize, folder: Path) -> list[Finding]:
    """Whether weights and checkpoints fit onto the disk of the run directory."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    needed = (
        size.parameters * _FLOAT_BYTES * (_VERSIONS_KEPT + _OPTIMISER_COPIES * config.checkpoint.keep) + _SCARCE_BYTES
    )
    text = f"{free / 1e9:,.1f} GB are free in {folder}, about {needed / 1e9:,.1f} GB are needed"
    if free < needed:
        return [Finding("disk", Verdict.FAILED, text, "make room, or choose another --run-dir or run.directory")]
    return [Finding("disk", Verdict.OK, text)]


def _try_apart(config: RLConfig, folder: Path) -> Iterator[list[Finding]]:
    """Have a fresh interpreter try environment and texts, and pass a nonce through the folder both ways."""
    try:
        scratch = tempfile.TemporaryDirectory(prefix=".headrace-check-", dir=folder)
    except OSError as error:
        fix = "choose another --run-dir or run.directory, where you may write"
        yield [Finding("folder", Verdict.FAILED, f"{folder} cannot be written: {error}", fix)]
        return
    with scratch as name:
        place = Path(name)
        yield from _tried_in(config, place)


def _tried_in(config: RLConfig, place: Path) -> Iterator[list[Finding]]:
    nonce = secrets.token_bytes(32)
    began_s = time.monotonic()
    write_whole(place / NONCE, [nonce])
    written_s = time.monotonic() - began_s
    (place / "config.toml").write_text(dump_toml(config), encoding="utf-8")
    command = [sys.executable, "-m", "headrace.llm.trying", str(place / "config.toml"), str(place)]
    returncode = run_apart(command, place / _OUTPUT, limit_of(config) + IMPORT_S)
    yield [_nonce_finding(place, nonce, written_s)]
    try:
        found = json.loads((place / TRIED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        yield [found_dead(place, returncode, last_line(place / _OUTPUT))]
        return
    yield [Finding(one["name"], Verdict(one["verdict"]), one["text"], one["fix"]) for one in found]


def _nonce_finding(place: Path, nonce: bytes, written_s: float) -> Finding:
    try:
        answer = (place / ANSWER).read_bytes()
    except OSError:
        answer = b""
    fix = "use a directory that all components share, on a file system with atomic renaming"
    if answer != nonce[::-1]:
        return Finding("folder", Verdict.FAILED, "what one process wrote, another one did not read", fix)
    text = f"a file reaches another process by renaming and back; writing one takes {1000 * written_s:.1f} ms"
    return Finding("folder", Verdict.OK if written_s < _SLOW_S else Verdict.WARNING, text)


def short_config(config: RLConfig, directory: Path) -> RLConfig:
    """The same run, so short that it takes seconds: one step of a few groups."""
    table: dict[str, Any] = config.model_dump()
    groups = min(2, config.orchestrator.groups_per_step)
    table["run"] |= {"steps": 1, "run_duration_s": None, "directory": str(directory)}
    table["orchestrator"]["groups_per_step"] = groups
    table["orchestrator"]["filter"] |= {"zero_advantage": False, "easy_above": None, "hard_below": None}
    table["evaluation"] |= {"every_steps": 0, "problems": 1, "samples": 1}
    table["sft"] |= {"steps": min(1, config.sft.steps)}
    table["trainer"] |= {"minibatches": 1}
    return RLConfig.model_validate(table)


def check_step(config: RLConfig, folder: Path, targets: Targets | None = None) -> list[Finding]:
    """Run all components for one step: warm start, rollouts, training, new weights, evaluation.

    It is left out, and that is told, where it would load its weights into a server that others may be using.

    Raises:
        KeyboardInterrupt: It was interrupted, and has ended in order.
    """
    try:
        refuse(config, "headrace check")
    except ConfigError as error:
        return [Finding("one step", Verdict.WARNING, f"left out: {error.what}", error.fix)]
    began_s = time.monotonic()
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix=".headrace-check-", dir=folder) as scratch:
        short = short_config(config, Path(scratch))
        what = begin(short, Path(scratch) / "run", "check")
        if targets is not None:
            what = _with_targets(what, targets)
        with what.place:
            try:
                summary = launch(what, lambda line: lines.append(f"{line.component}: {line.text}"))
            except HeadraceError as error:
                return [Finding("one step", Verdict.FAILED, str(error), error.fix)]
    require_heard(summary)
    took_s = time.monotonic() - began_s
    if summary["error"] is not None:
        return [Finding("one step", Verdict.FAILED, str(summary["error"]), "see the lines of that component above")]
    if summary["steps"] < 1:
        text = f"the run ended without a step of the trainer: {summary['outcome']} after {took_s:.1f} s"
        return [Finding("one step", Verdict.FAILED, text, "file a bug: a run that ends so should say why")]
    books = summary["books"] or {}
    text = (
        f"all components made one step of {books.get('trained', 0):,} rollouts in {took_s:.1f} s, "
        f"start included; version {summary['policy_version']} was served"
    )
    return [Finding("one step", Verdict.OK, text)]


def _with_targets(what: Launch, targets: Targets) -> Launch:
    return replace(what, targets=targets, preload=())
