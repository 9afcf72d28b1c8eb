"""What a run that goes on puts out of its way, into ``earlier/``, and puts back where nothing comes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from headrace.core.errors import RunDirectoryError
from headrace.core.files import write_whole
from headrace.llm.config import RLConfig
from headrace.llm.launch.place import LanguageRun
from headrace.runtime.aside import made, moved, told
from headrace.runtime.config import dump_toml
from headrace.telemetry.metrics import cut_metrics


@dataclass(slots=True)
class Aside:
    """What is put aside for one session; nothing is before `making_way`."""

    place: LanguageRun
    step: int
    """Of the checkpoint that is gone on from."""
    number: int
    """In the names of what was put aside."""
    config: bytes
    """The configuration before."""
    new_config: RLConfig
    """Of this session."""
    unusable: tuple[int, ...]
    """Versions of the weights that are damaged."""
    moved: list[tuple[Path, Path]] = field(default_factory=list)
    """Weights and checkpoints: where they were, where they are."""
    metrics_bytes: int = 0
    """Of the metrics that stayed."""
    is_back: bool = True
    """Whether the run is as the session before left it: nothing was put aside yet, or `settle` has put it back."""

    @classmethod
    def of(cls, place: LanguageRun, config: RLConfig, step: int, unusable: Iterable[int]) -> Self:
        """What a session has to put aside; changes nothing.

        Args:
            place: The run's; its lock is held.
            config: Of this session.
            step: Of the checkpoint that is gone on from.
            unusable: Versions of the weights that are damaged.

        Raises:
            RunDirectoryError: It cannot be read.
        """
        with told(place.path):
            number = 1 + max((_number(path) for path in (place.path / "earlier").glob("*")), default=0)
            return cls(place, step, number, place.config_file.read_bytes(), config, tuple(unusable))

    @property
    def summary_file(self) -> Path:
        """Where the summary of the session before is."""
        return self.place.path / "earlier" / f"summary-{self.number}.json"

    @property
    def metrics_file(self) -> Path:
        """Where the metrics beyond the checkpoint are, if there were any."""
        return self.place.path / "earlier" / f"metrics-{self.number}.jsonl"

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """Put aside what is of the past, or would be taken for the future; then the block, which makes the session's board.

        The old summary goes after it, last of all: until then the directory tells what was true before. If anything raises,
        everything is as it was.

        Raises:
            RunDirectoryError: It cannot be written.
        """
        with ExitStack() as undo:
            undo.callback(self.moved.clear)
            with told(self.place.path):
                self._put(undo)
            yield
            with told(self.place.path):
                if self.place.summary_file.exists():
                    moved(self.place.summary_file, self.summary_file, undo)
            undo.pop_all()
        self.is_back = False

    def _put(self, undo: ExitStack) -> None:
        place, earlier = self.place, self.place.path / "earlier"
        made(earlier, undo)
        kept = earlier / f"config-{self.number}.toml"
        undo.callback(kept.unlink, missing_ok=True)
        write_whole(kept, [self.config])
        undo.callback(write_whole, place.config_file, [self.config])
        write_whole(place.config_file, [dump_toml(self.new_config).encode()])
        folder = earlier / f"beyond-{self.number}"
        # Batches on their way too: they were made by policies that are forgotten, and bear this run's id.
        on_their_way = list(place.rollouts_dir.iterdir()) if place.rollouts_dir.is_dir() else []
        damaged = [place.weights_dir / str(version) for version in self.unusable]
        further = [*beyond(place.checkpoints_dir, self.step), *beyond(place.weights_dir, self.step)]
        for path in [*further, *damaged, *on_their_way]:
            target = folder / path.parent.name / path.name
            made(folder, undo)
            made(target.parent, undo)
            moved(path, target, undo)
            if path.parent != place.rollouts_dir:
                self.moved.append((path, target))
        self._cut_metrics(undo)

    def _cut_metrics(self, undo: ExitStack) -> None:
        file = self.place.metrics_file
        whole = file.read_bytes() if file.exists() else b""
        if cut_metrics(file, self.step, self.metrics_file):
            undo.callback(self.metrics_file.unlink, missing_ok=True)
            undo.callback(write_whole, file, [whole])
        self.metrics_bytes = file.stat().st_size if file.exists() else 0

    def in_vain(self, summary: Mapping[str, Any] | None) -> bool:
        """Whether a session has ended before it learned anything, while the summary of the one before tells of a result.

        That of one that failed is no result: how it failed last is what is looked for then.

        Args:
            summary: Of the session; None: it has none.
        """
        found = summary or {}
        if found.get("outcome") == "completed" or int(found.get("steps") or 0) > self.step:
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


def beyond(folder: Path, step: int) -> list[Path]:
    """What was made after the checkpoint of ``step``."""
    return [path for path in folder.glob("*") if path.name.isdigit() and int(path.name) > step]


def _number(path: Path) -> int:
    found = re.search(r"-(\d+)(\.\w+)?$", path.name)
    return int(found[1]) if found is not None else 0
