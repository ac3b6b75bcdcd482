"""PHC-GNN (Le et al., "Parameterized Hypercomplex Graph Neural Networks", ICANN 2021)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch_geometric.nn.aggr import SoftmaxAggregation

from softperm.data.collection import GraphBatch
from softperm.lab.baselines.layers import edge_features, sum_readout
from softperm.lab.baselines.molecular import Molecular
from softperm.ops.normalisation import VertexBatchNorm


class PHMLinear(nn.Module):
    r"""A linear layer with hypercomplex weights (Zhang et al., ICLR 2021).

    .. math:: W = \sum_{i=1}^n A_i \otimes S_i

    A vector is n components laid end to end; :math:`A_i` (n × n) holds the rule by which they
    multiply, which is learnt, and :math:`S_i` the weights, n times fewer than of a real layer.

    Args:
        n: number of components.
        inputs: size of the input, a multiple of n.
        outputs: size of the output, a multiple of n.
    """

    def __init__(self, n: int, inputs: int, outputs: int) -> None:
        super().__init__()
        if inputs % n or outputs % n:
            raise ValueError(
                f"hypercomplex vectors of {n} components need sizes that are multiples of {n}; "
                f"got {inputs} and {outputs}"
            )
        self.rule = nn.Parameter(torch.empty(n, n, n))
        self.weight = nn.Parameter(torch.empty(n, outputs // n, inputs // n))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.rule, std=n**-0.5)
        nn.init.normal_(self.weight, std=(2 / (inputs + outputs)) ** 0.5)

    def forward(self, x: Float[Tensor, "V F"]) -> Float[Tensor, "V H"]:
        """The layer's outputs."""
        whole = torch.einsum("nij,nkl->ikjl", self.rule, self.weight)  # (n, H / n, n, F / n)
        return nn.functional.linear(x, whole.flatten(0, 1).flatten(1), self.bias)


class PHCRound(nn.Module):
    r"""One round: messages by softmax over neighbours, a hypercomplex MLP.

    .. math:: x_i' = \text{MLP}\Big(x_i + \sum_{j \in N(i)} \alpha_{ij} (x_j + U e_{ij})\Big),
        \quad \alpha_{ij} = \text{softmax}_j \, \beta (x_j + U e_{ij})

    Of the paper's aggregators the softmax with a learnt β is taken; the MLP is hypercomplex
    linear, batch normalisation, ReLU, hypercomplex linear.

    Args:
        n: number of components.
        hidden: size H of the vectors, a multiple of n.
        edge_size: size of an edge's features.
    """

    def __init__(self, n: int, hidden: int, edge_size: int) -> None:
        super().__init__()
        self.edge = nn.Linear(edge_size, hidden, bias=False)
        self.softmax = SoftmaxAggregation(learn=True)
        self.inner = PHMLinear(n, hidden, hidden)
        self.norm = VertexBatchNorm(hidden, relu=True)
        self.outer = PHMLinear(n, hidden, hidden)

    def forward(self, x: Float[Tensor, "V H"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors after one round."""
        row, col = batch.edge_index
        sent = x[col] + self.edge(edge_features(batch).to(x.dtype))  # (E, H)
        total = x + self.softmax(sent, row, dim_size=len(x))
        return self.outer(self.norm(self.inner(total), batch.ptr[-1]))


class AttentionReadout(nn.Module):
    r"""The paper's readout: :math:`\sum_i \sigma(W x_i + b) \circ x_i` over each graph.

    Args:
        n: number of components.
        hidden: size H of the vectors, a multiple of n.
    """

    def __init__(self, n: int, hidden: int) -> None:
        super().__init__()
        self.gate = PHMLinear(n, hidden, hidden)

    def forward(self, x: Float[Tensor, "V H"], ptr: Int[Tensor, " B1"]) -> Float[Tensor, "B H"]:
        """The vector of each graph."""
        return sum_readout(torch.sigmoid(self.gate(x)) * x, ptr)


def phc_gnn(
    features: int,
    edge_size: int,
    outputs: int,
    *,
    hidden: int = 200,
    layers: int = 2,
    components: int = 4,
    dropout: float = 0.1,
) -> Molecular:
    """The frame for molecules with rounds of :class:`PHCRound` and the paper's readout."""
    n = components
    rounds = [PHCRound(n, hidden, edge_size) for _ in range(layers)]
    head = nn.Sequential(PHMLinear(n, hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
    readout = AttentionReadout(n, hidden)
    frame = {"dropout": dropout, "residual": True}
    return Molecular(features, hidden, rounds, head, readout=readout, **frame)
