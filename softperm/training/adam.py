"""Adam for many models at once: their parameters are the rows of one matrix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from softperm.jit import kernel
from softperm.parallel import over_ranges


class StackedAdam:
    """M independent Adams, elementwise and therefore one, in one pass over memory.

    Each model counts its own steps, and a model that sits a step out is left exactly as it was, so
    every model gets the numbers that ``torch.optim.Adam`` would give it alone. Nothing here reads
    a tensor on the host: a step on a GPU can be captured in a CUDA graph.

    Args:
        parameters: all parameters of each model, (M, K); updated in place.
        learning_rate: of all models, or of each.
        weight_decay: added to the gradient, as in ``torch.optim.Adam``.
        betas: decay of the two moments.
        eps: added to the denominator.
    """

    def __init__(
        self,
        parameters: Float[Tensor, "M K"],
        learning_rate: float | Float[Tensor, " M"] = 1e-3,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        self.parameters = parameters
        rate = torch.as_tensor(learning_rate, dtype=parameters.dtype, device=parameters.device)
        self.learning_rate = rate.expand(len(parameters))
        self.weight_decay, self.betas, self.eps = weight_decay, betas, eps
        self.steps = parameters.new_zeros(len(parameters))  # (M,)
        self.mean, self.square = torch.zeros_like(parameters), torch.zeros_like(parameters)

    @torch.no_grad()
    def step(self, gradients: Sequence[Float[Tensor, "M _"]], active: Bool[Tensor, " M"]) -> None:
        """Updates the models that are active, given the gradient in blocks of columns."""
        self.steps += active
        count = self.steps.clamp(min=1)
        size = self.learning_rate / (1 - self.betas[0] ** count)  # (M,)
        root = (1 - self.betas[1] ** count).sqrt()  # (M,)
        numbers = (self.betas[0], self.betas[1], self.weight_decay, self.eps)
        if self.parameters.is_cuda:
            from softperm.training.gpu_adam import update

            state = (self.parameters, self.mean, self.square)
            update(*state, gradients, active, size, root, *numbers)
            return
        gradient = torch.cat([*gradients], dim=1)
        tensors = (self.parameters, gradient, self.mean, self.square, active, size, root)
        arrays = [tensor.numpy() for tensor in tensors]
        constants = np.array(numbers, dtype=arrays[0].dtype)
        over_ranges(_adam_rows, len(gradient), 16 * gradient.numel(), *arrays, constants)

    def tensors(self) -> dict[str, Tensor]:
        """All that a step changes besides the parameters, by name."""
        return {"steps": self.steps, "mean": self.mean, "square": self.square}


@kernel(error_model="numpy")
def _adam_rows(parameter, gradient, mean, square, active, size, root, constants, first, last):
    beta1, beta2, decay, eps = constants[0], constants[1], constants[2], constants[3]
    one = constants.dtype.type(1)
    for m in range(first, last):
        if not active[m]:
            continue
        for k in range(parameter.shape[1]):
            g = gradient[m, k] + decay * parameter[m, k]
            average = mean[m, k] + (one - beta1) * (g - mean[m, k])
            power = beta2 * square[m, k] + (one - beta2) * g * g
            mean[m, k], square[m, k] = average, power
            parameter[m, k] -= size[m] * average / (np.sqrt(power) / root[m] + eps)
