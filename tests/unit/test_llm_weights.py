"""Published versions of the policy: whole or not at all, recognised by their tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from headrace.core.errors import NonFiniteValue, RunDirectoryError, SnapshotCorrupt
from headrace.llm import weights
from headrace.llm.messages import Probe, PublishedWeights
from headrace.llm.weights import (
    forget_newer,
    look,
    metadata_of,
    newest,
    of_newest,
    prune,
    publish,
    read,
    tensors_sha256,
    versions,
)

PROBE = Probe(token_ids=(1, 2, 3), logprobs=(-0.1, -1.0 / 3.0))


def some_tensors(value: float = 1.0) -> dict[str, Tensor]:
    embedding = torch.arange(6, dtype=torch.float32).reshape(2, 3) * value
    return {
        "embed.weight": embedding,
        "head.weight": embedding,  # tied
        "norm.weight": torch.tensor([0.5, 1.5], dtype=torch.bfloat16) * value,
        "scale": torch.tensor(3.0),
    }


def published(folder: Path, version: int = 0, value: float = 1.0, run_id: str = "run") -> PublishedWeights:
    return publish(
        some_tensors(value), version=version, weights_dir=folder, run_id=run_id, probe=PROBE, metadata={"hidden": 64}
    )


def test_a_version_is_read_as_it_was_published(tmp_path: Path) -> None:
    weights = published(tmp_path, 7)
    found, tensors = read(tmp_path / "7", "run")
    assert found == weights == look(tmp_path / "7", "run")
    assert metadata_of(tmp_path / "7", "run") == {"hidden": 64}
    expected = some_tensors()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)
    assert tensors["norm.weight"].dtype == torch.bfloat16
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7"]


def test_the_sum_is_of_names_types_shapes_and_bytes() -> None:
    tensors = some_tensors()
    whole = tensors_sha256(tensors)
    assert whole == tensors_sha256(dict(reversed(tensors.items())))
    laid_out_otherwise = {**tensors, "embed.weight": tensors["embed.weight"].t().contiguous().t()}
    assert whole == tensors_sha256(laid_out_otherwise)
    others = [
        {**tensors, "scale": torch.tensor(3.0000002)},
        {**tensors, "scale": torch.tensor([3.0])},
        {**tensors, "embed.weight": tensors["embed.weight"].reshape(3, 2)},
        {**tensors, "norm.weight": tensors["norm.weight"].view(torch.int16)},
        {name: tensor for name, tensor in tensors.items() if name != "head.weight"},
        {("other" if name == "scale" else name): tensor for name, tensor in tensors.items()},
    ]
    sums = {whole, *map(tensors_sha256, others)}
    assert len(sums) == 1 + len(others)


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damage_is_an_error_that_names_the_file(tmp_path: Path, name: str, damage: str) -> None:
    published(tmp_path)
    path = tmp_path / "0" / name
    data = bytearray(path.read_bytes())
    data[-2 if name == "model.safetensors" else 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[:-2])
    with pytest.raises(SnapshotCorrupt, match=name):
        read(tmp_path / "0", "run")


def test_tensors_that_are_not_those_of_the_manifest_are_an_error(tmp_path: Path) -> None:
    """A sound file, but another one: what a half-copied directory looks like."""
    published(tmp_path, 0)
    published(tmp_path, 1, value=2.0)
    (tmp_path / "1" / "model.safetensors").replace(tmp_path / "0" / "model.safetensors")
    with pytest.raises(SnapshotCorrupt, match="sha256"):
        read(tmp_path / "0", "run")


def test_a_folder_under_a_wrong_name_is_an_error(tmp_path: Path) -> None:
    published(tmp_path, 0)
    (tmp_path / "0").rename(tmp_path / "3")
    with pytest.raises(SnapshotCorrupt, match="says version 0, its folder is called 3"):
        newest(tmp_path, "run")


def test_weights_of_another_run_are_never_taken(tmp_path: Path) -> None:
    published(tmp_path, 2, run_id="old")
    for act in (lambda: newest(tmp_path, "new"), lambda: read(tmp_path / "2", "new")):
        with pytest.raises(RunDirectoryError) as raised:
            act()
        assert str(raised.value) == (
            "[CFG-002] weights of another run lie where this run publishes its own\n"
            f"  folder: {tmp_path / '2'}\n"
            "  their run: old\n"
            "  this run: new\n"
            "  fix: give each run a directory of its own, or move that folder away"
        )


def test_what_is_unfinished_is_passed_over(tmp_path: Path) -> None:
    assert newest(tmp_path / "none", "run") is None
    published(tmp_path, 0)
    (tmp_path / ".1.99").mkdir()
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "model.safetensors").write_bytes(b"half")
    (tmp_path / "notes").mkdir()
    found = newest(tmp_path, "run")
    assert found is not None
    assert found.version == 0


def test_what_a_dead_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".1.99").mkdir()
    published(tmp_path, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = weights.write_whole

    def full(path: Path, pieces: Any) -> None:
        if path.name == weights.MANIFEST:
            raise OSError(28, "No space left on device")
        write(path, pieces)

    monkeypatch.setattr(weights, "write_whole", full)
    with pytest.raises(RunDirectoryError, match="version 5 of the weights cannot be written"):
        published(tmp_path, 5)
    assert list(tmp_path.iterdir()) == []


def test_newest_goes_by_number(tmp_path: Path) -> None:
    for version in (9, 10, 2):
        published(tmp_path, version)
    found = newest(tmp_path, "run")
    assert found is not None
    assert found.version == 10


def test_publishing_again_is_harmless_with_the_same_tensors_and_refused_with_others(tmp_path: Path) -> None:
    assert published(tmp_path, 4) == published(tmp_path, 4)
    with pytest.raises(RunDirectoryError, match="version 4 was published before"):
        published(tmp_path, 4, value=2.0)
    assert torch.equal(read(tmp_path / "4", "run")[1]["scale"], torch.tensor(3.0))


def test_old_versions_go_the_first_and_the_newest_stay(tmp_path: Path) -> None:
    for version in range(6):
        published(tmp_path, version)
    assert prune(tmp_path, "run", keep=2) == [1, 2, 3]
    assert versions(tmp_path) == [0, 4, 5]
    assert prune(tmp_path, "run", keep=9) == []
    with pytest.raises(RunDirectoryError):
        prune(tmp_path, "other", keep=1)
    assert versions(tmp_path) == [0, 4, 5]


def test_a_resumed_run_takes_newer_versions_back(tmp_path: Path) -> None:
    for version in range(4):
        published(tmp_path, version)
    assert forget_newer(tmp_path, "run", than=1) == [2, 3]
    published(tmp_path, 2, value=5.0)
    assert versions(tmp_path) == [0, 1, 2]


def test_a_probe_survives_the_manifest_exactly(tmp_path: Path) -> None:
    probe = Probe(token_ids=(5, 6), logprobs=(float(torch.tensor(-1.1)),))
    publish({"a": torch.zeros(1)}, version=0, weights_dir=tmp_path, run_id="run", probe=probe, metadata={})
    assert look(tmp_path / "0", "run").probe == probe
    assert json.loads((tmp_path / "0" / "manifest.json").read_text())["version"] == 0


@pytest.mark.parametrize(
    ("value", "logprob", "told"),
    [
        (float("inf"), -0.1, "  not finite: embed.weight\n"),
        (1.0, float("nan"), "  log probability of a token: nan\n  least: -1000.0\n"),
        (1.0, -1e7, "  log probability of a token: -1e+07\n  least: -1000.0\n"),
    ],
)
def test_what_is_no_policy_is_not_published_and_the_trainer_says_so(
    tmp_path: Path, value: float, logprob: float, told: str
) -> None:
    probe = Probe(token_ids=(1, 2), logprobs=(logprob,))
    with pytest.raises(NonFiniteValue) as caught:
        publish(some_tensors(value), version=3, weights_dir=tmp_path, run_id="run", probe=probe, metadata={})
    assert str(caught.value) == (
        "[ENV-003] version 3 of the weights is no policy any more; it was not published\n"
        f"{told}"
        "  fix: lower trainer.lr, or trainer.max_grad_norm"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_version_that_vanishes_while_it_is_read_is_chosen_again(tmp_path: Path) -> None:
    published(tmp_path, 1)
    tried: list[str] = []

    def used(folder: Path) -> str:
        tried.append(folder.name)
        if len(tried) < 3:  # a live run goes on, and removes what was the newest when it was chosen
            published(tmp_path, len(tried) + 1)
            prune(tmp_path, "run", keep=1)
        return look(folder, "run").folder.name

    assert of_newest(tmp_path, used) == "3"
    assert tried == ["1", "2", "3"]


def test_a_run_that_removes_versions_faster_than_they_are_read_is_given_up(tmp_path: Path) -> None:
    published(tmp_path, 0)
    tried: list[int] = []

    def never(folder: Path) -> None:
        tried.append(int(folder.name))
        published(tmp_path, len(tried))
        prune(tmp_path, "run", keep=1, protect=())
        look(folder, "run")

    with pytest.raises(RunDirectoryError) as raised:
        of_newest(tmp_path, never)
    assert tried == list(range(16))
    assert str(raised.value) == (
        "[CFG-002] each of 16 versions of the weights was removed, or found damaged, before it was read\n"
        f"  folder: {tmp_path}\n"
        "  fix: wait until the run has ended, or copy its weights/ and read the copy"
    )


def test_a_damaged_version_is_passed_over_only_where_that_is_wanted_and_told(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        published(tmp_path, version)
    for version in (2, 3):
        (tmp_path / str(version) / "model.safetensors").write_bytes(b"")
    told: list[int] = []

    def used(folder: Path) -> int:
        return read(folder, "run")[0].version

    with pytest.raises(SnapshotCorrupt):
        of_newest(tmp_path, used)
    assert of_newest(tmp_path, used, lambda version, _: told.append(version)) == 1
    assert told == [3, 2]
    (tmp_path / "1" / "model.safetensors").unlink()
    with pytest.raises(SnapshotCorrupt, match=r"1/model\.safetensors"):
        of_newest(tmp_path, used, lambda version, _: told.append(version))


@pytest.mark.parametrize("reading", [look, read, weights.verify, metadata_of])
def test_a_version_that_is_not_there_is_not_called_damaged(tmp_path: Path, reading: Any) -> None:
    published(tmp_path, 4)
    with pytest.raises(RunDirectoryError) as raised:
        reading(tmp_path / "3", "run")
    assert str(raised.value) == (
        "[CFG-002] version 3 of the weights is not there\n"
        f"  folder: {tmp_path / '3'}\n"
        "  has: 4\n"
        "  fix: name one that it has; older ones are removed as the run goes on"
    )
