"""What a run that goes on puts out of its way, into ``earlier/``, and puts back where nothing comes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.errors import RunDirectoryError
from headrace.core.files import write_whole
from headrace.llm.config import RLConfig
from headrace.llm.launch.place import LanguageRun
from headrace.runtime.config import dump_toml
from headrace.telemetry.metrics import cut_metrics


@dataclass(slots=True)
class Aside:
    """What was put aside for one session."""

    place: LanguageRun
    step: int
    """Of the checkpoint that is gone on from."""
    number: int
    """In the names of what was put aside."""
    config: bytes
    """The configuration before."""
    moved: list[tuple[Path, Path]] = field(default_factory=list)
    """Weights and checkpoints: where they were, where they are."""
    metrics_bytes: int = 0
    """Of the metrics that stayed."""
    is_back: bool = False
    """Whether `settle` has put it back."""

    @property
    def summary_file(self) -> Path:
        """Where the summary of the session before is."""
        return self.place.path / "earlier" / f"summary-{self.number}.json"

    @property
    def metrics_file(self) -> Path:
        """Where the metrics beyond the checkpoint are, if there were any."""
        return self.place.path / "earlier" / f"metrics-{self.number}.jsonl"

    def in_vain(self, summary: Mapping[str, Any] | None) -> bool:
        """Whether a session has ended before it learned anything, while the summary of the one before tells of a result.

        That of one that failed is no result: how it failed last is what is looked for then.

        Args:
            summary: Of the session; None: it has none.
        """
        told = summary or {}
        if told.get("outcome") == "completed" or int(told.get("steps") or 0) > self.step:
            return False
        place = self.place
        new = [*beyond(place.weights_dir, self.step), *beyond(place.checkpoints_dir, self.step)]
        return not new and self._had_result()

    def _had_result(self) -> bool:
        try:
            before = json.loads(self.summary_file.read_text(encoding="utf-8"))
            return not before.get("error")
        except (OSError, ValueError, AttributeError):  # there is none, or it is damaged
            return False

    def settle(self) -> None:
        """After the session: if it was in vain, leave the run as the one before left it; its events stay.

        Where that cannot be done, what is there stays.
        """
        summary = None
        with suppress(RunDirectoryError):
            summary = self.place.read_summary()
        if self.is_back or not self.in_vain(summary):
            return
        with suppress(OSError):  # the summary comes last: until then that of the session in vain tells what happened
            for origin, target in self.moved:
                if target.exists() and not origin.exists():
                    target.rename(origin)
            self._put_metrics_back()
            write_whole(self.place.config_file, [self.config])
            self.summary_file.replace(self.place.summary_file)
            self.is_back = True

    def _put_metrics_back(self) -> None:
        """Without those of the session; what was beyond the checkpoint is at their end now."""
        file = self.place.metrics_file
        if not file.exists():
            return
        cut = self.metrics_file.read_bytes() if self.metrics_file.exists() else b""
        write_whole(file, [file.read_bytes()[: self.metrics_bytes], cut])
        self.metrics_file.unlink(missing_ok=True)


def put_aside(place: LanguageRun, config: RLConfig, step: int, unusable: Iterable[int]) -> Aside:
    """Put aside what is of the past, or would be taken for the future.

    Args:
        place: The run's; its lock is held.
        config: Of this session.
        step: Of the checkpoint that is gone on from.
        unusable: Versions of the weights that are damaged.

    Raises:
        RunDirectoryError: It cannot be written.
    """
    earlier = place.path / "earlier"
    try:
        earlier.mkdir(exist_ok=True)
        number = 1 + max((_number(path) for path in earlier.iterdir()), default=0)
        put = Aside(place, step, number, place.config_file.read_bytes())
        write_whole(earlier / f"config-{number}.toml", [put.config])
        write_whole(place.config_file, [dump_toml(config).encode()])
        if place.summary_file.exists():
            place.summary_file.rename(put.summary_file)
        folder = earlier / f"beyond-{number}"
        # Batches on their way too: they were made by policies that are forgotten, and bear this run's id.
        on_their_way = list(place.rollouts_dir.iterdir()) if place.rollouts_dir.is_dir() else []
        damaged = [place.weights_dir / str(version) for version in unusable]
        further = [*beyond(place.checkpoints_dir, step), *beyond(place.weights_dir, step)]
        for path in [*further, *damaged, *on_their_way]:
            target = folder / path.parent.name / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            if path.parent != place.rollouts_dir:
                put.moved.append((path, target))
        cut_metrics(place.metrics_file, step, put.metrics_file)
        put.metrics_bytes = place.metrics_file.stat().st_size if place.metrics_file.exists() else 0
    except OSError as error:
        raise RunDirectoryError(
            f"the run directory {place.path} cannot be written",
            problem=f"{type(error).__name__}: {error}",
            fix="make room on its disk, or make it writable",
        ) from None
    return put


def beyond(folder: Path, step: int) -> list[Path]:
    """What was made after the checkpoint of ``step``."""
    return [path for path in folder.glob("*") if path.name.isdigit() and int(path.name) > step]


def _number(path: Path) -> int:
    found = re.search(r"-(\d+)(\.\w+)?$", path.name)
    return int(found[1]) if found is not None else 0
