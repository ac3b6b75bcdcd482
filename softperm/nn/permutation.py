"""Soft permutations: each vertex of a graph is softly assigned to P latent vertices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from softperm.data.collection import GraphBatch
from softperm.ops.linear import vertex_linear
from softperm.ops.transport import sinkhorn, softmax

Compare = Callable[[Float[Tensor, "V H"], Float[Tensor, "P H"]], Float[Tensor, "V P"]]
"""The function f of the paper: scores of vertices against latent vertices."""

_SHORTEST = 1e-4  # vectors much shorter than this are not scaled up to length 1


def relu_inner_product(
    q: Float[Tensor, "V H"], latent: Float[Tensor, "P H"]
) -> Float[Tensor, "V P"]:
    r"""The paper's comparison: :math:`S = \text{ReLU}(\tilde Q W^\top)`."""
    return torch.relu(vertex_linear(q, latent))


class CosineComparison(nn.Module):
    r"""Cosines between vertices and latent vertices, divided by a temperature.

    .. math::
        S_{ik} = \frac{1}{\tau} \, \text{ReLU}\left(
            \frac{\tilde q_i \cdot w_k}{\|\tilde q_i\| \, \|w_k\|}\right),
        \quad \tau = \tau_0 e^\theta

    Scores reach :math:`1 / \tau` whatever the scale of features and parameters, so plans can be
    sharp from the start. The learnt :math:`\theta` starts at 0, where weight decay leaves it.

    Args:
        temperature: the temperature :math:`\tau_0` at the start.
        learnt: whether training changes it.
    """

    start: Tensor

    def __init__(self, temperature: float = 0.1, learnt: bool = True) -> None:
        super().__init__()
        self.register_buffer("start", torch.tensor(temperature))
        self.log_change = nn.Parameter(torch.zeros(())) if learnt else None

    @property
    def temperature(self) -> Float[Tensor, ""]:
        """The temperature now."""
        return self.start if self.log_change is None else self.start * self.log_change.exp()

    def forward(
        self, q: Float[Tensor, "V H"], latent: Float[Tensor, "P H"]
    ) -> Float[Tensor, "V P"]:
        """The scores of vertices against latent vertices."""
        return relu_inner_product(_unit(q), _unit(latent)) / self.temperature


def _unit(vectors: Float[Tensor, "V H"]) -> Float[Tensor, "V H"]:
    """Vectors of length 1; a zero vector stays one, with a bounded gradient."""
    squares = vectors.square().sum(dim=1, keepdim=True)  # (V, 1)
    return vectors * torch.rsqrt(squares + _SHORTEST**2)


def structure(batch: GraphBatch) -> Float[Tensor, "V S"]:
    """The structural features of a batch's vertices."""
    return batch.structure


def attributes(batch: GraphBatch) -> Float[Tensor, "V F"]:
    """The attributes of a batch's vertices."""
    return batch.x


def structure_and_attributes(batch: GraphBatch) -> Float[Tensor, "V SF"]:
    """Structural features beside attributes."""
    return torch.cat([batch.structure, batch.x], dim=1)


class Sinkhorn(nn.Module):
    """The normaliser of the paper: rows and columns of the plan have given masses.

    Args:
        iterations: maximum number of iterations; the paper's is 100.
        tolerance: early stop; see :func:`softperm.ops.transport.sinkhorn`.
        gradient: see :func:`softperm.ops.transport.sinkhorn`.
    """

    gradient: Literal["auto", "truncated", "implicit"]

    def __init__(
        self,
        iterations: int = 100,
        tolerance: float | None = None,
        gradient: Literal["auto", "truncated", "implicit"] = "auto",
    ) -> None:
        super().__init__()
        self.iterations, self.tolerance, self.gradient = iterations, tolerance, gradient

    def forward(self, scores: Tensor, ptr: Tensor, **rows: Any) -> Tensor:
        """The transport plan (V, P) of scores (V, P)."""
        return sinkhorn(
            scores,
            ptr,
            iterations=self.iterations,
            tolerance=self.tolerance,
            gradient=self.gradient,
            **rows,
        )


class Softmax(nn.Module):
    """The normaliser without column masses: each vertex is assigned on its own."""

    def forward(self, scores: Tensor, ptr: Tensor, **rows: Any) -> Tensor:
        """The softmax (V, P) of scores (V, P)."""
        return softmax(scores, ptr, **rows)


