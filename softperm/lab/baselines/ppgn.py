"""PPGN (Maron et al., "Provably Powerful Graph Networks", NeurIPS 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from softperm.data.collection import GraphBatch, prepare
from softperm.lab.baselines.layers import MemoryLimited, edge_features, vertex_features
from softperm.ops.ragged import owners


class PPGNBlock(nn.Module):
    r"""One block: matrices multiply, channel by channel.

    .. math:: X' = m_3\big([X, \; m_1(X) \cdot m_2(X)]\big)

    :math:`m_1, m_2` are MLPs of two layers at each entry of the n × n matrices, :math:`m_3` one
    linear layer; their widths are the paper's for QM9 scaled by ``hidden``.

    Args:
        channels: number of matrices that come in.
        hidden: number that go out.
    """

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.left = _mlp([channels, hidden, hidden])
        self.right = _mlp([channels, hidden, hidden])
        self.skip = nn.Conv2d(channels + hidden, hidden, 1)

    def forward(
        self, x: Float[Tensor, "B F N N"], mask: Float[Tensor, "B 1 N N"]
    ) -> Float[Tensor, "B H N N"]:
        """The matrices after one block; entries outside a graph are 0 before and after."""
        scale = mask.sum(dim=(1, 2, 3), keepdim=True).clamp(min=1) ** -0.25  # n^(-1/2)
        product = (self.left(x) * mask * scale) @ (self.right(x) * mask)  # (B, H, N, N)
        return self.skip(torch.cat([x, product], dim=1)) * mask


class PPGN(MemoryLimited):
    r"""Matrices of pairs of vertices, multiplied: as strong as 3-WL (2-FWL).

    The input has a channel for the adjacency matrix and each edge attribute, the vertex attributes
    on the diagonal, and, in batches that carry positions, the distance of each pair. After each
    block the sums over the diagonal and over the rest go through an MLP of two layers, and the
    results are added up, as in the paper. Products are divided by √n, which the paper leaves out:
    without it values grow with the size of a graph to the power of the number of blocks. Weights
    begin as He et al.'s, or differences between graphs vanish in the products of small numbers.

    Args:
        features: size F of a vertex's features.
        edge_size: size of an edge's features.
        outputs: number C of outputs.
        positions: whether batches carry positions.
        hidden: channels of a block.
        blocks: number of blocks.
    """

    title = "PPGN"
    remedy = "its tensors are n × n for the largest graph, so use smaller batches or graphs"

    def __init__(
        self,
        features: int,
        edge_size: int,
        outputs: int,
        *,
        positions: bool = False,
        hidden: int = 64,
        blocks: int = 3,
    ) -> None:
        super().__init__()
        self.positions = positions
        self.outputs, self.width = outputs, features + edge_size + (2 + 8 * blocks) * hidden
        sizes = [features + edge_size + 1 + positions, *[hidden] * blocks]
        self.blocks = nn.ModuleList(PPGNBlock(a, b) for a, b in pairwise(sizes))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
            for _ in self.blocks
        )
        for module in self.blocks.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, batch: GraphBatch) -> Float[Tensor, "B C"]:
        """The outputs of each graph of a batch."""
        batch = prepare(batch)
        self.check_memory(batch)
        x, real = pair_tensor(batch, self.positions)  # (B, F, N, N), (B, N)
        x = x.to(next(self.parameters()).dtype)
        mask = (real[:, None, :, None] & real[:, None, None, :]).to(x.dtype)  # (B, 1, N, N)
        sizes = batch.ptr.diff().clamp(min=1).to(x.dtype)[:, None]  # (B, 1)
        y = x.new_zeros(len(x), self.outputs)
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = block(x, mask)
            diagonal = x.diagonal(dim1=2, dim2=3).sum(2)  # (B, H)
            rest = (x.sum(dim=(2, 3)) - diagonal) / sizes
            y = y + head(torch.cat([diagonal, rest], dim=1))
        return y

    def needed(self, batch: GraphBatch) -> int:
        """Bytes that a training step takes, by the measured number of n × n matrices."""
        sizes = batch.ptr.diff()
        n = int(sizes.max()) if len(sizes) else 0
        return 2 * len(sizes) * n * n * self.width * next(self.parameters()).element_size()


def pair_tensor(
    batch: GraphBatch, positions: bool
) -> tuple[Float[Tensor, "B F N N"], Bool[Tensor, "B N"]]:
    """The input matrices of each graph, 0 outside it, and which rows hold a vertex."""
    ptr, sizes = batch.ptr, batch.ptr.diff()
    owner, n = owners(ptr, int(ptr[-1])), max([1, *sizes.tolist()])  # room for one if for none
    local = torch.arange(len(owner), device=ptr.device) - ptr[owner]
    x, e = vertex_features(batch), edge_features(batch)
    (row, col), f = batch.edge_index, x.shape[1]
    tensor = x.new_zeros(len(sizes), n, n, f + e.shape[1] + 1 + positions)
    tensor[owner, local, local, :f] = x
    tensor[owner[row], local[row], local[col], f : f + e.shape[1]] = e.to(x.dtype)
    tensor[owner[row], local[row], local[col], f + e.shape[1]] = 1.0
    real = torch.arange(n, device=ptr.device) < sizes[:, None]  # (B, N)
    if positions:
        place = x.new_zeros(len(sizes), n, 3)
        place[owner, local] = batch.pos.to(x.dtype)
        far = (place[:, :, None] - place[:, None]).norm(dim=3)  # (B, N, N)
        tensor[..., -1] = far * (real[:, :, None] & real[:, None])
    return tensor.movedim(3, 1).contiguous(), real


def _mlp(sizes: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Conv2d(a, b, 1), nn.ReLU()]
    return nn.Sequential(*layers)
