"""All parameters of a network in one vector: one optimiser step, one target update, one copy to publish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from headrace.core.errors import ConfigError

Float32 = NDArray[np.float32]

_NOTHING = 1e-30
"""A first moment below it, and below so much of Adam's epsilon, moves no weight: it is divided by that at least."""
_OF_EPSILON = 1e-10
_SWEPT_EVERY = 128
"""Steps in which a moment without gradients does not get from there to where numbers become slow."""


class FlatParameters:
    """The parameters of a module as views of one float32 vector, their gradients as views of another.

    Parameters lie in the order of ``module.parameters()``, each row-major, without gaps; a parameter that
    two layers share lies there once. Torch allocates both vectors on 64-byte boundaries. The module stays an
    ordinary module: it can be called and differentiated as before.

    A module may hold several networks that are alike, the first axis of every parameter saying which one. Each of them is
    then a row of its own: the shapes below, [P], are [rows, P].

    Args:
        module: On the device it will stay on. Its parameters are moved into the vector, values kept.
        rows: Networks in it; None: it is one, and its parameters have no such axis.

    Raises:
        ConfigError: It has no parameter, or one that is not float32; the module is left as it was.
    """

    def __init__(self, module: nn.Module, rows: int | None = None) -> None:
        named = dict(module.named_parameters())
        _must_be_float32(module, named)
        lead = () if rows is None else (rows,)
        self.counts = np.zeros(2, np.int64)
        """How often `lerp_` has moved it, and how many optimisers were made for it; live, to be saved and overwritten."""
        self.parameters = list(named.values())
        first = self.parameters[0]
        scalars = sum(p.numel() for p in self.parameters) // (rows or 1)
        self.value = torch.empty((*lead, scalars), dtype=torch.float32, device=first.device)  # [P]
        self.value.grad = torch.zeros_like(self.value)
        self.grad: Tensor = self.value.grad  # [P]
        self._grads = [self.grad] if rows is None else list(self.grad)
        self._views: list[Tensor] = []
        start = 0
        for parameter in self.parameters:
            end = start + parameter.numel() // (rows or 1)
            view = self.value[..., start:end].view(parameter.shape)
            view.copy_(parameter.detach())
            parameter.data = view
            parameter.grad = self.grad[..., start:end].view(parameter.shape)
            self._views.append(parameter.grad)
            start = end

    def __len__(self) -> int:
        """Number of scalars P, of one network."""
        return self.value.shape[-1]

    def backward(self, loss: Tensor) -> float:
        """Fill ``grad`` with the gradient of ``loss`` for these parameters alone; no other network's is computed.

        Args:
            loss: A scalar; of a module that is one network.

        Returns:
            Euclidean norm of the gradient.
        """
        (norm,) = self.accumulate((loss,))
        return norm

    def norm(self) -> float:
        """Euclidean norm of ``grad``; of a module that is one network."""
        return float(torch.linalg.vector_norm(self.grad))

    def accumulate(self, losses: Iterable[Tensor]) -> list[float]:
        """Fill ``grad`` with the gradient of the sum of ``losses``.

        Args:
            losses: Scalars. Each is asked for when the one before has been differentiated and its memory is free again.

        Returns:
            Euclidean norm of each network's gradient.
        """
        self.grad.zero_()
        pairs = zip(self.parameters, self._views, strict=True)
        trained, views = zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True)
        for loss in losses:
            # Not `backward`, which warns of gradients that are rows of a matrix.
            for view, found in zip(views, torch.autograd.grad(loss, trained, allow_unused=True), strict=True):
                if found is not None:
                    view.add_(found)
        return [float(torch.linalg.vector_norm(grad)) for grad in self._grads]

    def shorten(self, norms: Sequence[float], most: float | None) -> None:
        """Shorten each network's gradient, as long as `accumulate` said, to ``most`` if it is longer; None: none is."""
        for grad, norm in zip(self._grads, norms, strict=True):
            if most is not None and norm > most:
                grad.mul_(most / norm)

    def clip(self, most: float | None) -> float:
        """Shorten ``grad``, of a module that is one network, to ``most`` if it is longer; returns its norm as it was."""
        norm = self.norm()
        self.shorten([norm], most)
        return norm

    @torch.no_grad()
    def lerp_(self, online: FlatParameters, share: float) -> None:
        """Move every parameter by ``share`` of the way to ``online``, as a target network does; counted."""
        self.value.lerp_(online.value, share)
        self.counts[0] += 1

    @property
    def moves(self) -> int:
        """Calls of `lerp_` on it."""
        return int(self.counts[0])

    @property
    def optimisers(self) -> int:
        """Optimisers made for it; a second one begins with empty moments."""
        return int(self.counts[1])

    def numpy(self) -> Float32:
        """The vector itself, live, where it is in host memory; a copy where it is not. [P] float32."""
        return self.value.detach().cpu().numpy()


