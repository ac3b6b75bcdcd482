"""Adam for many models at once: parameters carry a leading model axis."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class StackedAdam:
    """M independent Adams, elementwise and therefore one.

    Each model counts its own steps, and a model that sits a step out is left exactly as it was, so
    every model gets the numbers that ``torch.optim.Adam`` would give it alone. Nothing here reads
    a tensor on the host: a step can be captured in a CUDA graph.

    Args:
        parameters: stacked parameters (M, …) by name; updated in place.
        learning_rate: of all models, or of each.
        weight_decay: added to the gradient, as in ``torch.optim.Adam``.
        betas: decay of the two moments.
        eps: added to the denominator.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        learning_rate: float | Float[Tensor, " M"] = 1e-3,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters = dict(parameters)
        first = next(iter(self.parameters.values()))
        self.learning_rate = torch.as_tensor(learning_rate, dtype=first.dtype, device=first.device)
        self.weight_decay, self.betas, self.eps = weight_decay, betas, eps
        self.steps = torch.zeros(len(first), dtype=first.dtype, device=first.device)  # (M,)
        self.mean = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.square = {name: torch.zeros_like(p) for name, p in self.parameters.items()}

    @torch.no_grad()
    def step(self, active: Bool[Tensor, " M"]) -> None:
        """Updates the models that are active from the gradients of their parameters."""
        self.steps += active
        count = self.steps.clamp(min=1)
        size = self.learning_rate / (1 - self.betas[0] ** count)  # (M,)
        root = (1 - self.betas[1] ** count).sqrt()  # (M,)
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            shape = (-1, *[1] * (parameter.ndim - 1))
            on = active.view(shape)
            gradient = parameter.grad
            if self.weight_decay:
                gradient = gradient + self.weight_decay * parameter
            mean, square = self.mean[name], self.square[name]
            mean.copy_(torch.where(on, mean.lerp(gradient, 1 - self.betas[0]), mean))
            grown = self.betas[1] * square + (1 - self.betas[1]) * gradient.square()
            square.copy_(torch.where(on, grown, square))
            change = size.view(shape) * mean / (square.sqrt() / root.view(shape) + self.eps)
            parameter.sub_(torch.where(on, change, 0.0))

    def tensors(self) -> list[Tensor]:
        """All that a step changes besides the parameters."""
        return [self.steps, *self.mean.values(), *self.square.values()]
