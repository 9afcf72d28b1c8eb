"""Language-model RL on Modal: the launcher and its processes in one container, gone on with after a pre-emption.

ONLY SYNTAX-CHECKED as far as Modal goes. It was not available where this was written: no line of it has run there. Tests
check that every ``headrace`` command exists with the options it is given, and interrupt and resume a run with a folder
in the volume's place. Read it before you trust it, and begin with a run of few steps.

    pip install modal && modal setup
    modal run --detach examples/modal_app.py --name wordle-1                      # a preset, wordle-grpo
    modal run --detach examples/modal_app.py --name mine-1 --config rl.toml       # a file of yours
    modal volume get headrace-runs wordle-1                                       # what it has left so far

With ``--detach`` it goes on when your terminal is closed. The same command with the same ``--name`` goes on with a run
that has ended early; a run that is complete is left alone.

A run works on the container's own disk, because its board is mapped into memory and its lock is the kernel's, and a
volume may do neither. Once a minute, and at the end, what it has written is mirrored to the volume, which is committed.
Pre-emption sends an interrupt and gives the container some seconds: the launcher is told SIGTERM, the trainer writes a
checkpoint, the rest is mirrored. Modal then starts the function again with the same input, and it resumes. A container
that vanishes without a word costs what was made since the last checkpoint that was mirrored (``checkpoint.every_steps``).

For a GPU add ``gpu="A10G"`` below, and set ``trainer.device`` and ``inference.device`` to ``"cuda"``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from pathlib import Path

import modal

HERE = Path(__file__).resolve().parent
VOLUME = Path("/runs")
WORK = Path("/tmp/headrace")
MIRROR_S = 60.0
LEAVE_S = 25.0
"""Seconds for a checkpoint after SIGTERM; ``deadlines.stop_s`` should be less, and what Modal grants more."""
STALLED, INTERRUPTED = 3, 130
_NOT_MIRRORED = ("lock", "rollouts", ".*")
_COMES_AND_GOES = ("checkpoints", "weights")

app = modal.App("headrace")
runs = modal.Volume.from_name("headrace-runs", create_if_missing=True)
image = (
    modal.Image.debian_slim(python_version="3.11")
    .pip_install("torch")
    .add_local_dir(HERE.parent, "/headrace", copy=True, ignore=[".venv", ".git", "runs", "**/__pycache__"])
    .run_commands("pip install '/headrace[llm]'")
)


def command_for(run: Path, config: str) -> list[str] | None:
    """What is to be run: a new run, or the one that is there; None if it is complete.

    Args:
        run: The run directory; one that was cut short before its first checkpoint is put aside.
        config: A preset's name, or a TOML file.
    """
    with contextlib.suppress(OSError, ValueError):
        if json.loads((run / "summary.json").read_text())["outcome"] == "completed":
            return None
    if any(run.glob("checkpoints/*/manifest.json")):
        return ["headrace", "rl", "--resume", "--run-dir", str(run)]
    if run.exists():
        number = 1 + len(list(run.parent.glob(f"{run.name}-lost-*")))
        run.rename(run.with_name(f"{run.name}-lost-{number}"))
    return ["headrace", "rl", "@", config, "--run-dir", str(run)]


def mirror(run: Path, target: Path) -> None:
    """Make ``target`` like the run directory; versions and checkpoints that it has removed are removed there too, last."""
    with contextlib.suppress(shutil.Error):  # what vanished while it was copied is no loss: the next time is complete
        shutil.copytree(run, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*_NOT_MIRRORED))
    for name in _COMES_AND_GOES:
        for old in (target / name).glob("*"):
            if not (run / name / old.name).exists():
                shutil.rmtree(old, ignore_errors=True)


@app.cls(
    image=image,
    volumes={str(VOLUME): runs},
    cpu=4.0,  # one thread each for trainer and server, and room for orchestrator and launcher
    memory=8192,
    timeout=24 * 60 * 60,
    retries=modal.Retries(max_retries=3, initial_delay=10.0),
)
class Training:
    """One run at a time."""

    process: subprocess.Popen[bytes] | None = None
    run: Path | None = None

    @modal.method()
    def train(self, name: str, config: str, text: str | None) -> int:
        """Begin a run, or go on with it; its exit code, where another try would change nothing.

        Args:
            name: Of the run on the volume.
            config: A preset's name.
            text: A TOML file in its place.

        Raises:
            RuntimeError: It stood still, or was interrupted: Modal tries again, and it resumes.
        """
        WORK.mkdir(parents=True, exist_ok=True)
        self.run = WORK / name
        if text is not None:
            config = str(WORK / f"{name}.toml")
            Path(config).write_text(text)
        runs.reload()
        if (VOLUME / name).is_dir() and not self.run.exists():
            shutil.copytree(VOLUME / name, self.run)
        command = command_for(self.run, config)
        if command is None:
            return 0
        # A session of its own: an interrupt of the container's reaches it once, by leave(). A second one would kill.
        self.process = subprocess.Popen(command, start_new_session=True)
        try:
            code = self._follow()
        finally:
            self.leave()
        if code in {STALLED, INTERRUPTED}:
            raise RuntimeError(f"headrace ended with {code}; it is gone on with from its newest checkpoint")
        return code

    def _follow(self) -> int:
        process = self.process
        assert process is not None
        while True:
            try:
                return process.wait(timeout=MIRROR_S)
            except subprocess.TimeoutExpired:
                self._keep()

    @modal.exit()
    def leave(self) -> None:
        """Have the launcher write a checkpoint and end, and keep what it has written. Again is harmless."""
        process, self.process = self.process, None
        if process is not None and process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=LEAVE_S)
        self._keep()

    def _keep(self) -> None:
        if self.run is not None and self.run.exists():
            mirror(self.run, VOLUME / self.run.name)
            runs.commit()


@app.local_entrypoint()
def main(name: str, config: str = "wordle-grpo") -> None:
    """Start it, or go on with it.

    Args:
        name: Of the run on the volume.
        config: A preset's name, or a TOML file on this machine.
    """
    text = Path(config).read_text() if Path(config).is_file() else None
    code = Training().train.remote(name, config, text)
    print(f"exit code {code}; what it has left: modal volume get headrace-runs {name}")
