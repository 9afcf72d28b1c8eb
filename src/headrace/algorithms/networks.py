"""Torch networks: the perceptron, twin critics, and networks of the user's own."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.algorithms.configs import NetworkConfig
from headrace.algorithms.flat import FlatParameters
from headrace.core.errors import ConfigError, SnapshotCorrupt

Float32 = NDArray[np.float32]

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "elu": nn.ELU,
    "silu": nn.SiLU,
}

# Batch statistics are no parameters, so a published policy would act without them; dropout draws from
# torch's global generator, so no run could be repeated.
_REFUSED = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd)  # noqa: SLF001 - torch has no public base class
_TRIED_ROWS = 8
"""Rows that a network of the user's own is tried with: enough for a dropout to show itself."""


class TwinCritic(nn.Module):
    """Two Q-functions of observation and action, apart in everything but their input."""

    def __init__(self, config: NetworkConfig, observations: int, actions: int, generator: torch.Generator) -> None:
        super().__init__()
        self.q = nn.ModuleList(build_network(config, observations + actions, 1, generator) for _ in range(2))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Both values [K=2, B] of ``obs`` [B, O] and ``action`` [B, A]."""
        both = torch.cat([obs, action], dim=1)
        return torch.stack([q(both).squeeze(1) for q in self.q])


def build_network(
    config: NetworkConfig, inputs: int, outputs: int, generator: torch.Generator, *, tanh: bool = False
) -> nn.Module:
    """A network [B, inputs] -> [B, outputs] on the CPU, initialised from ``generator`` alone.

    Args:
        config: A perceptron, or the factory of the user's own network.
        inputs: Length of an input.
        outputs: Length of an output.
        generator: On the CPU. A factory's network is built with torch's global generator seeded from it, and
            the global generator's state is put back afterwards.
        tanh: Squash the outputs to [-1, 1].

    Raises:
        ConfigError: The factory cannot be imported, raised, or returned something that will not do.
    """
    if config.factory is None:
        return perceptron(config, inputs, outputs, generator, tanh=tanh)
    network = _from_factory(config.factory, inputs, outputs, generator)
    return Squashed(network, nn.Tanh()) if tanh else network


@runtime_checkable
class InTwo(Protocol):
    """A network of ours of which the end can be asked alone; what it makes of x is ``exact_part(rounded_part(x))``."""

    def rounded_part(self, x: Tensor) -> Tensor:
        """All that may be computed in lower precision."""
        ...

    def exact_part(self, inner: Tensor) -> Tensor:
        """What may not: it makes the numbers that are learned from."""
        ...


class Squashed(nn.Sequential):
    """A network of the user's own, and a tanh; fulfils `InTwo`."""

    def rounded_part(self, x: Tensor) -> Tensor:
        """See `InTwo.rounded_part`."""
        inner: Tensor = self[0](x)
        return inner

    def exact_part(self, inner: Tensor) -> Tensor:
        """See `InTwo.exact_part`."""
        out: Tensor = self[1](inner)
        return out