class SoftPermutation(nn.Module):
    r"""Learns D (vertices × latent vertices) from one kind of vertex features.

    .. math::
        \tilde Q = \text{encoder}(Q), \quad S = f(\tilde Q, W), \quad D = \text{transport}(S)

    Args:
        encoder: turns features (V, F) into hidden vectors (V, H).
        latent_vertices: number P of latent vertices, the rows of W.
        hidden: size H of the encoder's output and of W's rows.
        features: selects the features of a batch that the encoder reads.
        capacity: number n of vertices to which the paper pads every graph; None for no padding.
            A graph larger than it is taken at its own size.
        dustbin: whether vertices and latent vertices may stay unmatched (π-GNN-d), with a learnt
            score that starts at 1.
        compare: the function f.
        normaliser: turns scores into a plan.
        bound: the initial latent vertices are uniform in (−bound, bound); :math:`1 / \sqrt{H}` by
            default, as in torch's linear layers. The larger, the harder the first assignments.
    """

    capacity: Tensor | None

    def __init__(
        self,
        encoder: nn.Module,
        latent_vertices: int,
        hidden: int,
        *,
        features: Callable[[GraphBatch], Tensor] = structure,
        capacity: int | None = None,
        dustbin: bool = False,
        compare: Compare = relu_inner_product,
        normaliser: nn.Module | None = None,
        bound: float | None = None,
    ) -> None:
        super().__init__()
        if latent_vertices < 1:
            raise ValueError(f"there must be at least 1 latent vertex; got {latent_vertices}")
        self.encoder = encoder
        self.features = features
        size = None if capacity is None else torch.tensor(capacity)
        self.register_buffer("capacity", size, persistent=False)
        self.compare = compare
        self.normaliser = normaliser or Sinkhorn()
        self.latent = nn.Parameter(torch.empty(latent_vertices, hidden))
        self.dustbin = nn.Parameter(torch.ones(())) if dustbin else None
        largest = 1 / hidden**0.5 if bound is None else bound
        nn.init.uniform_(self.latent, -largest, largest)

    def forward(
        self, batch: GraphBatch, dustbin: Float[Tensor, ""] | None = None
    ) -> Float[Tensor, "V P"]:
        """The soft permutation of each graph of a batch, vertices laid end to end.

        Args:
            batch: the graphs.
            dustbin: a dustbin score shared with other permutations; by default its own, if any.
        """
        x = self.features(batch).to(self.latent.dtype)
        x = nn.functional.pad(x, (0, 0, 0, 1))  # (V + 1, F): the padding vertex, all zeros
        q = self.encoder(x, batch.edge_index, batch.ptr)  # (V + 1, H)
        scores = self.compare(q, self.latent)  # (V + 1, P)
        if scores.dtype in {torch.float16, torch.bfloat16}:
            scores = scores.float()  # the transport needs float32's range and precision
        scores, padding = scores.split([len(scores) - 1, 1])  # (V, P), (1, P)
        rows = {} if batch.get("largest") is None else {"largest": batch.largest}
        if self.capacity is not None:  # all padding vertices of a graph are one row with their mass
            mass = (self.capacity - batch.ptr.diff()).clamp(min=0).to(scores.dtype)  # (B,)
            rows |= {"padding": padding.squeeze(0), "padding_mass": mass}
        dustbin = self.dustbin if dustbin is None else dustbin
        return self.normaliser(scores, batch.ptr, dustbin=dustbin, **rows)


class MixedPermutation(nn.Module):
    r"""Two permutations of the same graph mixed into one (Equation 5).

    .. math:: D = \sigma(\alpha) D^{adj} + (1 - \sigma(\alpha)) D^{att}

    Args:
        adjacency: the permutation learnt from structure.
        attributes: the permutation learnt from attributes.
        share: the initial share σ(α).
        dustbin: whether both share one dustbin score; neither may then have its own.
    """

    def __init__(
        self,
        adjacency: SoftPermutation,
        attributes: SoftPermutation,
        share: float = 0.5,
        dustbin: bool = False,
    ) -> None:
        super().__init__()
        self.adjacency = adjacency
        self.attributes = attributes
        self.alpha = nn.Parameter(torch.tensor(math.log(share / (1 - share))))
        self.dustbin = nn.Parameter(torch.ones(())) if dustbin else None

    def forward(self, batch: GraphBatch) -> Float[Tensor, "V P"]:
        """The mixed soft permutation of each graph of a batch."""
        from_structure = self.adjacency(batch, self.dustbin)  # (V, P)
        from_attributes = self.attributes(batch, self.dustbin)  # (V, P)
        return torch.lerp(from_attributes, from_structure, torch.sigmoid(self.alpha))


class SideBySide(nn.Module):
    """Several permutations of the same graph, each with latent vertices of its own.

    Args:
        permutations: the K permutations.
    """

    def __init__(self, permutations: Sequence[nn.Module]) -> None:
        super().__init__()
        self.permutations = nn.ModuleList(permutations)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "K V P"]:
        """All soft permutations of each graph of a batch."""
        return torch.stack([permutation(batch) for permutation in self.permutations])
