"""A running mean of a network's parameters, which often predicts better than the last ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class RunningMean:
    r"""The exponential moving average :math:`m \leftarrow \beta m + (1 - \beta) \theta`.

    Args:
        model: whose parameters are averaged; the mean begins with them as they are.
        decay: the weight β of the past.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.mean = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self) -> None:
        """Takes the parameters of now into the mean."""
        now = [p.detach() for p in self.model.parameters()]
        torch._foreach_lerp_(list(self.mean.values()), now, 1 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the block the model has the mean as its parameters."""
        now = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self._write(self.mean)
        try:
            yield
        finally:
            self._write(now)

    def restore(self, mean: Mapping[str, Tensor]) -> None:
        """Goes back to an earlier mean."""
        for name, tensor in self.mean.items():
            tensor.copy_(mean[name])

    @torch.no_grad()
    def _write(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(values[name])
