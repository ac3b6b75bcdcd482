"""Soft permutations, how sharp they are, and graphs that are aligned by them.

Alignment carries a graph into the common space of P latent vertices. Everything is sparse and
ragged: ``A D`` costs E · P and ``Dᵀ (A D)`` costs V · P², so no n × n matrix is ever formed and no
graph is padded to the size of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from softperm.data.collection import GraphBatch
from softperm.ops.equal_rows import EqualRows, equal_rows
from softperm.ops.inference import align_edges, forward_only
from softperm.ops.layers import vertex_linear
from softperm.ops.operators import has_values, is_tracked
from softperm.ops.pairs import pair_sums
from softperm.ops.ragged import owners, pool, propagate
from softperm.ops.transport import sinkhorn, softmax

Compare = Callable[[Float[Tensor, "V H"], Float[Tensor, "P H"]], Float[Tensor, "V P"]]
"""The function f of the paper: scores of vertices against latent vertices."""

PAIRS_AT_ONCE = 1 << 20  # pairs of vertices whose distances are computed together
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


def encoded(batch: GraphBatch) -> Float[Tensor, "V H"]:
    """The encoded vertices of a batch."""
    return batch.encoded


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
        normaliser: turns scores into a plan, by default :func:`softperm.ops.transport.sinkhorn` as
            in the paper; :func:`softperm.ops.transport.softmax` has no masses of columns.
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
        normaliser: Callable[..., Tensor] = sinkhorn,
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
        self.normaliser = normaliser
        self.latent = nn.Parameter(torch.empty(latent_vertices, hidden))
        self.dustbin = nn.Parameter(torch.ones(())) if dustbin else None
        largest = 1 / hidden**0.5 if bound is None else bound
        nn.init.uniform_(self.latent, -largest, largest)

    def forward(
        self, batch: GraphBatch, dustbin: Float[Tensor, ""] | None = None
    ) -> Float[Tensor, "V P"]:
        """The soft permutation of each graph of a batch, vertices laid end to end.

        ``dustbin`` is a score that other permutations share; by default it has its own, if any.
        """
        x = self.features(batch).to(self.latent.dtype)
        dustbin = self.dustbin if dustbin is None else dustbin
        rows = self._equal_rows(x, batch)
        if rows is None:
            return self._plan(x, batch, dustbin)
        plan = self._plan(rows.select(x), batch, dustbin, rows)  # (U, P)
        return rows.expand(plan / rows.count.clamp(min=1)[:, None])

    @property
    def merges(self) -> bool:
        """Whether vertices with equal features have equal rows in D."""
        function = getattr(self.normaliser, "func", self.normaliser)
        weighed = "row_mass" in getattr(self.normaliser, "keywords", {})
        by_rows = self.compare is relu_inner_product or type(self.compare) is CosineComparison
        by_rows = by_rows and getattr(self.encoder, "by_itself", False)
        return by_rows and function in (sinkhorn, softmax) and not weighed

    @property
    def reads(self) -> str | None:
        """Which features of a batch it reads as they are: ``structure`` or ``attributes``."""
        known = {"structure": structure, "attributes": attributes}
        return next((name for name, each in known.items() if self.features is each), None)

    def _equal_rows(self, x: Float[Tensor, "V F"], batch: GraphBatch) -> EqualRows | None:
        """The vertices that can be encoded and transported together, if they are many.

        A batch of fixed shape has them in ``equal_vertices``, by what they are equal in.
        """
        if not self.merges or (torch.is_grad_enabled() and x.requires_grad):
            return None
        if batch.get("equal_vertices") is not None:
            return batch.equal_vertices.get(self.reads)
        readable = x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
        readable = readable and has_values(x, batch.ptr) and not is_tracked(x)
        return equal_rows(x, batch.ptr) if readable else None

    def _plan(
        self,
        x: Float[Tensor, "V F"],
        batch: GraphBatch,
        dustbin: Float[Tensor, ""] | None,
        merged: EqualRows | None = None,
    ) -> Float[Tensor, "V P"]:
        """The soft permutation of vertices, or of rows that stand for several equal vertices."""
        x = nn.functional.pad(x, (0, 0, 0, 1))  # (V + 1, F): the padding vertex, all zeros
        q = self.encoder(x, batch.edge_index, batch.ptr)  # (V + 1, H)
        scores = self.compare(q, self.latent)  # (V + 1, P)
        if scores.dtype in {torch.float16, torch.bfloat16}:
            scores = scores.float()  # the transport needs float32's range and precision
        scores, padding = scores.split([len(scores) - 1, 1])  # (V, P), (1, P)
        ptr, rows = batch.ptr, dict[str, Any]()
        if merged is not None:
            ptr = merged.ptr
            rows = {"largest": merged.largest, "row_mass": merged.count.to(scores.dtype)}
        elif batch.get("largest") is not None:
            rows["largest"] = batch.largest
        if self.capacity is not None:  # all padding vertices of a graph are one row with their mass
            mass = (self.capacity - batch.ptr.diff()).clamp(min=0).to(scores.dtype)  # (B,)
            rows |= {"padding": padding.squeeze(0), "padding_mass": mass}
        return self.normaliser(scores, ptr, dustbin=dustbin, **rows)


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
    """Several permutations of the same graph, each with latent vertices of its own."""

    def __init__(self, permutations: Sequence[nn.Module]) -> None:
        super().__init__()
        self.permutations = nn.ModuleList(permutations)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "K V P"]:
        """All soft permutations of each graph of a batch."""
        return torch.stack([permutation(batch) for permutation in self.permutations])


def row_entropy(d: Float[Tensor, "... V P"]) -> Float[Tensor, ""]:
    r"""Mean entropy of the rows of soft permutations, relative to that of a uniform row.

    .. math:: \frac{1}{V} \sum_i \frac{-\sum_k \hat D_{ik} \log \hat D_{ik}}{\log P},
        \quad \hat D_{ik} = D_{ik} / \textstyle\sum_l D_{il}

    1 if every vertex is assigned to all latent vertices alike, 0 if each is assigned to one. Rows
    without mass, as a dustbin may leave them, do not count.

    >>> row_entropy(torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]))
    tensor(0.5000)
    """
    if d.shape[-1] == 1:
        return d.new_zeros(())
    shares, there = _shares(d)
    entropy = torch.special.entr(shares).sum(-1)  # (V,)
    count = there.sum().clamp(min=1)
    return (entropy * there).sum() / count / torch.tensor(d.shape[-1]).log().to(d)


def used_latent_vertices(d: Float[Tensor, "... V P"]) -> Float[Tensor, ""]:
    r"""Effective number of latent vertices that assignments distinguish.

    .. math:: \exp\left(H(\bar D) - \frac{1}{V} \sum_i H(\hat D_i)\right),
        \quad \bar D = \frac{1}{V} \sum_i \hat D_i

    the exponential of the mutual information of a vertex and its latent vertex: 1 if all rows are
    the same, uniform or not; k if vertices are assigned to k latent vertices, each to one, equally
    often.

    >>> round(float(used_latent_vertices(torch.eye(4)[[0, 1, 2, 2, 1, 0]])), 3)
    3.0
    """
    shares, there = _shares(d)
    shares, there = shares.flatten(0, -2), there.flatten()  # (V, P), (V,)
    count = there.sum().clamp(min=1)
    mean = (shares * there[:, None]).sum(0) / count  # (P,)
    rows = (torch.special.entr(shares).sum(1) * there).sum() / count
    return (torch.special.entr(mean).sum() - rows).exp()


def first_component(vectors: Float[Tensor, "B Z"]) -> Float[Tensor, ""]:
    """Share of the first principal component in the variance of vectors; 1 if nothing varies.

    >>> first_component(torch.tensor([[1.0, 1.0], [2.0, 2.0], [5.0, 5.0]]))
    tensor(1.)
    """
    centred = (vectors - vectors.mean(0)).double()
    small = centred @ centred.mT if len(centred) < centred.shape[1] else centred.mT @ centred
    values = torch.linalg.eigvalsh(small).clamp(min=0)
    total = values.sum()
    return torch.where(total > 0, values[-1] / total, 1.0).to(vectors.dtype)


def _shares(d: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with sum 1, and which rows have mass."""
    mass = d.sum(-1, keepdim=True)
    return d / torch.where(mass > 0, mass, 1.0), mass.squeeze(-1) > 0


