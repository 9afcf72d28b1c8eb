"""Twin critics differentiated by hand, against autograd."""

import pytest
import torch
from torch import Tensor

from headrace.algorithms.configs import NetworkConfig
from headrace.algorithms.continuous import Critics, TwinPass, critic_loss
from headrace.algorithms.flat import FlatAdam, FlatParameters
from headrace.algorithms.learned import Means, NotFiniteError
from headrace.algorithms.networks import TwinCritic
from headrace.algorithms.passes import Memory

OBS, ACTIONS, ROWS = 5, 2, 64
ways = pytest.mark.parametrize("activation", ["relu", "silu"], ids=["written out", "by autograd"])


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def critic(activation: str = "relu") -> TwinCritic:
    generator = torch.Generator().manual_seed(0)
    return TwinCritic(NetworkConfig(hidden=[16, 16], activation=activation), OBS, ACTIONS, generator)


@ways
def test_fit_adds_the_gradient_of_the_loss(activation):
    module = critic(activation)
    flat = FlatParameters(module)
    obs, action, target = drawn(1, ROWS, OBS), drawn(2, ROWS, ACTIONS), drawn(3, ROWS)
    q = TwinPass(module, Memory()).fit(obs, action, target)
    found = flat.grad.clone()
    flat.backward(critic_loss(module(obs, action), target))
    torch.testing.assert_close(q, module(obs, action).detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found, flat.grad, rtol=1e-5, atol=1e-6 * float(flat.grad.abs().max()))


@ways
@pytest.mark.parametrize("smaller", [False, True], ids=["first", "smaller"])
def test_pull_is_a_value_and_its_derivative_by_the_action(activation, smaller):
    module = critic(activation)
    flat = FlatParameters(module)
    obs, action = drawn(1, ROWS, OBS), drawn(2, ROWS, ACTIONS).requires_grad_()
    both = module(obs, action)
    right = both.amin(dim=0) if smaller else both[0]
    assert 0 < int((both[0] < both[1]).sum()) < ROWS
    right.sum().backward()
    flat.grad.zero_()
    value, slope = TwinPass(module, Memory()).pull(obs, action.detach(), smaller=smaller)
    torch.testing.assert_close(value, right.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(slope, action.grad, rtol=1e-6, atol=1e-6)
    assert not flat.grad.any()


def test_a_step_goes_down_the_loss_and_is_refused_where_that_is_no_number():
    module = critic()
    flat = FlatParameters(module)
    critics = Critics(module, flat, FlatAdam(flat, 1e-2), Memory())
    obs, action, target, means = drawn(1, ROWS, OBS), drawn(2, ROWS, ACTIONS), drawn(3, ROWS), Means()
    losses = []
    for _ in range(20):
        critics.step(obs, action, target, means)
        losses.append(means.take()["train/critic_loss"])
    assert losses[-1] < 0.7 * losses[0]
    before = flat.numpy().copy()
    with pytest.raises(NotFiniteError, match="critic"):
        critics.step(obs, action, target * torch.nan, means)
    assert (flat.numpy() == before).all()
