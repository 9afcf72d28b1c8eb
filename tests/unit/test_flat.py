"""Parameters in one vector: still an ordinary network to autograd, and Adam is still Adam."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from headrace.algorithms.flat import FlatAdam, FlatParameters, counts
from headrace.core.errors import ConfigError


def network() -> nn.Sequential:
    generator = torch.Generator().manual_seed(3)
    net = nn.Sequential(nn.Linear(5, 17), nn.LayerNorm(17), nn.Tanh(), nn.Linear(17, 2))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(generator=generator)
    return net


def loss_of(net: nn.Module, step: int = 0) -> torch.Tensor:
    x = torch.randn(32, 5, generator=torch.Generator().manual_seed(step))
    return (net(x) - x[:, :2].square()).square().mean()


def test_values_and_outputs_are_those_of_the_module():
    net, plain = network(), network()
    flat = FlatParameters(net)
    assert torch.equal(flat.value, nn.utils.parameters_to_vector(plain.parameters()))
    assert torch.equal(loss_of(net), loss_of(plain))


def test_numpy_is_the_live_vector_on_a_64_byte_boundary():
    net = network()
    flat = FlatParameters(net)
    with torch.no_grad():
        net[0].weight[0, 0] = 42.0
    assert flat.numpy()[0] == 42.0
    assert flat.numpy().dtype == np.float32
    assert flat.value.data_ptr() % 64 == 0
    assert flat.grad.data_ptr() % 64 == 0


def test_gradients_land_in_the_flat_vector_and_stay_views_of_it():
    net, plain = network(), network()
    flat = FlatParameters(net)
    for step in range(3):
        plain.zero_grad()
        loss_of(plain, step).backward()
        norm = flat.backward(loss_of(net, step))
        expected = torch.cat([p.grad.ravel() for p in plain.parameters()])
        assert torch.equal(flat.grad, expected)
        assert norm == pytest.approx(float(expected.norm()))
    assert [p.grad.untyped_storage().data_ptr() for p in net.parameters()] == [flat.grad.data_ptr()] * 6


def test_backward_leaves_other_networks_without_gradient():
    first, second = network(), nn.Linear(2, 1)
    flat = FlatParameters(first)
    flat.backward(second(first(torch.ones(4, 5))).mean())
    assert flat.grad.abs().sum() > 0
    assert second.weight.grad is None


def test_fifty_steps_equal_an_ordinary_adam():
    net, plain = network(), network()
    flat = FlatParameters(net)
    ours, theirs = FlatAdam(flat, 1e-2), torch.optim.Adam(plain.parameters(), lr=1e-2)
    start = flat.value.clone()
    for step in range(50):
        flat.backward(loss_of(net, step))
        ours.step()
        theirs.zero_grad()
        loss_of(plain, step).backward()
        theirs.step()
    expected = nn.utils.parameters_to_vector(plain.parameters())
    assert (flat.value - start).abs().max() > 0.1
    torch.testing.assert_close(flat.value, expected, rtol=0, atol=2e-6)


def test_moments_of_what_has_no_gradient_any_more_go_to_zero():
    """Without that they stop at 7e-45, which costs ten times the time of every step from then on."""
    flat = FlatParameters(network())
    adam = FlatAdam(flat, 1e-3)
    flat.grad.fill_(1e-3)
    for _ in range(1100):
        adam.step()
        flat.grad.zero_()
    assert not adam.moments()["exp_avg"].any()


@pytest.mark.parametrize("eps", [1e-5, 1e-8, 1e-20, 1e-30])
@pytest.mark.parametrize("gradient", [2e-16, 1e-25, 1e-32])
@pytest.mark.parametrize("steps", [128, 300])
def test_gradients_that_hardly_are_there_move_weights_as_torch_has_it(eps, gradient, steps):
    """Then none, as of a unit that does not fire any more; ``eps`` may be as small as one likes."""
    network = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(network.weight)
    flat = FlatParameters(network)
    ours, weight = FlatAdam(flat, 1e-3, eps=eps), nn.Parameter(torch.zeros(1, 1))
    theirs = torch.optim.Adam([weight], 1e-3, eps=eps, fused=True)
    for step in range(400):
        given = gradient if step < steps else 0.0
        flat.grad.fill_(given)
        weight.grad = torch.full((1, 1), given)
        ours.step()
        theirs.step()
    torch.testing.assert_close(network.weight.detach(), weight.detach(), rtol=1e-6, atol=1e-12)


def test_undo_restores_weights_and_moments_bit_for_bit():
    net = network()
    flat = FlatParameters(net)
    adam = FlatAdam(flat, 1e-2)
    flat.backward(loss_of(net))
    adam.step()
    before = [flat.numpy().copy(), *copy.deepcopy(adam.moments()).values()]
    adam.keep()
    flat.backward(loss_of(net))
    adam.step()
    assert not np.array_equal(flat.numpy(), before[0])
    assert adam.moments()["step"] == 2
    adam.undo()
    for now, then in zip([flat.numpy(), *adam.moments().values()], before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_target_moves_by_its_share_in_every_element():
    online, target = FlatParameters(network()), FlatParameters(network())
    with torch.no_grad():
        online.value.fill_(1.0)
        target.value.fill_(0.0)
    target.lerp_(online, 0.1)
    np.testing.assert_allclose(target.numpy(), 0.1)
    np.testing.assert_array_equal(online.numpy(), 1.0)


def test_what_was_done_is_counted_where_it_is_done():
    online, target = FlatParameters(network()), FlatParameters(network())
    adam = FlatAdam(online, 1e-2)
    for _ in range(3):
        adam.step()
    target.lerp_(online, 0.1)
    target.lerp_(online, 0.1)
    assert counts({"target": target}, {"net": adam}) == {
        "target_moves": 2, "net_steps": 3, "net_optimisers": 1, "net_lr": 1e-2,
    }  # fmt: skip
    assert (online.moves, target.optimisers) == (0, 0)


def test_optimiser_made_again_has_made_no_steps():
    flat = FlatParameters(network())
    first = FlatAdam(flat, 1e-2)
    first.step()
    again = FlatAdam(flat, 1e-2)
    assert (first.steps, again.steps, again.optimisers) == (1, 0, 2)
    again.step()
    assert again.steps == 1


def test_undo_takes_the_step_back_out_of_the_count():
    flat = FlatParameters(network())
    adam = FlatAdam(flat, 1e-2)
    adam.step()
    adam.keep()
    adam.step()
    assert adam.steps == 2
    adam.undo()
    assert adam.steps == 1


def test_counts_are_live_and_can_be_overwritten():
    online, target = FlatParameters(network()), FlatParameters(network())
    live = target.counts
    target.lerp_(online, 0.1)
    assert live.tolist() == [1, 0]
    target.counts[:] = [41, 1]
    target.lerp_(online, 0.1)
    assert (target.moves, target.optimisers) == (42, 1)


class Scales(nn.Module):
    """Two networks in one: the first axis of either parameter says which."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.b = nn.Parameter(torch.tensor([[[5.0]], [[6.0]]]))

    def forward(self) -> torch.Tensor:
        return (self.a * torch.tensor([[3.0, 4.0], [6.0, 8.0]])).sum() + (self.b * 0).sum()


