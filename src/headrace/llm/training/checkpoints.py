"""Checkpoints of a language-model run: what trainer and orchestrator need to go on exactly.

A checkpoint is a folder ``<version>/`` with ``state.safetensors`` (weights in float32, moments of the optimiser) and
``manifest.json`` (run id, version, the orchestrator's carry, the configuration it was made with, a checksum). It is written
beside its place and renamed. The learning rate and every random order follow from the version and the run's seed, so they
are not in it. Nothing here imports torch before tensors are asked for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from headrace.core.errors import ConfigError, RunDirectoryError
from headrace.core.files import sync_folder, write_whole
from headrace.llm.config import RLConfig
from headrace.llm.disk import writing
from headrace.llm.sums import file_sha256, sealed, unsealed
from headrace.llm.weights import tensors_sha256

if TYPE_CHECKING:
    from torch import Tensor

STATE, MANIFEST = "state.safetensors", "manifest.json"
_FORMAT = "headrace rl checkpoint 2"
_FREE: dict[str, Any] = {
    "deadlines": True,
    "supervision": True,
    "checkpoint": True,
    "evaluation": True,
    "inference": True,
    "run": {"steps", "run_duration_s", "directory", "schedule"},
    "trainer": {"threads", "device"},
}
"""What may differ between the run that is resumed and the one that resumes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RLCheckpoint:
    """What a manifest says."""

    folder: Path
    version: int
    """Steps that were made; also the version of the weights."""
    run_id: str
    sha256: str
    """Of everything in ``state.safetensors``."""
    weights_sha256: str
    """Of the weights as they were published."""
    carry: Mapping[str, Any]
    """Of the orchestrator, as it was shipped with the last batch that was trained on."""
    config: Mapping[str, Any]

    def load(self) -> dict[str, Tensor]:
        """The trainer's state.

        Raises:
            RunDirectoryError: It is damaged.
        """
        from safetensors.torch import load_file

        try:
            state = load_file(self.folder / STATE)
        except (OSError, SafetensorError, ValueError) as error:
            raise _damaged(self.folder / STATE, f"{type(error).__name__}: {error}") from error
        if tensors_sha256(state) != self.sha256:
            raise _damaged(self.folder / STATE, "content and checksum differ")
        return state

    def verify(self) -> None:
        """Look at every byte of the trainer's state.

        Raises:
            RunDirectoryError: It is damaged.
        """
        try:
            found = file_sha256(self.folder / STATE)
        except (OSError, ValueError) as error:
            raise _damaged(self.folder / STATE, f"{type(error).__name__}: {error}") from error
        if found != self.sha256:
            raise _damaged(self.folder / STATE, "content and checksum differ")

    def require_fits(self, config: RLConfig) -> None:
        """Refuse to go on with settings that would make another run of it.

        Raises:
            ConfigError: Such a setting differs.
        """
        before, after = _flat(self.config), _flat(settings_that_count(config))
        # A checkpoint of before there was such a key; the run's own configuration is compared anyway.
        if "trainer.decay_steps" not in before:
            after.pop("trainer.decay_steps", None)
        differing = sorted(key for key in before | after if before.get(key) != after.get(key))
        if not differing:
            return
        raise ConfigError(
            "the checkpoint was made with other settings",
            checkpoint=self.folder,
            **{key.replace(".", "_"): f"{before.get(key)} then, {after.get(key)} now" for key in differing},
            fix="resume with the settings of the run, or begin a new one",
        )


def settings_that_count(config: RLConfig) -> dict[str, Any]:
    """Those that decide what a step learns: not deadlines, places, how long, nor how often something is looked at."""
    return config.settled().model_dump(mode="json", exclude=_FREE)


