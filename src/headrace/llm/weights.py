"""Versions of the policy on disk: published whole or not at all, recognised by the tensors themselves.

A version is a folder ``<version>/`` with ``model.safetensors`` and ``manifest.json``. It is written beside its place and
renamed, so whoever sees the name sees all of it; what has no manifest, or another kind of name, is somebody's unfinished
work and is passed over.

One rule for tied tensors: every name that ``state_dict()`` gives is stored and summed up, also where two of them share
their memory. So a model that ties its embeddings has the same sum in the trainer, in the file and in the server.

Nothing here imports torch before it is called with tensors: the orchestrator only looks at manifests.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.core.errors import HeadraceError, NonFiniteValue, RunDirectoryError, SnapshotCorrupt
from headrace.core.files import sync_folder, write_whole
from headrace.llm.disk import writing
from headrace.llm.messages import Probe, PublishedWeights
from headrace.llm.sums import TensorSum, file_sha256, sealed, unsealed

if TYPE_CHECKING:
    from torch import Tensor, nn

MODEL, MANIFEST = "model.safetensors", "manifest.json"
_LEAST_LOGPROB = -1000.0
"""Of a token of the probe, in nats; one below that comes from weights that have run away."""
_FORMAT = "headrace weights 2"
_CHOICES = 16
"""How often the newest version is chosen, if each is removed before it was read. One is removed only after several newer ones
have been published, and whoever reads for the second time has imported all that takes long."""

_Used = TypeVar("_Used")


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """What a set of tensors is recognised by: names in order, types, shapes, bytes; where they lie does not matter."""
    import torch

    total = TensorSum()
    for name in sorted(tensors):
        tensor = tensors[name].detach().to("cpu").contiguous()
        kind = str(tensor.dtype).removeprefix("torch.")
        total.add(name, kind, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().data)
    return total.hex()


def make_probe(model: nn.Module, token_ids: Sequence[int]) -> Probe:
    """What ``model`` says of a text, at temperature 1, to be compared with what a server says of it.

    Args:
        model: A causal language model of transformers, on any device.
        token_ids: At least two.
    """
    import torch

    device = next(model.parameters()).device
    ids = torch.tensor([list(token_ids)], device=device)
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()  # [T - 1, V]
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]
    return Probe(token_ids=tuple(map(int, token_ids)), logprobs=tuple(logprobs.tolist()))


def publish(
    tensors: Mapping[str, Tensor],
    *,
    version: int,
    weights_dir: Path,
    run_id: str,
    probe: Probe,
    metadata: Mapping[str, Any],
) -> PublishedWeights:
    """Make a version appear.

    Args:
        tensors: As ``state_dict()`` gives them.
        version: 0 is what training begins with.
        weights_dir: ``weights/`` of the run; made if it is not there.
        run_id: Of the run.
        probe: What the model says of a text, see `make_probe`.
        metadata: Further facts as JSON knows them, e.g. the model's configuration.

    Raises:
        NonFiniteValue: Its numbers are none that a policy can have. Nothing was published.
        RunDirectoryError: The version is there already, and is another one; or it cannot be written: then nothing is left
            but, at worst, a hidden folder that the next one removes.
    """
    _require_sane(version, tensors, probe)
    folder = weights_dir / str(version)
    published = PublishedWeights(
        version=version, folder=folder, sha256=tensors_sha256(tensors), run_id=run_id, probe=probe
    )
    if folder.exists():
        _require_same(published)
        return published
    with writing(f"version {version} of the weights", folder):
        _place(published, tensors, metadata)
    return published


def _require_sane(version: int, tensors: Mapping[str, Tensor], probe: Probe) -> None:
    """A server would be blamed for the difference of two numbers that are none, or that float32 does not tell apart."""
    import torch

    broken = next((name for name, one in tensors.items() if not bool(torch.isfinite(one).all())), None)
    # Written so that NaN, which is neither less nor more, is not among the allowed.
    wrong = next((value for value in probe.logprobs if not _LEAST_LOGPROB <= value < math.inf), None)
    if broken is None and wrong is None:
        return
    raise NonFiniteValue(
        f"version {version} of the weights is no policy any more; it was not published",
        **({"not_finite": broken} if broken else {"log_probability_of_a_token": f"{wrong:g}", "least": _LEAST_LOGPROB}),
        fix="lower sft.lr" if version == 0 else "lower trainer.lr, or trainer.max_grad_norm",
    )


def look(folder: Path, run_id: str) -> PublishedWeights:
    """What a version's manifest says; the tensors are not looked at.

    Raises:
        SnapshotCorrupt: There is no manifest, or it is damaged.
        RunDirectoryError: It is of another run, or there is no such folder.
    """
    return _manifest(folder, run_id)[0]


def read(folder: Path, run_id: str) -> tuple[PublishedWeights, dict[str, Tensor]]:
    """A version and its tensors, on the CPU.

    Raises:
        SnapshotCorrupt: A part is missing or damaged, or the tensors are not those of the manifest.
        RunDirectoryError: It is of another run, or there is no such folder.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    published = look(folder, run_id)
    try:
        tensors = load_file(folder / MODEL)
    except (OSError, SafetensorError, ValueError) as error:
        raise _unreadable(folder / MODEL, error) from error
    _require_sum(published, tensors_sha256(tensors))
    return published, tensors


