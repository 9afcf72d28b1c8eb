"""Looks whether the stored actions of a run are what its stored policies say to the stored observations."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.registry import build_actor, build_algorithm
from headrace.core.arrays import aligned
from headrace.core.errors import RecordDamaged, ReplayDiffers, RunDirectoryError
from headrace.record.diff import ROUNDING, Divergence, RowDifference, first_difference, relative_difference
from headrace.record.machine import differences, fingerprint, limited_threads
from headrace.record.trace import Trace
from headrace.runtime.belonging import edits_told, require_same_layout, require_same_streams
from headrace.runtime.config import ExperimentConfig
from headrace.runtime.payloads import EnvSpaces, group_lanes
from headrace.runtime.reacting import Hindsight, Rows, Setting, act_again, steps_of
from headrace.runtime.recording import TRACE_FILE
from headrace.runtime.rundir import RunDirectory
from headrace.runtime.suspects import cause_of_actions, close
from headrace.runtime.verifiable import Candidate, Skipped, StoredRows, Survey
from headrace.telemetry.wording import amount
from headrace.weights.policy_file import load_policy_arrays, policy_versions
from headrace.weights.snapshot import SnapshotLayout

Arrays = Mapping[str, NDArray[Any]]
OnProgress = Callable[[int, int], None]
"""Called with the chunks looked at so far, and those there are to look at."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was made again and found to be as recorded."""

    chunks: int
    rows: int
    """Actions."""
    versions: tuple[int, ...]
    """Of the policies that had acted, ascending."""
    random: int
    """Chunks among them that are uniformly random throughout, before any policy acted."""
    largest_difference: float
    """Of all actions, in parts of the largest one of the lane in its chunk; 0: all are equal bit for bit."""
    skipped: Mapping[str, int]
    """Chunks of the run that cannot be verified, by reason."""
    machine: tuple[str, ...]
    """How this machine differs from those that computed the chunks, one sentence each."""


def verify_run(
    run: RunDirectory,
    samples: int = 200,
    seed: int = 0,
    tolerance: float = 0.0,
    on_progress: OnProgress | None = None,
) -> Verified:
    """Make the actions of some chunks again, picked at random, and compare them with what is stored.

    Args:
        run: Live, dead or finished.
        samples: How many chunks.
        seed: Of the choice.
        tolerance: Difference of an action that is accepted, in parts of the largest one of the lane in its chunk;
            0: none, not even in the last bit.
        on_progress: Told how far it is.

    Raises:
        ReplayDiffers: An action is another one. The first in the order of the record is named, with the likely cause.
        RecordDamaged: There is no record, it is damaged, nothing in it can be verified, or another version of Headrace drew
            otherwise from its seed.
        RunDirectoryError: The policies of the run cannot be read.
    """
    with ExitStack() as stack:
        trace = stack.enter_context(Trace.open(run.record_dir / TRACE_FILE))
        verifier = _Verifier(run, trace, stack, tolerance)
        stack.enter_context(edits_told(run, verifier.config))
        return verifier.run(samples, seed, on_progress)


class KeptPolicies:
    """Policies on disk, laid out in memory as a collector has them, since bits may depend on where arrays begin.

    Args:
        folder: ``checkpoints/`` of the run.
        config: Of the run.

    Raises:
        RunDirectoryError: There is none, or none that can be read.
    """

    def __init__(self, folder: Path, config: ExperimentConfig) -> None:
        self._folder = folder
        self.versions = policy_versions(folder)
        """Those that are there, ascending."""
        self.spaces = self._spaces()
        """Of one environment."""
        policy = self.spaces.policy(config)
        policies = len(self.spaces.cast(config).policies)
        algorithm = build_algorithm(
            config.algorithm, policy.observation_space, policy.action_space, config.run.seed, policies=policies
        )
        self._layout = SnapshotLayout.of(algorithm.policy_arrays())
        self._newest: tuple[int, Arrays | None, int] | None = None

    def arrays(self, version: int) -> Arrays | None:
        """All that acting needs; None: it is not there, damaged, or of another configuration."""
        return self._loaded(version)[1]

    def checksum(self, version: int) -> int:
        """As a policy's publication has it; 0 where `arrays` is None."""
        return self._loaded(version)[2]

    def _spaces(self) -> EnvSpaces:
        problem: RunDirectoryError | None = None
        for version in reversed(self.versions):
            try:
                return EnvSpaces.told(load_policy_arrays(self._folder, version)[1])
            except RunDirectoryError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        raise RunDirectoryError(
            "no policy of this run was kept, so nothing can be verified",
            expected=self._folder / "<version>" / "policy.safetensors",
            found="none",
            fix=_KEEP_MORE,
        )

    def _loaded(self, version: int) -> tuple[int, Arrays | None, int]:
        if self._newest is None or self._newest[0] != version:
            self._newest = version, *self._load(version)
        return self._newest

    def _load(self, version: int) -> tuple[Arrays | None, int]:
        try:
            found, _ = load_policy_arrays(self._folder, version)
        except RunDirectoryError:
            return None, 0
        payload = aligned((self._layout.payload_bytes,), np.uint8)
        views = self._layout.views(payload)
        for name, view in views.items():
            if name not in found or (found[name].dtype, found[name].shape) != (view.dtype, view.shape):
                return None, 0
            np.copyto(view, found[name])
        return views, zlib.crc32(payload.data)