def read_checkpoint(folder: Path, run_id: str) -> RLCheckpoint:
    """What the manifest of a checkpoint says.

    Raises:
        RunDirectoryError: There is none, it is damaged, or of another run.
    """
    path = folder / MANIFEST
    try:
        facts = unsealed(path.read_bytes())
        if facts.pop("format") != _FORMAT:
            raise ValueError("of another format")
        checkpoint = RLCheckpoint(folder=folder, **facts)
        if folder.name != str(checkpoint.version):
            raise ValueError(f"it says version {checkpoint.version}, its folder is called {folder.name}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if checkpoint.run_id != run_id:
        raise RunDirectoryError(
            "the checkpoint is of another run",
            folder=folder,
            their_run=checkpoint.run_id,
            this_run=run_id,
            fix="resume a run in its own directory",
        )
    return checkpoint


class RLCheckpoints:
    """All checkpoints of a run.

    Args:
        folder: ``checkpoints/`` of the run.
        run_id: Of the run.
        keep: How many of the newest to keep.
    """

    def __init__(self, folder: Path, run_id: str, keep: int) -> None:
        self.folder = folder
        self._run_id = run_id
        self._keep = keep

    def write(
        self,
        version: int,
        state: Mapping[str, Tensor],
        *,
        weights_sha256: str,
        carry: Mapping[str, Any],
        config: RLConfig,
    ) -> Path:
        """Write a checkpoint, in place of one of this version that is there, and remove those that are too old.

        Raises:
            RunDirectoryError: It cannot be written; the others are as they were. Or one of another run is there.
        """
        place = self.folder / str(version)
        with writing(f"the checkpoint of version {version}", place):
            self._write(place, version, state, weights_sha256=weights_sha256, carry=carry, config=config)
        for old in self.complete()[self._keep :]:
            _remove(old.folder)
        return place

    def complete(self) -> list[RLCheckpoint]:
        """All whose manifest can be read and is of this run, the newest first."""
        found = []
        for path in self.folder.iterdir() if self.folder.is_dir() else []:
            if path.name.isdigit():
                with suppress(RunDirectoryError):
                    found.append(read_checkpoint(path, self._run_id))
        return sorted(found, key=lambda checkpoint: -checkpoint.version)

    def newest_sound(self) -> tuple[RLCheckpoint | None, list[str]]:
        """The newest one of which every byte is as it was written; and in one sentence each what is wrong with newer ones."""
        problems = []
        folders = [path for path in self.folder.iterdir() if path.name.isdigit()] if self.folder.is_dir() else []
        for path in sorted(folders, key=lambda path: -int(path.name)):
            try:
                checkpoint = read_checkpoint(path, self._run_id)
                checkpoint.verify()
            except RunDirectoryError as error:
                problems.append(f"{path.name}: {error.what}, {_why(error)}")
            else:
                return checkpoint, problems
        return None, problems

    def forget_newer(self, than: int) -> list[int]:
        """Remove the checkpoints after the one a run goes on from; the steps are made again. Returns their versions."""
        newer = [checkpoint for checkpoint in self.complete() if checkpoint.version > than]
        for checkpoint in newer:
            _remove(checkpoint.folder)
        return [checkpoint.version for checkpoint in newer]

    def _put_away(self, place: Path) -> None:
        """Remove one that is to be written anew: an interrupted run's, or a damaged one that was passed over."""
        try:
            read_checkpoint(place, self._run_id)
        except RunDirectoryError as error:
            if "their_run" in error.facts:
                raise
        _remove(place)

    def _write(self, place: Path, version: int, state: Mapping[str, Tensor], **facts: Any) -> None:
        from safetensors.torch import save

        self.folder.mkdir(exist_ok=True)
        for left in self.folder.glob(f".{version}.*"):
            shutil.rmtree(left, ignore_errors=True)
        staged = self.folder / f".{version}.{os.getpid()}"
        staged.mkdir()
        manifest = {
            "format": _FORMAT,
            "run_id": self._run_id,
            "version": version,
            "sha256": tensors_sha256(state),
            "weights_sha256": facts["weights_sha256"],
            "carry": dict(facts["carry"]),
            "config": settings_that_count(facts["config"]),
        }
        try:
            write_whole(staged / STATE, [save(_alone(state))])
            write_whole(staged / MANIFEST, [sealed(manifest)])
            if place.exists():
                self._put_away(place)
            staged.rename(place)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        sync_folder(self.folder)


def _alone(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each with memory of its own and without gaps, as the format wants it."""
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in state.items()}


def _remove(folder: Path) -> None:
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)  # so that nobody takes half of it for a checkpoint
    shutil.rmtree(gone)


def _flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat


def _damaged(path: Path, problem: str) -> RunDirectoryError:
    return RunDirectoryError(
        "a checkpoint is damaged",
        file=path,
        problem=problem,
        fix="resume again: the newest checkpoint that is sound is taken; the disk may be failing",
    )


def _why(error: RunDirectoryError) -> str:
    if "their_run" in error.facts:
        return f"{error.facts['their_run']}"
    return f"{Path(str(error.facts['file'])).name}: {error.facts['problem']}"