def verify(folder: Path, run_id: str) -> PublishedWeights:
    """What a version's manifest says, after its tensors were looked at; without torch.

    Raises:
        SnapshotCorrupt: A part is missing or damaged, or the tensors are not those of the manifest.
        RunDirectoryError: It is of another run, or there is no such folder.
    """
    published = look(folder, run_id)
    try:
        found = file_sha256(folder / MODEL)
    except (OSError, ValueError) as error:
        raise _unreadable(folder / MODEL, error) from error
    _require_sum(published, found)
    return published


def metadata_of(folder: Path, run_id: str) -> dict[str, Any]:
    """The further facts that were published with a version.

    Raises:
        SnapshotCorrupt: There is no manifest, or it is damaged.
        RunDirectoryError: It is of another run, or there is no such folder.
    """
    return _manifest(folder, run_id)[1]


def versions(weights_dir: Path) -> list[int]:
    """Numbers of all versions that are there whole, in order; of whatever run."""
    if not weights_dir.is_dir():
        return []
    return sorted(int(path.name) for path in weights_dir.iterdir() if path.name.isdigit() and _is_whole(path))


def numbered(weights_dir: Path, first: int, last: int) -> list[int]:
    """Numbers of all folders that bear one of these, whole or not, the newest first."""
    found = [int(path.name) for path in weights_dir.glob("*") if path.name.isdigit()]
    return sorted((number for number in found if first <= number <= last), reverse=True)


def newest(weights_dir: Path, run_id: str) -> PublishedWeights | None:
    """The newest version, by its manifest; None if nothing was published yet.

    Raises:
        SnapshotCorrupt: Its manifest is damaged.
        RunDirectoryError: It is of another run.
    """
    return of_newest(weights_dir, lambda folder: look(folder, run_id))


def of_newest(
    weights_dir: Path, use: Callable[[Path], _Used], pass_over: Callable[[int, SnapshotCorrupt], None] | None = None
) -> _Used | None:
    """What ``use`` makes of the newest version; None if nothing was published yet.

    A run that is live removes old versions, also one that was the newest when somebody began to read it: then the newest is
    chosen again.

    Args:
        weights_dir: ``weights/`` of the run.
        use: Called with a version's folder. Called again, with another one, where it failed and the folder is gone.
        pass_over: Told of a version that is there and damaged, and of how, before the next older one is chosen; None: that
            is raised.

    Raises:
        RunDirectoryError: Each of them was removed before it was read.
        HeadraceError: What ``use`` raises of a version that is still there.
    """
    damaged: set[int] = set()
    for _ in range(_CHOICES):
        there = [version for version in versions(weights_dir) if version not in damaged]
        if not there:
            return None
        folder = weights_dir / str(there[-1])
        try:
            return use(folder)
        except (HeadraceError, OSError) as error:
            if not folder.exists():
                continue
            # With nothing older to fall back on, what is wrong with this one is the news.
            if pass_over is None or not isinstance(error, SnapshotCorrupt) or len(there) == 1:
                raise
            pass_over(there[-1], error)
            damaged.add(there[-1])
    raise RunDirectoryError(
        f"each of {_CHOICES} versions of the weights was removed, or found damaged, before it was read",
        folder=weights_dir,
        fix="wait until the run has ended, or copy its weights/ and read the copy",
    )


def prune(weights_dir: Path, run_id: str, keep: int, protect: Collection[int] = (0,)) -> list[int]:
    """Remove old versions.

    Args:
        weights_dir: ``weights/`` of the run.
        run_id: Of the run; a version of another one is not touched.
        keep: How many of the newest stay.
        protect: Versions that stay in any case.

    Returns:
        Those that were removed.

    Raises:
        SnapshotCorrupt: A manifest is damaged; nothing of it was removed.
        RunDirectoryError: A version is of another run; it was not removed.
    """
    old = versions(weights_dir)[:-keep] if keep else versions(weights_dir)
    return _remove(weights_dir, run_id, [version for version in old if version not in protect])


