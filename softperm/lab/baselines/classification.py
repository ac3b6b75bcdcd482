"""The systems of the classification table, with the grids of Errica et al. (ICLR 2020).

Modules are imported when a network is built: a command that needs one system loads one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from softperm.lab.baselines.shape import DataShape
from softperm.lab.baselines.system import Kernel, System
from softperm.lab.baselines.wl import WLKernelClassifier


def _gin(
    shape: DataShape,
    widths: Sequence[int] = (32, 32, 32, 32),
    train_eps: bool = False,
    readout: str = "sum",
    dropout: float = 0.0,
) -> nn.Module:
    from softperm.lab.baselines.gin import GIN

    return GIN(
        shape.vertex_size,
        widths,
        shape.outputs,
        train_eps=train_eps,
        mean={"sum": False, "mean": True}[readout],
        dropout=dropout,
    )


def _sage(
    shape: DataShape, hidden: int = 32, layers: int = 3, aggregation: str = "mean"
) -> nn.Module:
    from softperm.lab.baselines.sage import GraphSAGE, SAGELayer, SAGEPoolLayer, SAGESumLayer

    layer = {"mean": SAGELayer, "add": SAGESumLayer, "max": SAGEPoolLayer}[aggregation]
    return GraphSAGE(shape.vertex_size, hidden, layers, shape.outputs, layer)


def _gcn(shape: DataShape, hidden: int = 32, layers: int = 3) -> nn.Module:
    from softperm.lab.baselines.gcn import GCN

    return GCN(shape.vertex_size, hidden, layers, shape.outputs)


def _structure_free(shape: DataShape, hidden: int = 32) -> nn.Module:
    from softperm.lab.baselines.structure_free import DeepMultisets, MolecularFingerprint

    labels_alone = shape.attribute_size > 0 and not shape.continuous
    kind = MolecularFingerprint if labels_alone else DeepMultisets
    return kind(shape.vertex_size, hidden, shape.outputs)


def _dgcnn(shape: DataShape, hidden: int = 32, layers: int = 3, keep: float = 0.6) -> nn.Module:
    from softperm.lab.baselines.dgcnn import DGCNN

    vertices = max(10, round(shape.size_percentiles[round(100 * keep)]))
    return DGCNN(shape.vertex_size, hidden, layers, vertices, shape.outputs)


def _diffpool(shape: DataShape, hidden: int = 64, embedding: int = 128) -> nn.Module:
    from softperm.lab.baselines.diffpool import DiffPool

    return DiffPool(shape.vertex_size, hidden, embedding, shape.largest, shape.outputs)


def _ecc(shape: DataShape, hidden: int = 32, layers: int = 2, dropout: float = 0.05) -> nn.Module:
    from softperm.lab.baselines.ecc import ECC

    return ECC(shape.vertex_size, shape.edge_size, hidden, layers, shape.outputs, dropout=dropout)


SYSTEMS = (
    System(
        "gin",
        "GIN",
        ("classification",),
        _gin,
        {
            "widths": ((64,) * 4, (32,) * 4, (64,), (32, 32)),
            "train_eps": (True, False),
            "readout": ("mean", "sum"),
            "dropout": (0.5, 0.0),
            "learning_rate": (1e-2,),
            "halve_every": (50,),
            "batch_size": (32, 128),
        },
        stackable=True,
        alike=("train_eps", "readout", "dropout"),
    ),
    System(
        "graphsage",
        "GraphSAGE",
        ("classification",),
        _sage,
        {
            "hidden": (32, 64),
            "layers": (3, 5),
            "aggregation": ("add", "max", "mean"),
            "learning_rate": (1e-4, 1e-2, 1e-3),
            "batch_size": (32,),
        },
        stackable=True,
    ),
    System(
        "gcn",
        "GCN",
        ("classification",),
        _gcn,
        {
            "hidden": (32, 64),
            "layers": (3, 5),
            "learning_rate": (1e-4, 1e-2, 1e-3),
            "batch_size": (32,),
        },
        stackable=True,
    ),
    System(
        "structure-free",
        "Structure-free",
        ("classification",),
        _structure_free,
        {
            "hidden": (32, 128, 256),
            "learning_rate": (1e-1, 1e-3, 1e-4),
            "weight_decay": (1e-4, 1e-3, 1e-2),
            "batch_size": (32,),
        },
        stackable=True,
    ),
    System(
        "dgcnn",
        "DGCNN",
        ("classification",),
        _dgcnn,
        {
            "hidden": (32, 64),
            "layers": (2, 3, 4),
            "keep": (0.9, 0.6),
            "learning_rate": (1e-4, 1e-5),
            "batch_size": (50,),
        },
    ),
    System(
        "diffpool",
        "DiffPool",
        ("classification",),
        _diffpool,
        {
            "hidden": (64,),
            "embedding": (128,),
            "learning_rate": (1e-3, 1e-4, 1e-5),
            "batch_size": (8,),
        },
    ),
    System(
        "ecc",
        "ECC",
        ("classification",),
        _ecc,
        {
            "hidden": (32, 64),
            "layers": (2,),
            "dropout": (0.05, 0.25),
            "learning_rate": (1e-1, 1e-2),
            "batch_size": (32,),
        },
    ),
)

KERNELS = (
    Kernel(
        "wl-kernel",
        "WL subtree kernel",
        ("classification",),
        WLKernelClassifier,
        {"iterations": (1, 2, 3, 4, 5, 6), "C": (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)},
    ),
)