@dataclass(frozen=True)
class Sharpness:
    """How far the soft permutations of a batch of graphs are from uniform ones.

    Attributes:
        row_entropy: see :func:`row_entropy`; 1 for uniform permutations.
        first_component: see :func:`first_component`, of vec(DᵀAD); 1 if aligned matrices
            depend on a single number, such as the number of edges.
        used_latent_vertices: see :func:`used_latent_vertices`; 1 for uniform permutations, P at
            most. Of several permutations side by side, the largest.
    """

    row_entropy: float
    first_component: float
    used_latent_vertices: float

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        d: Float[Tensor, "*K V P"],
        ptr: Int[Tensor, " B1"],
        adjacency: Float[Tensor, "B P P"],
    ) -> Sharpness:
        """The sharpness of permutations and of what they make of adjacency matrices.

        Args:
            d: soft permutations, vertices laid end to end.
            ptr: where each graph's vertices begin, with the total at the end.
            adjacency: aligned adjacency matrices.
        """
        d = d[..., : int(ptr[-1]), :]
        plans = d.unbind() if d.ndim == 3 else [d]
        used = max(float(used_latent_vertices(plan)) for plan in plans)
        share = float(first_component(adjacency.flatten(1)))
        return cls(float(row_entropy(d)), share, used)


