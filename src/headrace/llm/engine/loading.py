"""Puts published weights into a model in memory, and proves that they are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headrace.core.errors import ComponentError
from headrace.llm.messages import PublishedWeights
from headrace.llm.weights import read, tensors_sha256


def read_published(published: PublishedWeights) -> Mapping[str, Tensor]:
    """The tensors of a published version, if its folder holds what was announced.

    Raises:
        ComponentError: It holds another version, or that of another run.
        HeadraceError: It cannot be read, or is damaged.
    """
    found, tensors = read(published.folder, published.run_id)
    announced = (published.version, published.run_id, published.sha256)
    if (found.version, found.run_id, found.sha256) != announced:
        raise ComponentError(
            f"the weights in {published.folder} are not those that were announced",
            announced=f"version {published.version} of run {published.run_id}, {published.sha256}",
            found=f"version {found.version} of run {found.run_id}, {found.sha256}",
            fix="announce a version after it was published, with the facts of its manifest",
        )
    return tensors


def check_fit(model: Any, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not exactly the model's; nothing was changed then.

    Raises:
        ComponentError: A name, shape or type differs.
    """
    own = model.state_dict()
    given = {own[name].data_ptr() for name in tensors if name in own}
    wrong = [f"{name}: the model has none of this name" for name in tensors if name not in own]
    # Tied weights are published under one name.
    wrong += [f"{name}: not published" for name, value in own.items() if value.data_ptr() not in given]
    wrong += [
        f"{name}: {_form(value)} instead of {_form(own[name])}"
        for name, value in tensors.items()
        if name in own and _form(value) != _form(own[name])
    ]
    if wrong:
        raise ComponentError(
            "published weights do not fit the model that is served",
            first=wrong[0],
            wrong=len(wrong),
            fix="have trainer and server read the same model configuration",
        )


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


@torch.no_grad()
def put(model: Any, tensors: Mapping[str, Tensor]) -> str:
    """Overwrite the model's weights in place; the checksum of what is in its memory afterwards."""
    own = model.state_dict()
    for name, value in tensors.items():
        own[name].copy_(value)
    in_memory = {name: own[name] for name in tensors}
    return tensors_sha256(in_memory)
