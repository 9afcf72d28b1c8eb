"""All checkpoints of a run: written so that one is always sound, found again, pruned.

One process writes; anybody may read meanwhile. See `headrace.learners.manifest` for what a checkpoint is.

Whatever is new gets a name that was never used; the manifest, replaced in one step, decides what counts. What no
manifest names is left over from a writer that died or failed, and whoever writes next removes it.

Policies stay for good, so a long run has thousands of folders with nothing else in them. Who writes looks into each of
those once; from then on a checkpoint costs it one look at their names.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from headrace.core.errors import RunDirectoryError
from headrace.core.files import FileMark, is_part, mark_of, sync_folder, write_whole
from headrace.learners.checkpoint import LearnerState
from headrace.learners.manifest import (
    MANIFEST,
    Checkpoint,
    seal,
    staged_policy_name,
    state_name,
    unseal,
    write_manifest,
)
from headrace.weights.policy_file import POLICY_FILE, holds, made_folder, write_policy

__all__ = ["Checkpoint", "CheckpointStore", "load_checkpoint"]

_EVALUATIONS = "evaluations.json"
_NUMBERED = re.compile(r"(state|policy)-(\d+)\.safetensors")


def load_checkpoint(folder: Path) -> LearnerState:
    """The learner's state in the folder of a checkpoint.

    Raises:
        RunDirectoryError: There is no checkpoint, or it is not sound.
    """
    return Checkpoint.read(folder).load()


class CheckpointStore:
    """The checkpoints in a folder.

    Args:
        folder: ``checkpoints/`` of the run.
        keep: How many of the newest to keep.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep
        self._last = 0
        self._policies: set[str] = set()
        """Names of folders that hold a policy and nothing of a checkpoint; that changes only where this store writes."""
        self._others: set[str] | None = None
        """Names of all others as of the newest `_tidy_all`, and of what was written since; None: there was none."""

    def write(
        self,
        version: int,
        state: LearnerState,
        facts: Mapping[str, Any],
        policy: Mapping[str, NDArray[Any]],
        policy_facts: Mapping[str, object],
    ) -> Path:
        """Write a checkpoint; one of the same version is replaced.

        At every moment the old one or the new one is complete, and what it replaces goes only afterwards.

        Args:
            version: Of the newest published policy.
            state: Of the learner. May be live; it is not kept.
            facts: As JSON knows them. ``oldest_segment`` is needed: the first segment of the row log that holds a
                row of this checkpoint.
            policy: As published. If its file is there already, with the same arrays, it stays as it is.
            policy_facts: See `headrace.weights.policy_file.save_policy`.

        Returns:
            The checkpoint's folder.

        Raises:
            OSError: It cannot be written. The checkpoints are as they were before; only if the disk failed after the
                last byte is the new one there, complete.
        """
        others = self._tidy_all()
        folder, saved = self.folder / str(version), self._next_number()
        self._policies.discard(folder.name)
        others.add(folder.name)
        try:
            made_folder(self.folder, version)
            files = {
                state_name(saved): state.save(folder / state_name(saved)),
                POLICY_FILE: _place_policy(folder, saved, version, policy, policy_facts),
            }
            write_manifest(folder, saved, files, {**facts, "version": version})
        except BaseException:
            with suppress(OSError):  # what went wrong first is what to tell; the next write tidies again
                _tidy(folder, failed=saved)
            raise
        self._last = saved
        _tidy(folder)
        return folder

    def checkpoints(self) -> list[Checkpoint]:
        """All whose manifest can be read, the newest first; every folder is looked into."""
        return self._read(self._folders())[0]

    def newest_sound(self, oldest_segment: int | None = None) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint from which a learner can go on; every byte of it has been looked at.

        Args:
            oldest_segment: The first segment of the row log that there is; a checkpoint whose rows begin before it is
                left out. None: rows do not matter.

        Returns:
            The checkpoint, None if there is none; and in one sentence each what is wrong with those left out.
        """
        found, problems = self._read(self._folders())
        if (problem := self._read_evaluations()[1]) is not None:
            problems.append(problem)
        for checkpoint in found:
            try:
                checkpoint.check(oldest_segment)
                checkpoint.load()
            except RunDirectoryError as error:
                problems.append(error.what)
            else:
                return checkpoint, problems
        return None, problems

    def forget_newer(self, than: Checkpoint) -> None:
        """Take back every checkpoint that is newer than the one a run goes on from; their policies stay playable.

        To be called before the record is cut: their positions in it become those of other events then.

        Raises:
            OSError: A file cannot be removed.
        """
        self._tidy_all()
        for checkpoint in self._known():
            if checkpoint.saved > than.saved:
                _remove(checkpoint.folder)
        means = self._read_evaluations()[0]
        if any(version > than.version for version in means):
            self._write_evaluations({version: mean for version, mean in means.items() if version <= than.version})

    def prune(self, best_version: int | None = None) -> None:
        """Remove all but the newest and the best. Policies stay, and so does what cannot be read.

        Args:
            best_version: The best one by evaluation; None: what `best_version` says.

        Raises:
            OSError: A file cannot be removed.
        """
        if self._others is None:  # otherwise the write before has done so
            self._tidy_all()
        best = self.best_version() if best_version is None else best_version
        for checkpoint in self._known()[self._keep :]:
            if checkpoint.version != best:
                _remove(checkpoint.folder)

    def oldest_segment(self) -> int | None:
        """The first segment of the row log that one of the newest checkpoints needs; None if there is none.

        The best one is not asked: it may lose its rows.
        """
        return min((found.oldest_segment for found in self._known()[: self._keep]), default=None)

    def note_evaluation(self, version: int, mean_reward: float) -> None:
        """Remember how good a policy is, whether there is a checkpoint of it or not (yet).

        Args:
            version: Of the policy.
            mean_reward: Of complete episodes; one that is not finite is not taken down.

        Raises:
            OSError: It cannot be written.
        """
        if math.isfinite(mean_reward):
            self._write_evaluations({**self._read_evaluations()[0], version: float(mean_reward)})

    def best_version(self) -> int | None:
        """The best by evaluation among those with a checkpoint, of equal ones the newest; None if none was evaluated."""
        means = self._read_evaluations()[0]
        known = [found.version for found in self._known() if found.version in means]
        return max(known, key=means.__getitem__, default=None)  # of equal ones the first, which is the newest

    def _names(self) -> set[str]:
        """Names of all folders of versions."""
        if not self.folder.is_dir():
            return set()
        with os.scandir(self.folder) as entries:
            return {entry.name for entry in entries if entry.name.isdigit() and entry.is_dir()}

    def _folders(self) -> list[Path]:
        return [self.folder / name for name in self._names()]

    def _working(self) -> list[Path]:
        """Folders that may hold more than a policy, as far as this store knows; all while it has tidied none."""
        return self._folders() if self._others is None else [self.folder / name for name in self._others]

    def _known(self) -> list[Checkpoint]:
        """As `checkpoints`, for who writes: nobody else has since its newest `_tidy_all`."""
        return self._read(self._working())[0]

    def _read(self, folders: Iterable[Path]) -> tuple[list[Checkpoint], list[str]]:
        found, problems = [], []
        for folder in folders:
            if (folder / MANIFEST).exists():
                try:
                    found.append(Checkpoint.read(folder))
                except RunDirectoryError as error:
                    problems.append(error.what)
        return sorted(found, key=lambda checkpoint: -checkpoint.saved), problems

    def _next_number(self) -> int:
        used = [checkpoint.saved for checkpoint in self._known()]
        used += [number for folder in self._working() for _, _, number in _numbered(folder)]
        return max(self._last, *used, 0) + 1

    def _tidy_all(self) -> set[str]:
        """Tidy every folder that is not known to hold a policy alone; names of those that hold more."""
        names, others = self._names(), set()
        self._policies &= names
        for name in names - self._policies:
            folder = self.folder / name
            if not _holds_policy_alone(folder):
                _tidy(folder)
            if not folder.exists():
                continue
            if _holds_policy_alone(folder):
                self._policies.add(name)
            else:
                others.add(name)
        self._others = others
        return others

    def _read_evaluations(self) -> tuple[dict[int, float], str | None]:
        """Means by version, and what is wrong with the file."""
        path = self.folder / _EVALUATIONS
        try:
            means = unseal(path.read_bytes())["mean_reward"]
            return {int(version): float(mean) for version, mean in means.items()}, None
        except FileNotFoundError:
            return {}, None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return {}, f"{path.name} cannot be read ({error}), so it is not known which checkpoint is the best"

    def _write_evaluations(self, means: Mapping[int, float]) -> None:
        write_whole(self.folder / _EVALUATIONS, [seal({"mean_reward": dict(means)})])


def _place_policy(
    folder: Path, saved: int, version: int, policy: Mapping[str, NDArray[Any]], facts: Mapping[str, object]
) -> FileMark:
    """The policy's mark; one that is not there yet waits under another name for its manifest."""
    path = folder / POLICY_FILE
    if holds(path, policy):
        return mark_of(path)
    return write_policy(folder / staged_policy_name(saved), version, policy, facts)


