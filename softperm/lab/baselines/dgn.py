"""DGN (Beaini et al., "Directional Graph Networks", ICML 2021)."""

from __future__ import annotations

from copy import copy

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import MemoryLimited, degree, edge_features
from softperm.lab.baselines.molecular import Molecular, narrowing_head
from softperm.ops.ragged import owners


class DGNRound(nn.Module):
    r"""One round: the mean, and the average and derivative along a field on the graph.

    .. math:: F_{ij} = \phi_j - \phi_i, \quad \hat F_{ij} = F_{ij} / \textstyle\sum_j |F_{ij}|,
        \quad x_i' = W \big[\text{mean}_j m_{ij}, \; \sum_j |\hat F_{ij}| m_{ij}, \;
        \big|\sum_j \hat F_{ij} (m_{ij} - x_i)\big|\big]

    φ is the first non-trivial eigenvector of the Laplacian; its sign does not matter to any of the
    three. Left open by the paper: messages are linear in both ends and the edge's features; the
    Laplacian is D − A; in a graph of several parts φ belongs to the smallest eigenvalue above 0 of
    all parts; without edges the field is 0. Where that eigenvalue is multiple (in very symmetric
    graphs) φ is not determined by the graph, and neither are the outputs: this is the method's own.

    Args:
        hidden: size H of the vectors.
        edge_size: size of an edge's features.
    """

    def __init__(self, hidden: int, edge_size: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * hidden, hidden)
        self.edge = nn.Linear(edge_size, hidden, bias=False)
        self.update = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Float[Tensor, "V H"], batch: GraphBatch) -> Float[Tensor, "V H"]:
        """The vectors after one round; ``batch.directions`` holds the field (E, 1)."""
        row, col = batch.edge_index
        field = batch.directions.to(x.dtype)
        e = self.edge(edge_features(batch).to(x.dtype))  # (E, H)
        message = torch.relu(self.message(torch.cat([x[row], x[col]], dim=1)) + e)

        def gather(values: Tensor) -> Tensor:
            return torch.zeros_like(x).index_add(0, row, values)

        mean = gather(message) / degree(x, batch.edge_index).clamp(min=1)
        smooth = gather(field.abs() * message)
        slope = gather(field * (message - x[row])).abs()
        return self.update(torch.cat([x, mean, smooth, slope], dim=1))


class DGN(Molecular, MemoryLimited):
    """The frame for molecules with rounds of :class:`DGNRound`, which share one field.

    Args:
        features: size F of a vertex's features.
        edge_size: size of an edge's features.
        outputs: number C of outputs.
        hidden: size H of the hidden vectors.
        layers: rounds of message passing.
        dropout: rate after each round.
    """

    title = "DGN"
    remedy = "leave the large graphs out"

    def __init__(
        self,
        features: int,
        edge_size: int,
        outputs: int,
        *,
        hidden: int = 70,
        layers: int = 4,
        dropout: float = 0.3,
    ) -> None:
        rounds = [DGNRound(hidden, edge_size) for _ in range(layers)]
        head = narrowing_head(hidden, outputs)
        super().__init__(features, hidden, rounds, head, dropout=dropout, residual=True)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = copy(prepare(batch))
        self.check_memory(batch)
        phi = first_eigenvector(batch.edge_index, batch.ptr)
        batch.directions = directions(phi, batch.edge_index)
        return super().forward(batch)

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that the eigenvectors of the graphs of one width take, at most."""
        widths, counts = _widths(batch.ptr.diff()).unique(return_counts=True)
        return int((counts * widths.square() * 32).max()) if len(widths) else 0


def directions(
    phi: Float64[Tensor, " V"], edge_index: Int[Tensor, "2 E"]
) -> Float64[Tensor, "E 1"]:
    """The normalised field of each edge; 0 at a vertex whose neighbours all equal it."""
    row, col = edge_index
    field = phi[col] - phi[row]  # (E,)
    total = torch.zeros_like(phi).index_add(0, row, field.abs())  # (V,)
    return (field / (total[row] + 1e-8))[:, None]


def first_eigenvector(
    edge_index: Int[Tensor, "2 E"], ptr: Int[Tensor, " B1"]
) -> Float64[Tensor, " V"]:
    """The first non-trivial eigenvector of each graph's Laplacian, graphs of like size together.

    Args:
        edge_index: directed edges, numbered over the whole batch.
        ptr: graph ``i`` owns the vertices ``ptr[i]:ptr[i + 1]``.

    Returns:
        A number for each vertex, of norm 1 over each graph; 0 in a graph without edges.
    """
    vertices, sizes = int(ptr[-1]), ptr.diff()
    phi = torch.zeros(vertices, dtype=torch.float64, device=ptr.device)
    owner = owners(ptr, vertices)
    local = torch.arange(vertices, device=ptr.device) - ptr[owner]
    width = _widths(sizes)
    for n in width.unique().tolist():
        chosen = (width == n).nonzero()[:, 0]  # (b,)
        place = torch.full_like(sizes, -1)
        place[chosen] = torch.arange(len(chosen), device=ptr.device)
        edge = edge_index[:, place[owner[edge_index[0]]] >= 0]
        adjacency = torch.zeros(len(chosen), n, n, dtype=torch.float64, device=ptr.device)
        adjacency[place[owner[edge[0]]], local[edge[0]], local[edge[1]]] = 1.0
        vector = _eigenvectors(adjacency, sizes[chosen])  # (b, n)
        mine = place[owner] >= 0
        phi[mine] = vector[place[owner[mine]], local[mine]]
    return phi


def _widths(sizes: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """The size of each graph's padded matrix: few sizes, so that few calls suffice."""
    return (sizes + 7) // 8 * 8


def _eigenvectors(
    adjacency: Float64[Tensor, "b n n"], sizes: Int[Tensor, " b"]
) -> Float64[Tensor, "b n"]:
    """The eigenvector of the first eigenvalue above 0 of each Laplacian; 0 if there is none."""
    b, n, _ = adjacency.shape
    beyond = torch.arange(n, device=sizes.device) >= sizes[:, None]  # (b, n)
    diagonal = torch.where(beyond, 4.0 * n, adjacency.sum(2))  # places without vertex come last
    values, vectors = torch.linalg.eigh(torch.diag_embed(diagonal) - adjacency)
    index = (values < 1e-6).sum(1)  # (b,)
    vector = vectors[torch.arange(b, device=sizes.device), :, index.clamp(max=n - 1)]
    return torch.where((index < sizes)[:, None], vector, 0.0)