def forget_newer(weights_dir: Path, run_id: str, than: int) -> list[int]:
    """Take back the versions after ``than``, from which a resumed run goes on; returns them.

    Raises:
        SnapshotCorrupt: A manifest is damaged; nothing of it was removed.
        RunDirectoryError: A version is of another run; it was not removed.
    """
    return _remove(weights_dir, run_id, [version for version in versions(weights_dir) if version > than])


def _remove(weights_dir: Path, run_id: str, which: Sequence[int]) -> list[int]:
    for version in which:
        look(weights_dir / str(version), run_id)
        gone = weights_dir / f".{version}.gone"
        shutil.rmtree(gone, ignore_errors=True)
        (weights_dir / str(version)).rename(gone)  # so that nobody reads half of it
        shutil.rmtree(gone)
    return list(which)


def _place(published: PublishedWeights, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write the folder beside its place, and rename it."""
    folder = published.folder
    folder.parent.mkdir(exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(left, ignore_errors=True)
    staged = folder.with_name(f".{folder.name}.{os.getpid()}")
    staged.mkdir()
    try:
        _write(staged, tensors, published, metadata)
        staged.rename(folder)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    sync_folder(folder.parent)


def _write(
    folder: Path, tensors: Mapping[str, Tensor], published: PublishedWeights, metadata: Mapping[str, Any]
) -> None:
    from safetensors.torch import save

    # A copy of each, because the format knows no tensors that share memory.
    alone = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    write_whole(folder / MODEL, [save(alone, {"format": "pt"})])
    facts = {
        "format": _FORMAT,
        "run_id": published.run_id,
        "version": published.version,
        "sha256": published.sha256,
        "probe": {"token_ids": list(published.probe.token_ids), "logprobs": list(published.probe.logprobs)},
        "metadata": dict(metadata),
    }
    write_whole(folder / MANIFEST, [sealed(facts)])


def _manifest(folder: Path, run_id: str) -> tuple[PublishedWeights, dict[str, Any]]:
    path = folder / MANIFEST
    try:
        facts = unsealed(path.read_bytes())
        if facts["format"] != _FORMAT:
            raise ValueError(f"its format is {facts['format']!r}")
        probe = Probe(token_ids=tuple(facts["probe"]["token_ids"]), logprobs=tuple(facts["probe"]["logprobs"]))
        published = PublishedWeights(
            version=facts["version"], folder=folder, sha256=facts["sha256"], run_id=facts["run_id"], probe=probe
        )
        metadata = dict(facts["metadata"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(path, error) from error
    if published.run_id != run_id:
        raise RunDirectoryError(
            "weights of another run lie where this run publishes its own",
            folder=folder,
            their_run=published.run_id,
            this_run=run_id,
            fix="give each run a directory of its own, or move that folder away",
        )
    if folder.name != str(published.version):
        raise _corrupt(path, f"it says version {published.version}, its folder is called {folder.name}")
    return published, metadata


def _require_same(published: PublishedWeights) -> None:
    there = look(published.folder, published.run_id)
    if there.sha256 != published.sha256:
        raise RunDirectoryError(
            f"version {published.version} was published before, with other weights",
            folder=published.folder,
            there=there.sha256,
            now=published.sha256,
            fix="resume from a checkpoint, which takes newer versions back, or begin in a new run directory",
        )


def _require_sum(published: PublishedWeights, found: str) -> None:
    if found != published.sha256:
        raise _corrupt(published.folder / MODEL, f"sha256 {found[:16]}… instead of {published.sha256[:16]}…")


def _is_whole(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _unreadable(path: Path, error: Exception) -> HeadraceError:
    """A version that a run has removed is not damaged: its whole folder goes, by renaming."""
    folder = path.parent
    if folder.exists():
        return _corrupt(path, f"{type(error).__name__}: {error}")
    there = versions(folder.parent)
    return RunDirectoryError(
        f"version {folder.name} of the weights is not there",
        folder=folder,
        has=", ".join(map(str, there)) or "none",
        fix="name one that it has; older ones are removed as the run goes on",
    )


def _corrupt(path: Path, problem: str) -> SnapshotCorrupt:
    return SnapshotCorrupt(
        "published weights are damaged",
        file=path,
        problem=problem,
        fix="remove that version's folder and resume from a checkpoint; the disk may be failing",
    )