def _numbered(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Files whose name carries the number of a checkpoint, with their kind and that number."""
    for path in list(folder.iterdir()):
        if (match := _NUMBERED.fullmatch(path.name)) is not None:
            yield path, match[1], int(match[2])


def _holds_policy_alone(folder: Path) -> bool:
    """Whether nothing in a folder is of a checkpoint, or half of a file, and something is in it."""
    paths = list(folder.iterdir())
    return bool(paths) and not any(
        path.name == MANIFEST or _NUMBERED.fullmatch(path.name) or is_part(path) for path in paths
    )


def _tidy(folder: Path, failed: int | None = None) -> None:
    """Finish or take back what a writer that died or failed had begun; the manifest decides.

    Args:
        folder: Of one version.
        failed: Number of a checkpoint that is to be taken back also where the manifest cannot be read.
    """
    for path in list(folder.iterdir()):
        if is_part(path):
            path.unlink()
    if any(_numbered(folder)):
        readable, current = True, None
        if (folder / MANIFEST).exists():
            try:
                current = Checkpoint.read(folder).saved
            except RunDirectoryError:  # perhaps another version of Headrace can read it
                readable = False
        for path, kind, number in _numbered(folder):
            if number == current and kind == "policy":
                path.replace(folder / POLICY_FILE)
            elif number != current and (readable or number == failed):
                path.unlink()
    if not any(folder.iterdir()):
        folder.rmdir()


def _remove(folder: Path) -> None:
    """Make a checkpoint a policy only."""
    _tidy(folder)
    (folder / MANIFEST).unlink()
    sync_folder(folder)
    _tidy(folder)
