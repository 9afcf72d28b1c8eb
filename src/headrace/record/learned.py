"""The likely cause where all rows are equal, and what is learned from them is not: batches, weights, policies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headrace.record.diff import FILE_A_BUG, SAME_MACHINE, Cause


def cause_of_batch(
    recorded_print: Sequence[int],
    replayed_print: Sequence[int],
    *,
    update: int,
    rows_as_committed: bool | None = None,
    resident_rows: tuple[int, int] | None = None,
) -> Cause:
    """Why the fingerprints of an update's batch differ, where all chunks before it are equal.

    Args:
        recorded_print: Checksums of the drawn places, of what they held, and of what was made of them.
        replayed_print: The same, made again.
        update: Number of the update.
        rows_as_committed: Whether the rows of the row log are those that were committed; None: nobody looked.
        resident_rows: Rows to draw from, as recorded and as replayed; None: not known.
    """
    if recorded_print[0] != replayed_print[0]:
        number, generator = "it had another number of them", "its generator was in another state"
        why, evidence = f"{number}, or {generator}", ""
        if resident_rows is not None:
            why = generator if resident_rows[0] == resident_rows[1] else number
            evidence = "rows to draw from: {:,} recorded, {:,} replayed".format(*resident_rows)
        sentence = f"update {update}: the sampler drew other rows: {why}"
        fix = "keep the run directory and file a bug; look for code that draws from the sampler's generator"
        return Cause("sampling_differs", sentence, fix, (evidence,) * bool(evidence))
    if recorded_print[1] == replayed_print[1]:
        sentence = f"update {update}: the same rows were put together into another batch: stacks, returns or discounts"
        return Cause("batch_built_differs", sentence, FILE_A_BUG, ("the same rows were drawn, and held the same",))
    if rows_as_committed is False:
        sentence = f"update {update}: rows in memory were no longer those that had been committed"
        fix = "look for native code that writes into memory that is not its own; else keep the run directory and file a bug"
        return Cause("row_changed_after_commit", sentence, fix, ("the row log's rows differ from their checksums",))
    sentence = f"update {update}: the batch holds rows that were being written"
    drawn = ("the same rows were drawn, and held something else",)
    kept = ("the row log's rows are those that were committed",) * bool(rows_as_committed)
    return Cause("row_read_while_written", sentence, FILE_A_BUG, (*drawn, *kept))


def cause_of_weights(
    recorded_ledger: Mapping[str, float],
    replayed_ledger: Mapping[str, float],
    *,
    batches_equal: bool | None,
    weights_equal: bool | None = None,
    machine: Sequence[str] = (),
) -> Cause:
    """Why learned arrays, or a published policy, differ.

    Args:
        recorded_ledger: What had been done, by name.
        replayed_ledger: The same, made again.
        batches_equal: Whether all batches before were equal; None: they were not recorded.
        weights_equal: Whether all learned arrays are equal, and only the published policy is not; None: nobody knows.
        machine: As in `Clues`.
    """
    names = {**recorded_ledger, **replayed_ledger}
    wrong = [name for name in names if not _equal(recorded_ledger.get(name), replayed_ledger.get(name))]
    if wrong:
        return _of_ledger(wrong, recorded_ledger, replayed_ledger)
    if batches_equal is False:
        sentence = "they were learned from other batches"
        return Cause("batches_differ", sentence, "look at the first batch that differs; the weights follow from it")
    if weights_equal:
        sentence = "all learned arrays are equal: what was published were other weights than the learner's"
        return Cause("other_weights", sentence, FILE_A_BUG)
    counts = ("every count of the ledger is equal",) * bool(names)
    batches = ("every batch was equal",) if batches_equal else ("batches were not recorded",)
    if machine:
        sentence = "the same batches lead to other weights on this machine" if batches_equal else (
            "this machine or its libraries are not those of the record"
        )  # fmt: skip
        return Cause("other_machine", sentence, SAME_MACHINE, (*counts, *batches, *machine))
    sentence = "nothing that was recorded tells why"
    fix = "look for operations without a fixed order (threads, a GPU); else keep the run directory and file a bug"
    return Cause("unknown", sentence, fix, (*counts, *batches, "machine and libraries are as recorded"))


def _equal(was: float | None, now: float | None) -> bool:
    return was == now or (was is not None and now is not None and math.isnan(was) and math.isnan(now))


def _of_ledger(wrong: Sequence[str], recorded: Mapping[str, float], replayed: Mapping[str, float]) -> Cause:
    """Something was done more or less often; names that say what was declared come last."""
    first, *rest = sorted(wrong, key=lambda name: name.endswith("_declared"))
    lines = [_count(name, recorded, replayed) for name in (first, *rest)]
    was, now = recorded.get(first, 0.0), replayed.get(first, 0.0)
    hints = []
    if now and was == 2 * now:
        hints.append("twice as many as in the replay: each was made twice")
    if "step" in first and was < now:
        hints.append(
            "a count of optimiser steps falls when the optimiser is made anew, and its moments are lost with it"
        )
    fix = "make every step and every target update in one place; the count that is named says which is made wrongly"
    return Cause("update_rule_differs", lines[0], fix, (*hints, *lines[1:]))


def _count(name: str, recorded: Mapping[str, float], replayed: Mapping[str, float]) -> str:
    was, now = (f"{side[name]:,.12g}" if name in side else "none" for side in (recorded, replayed))
    return f"{_words(name)}: {was} recorded, {now} replayed"


def _words(name: str) -> str:
    return name.replace("_", " ")