def align_adjacency(
    d: Float[Tensor, "V P"],
    edge_index: Int[Tensor, "2 E"],
    ptr: Int[Tensor, " B1"],
    edge_weight: Float[Tensor, " E"] | None = None,
    *,
    power: int = 1,
    canonical: bool = False,
) -> Float[Tensor, "B P P"]:
    r"""The aligned adjacency matrix :math:`D^\top A D` of each graph (Section 4.1).

    Or the aligned power :math:`D^\top A^k D`, which counts walks of k steps: computed from the
    right, so that :math:`A^k` is never formed.

    Args:
        d: soft permutations of all graphs, vertices laid end to end.
        edge_index: directed edges (i, j), numbered over the whole batch.
        ptr: graph ``i`` owns the vertices ``ptr[i]:ptr[i + 1]``.
        edge_weight: entries of A; 1 by default. They carry no gradient.
        power: the power k.
        canonical: promises sorted, symmetric edges; see :func:`softperm.ops.ragged.propagate`.

    Example:
        A triangle under a hard permutation is a triangle:

        >>> import torch
        >>> edges = torch.tensor([[0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]])
        >>> align_adjacency(torch.eye(3)[[2, 0, 1]], edges, torch.tensor([0, 3]))[0]
        tensor([[0., 1., 1.],
                [1., 0., 1.],
                [1., 1., 0.]])
    """
    weights = [] if edge_weight is None else [edge_weight]
    if canonical and power == 1 and forward_only(d, edge_index, ptr, *weights):
        weight = d.new_ones(edge_index.shape[1]) if edge_weight is None else edge_weight
        return align_edges(d, edge_index, weight[:, None], ptr).squeeze(-1)
    reached = d
    for _ in range(power):
        reached = propagate(reached, edge_index, edge_weight, canonical=canonical)  # (V, P)
    return pool(d, reached, ptr)


def align_attributes(
    d: Float[Tensor, "V P"], x: Float[Tensor, "V F"], ptr: Int[Tensor, " B1"]
) -> Float[Tensor, "B P F"]:
    r"""The aligned vertex attributes :math:`D^\top X` of each graph (Section 4.2)."""
    return pool(d, x.to(d.dtype), ptr)


