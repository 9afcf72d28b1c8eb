"""Whether a batch may be trained on at all. What may not is refused whole, before a weight has changed."""

from __future__ import annotations

import numpy as np

from headrace.core.errors import BatchRefused, NonFiniteValue, RunDirectoryError
from headrace.llm.messages import Batch, Sample


def check_batch(batch: Batch, *, run_id: str, step: int, max_policy_lag: int, vocabulary: int, longest: int) -> None:
    """Refuse a batch that breaks what was declared.

    Args:
        batch: As it was received.
        run_id: Of this run.
        step: That is trained now; also the version of the policy it is trained on.
        max_policy_lag: Versions by which a token may be older than that.
        vocabulary: Tokens the model knows.
        longest: Most tokens of a sample.

    Raises:
        RunDirectoryError: It is of another run.
        BatchRefused: It is of another step, has no trained token, or a sample that cannot be.
        NonFiniteValue: A log-probability or an advantage is not a finite number.
    """
    if batch.run_id != run_id:
        raise RunDirectoryError(
            "the trainer was handed a batch of another run",
            their_run=batch.run_id,
            this_run=run_id,
            fix="give each run a directory of its own",
        )
    if batch.step != step:
        raise _refused(batch, f"it is of step {batch.step}, and step {step} is trained")
    for sample in batch.samples:
        _check_shape(batch, sample, vocabulary, longest)
        _check_numbers(batch, sample)
        _check_versions(batch, sample, max_policy_lag)
    if not any(sample.trained.any() for sample in batch.samples):
        raise _refused(batch, "no token in it was chosen by the policy", samples=len(batch.samples))


def off_policy(batch: Batch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Versions by which each trained token is older than the policy that is trained on it, [K]."""
    versions = [sample.versions[sample.trained] for sample in batch.samples]
    lags: np.ndarray[tuple[int], np.dtype[np.int64]] = batch.step - np.concatenate(versions).astype(np.int64)
    return lags


def _check_shape(batch: Batch, sample: Sample, vocabulary: int, longest: int) -> None:
    tokens = len(sample.token_ids)
    arrays = (sample.token_ids, sample.trained, sample.logprobs, sample.versions)
    if any(array.shape != (tokens,) for array in arrays):
        raise _refused(batch, "tokens, marks, log-probabilities and versions of a sample differ in length", sample)
    if tokens > longest:
        raise _refused(batch, f"a sample has {tokens} tokens, and {longest} fit", sample)
    if tokens and not (sample.token_ids.min() >= 0 and sample.token_ids.max() < vocabulary):
        raise _refused(batch, f"a token is none of the {vocabulary} that the model knows", sample)
    if tokens and sample.trained[0]:
        raise _refused(batch, "the first token of a sample is marked as trained, and nothing comes before it", sample)


def _check_numbers(batch: Batch, sample: Sample) -> None:
    for name, value in (("logprobs", sample.logprobs[sample.trained]), ("advantage", sample.advantage)):
        if not np.isfinite(value).all():
            raise NonFiniteValue(
                f"batch {batch.step} has a sample whose {name} are not finite; it was not trained on",
                rollout=sample.rollout,
                problem=sample.problem,
                found=value,
                fix="find out where it comes from: the environment's reward, or the inference server",
            )


def _check_versions(batch: Batch, sample: Sample, max_policy_lag: int) -> None:
    lags = batch.step - sample.versions[sample.trained]
    if len(lags) and lags.max() > max_policy_lag:
        raise _refused(
            batch,
            f"a token is {lags.max()} versions old, and {max_policy_lag} are allowed",
            sample,
            oldest=int(lags.max()),
        )
    if len(lags) and lags.min() < 0:
        raise _refused(batch, "a token is newer than the policy that is trained on it", sample)


def _refused(batch: Batch, why: str, sample: Sample | None = None, **facts: object) -> BatchRefused:
    about = {} if sample is None else {"rollout": sample.rollout, "problem": sample.problem}
    return BatchRefused(
        f"the trainer refuses batch {batch.step}: {why}",
        **about,
        **facts,
        fix="file a bug: the orchestrator has to sweep such samples out before it ships",
    )