class Perceptron(nn.Sequential):
    """Linear layers with, between them, an optional layer norm and the activation; at the end maybe tanh. Fulfils `InTwo`."""

    def __init__(self, config: NetworkConfig, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.activation = config.activation
        self.squashed = isinstance(layers[-1], nn.Tanh)
        """Whether there is a tanh at the end."""
        self.written_out = not config.layer_norm and config.activation != "silu"
        """Whether `headrace.algorithms.passes.PerceptronPass` can do what it does."""
        self._end = len(layers) - 1 - self.squashed
        """Place of the last linear layer."""

    def rounded_part(self, x: Tensor) -> Tensor:
        """See `InTwo.rounded_part`."""
        for layer in list(self)[: self._end]:
            x = layer(x)
        return x

    def exact_part(self, inner: Tensor) -> Tensor:
        """See `InTwo.exact_part`."""
        for layer in list(self)[self._end :]:
            inner = layer(inner)
        return inner

    @property
    def linear(self) -> list[nn.Linear]:
        """Its linear layers, in their order."""
        return [layer for layer in self if isinstance(layer, nn.Linear)]


def perceptron(
    config: NetworkConfig, inputs: int, outputs: int, generator: torch.Generator, *, tanh: bool = False
) -> Perceptron:
    """A perceptron on the CPU, drawn from ``generator`` alone; see `build_network`."""
    layers: list[nn.Module] = []
    for width in config.hidden:
        layers.append(_linear(inputs, width, generator))
        if config.layer_norm:
            layers.append(nn.LayerNorm(width))
        layers.append(_ACTIVATIONS[config.activation]())
        inputs = width
    layers.append(_linear(inputs, outputs, generator))
    return Perceptron(config, *layers, *([nn.Tanh()] if tanh else []))


class UndrawnLinear(nn.Linear):
    """A layer whose parameters are yet to be drawn: torch's own draws them from the global generator.

    ``nn.utils.skip_init`` does so too, and imports a symbolic algebra for it.
    """

    def reset_parameters(self) -> None:
        """Leave them alone."""


class UndrawnConv2d(nn.Conv2d):
    """As `UndrawnLinear`."""

    def reset_parameters(self) -> None:
        """Leave them alone."""


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Module:
    """Torch's own initialisation, uniform within 1/sqrt(inputs), but drawn from our generator."""
    layer = UndrawnLinear(inputs, outputs)
    bound = 1.0 / math.sqrt(inputs)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer


class ModuleForward:
    """A network as a `headrace.algorithms.acting.Network`, acting in torch.

    Args:
        module: On the CPU. Its initial weights are never used: acting starts with the first snapshot.
        threads: Of torch meanwhile. They decide on the last bits, and a learner that acts itself has others than a
            collector. None: as many as there are.
    """

    def __init__(self, module: nn.Module, threads: int | None = None) -> None:
        self._module = module.eval()
        self._threads = threads
        self._flat = FlatParameters(self._module)

    def load(self, flat: Float32) -> None:
        """See `Network.load`.

        Raises:
            SnapshotCorrupt: Not ``float32 [P]`` for this network's P; the old weights stay in use.
        """
        if flat.shape != (len(self._flat),) or flat.dtype != np.float32:
            raise SnapshotCorrupt(
                "a weights snapshot does not fit the network that is built here",
                expected=f"weights: float32 [{len(self._flat)}]",
                found=f"weights: {flat.dtype} {list(flat.shape)}",
                fix="act with the configuration it was trained with, and let a factory build the same network in every "
                "process, from its two arguments alone",
            )
        np.copyto(self._flat.numpy(), flat)

    def forward(self, x: Float32) -> Float32:
        """See `Network.forward`; a copy, because actors work in it, and what a module returns may be its own parameter."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads or before)
        try:
            with torch.inference_mode():
                out: Tensor = self._module(torch.from_numpy(x))
        finally:
            torch.set_num_threads(before)
        return out.detach().numpy().copy()


def _from_factory(name: str, inputs: int, outputs: int, generator: torch.Generator) -> nn.Module:
    seed = int(torch.randint(2**31, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        network = _called(name, inputs, outputs, seed)
        built = {path: buffer.clone() for path, buffer in network.named_buffers()}
        _check(name, network, inputs, outputs)
        if built:
            _check_buffers(name, network, built, _called(name, inputs, outputs, seed + 1))
        _check_repeats(name, network, inputs)
    return network


def _called(name: str, inputs: int, outputs: int, seed: int) -> nn.Module:
    """What a factory returns with torch's global generator seeded."""
    factory = _import_factory(name)
    torch.default_generator.manual_seed(seed)
    try:
        network = factory(inputs, outputs)
    except Exception as error:  # the user's module or factory may raise anything; its text is passed on
        raise ConfigError(
            f"network factory {name} raised {type(error).__name__}",
            called_with=f"inputs={inputs}, outputs={outputs}",
            message=error,
            fix="make the factory return a torch.nn.Module for these arguments",
        ) from error
    if not isinstance(network, nn.Module):
        raise _unsuitable(name, "a torch.nn.Module", f"{type(network).__name__}: {network!r:.80}")
    return network


def _import_factory(name: str) -> Callable[[int, int], Any]:
    module_name, _, function = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module_name), function)
    except Exception as error:  # the user's module or factory may raise anything; its text is passed on
        raise ConfigError(
            f"network factory {name} cannot be imported",
            expected="module:function, importable in learner and collectors alike",
            found=f"{type(error).__name__}: {error}",
            fix="correct the factory's name, or put its module on PYTHONPATH",
        ) from error
    if not callable(factory):
        raise _unsuitable(name, "a function(inputs, outputs)", type(factory).__name__)
    return factory  # type: ignore[no-any-return]  # its signature is the user's promise; `_check` tries the result