def align_edge_attributes(
    d: Float[Tensor, "V P"],
    edge_index: Int[Tensor, "2 E"],
    edge_attr: Float[Tensor, "E Fe"],
    ptr: Int[Tensor, " B1"],
    *,
    canonical: bool = False,
) -> Float[Tensor, "B P P Fe"]:
    r"""The aligned edge attributes: :math:`D^\top A_c D` for each channel c (Section 4.2).

    Gradients reach D, not the edges' attributes.
    """
    if canonical and forward_only(d, edge_index, edge_attr, ptr):
        return align_edges(d, edge_index, edge_attr, ptr)
    channels = [
        align_adjacency(d, edge_index, ptr, weight, canonical=canonical)
        for weight in edge_attr.to(d.dtype).unbind(1)
    ]
    if not channels:
        return d.new_zeros(ptr.numel() - 1, d.shape[1], d.shape[1], 0)
    return torch.stack(channels, dim=-1)


def align_distances(
    d: Float[Tensor, "V P"],
    pos: Float[Tensor, "V S"],
    ptr: Int[Tensor, " B1"],
    weigh: Callable[[Float[Tensor, "v N"]], Float[Tensor, "v N K"]],
    largest: int | None = None,
) -> Float[Tensor, "B P P K"]:
    r"""The aligned matrices :math:`D^\top G_k D` of functions of distances.

    .. math:: (G_k)_{uv} = g_k(\|x_u - x_v\|) \text{ for } u \ne v, \quad (G_k)_{uu} = 0

    Distances are the same however a graph is rotated, moved or renumbered. A vertex is paired with
    the vertices of its own graph alone, in a row that has room for the largest graph among those
    computed together (on a GPU, of the batch): the cost is V · N · K · P.
    Gradients reach D and the functions, not the positions.

    Args:
        d: soft permutations of all graphs, vertices laid end to end.
        pos: positions of the vertices.
        ptr: graph ``i`` owns the vertices ``ptr[i]:ptr[i + 1]``.
        weigh: the functions :math:`g_1, …, g_K`.
        largest: number of vertices of the largest graph; read from ``ptr`` by default.

    Example:
        >>> pos, ptr = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([0, 2])
        >>> align_distances(torch.eye(2), pos, ptr, lambda distance: distance[..., None])[0, ..., 0]
        tensor([[0., 5.],
                [5., 0.]])
    """
    if largest is None:
        largest = max([0, *ptr.diff().tolist()])
    vertices = torch.arange(len(d), device=d.device)
    graph = owners(ptr, len(d))  # (V,), B for a vertex outside every graph
    first, size = ptr[graph], torch.nn.functional.pad(ptr.diff(), (0, 1))[graph]  # (V,), (V,)
    readable = ptr.device.type == "cpu" and has_values(ptr)
    pos = pos.detach().to(d.dtype)
    rows = []
    at_once = max(1, PAIRS_AT_ONCE // max(1, largest))
    parts: list[int] | int = at_once
    if torch.is_grad_enabled() and len(d):  # a gradient needs all pairs of a graph together
        parts = _whole_graphs(ptr, len(d), at_once) if readable else len(d)
    for u in vertices.split(parts):
        room = int(size[u].max()) if readable and len(u) else largest
        place = torch.arange(room, device=d.device)  # (N,)
        v = first[u, None] + place  # (v, N)
        pair = (place < size[u, None]) & (v != u[:, None])
        v = torch.where(pair, v, u[:, None])
        distance = (pos[u, None] - pos[v]).square().sum(2).sqrt()  # (v, N)
        weights = torch.where(pair[..., None], weigh(distance), 0.0)  # (v, N, K)
        x, begin = (d[u], u[0]) if isinstance(parts, list) else (d, 0)
        own = (u - first[u]).clamp(0, max(0, room - 1))  # outside every graph any place
        rows.append(pair_sums(weights, x, v - begin, own))  # (v, K, P)
    reached = torch.cat(rows)  # (V, K, P)
    aligned = pool(d, reached.flatten(1), ptr)  # (B, P, KP)
    return aligned.unflatten(2, reached.shape[1:]).mT  # (B, P, P, K)


def _whole_graphs(ptr: Int[Tensor, " B1"], rows: int, most: int) -> list[int]:
    """Rows of consecutive graphs, at most ``most`` unless one graph has more."""
    cuts = [0]
    ends = [*ptr.tolist(), rows]
    for end, following in pairwise(ends):
        if following - cuts[-1] > most and end > cuts[-1]:
            cuts.append(end)
    return [after - before for before, after in pairwise([*cuts, rows]) if after > before]
