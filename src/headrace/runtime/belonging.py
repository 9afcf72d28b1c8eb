"""Whether a record and the ``config.toml`` beside it are of one and the same run, and of this version's random streams."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from headrace.core.errors import RecordDamaged, ReplayDiffers
from headrace.core.seeding import STREAMS
from headrace.lanes.layout import Geometry
from headrace.record.events import ChunkCommitted
from headrace.runtime.config import ExperimentConfig, dump_toml
from headrace.runtime.rundir import RunDirectory


def require_same_layout(header: Mapping[str, Any], config: ExperimentConfig, geometry: Geometry) -> None:
    """Refuse a record that cannot be read with this configuration, before anything is made of it.

    Args:
        header: Of the record, see `headrace.runtime.recording.header_facts`.
        config: Of the run.
        geometry: Of the lanes, as the configuration has them.

    Raises:
        RecordDamaged: Lanes, rows or seed are not those of the record.
    """
    keys = {
        "env.lanes": ("lanes", geometry.lanes),
        "env.group_size": ("group_size", config.env.group_size),
        "agents.count": ("agents", config.agents.count),
        "env.frame_stack": ("first_row", geometry.first_row),
        "run.seed": ("seed", config.run.seed),
    }
    for key, (name, here) in keys.items():
        was = header.get(name, here)
        if was != here:
            stacked = name == "first_row"  # the first row is the one behind the zeros of a stack
            raise RecordDamaged(
                f"this record was not made with the config.toml beside it: {key} is another one",
                recorded=was + 1 if stacked else was,
                config=here + 1 if stacked else here,
                fix="use record and config.toml of one and the same run",
            )
    row_dtype = json.loads(json.dumps(np.lib.format.dtype_to_descr(geometry.dtype)))
    if row_dtype != header["row_dtype"]:
        raise RecordDamaged(
            "the rows of this record are laid out in another way than the spaces of its policies say",
            recorded=header["row_dtype"],
            expected=row_dtype,
            fix="use record, policies and config.toml of one and the same run, and the Headrace that wrote them",
        )


def same_streams(header: Mapping[str, Any]) -> bool:
    """Whether a record's run drew from its seed what this version of Headrace draws; the version number says nothing of it.

    Args:
        header: Of the record.
    """
    return bool(header.get("streams", 1) == STREAMS)


def require_same_streams(header: Mapping[str, Any]) -> None:
    """Refuse to make again what another version of Headrace drew: environment or machine would be blamed.

    Args:
        header: Of the record.

    Raises:
        RecordDamaged: The record is sound, and its run drew other random numbers from its seed than this version does.
    """
    if not same_streams(header):
        raise RecordDamaged(
            "the run of this record was begun by another version of Headrace, which drew other random numbers from a seed",
            recorded_streams=header.get("streams", 1),
            streams_here=STREAMS,
            fix="replay and verify it with the version that began it",
        )


def require_same_exploration(event: ChunkCommitted, geometry: Geometry) -> None:
    """Refuse an event whose exploration kept another state than the configuration's does.

    Raises:
        RecordDamaged: It does.
    """
    for part in event.lanes:
        if len(part.carry) != 4 * geometry.carry_floats:
            raise RecordDamaged(
                "this record was not made with the config.toml beside it: algorithm.exploration is another one",
                bytes_of_state=len(part.carry),
                expected=4 * geometry.carry_floats,
                fix="use record and config.toml of one and the same run",
            )


@contextmanager
def edits_told(run: RunDirectory, config: ExperimentConfig) -> Iterator[None]:
    """Within it, a difference is told together with an edit of the configuration, which is likelier than any other cause.

    Args:
        run: Whose.
        config: As it was read.
    """
    try:
        yield
    except ReplayDiffers as error:
        if not was_edited(run, config):
            raise
        facts = {**error.facts, "configuration": "config.toml was edited since it was written, and that may be all"}
        fix = "restore config.toml (its first line is a hash of the values it had), and try again"
        raise ReplayDiffers(error.what, fix=fix, **facts) from None


def was_edited(run: RunDirectory, config: ExperimentConfig) -> bool:
    """Whether somebody has edited ``config.toml`` since it was written; its first line is a hash of its values."""
    with run.config_file.open(encoding="utf-8") as file:
        return file.readline() != dump_toml(config).partition("\n")[0] + "\n"