class FlatAdam:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980) on a flat vector: one fused call a step.

    Element by element it is what ``torch.optim.Adam(module.parameters(), lr, betas, eps, fused=True)`` does: the same kernel,
    without the 150 us of its wrapper, and without ``torch._dynamo``, which making any of torch's own optimisers imports
    (two seconds of every start).

    Args:
        parameters: What is trained; their gradients are in ``parameters.grad``.
        lr: Learning rate.
        betas: What is kept of the first and the second moment in each step.
        eps: Added to the root of the second moment.
    """

    MOST_STEPS = 2**24
    """Steps after which its count, a float32, stands still."""

    def __init__(
        self, parameters: FlatParameters, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        self._parameters = parameters
        value = parameters.value
        self.lr = lr
        """Of the next step."""
        self.betas, self.eps = betas, eps
        # Made here and not in the first step, so that they can be saved, hashed and restored before it.
        self._moments: dict[str, Tensor] = {
            "exp_avg": torch.zeros_like(value),
            "exp_avg_sq": torch.zeros_like(value),
            "step": torch.zeros((), dtype=torch.float32, device=value.device),
        }
        step = self._moments["step"]
        self._count: Tensor | NDArray[np.float32] = step.numpy() if value.device.type == "cpu" else step
        """The same memory; numpy adds to it in a fraction of the time."""
        self._kept = [tensor.detach().clone() for tensor in self._mutable()]
        parameters.counts[1] += 1

    @property
    def steps(self) -> int:
        """Steps behind its moments, as they correct their bias by: one that was made again has made none."""
        return int(self._count)

    @property
    def optimisers(self) -> int:
        """Optimisers made for its parameters, itself included."""
        return self._parameters.optimisers

    def step(self) -> None:
        """Apply ``parameters.grad``.

        Now and then moments so small that they move nothing are set to 0: second ones where the first is 0 by then. Left to
        themselves, those of what has no gradient any more would stop at the smallest numbers there are, which processors handle
        ten times as slowly, and a step would take as much longer for every unit that never fires again.
        """
        self._count += 1
        self._apply()
        if isinstance(self._count, np.ndarray) and self.steps % _SWEPT_EVERY == 0:
            self._sweep(self._moments["exp_avg"], self._moments["exp_avg_sq"])

    @torch.no_grad()
    def _sweep(self, first: Tensor, second: Tensor) -> None:
        nothing = first.abs() < min(_NOTHING, _OF_EPSILON * self.eps)
        first.masked_fill_(nothing, 0.0)
        second.masked_fill_(nothing.logical_and_(second < _NOTHING), 0.0)

    @torch.no_grad()
    def _apply(self) -> None:
        """The step itself; it has been counted."""
        moments = self._moments
        torch._fused_adam_(
            [self._parameters.value], [self._parameters.grad], [moments["exp_avg"]], [moments["exp_avg_sq"]], [],
            [moments["step"]], lr=self.lr, beta1=self.betas[0], beta2=self.betas[1], weight_decay=0.0, eps=self.eps,
            amsgrad=False, maximize=False,
        )  # fmt: skip

    def keep(self) -> None:
        """Remember weights and moments as they are, for `undo`."""
        for kept, tensor in zip(self._kept, self._mutable(), strict=True):
            kept.copy_(tensor.detach())

    @torch.no_grad()
    def undo(self) -> None:
        """Go back, bit for bit, to where `keep` was called."""
        for kept, tensor in zip(self._kept, self._mutable(), strict=True):
            tensor.copy_(kept)

    def moments(self) -> dict[str, NDArray[Any]]:
        """``exp_avg`` [P], ``exp_avg_sq`` [P] and ``step`` [], float32: live in host memory, else copies."""
        return {name: tensor.cpu().numpy() for name, tensor in self._moments.items()}

    def load(self, name: str, values: NDArray[Any]) -> None:
        """Overwrite one of `moments`."""
        self._moments[name].copy_(torch.tensor(values))

    def _mutable(self) -> list[Tensor]:
        return [self._parameters.value, *self._moments.values()]


def counts(targets: Mapping[str, FlatParameters], adams: Mapping[str, FlatAdam]) -> dict[str, float]:
    """What was done to networks, for `headrace.algorithms.base.Algorithm.ledger`; counted here and not by the algorithm.

    Args:
        targets: Networks that are moved and not trained, by name.
        adams: The optimisers, by the name of what they train.

    Returns:
        ``<target>_moves``; ``<network>_steps``, ``<network>_optimisers`` and ``<network>_lr``.
    """
    found: dict[str, float] = {f"{name}_moves": flat.moves for name, flat in targets.items()}
    for name, adam in adams.items():
        found |= {f"{name}_steps": adam.steps, f"{name}_optimisers": adam.optimisers, f"{name}_lr": adam.lr}
    return found


def _must_be_float32(module: nn.Module, named: dict[str, nn.Parameter]) -> None:
    wrong = {name: str(p.dtype).removeprefix("torch.") for name, p in named.items() if p.dtype != torch.float32}
    if wrong or not named:
        raise ConfigError(
            f"network {type(module).__name__} cannot be trained and published as one float32 vector",
            expected="at least one parameter, all of them float32",
            found=wrong or "no parameter",
            fix="build the network from float32 layers, with their sizes known at construction",
        )