_SMALLEST = 1e-12
"""Tolerance for values that differ in nothing but their bits, such as 0 and -0."""
_KEEP_MORE = (
    "policies are kept with every evaluation and every checkpoint, and in a short run none of them may have acted: "
    'lower evaluation.every_steps or set checkpoint.every_steps, and record.rows = "all", before the next run'
)


@dataclass(frozen=True, slots=True)
class _Difference:
    """A chunk with an action that is another one."""

    candidate: Candidate
    hindsight: Hindsight
    made: dict[int, Rows]
    """Rows by lane, with their actions made again."""
    first: RowDifference
    """Of the lane that `hindsight` is about."""
    by_rounding: bool
    """Whether no action of the lane differs by more than rounding."""


class _Verifier:
    """One verification.

    Args:
        run: The run directory.
        trace: Its record's events.
        stack: What has to be closed at the end goes there.
        tolerance: See `verify_run`.
    """

    def __init__(self, run: RunDirectory, trace: Trace, stack: ExitStack, tolerance: float) -> None:
        self._run = run
        self._trace = trace
        self._tolerance = tolerance
        self.config = config = run.read_config()
        require_same_streams(trace.header)
        if trace.damaged:
            raise RecordDamaged(
                f"{trace.path} is damaged: whole events follow bytes that mean nothing",
                sound_bytes=trace.length(),
                fix="copy the record again, whole",
            )
        self._policies = KeptPolicies(run.checkpoints_dir, config)
        self._setting = Setting.of(config, self._policies.spaces)
        require_same_layout(trace.header, config, self._setting.geometry)
        self._actor = build_actor(self._policies.spaces.policy(config))
        self._stored = StoredRows(run.record_dir, self._setting.geometry)
        stack.enter_context(closing(self._stored.reader))
        self._here = stack.enter_context(_computing_as(config))
        self._skipped: Counter[Skipped] = Counter()
        self._largest = 0.0
        self._found: list[_Difference] = []

    def run(self, samples: int, seed: int, on_progress: OnProgress | None) -> Verified:
        """See `verify_run`."""
        groups = [group_lanes(self.config, group) for group in range(self.config.env.groups)]
        survey = Survey(self._trace, self._setting, groups, self._policies.versions, samples, seed)
        self._skipped += survey.skipped
        picked, done, rows = survey.sample, list[Candidate](), 0
        by_policy = sorted(picked, key=lambda candidate: (candidate.event.version, candidate.number))
        for number, candidate in enumerate(by_policy, 1):
            made = self._verify(candidate)
            if made:
                done.append(candidate)
                rows += made
            if on_progress is not None:
                on_progress(number, len(picked))
        if not done:
            raise self._nothing(survey)
        machine = self._machine(survey, done)
        if self._found:
            worst = min(self._found, key=lambda one: (one.by_rounding, one.candidate.number))
            raise self._told(worst, len(done), machine)
        versions = {candidate.event.version for candidate in done if not candidate.random}
        skipped = {str(reason): count for reason, count in self._skipped.items()}
        random = sum(candidate.random for candidate in done)
        return Verified(len(done), rows, tuple(sorted(versions)), random, self._largest, skipped, tuple(machine))

    def _verify(self, candidate: Candidate) -> int:
        """How many actions of a chunk were made again; 0: none can be."""
        version, setting = candidate.event.version, self._setting
        chunk = self._stored.chunk(candidate)
        if isinstance(chunk, Skipped):
            self._skipped[chunk] += 1
            return 0
        if not candidate.random:
            arrays = self._policies.arrays(version)
            if arrays is None or self._policies.checksum(version) != candidate.published:
                self._skipped[Skipped.OTHER_POLICY] += 1
                return 0
            self._actor.load(arrays)
        made = act_again(self._actor, setting, chunk)
        for place, lane in enumerate(chunk.lanes):
            stored = lane.rows[setting.geometry.frame_stack - 1 :]
            steps = steps_of(setting, lane)
            made[lane.lane]["version"][steps] = version
            largest = self._settle(stored, made[lane.lane], steps)
            self._largest = max(self._largest, largest)
            first = first_difference(stored, made[lane.lane], lane=lane.lane, first_row=candidate.own(place).start)
            if first is not None:
                hindsight = Hindsight(self._actor, setting, chunk, lane.lane, version, self._policies.arrays)
                by_rounding = first.compared == "actions" and largest < ROUNDING
                self._found.append(_Difference(candidate, hindsight, made, first, by_rounding))
        return sum(part.transitions for part in candidate.event.lanes)

    def _settle(self, stored: Rows, made: Rows, steps: NDArray[np.int64]) -> float:
        """How much the actions differ at most; those that do within the tolerance are taken as stored."""
        largest = 0.0
        for leaf in self._setting.geometry.acted:
            was, now = stored[leaf.path][steps], made[leaf.path][steps]
            largest = max(largest, relative_difference(was, now))
            if self._tolerance and leaf.dtype.kind == "f":
                near = steps[close(was, now, self._tolerance)]
                made[leaf.path][near] = stored[leaf.path][near]
        return largest

    def _machine(self, survey: Survey, done: Sequence[Candidate]) -> list[str]:
        """How this machine differs from those that computed the chunks; the environment's code does not matter here."""
        places = sorted({candidate.machine for candidate in done})
        told = (differences({**survey.machines[place], "environment": {}}, self._here) for place in places)
        return list(dict.fromkeys(sentence for sentences in told for sentence in sentences))

    def _nothing(self, survey: Survey) -> RecordDamaged:
        why = [f"{amount(count, 'chunk')}: {reason}" for reason, count in self._skipped.items()]
        return RecordDamaged(
            "no chunk of this record can be verified",
            chunks=survey.chunks,
            skipped="; ".join(why) or "none",
            policies_kept=", ".join(f"policy {version}" for version in self._policies.versions) or "none",
            fix=_KEEP_MORE,
        )

    def _told(self, found: _Difference, chunks: int, machine: Sequence[str]) -> ReplayDiffers:
        event = found.candidate.event
        cause = cause_of_actions(found.hindsight, found.first, found.made, self._policies.versions, machine)
        differing = len({one.candidate.number for one in self._found})
        more: dict[str, object] = {"policy": event.version, "chunks": f"{differing} of {chunks} differ"}
        fix = cause.fix
        if found.by_rounding:
            more["tolerance_needed"] = enough = f"{1.1 * max(self._largest, _SMALLEST):.2g}"
            fix = f"verify it on the machine that recorded it, or accept rounding: --tolerance {enough}"
        divergence = Divergence(
            event=found.candidate.number, kind=f"chunk {event.chunk} of group {event.group}", updates=event.updates,
            cause=cause, difference=found.first,
        )  # fmt: skip
        return ReplayDiffers(divergence.headline, fix=fix, **divergence.facts(), **more)


@contextmanager
def _computing_as(config: ExperimentConfig) -> Iterator[Mapping[str, Any]]:
    """Within it, libraries use as many threads as in the run; gives the fingerprint of this process."""
    import torch

    before = torch.get_num_threads()
    with limited_threads(config.collect.threads):
        try:
            torch.set_num_threads(config.learn.threads)  # as where the record's was taken
            here = fingerprint()
            inline = config.run.schedule == "inline"
            torch.set_num_threads(config.learn.threads if inline else config.collect.threads)
            yield here
        finally:
            torch.set_num_threads(before)
