"""One checkpoint as it lies on disk: what its manifest says, and whether that is so.

A checkpoint is a folder ``checkpoints/<version>/`` with three files: the learner's state, the policy it had published,
and ``checkpoint.json``, the manifest, which names the other two with size and checksum. Without a manifest the folder
is only a policy. Experience is not copied: the manifest says how far the record reached, which holds the rows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, Self

from numpy.typing import NDArray

from headrace.core.errors import RunDirectoryError
from headrace.core.files import FileMark, mark_of, write_whole
from headrace.learners.checkpoint import LearnerState
from headrace.weights.policy_file import POLICY_FILE, read_policy

MANIFEST = "checkpoint.json"
FORMAT = 1
_OURS = ("format", "headrace", "saved", "files", "crc32")
"""What a manifest holds besides its facts."""
_FIX = "go on from an older checkpoint; `headrace train --resume` takes the newest sound one"


def state_name(saved: int) -> str:
    """The file of the learner's state."""
    return f"state-{saved}.safetensors"


def staged_policy_name(saved: int) -> str:
    """Where the policy lies until the manifest that names it is in place."""
    return f"policy-{saved}.safetensors"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a manifest says. Small and picklable; nothing but the manifest has been looked at."""

    folder: Path
    version: int
    """Of the policy that was the newest one."""
    saved: int
    """Counts the checkpoints of a run; the newer one has the higher number."""
    files: Mapping[str, FileMark]
    facts: Mapping[str, Any]
    """What the writer noted, as JSON knows it."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The checkpoint in a folder.

        Raises:
            RunDirectoryError: There is none, or its manifest is damaged or of a format that is not known.
        """
        path = folder / MANIFEST
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise _unsound(f"{folder.name} is no checkpoint: it has no {MANIFEST}", path) from None
        except OSError as error:
            raise _unsound(f"{MANIFEST} of checkpoint {folder.name} cannot be read: {error.strerror}", path) from None
        try:
            values = json.loads(data)
        except ValueError as error:
            raise _unsound(f"{MANIFEST} of checkpoint {folder.name} is not JSON: {error}", path) from None
        written = values.get("format") if isinstance(values, dict) else None
        if isinstance(written, int) and written != FORMAT:
            raise _unsound(
                f"checkpoint {folder.name} has format {written}, and only {FORMAT} is known here",
                path,
                written_by=f"Headrace {values.get('headrace')}",
            )
        try:
            return cls._of(folder, unseal(data))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise _unsound(
                f"{MANIFEST} of checkpoint {folder.name} was changed or damaged after it was written", path
            ) from None

    @classmethod
    def _of(cls, folder: Path, values: dict[str, Any]) -> Self:
        files = {name: FileMark(mark["bytes"], mark["crc32"]) for name, mark in values["files"].items()}
        facts = {name: value for name, value in values.items() if name not in _OURS}
        made = cls(folder, facts["version"], values["saved"], files, facts)
        whole = type(made.saved) is int and type(facts["oldest_segment"]) is int
        if not whole or files.keys() != {state_name(made.saved), POLICY_FILE} or folder.name != str(made.version):
            raise ValueError("not the manifest of this folder")
        return made

    @property
    def oldest_segment(self) -> int:
        """The first segment of the row log that is needed to go on."""
        return int(self.facts["oldest_segment"])

    @property
    def policy_file(self) -> Path:
        """The policy, also where its writer died before it had its name."""
        staged = self.folder / staged_policy_name(self.saved)
        return staged if staged.exists() else self.folder / POLICY_FILE

    def check(self, oldest_segment: int | None = None) -> None:
        """Read every byte and compare.

        Args:
            oldest_segment: The first segment of the row log that there is; None: it is not asked for.

        Raises:
            RunDirectoryError: A file is missing, cut off or damaged, or the rows are gone; says which.
        """
        if oldest_segment is not None and self.oldest_segment < oldest_segment:
            raise _unsound(
                f"the rows of checkpoint {self.version} are gone: they begin in segment {self.oldest_segment}, "
                f"and the record begins with {oldest_segment}",
                self.folder / MANIFEST,
            )
        for name, mark in self.files.items():
            path = self.policy_file if name == POLICY_FILE else self.folder / name
            subject = f"{path.name} of checkpoint {self.version}"
            try:
                nbytes = path.stat().st_size
                found = mark_of(path) if nbytes == mark.nbytes else None
            except FileNotFoundError:
                raise _unsound(f"{subject} is missing", path) from None
            except OSError as error:
                raise _unsound(f"{subject} cannot be read: {error.strerror}", path) from None
            if found is None:
                happened = "is cut off" if nbytes < mark.nbytes else "has grown"
                raise _unsound(f"{subject} {happened}: {nbytes:,} bytes instead of {mark.nbytes:,}", path)
            if found != mark:
                raise _unsound(
                    f"{subject} is damaged: its bytes are not those that were written",
                    path,
                    expected=f"CRC-32 {mark.crc32:08x}",
                    found=f"CRC-32 {found.crc32:08x}",
                )

    def load(self) -> LearnerState:
        """The learner's state, after `check`.

        Raises:
            RunDirectoryError: The checkpoint is not sound.
        """
        self.check()
        path = self.folder / state_name(self.saved)
        state = LearnerState.load(path)
        if state is None:
            raise _unsound(f"{path.name} of checkpoint {self.version} is missing", path)
        return state

    def policy(self) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
        """Arrays and facts of the policy that was published.

        Raises:
            RunDirectoryError: It is missing or damaged.
        """
        return read_policy(self.policy_file)


def write_manifest(folder: Path, saved: int, files: Mapping[str, FileMark], facts: Mapping[str, Any]) -> None:
    """Make a checkpoint of the files in a folder, or another one of them, in one step.

    Args:
        folder: Named after the version.
        saved: See `Checkpoint.saved`.
        files: See `Checkpoint.files`.
        facts: As JSON knows them; ``version`` and ``oldest_segment`` are among them.

    Raises:
        OSError: It cannot be written.
    """
    assert not facts.keys() & set(_OURS), f"reserved: {_OURS}"
    assert facts.keys() >= {"version", "oldest_segment"}
    values = {
        "format": FORMAT,
        "headrace": version_of("headrace"),
        "saved": saved,
        **facts,
        "files": {name: {"bytes": mark.nbytes, "crc32": mark.crc32} for name, mark in files.items()},
    }
    write_whole(folder / MANIFEST, [seal(values)])


def seal(values: Mapping[str, Any]) -> bytes:
    """A JSON object with a checksum of its own text as the last key."""
    text = json.dumps(values, indent=2).removesuffix("\n}")
    return f'{text},\n  "crc32": {zlib.crc32(text.encode())}\n}}\n'.encode()


def unseal(data: bytes) -> dict[str, Any]:
    """What `seal` was given.

    Raises:
        ValueError: A byte is not as `seal` wrote it.
    """
    values = json.loads(data)
    if not isinstance(values, dict) or seal({name: values[name] for name in values if name != "crc32"}) != data:
        raise ValueError("not as it was written")
    del values["crc32"]
    return values


def _unsound(what: str, path: Path, **facts: object) -> RunDirectoryError:
    return RunDirectoryError(what, file=path, **facts, fix=_FIX)
