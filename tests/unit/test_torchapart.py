"""What environments set in torch is kept from the learner in the same process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import headrace.runtime.torchapart as torchapart
from headrace.runtime.torchapart import TorchApart


def state() -> dict[str, object]:
    found = {name: get() for name, (get, _) in torchapart._settings().items()}
    return {**found, "inference": torch.is_inference_mode_enabled()}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = state()
    yield
    assert state() == before


def changes() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.set_float32_matmul_precision("medium")
    torch.set_grad_enabled(False)


def test_what_is_set_holds_for_environments_alone_and_for_them_again():
    apart, ours = TorchApart(), state()
    for _ in range(2):
        with apart.environments():
            changes()
            theirs = state()
        assert state() == ours
    with apart.environments():
        assert state() == theirs
        torch.set_default_dtype(torch.float32)
    with apart.environments():
        assert torch.get_default_dtype() == torch.float32
    weight = torch.ones(2, requires_grad=True)
    assert (weight * 2).requires_grad


def test_inference_mode_that_was_entered_and_never_left_does_not_reach_the_learner():
    apart, kept, ours = TorchApart(), torch.inference_mode(), state()
    with apart.environments():
        kept.__enter__()
    assert state() == ours
    with apart.environments():
        assert torch.is_inference_mode_enabled()
        kept.__exit__(None, None, None)
    with apart.environments():
        assert not torch.is_inference_mode_enabled()
        assert torch.is_grad_enabled()


def test_one_that_raises_is_no_exception():
    apart, ours = TorchApart(), state()

    def breaks() -> None:
        with apart.environments():
            torch.set_default_dtype(torch.float64)
            raise RuntimeError("broke")

    with pytest.raises(RuntimeError, match="broke"):
        breaks()
    assert state() == ours


def test_who_has_set_nothing_follows_the_learner():
    apart, before = TorchApart(), torch.get_num_threads()
    with apart.environments():
        pass
    torch.set_num_threads(before + 1)
    try:
        with apart.environments():
            assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_what_modules_have_set_at_their_import_is_the_environments():
    torch.set_default_dtype(torch.float64)
    apart = TorchApart.from_start()
    assert torch.get_default_dtype() == torch.float32
    with apart.environments():
        assert torch.get_default_dtype() == torch.float64