def test_networks_in_one_module_are_rows():
    net = Scales()
    flat = FlatParameters(net, rows=2)
    assert flat.numpy().tolist() == [[1.0, 2.0, 5.0], [3.0, 4.0, 6.0]]
    assert len(flat) == 3
    assert flat.accumulate([net(), net()]) == [10.0, 20.0]
    assert flat.grad.tolist() == [[6.0, 8.0, 0.0], [12.0, 16.0, 0.0]]
    flat.shorten([10.0, 20.0], None)
    flat.shorten([10.0, 20.0], 15.0)
    assert flat.grad.tolist() == [[6.0, 8.0, 0.0], [9.0, 12.0, 0.0]]
    adam = FlatAdam(flat, 0.5)
    adam.step()
    assert net.a.tolist() == [[0.5, 1.5], [2.5, 3.5]]
    assert {name: moment.shape for name, moment in adam.moments().items()} == {
        "exp_avg": (2, 3), "exp_avg_sq": (2, 3), "step": (),
    }  # fmt: skip


def test_losses_are_differentiated_one_by_one_and_added_up():
    net, plain = network(), network()
    flat, alive = FlatParameters(net), []

    def losses():
        for step in range(3):
            alive.append(flat.grad.clone())
            yield loss_of(net, step)

    (norm,) = flat.accumulate(losses())
    sum(loss_of(plain, step) for step in range(3)).backward()
    expected = torch.cat([p.grad.ravel() for p in plain.parameters()])
    torch.testing.assert_close(flat.grad, expected)
    assert norm == pytest.approx(float(expected.norm()))
    assert [float(grad.abs().sum()) > 0 for grad in alive] == [False, True, True]


def test_the_rate_of_the_next_step_can_be_set():
    flat = FlatParameters(network())
    adam = FlatAdam(flat, 1e-2)
    before = flat.value.clone()
    adam.lr = 1e-4
    assert adam.lr == 1e-4
    flat.grad.fill_(1.0)
    adam.step()
    torch.testing.assert_close(before - flat.value, torch.full_like(before, 1e-4), rtol=0, atol=1e-6)


def test_frozen_layers_are_published_but_not_trained():
    net = network()
    net[0].requires_grad_(requires_grad=False)
    flat = FlatParameters(net)
    frozen, head = net[0].weight.clone(), net[3].weight.clone()
    adam = FlatAdam(flat, 1e-2)
    flat.backward(loss_of(net))
    adam.step()
    assert torch.equal(net[0].weight, frozen)
    assert not torch.equal(net[3].weight, head)
    assert len(flat) == sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("net", "found"),
    [(nn.Tanh(), "no parameter"), (nn.Linear(2, 2).double(), "{'weight': 'float64', 'bias': 'float64'}")],
)
def test_what_does_not_fit_one_float32_vector_is_refused(net, found):
    with pytest.raises(ConfigError, match="as one float32 vector") as caught:
        FlatParameters(net)
    assert f"found: {found}" in str(caught.value)
