"""Networks over a map: their shapes, what an output hangs on, and that they are drawn from our generator alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from headrace.algorithms.acting import PerceptronForward
from headrace.algorithms.choosing import DuelingForward
from headrace.algorithms.configs import DQNConfig, NetworkConfig
from headrace.algorithms.encoding import ObservationEncoder
from headrace.algorithms.flat import FlatParameters
from headrace.algorithms.networks import ModuleForward
from headrace.algorithms.passes import Memory, ModulePass
from headrace.algorithms.q_networks import Dueling, DuelingPass, build_q_network, dueling, q_pass_of

SPACE = spaces.Dict({"at": spaces.Box(-1, 1, (2,)), "map": spaces.Box(0, 1, (3, 9, 11), np.float32)})
CELLS = 99


def network(seed: int = 0, *, dueling: bool = False, **changes: Any) -> torch.nn.Module:
    config = DQNConfig(map={"leaf": "obs.map", "channels": [8, 16], **changes}, dueling=dueling)
    return build_q_network(config, ObservationEncoder(SPACE), CELLS, torch.Generator().manual_seed(seed))


def observations(n: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.rand((n, 2 + 3 * CELLS), generator=torch.Generator().manual_seed(seed))


KINDS: list[dict[str, Any]] = [{}, {"residual": True}, {"group_norm": False}, {"residual": True, "group_norm": False}]


@pytest.mark.parametrize("changes", KINDS)
def test_there_is_one_value_per_cell_and_it_hangs_on_the_map_alone(changes):
    net, x = network(**changes), observations()
    with torch.no_grad():
        q = net(x)
        assert q.shape == (2, CELLS)
        moved = x.clone()
        moved[:, :2] += 1.0
        assert torch.equal(net(moved), q)
        moved[:, 2 + 40] += 0.5
        assert not torch.equal(net(moved), q)


@pytest.mark.parametrize("changes", KINDS)
def test_no_row_hangs_on_another_one(changes):
    """Why there is no batch norm: what one lane does must not depend on what others see."""
    net, x = network(**changes), observations(4)
    with torch.no_grad():
        together = net(x)
        for row in range(4):
            others = torch.cat([x[:row], x[row + 1 :] * 3.0])
            alone = net(torch.cat([x[row : row + 1], others]))[0]
            torch.testing.assert_close(alone, together[row], rtol=0, atol=2e-6)


def test_a_cell_sees_its_surroundings_and_convolutions_move_with_the_map():
    net = network(group_norm=False)
    x = torch.zeros(1, 2 + 3 * CELLS)
    with torch.no_grad():
        base = net(x).view(9, 11)
        for row, column in ((4, 5), (6, 3)):
            lit = x.clone()
            lit[0, 2 + row * 11 + column] = 1.0
            changed = (net(lit).view(9, 11) != base).numpy()
            rows, columns = np.nonzero(changed)
            assert (rows.min(), rows.max(), columns.min(), columns.max()) == (row - 2, row + 2, column - 2, column + 2)


@pytest.mark.parametrize("channels", [[32, 64, 64], [12], [9], [3], [6, 10]])
def test_groups_divide_the_channels_and_none_is_of_one_channel_where_that_can_be(channels):
    norms = [part for part in network(channels=channels).modules() if isinstance(part, torch.nn.GroupNorm)]
    assert len(norms) == len(channels)
    for norm in norms:
        assert norm.num_channels % norm.num_groups == 0
        assert norm.num_groups == 1 or norm.num_channels // norm.num_groups >= 4
    if channels == [32, 64, 64]:
        assert [norm.num_groups for norm in norms] == [8, 8, 8]


def test_dueling_values_are_advantages_around_the_value():
    value, advantage = torch.tensor([[10.0], [0.0]]), torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    torch.testing.assert_close(dueling(value, advantage), torch.tensor([[8.0, 9.0, 13.0], [-1.0, -1.0, 2.0]]))


def test_a_dueling_map_has_the_value_as_its_mean():
    net, x = network(dueling=True), observations()
    with torch.no_grad():
        features = net.trunk(x[:, 2:].view(2, 3, 9, 11))
        torch.testing.assert_close(net(x).mean(1), net.value(features.mean((2, 3)))[:, 0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("changes", [*KINDS, {"dueling": True}])
def test_weights_come_from_the_generator_alone(changes):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, again, other = (FlatParameters(network(seed, **changes)).numpy() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.isfinite(first).all()
    assert np.abs(first).max() <= 1.0


def test_initial_weights_are_spread_as_torch_would():
    net = network()
    for layer in (part for part in net.modules() if isinstance(part, torch.nn.Conv2d)):
        bound = 1.0 / (layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1]) ** 0.5
        assert layer.weight.abs().max() <= bound
        assert float(layer.weight.detach().abs().mean()) == pytest.approx(bound / 2, rel=0.35)


def test_acting_in_torch_is_what_the_network_says():
    net = network(dueling=True)
    forward = ModuleForward(network(7, dueling=True))
    forward.load(FlatParameters(net).numpy())
    x = observations(3)
    with torch.no_grad():
        assert np.array_equal(forward.forward(x.numpy()), net(x).numpy())


def test_acting_in_numpy_is_what_a_dueling_perceptron_says():
    config = DQNConfig(dueling=True, network=NetworkConfig(hidden=[8]))
    space = spaces.Box(-1, 1, (3,))
    net = build_q_network(config, ObservationEncoder(space), 4, torch.Generator().manual_seed(0))
    forward = DuelingForward(PerceptronForward(config.network, 3, 5))
    forward.load(FlatParameters(net).numpy())
    x = torch.rand((6, 3), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = net(x).numpy()
    for _ in range(2):  # the second time in the same memory
        np.testing.assert_allclose(forward.forward(x.numpy()), expected, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"layer_norm": True}], ids=["written out", "by autograd"])
def test_derivatives_of_a_dueling_network_are_autograds(settings):
    generator = torch.Generator().manual_seed(0)
    config = DQNConfig(network=NetworkConfig(hidden=[24, 16], **settings), dueling=True)
    space = spaces.Box(-1, 1, (7,), np.float32)
    net = build_q_network(config, ObservationEncoder(space), 5, generator)
    flat = FlatParameters(net)
    ours = q_pass_of(net, Memory())
    assert isinstance(ours, DuelingPass)
    x, grad = torch.randn(32, 7, generator=generator), torch.randn(32, 5, generator=generator)
    leaf = x.clone().requires_grad_()
    right = net(leaf)
    *by_weights, by_inputs = torch.autograd.grad(right, [*net.parameters(), leaf], grad)

    assert torch.equal(ours(x), ours.traced(x))
    near(ours.traced(x), right.detach())
    found = ours.back(grad.clone(), inputs=7)
    assert found is not None
    near(found, by_inputs)
    near(flat.grad, torch.cat([each.flatten() for each in by_weights]))


def near(found: torch.Tensor, right: torch.Tensor) -> None:
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-6 * float(right.abs().max()))


@pytest.mark.parametrize("dueling", [False, True])
def test_maps_go_through_autograd(dueling):
    net = network(dueling=dueling)
    FlatParameters(net)
    assert not isinstance(net, Dueling)
    assert isinstance(q_pass_of(net, Memory()), ModulePass)