def _check(name: str, network: nn.Module, inputs: int, outputs: int) -> None:
    """Find out now, and not in a collector, whether the network does what a network must."""
    refused = next((path for path, module in network.named_modules() if isinstance(module, _REFUSED)), None)
    if refused is not None:
        found = f"{type(network.get_submodule(refused)).__name__} at {refused or 'the top'}"
        raise _unsuitable(name, "layers without batch statistics and without dropout", found)
    try:
        with torch.no_grad():
            out = network(torch.zeros(2, inputs))
    except Exception as error:  # the user's module or factory may raise anything; its text is passed on
        raise _unsuitable(name, f"a network for inputs [B, {inputs}]", f"{type(error).__name__}: {error}") from error
    if not isinstance(out, Tensor) or out.shape != (2, outputs):
        found = f"shape {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise _unsuitable(name, f"for an input of shape [2, {inputs}] an output of shape [2, {outputs}]", found)


def _check_repeats(name: str, network: nn.Module, inputs: int, lowest: float = -0.9) -> None:
    """Refuse what draws whenever it is asked, in whatever layer: no type says so of `functional.dropout`, or of one in an LSTM.

    The learner asks it as it was built, actors in evaluation mode; they may take other ways to what is the same but for rounding.
    """
    modes = {module: module.training for module in network.modules()}
    x = torch.linspace(lowest, 0.9, _TRIED_ROWS * inputs).reshape(_TRIED_ROWS, inputs)
    try:
        with torch.no_grad():
            first, again = network(x).clone(), network(x).clone()
            if lowest < 0.0 and not first.isfinite().all():
                raise ValueError("no finite outputs")
            acting = network.eval()(x)
    except Exception as error:  # the user's module may raise anything; its text is passed on
        if lowest < 0.0:  # it may be for numbers from 0 on
            _check_repeats(name, network, inputs, lowest=0.0)
            return
        raise _unsuitable(name, f"a network for inputs [B, {inputs}]", f"{type(error).__name__}: {error}") from error
    finally:
        for module, mode in modes.items():
            module.training = mode
    wanted = "the same outputs whenever it is asked for the same inputs, in evaluation mode too"
    if not torch.allclose(first, again, rtol=0.0, atol=0.0, equal_nan=True):
        raise _unsuitable(name, wanted, "other ones when it was asked again (a dropout in it, or RReLU?)")
    largest = float(first.abs().nan_to_num(0.0, posinf=0.0).max())
    if not torch.allclose(first, acting, rtol=1e-4, atol=1e-5 * largest, equal_nan=True):
        raise _unsuitable(name, wanted, "other ones in evaluation mode (a dropout in it, or RReLU?)")


def _check_buffers(name: str, network: nn.Module, built: Mapping[str, Tensor], other: nn.Module) -> None:
    """Buffers are neither published nor saved: whoever acts builds its own, so they have to be the same everywhere and stay so.

    Args:
        name: Of the factory.
        network: Has been used.
        built: Its buffers before that.
        other: The same, built anew.
    """
    wanted = (
        "buffers that are the same however often it is built, and never change (a parameter with requires_grad=False may "
        "be drawn: it is published)"
    )
    for path, buffer in network.named_buffers():
        if path not in built or not torch.equal(built[path], buffer):
            raise _unsuitable(name, wanted, f"{path} changes where the network is used")
    for path, buffer in other.named_buffers():
        if path not in built or not torch.equal(built[path], buffer):
            raise _unsuitable(name, wanted, f"{path} differs from one build to the next")


def _unsuitable(name: str, expected: str, found: str) -> ConfigError:
    return ConfigError(
        f"network factory {name} returned something that cannot be used",
        expected=expected,
        found=found,
        fix="change the factory accordingly, or leave `factory` out to get a perceptron",
    )
