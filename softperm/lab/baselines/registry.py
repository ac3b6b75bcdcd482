"""The systems of the paper's tables, with the grids from which validation selects.

The grids of the classification table are those of Errica et al. (ICLR 2020), the settings of the
table of the Open Graph Benchmark those of the systems' authors there. Where batches have positions
(:func:`softperm.lab.evaluation_data.with_positions`), DTNN, MPNN and PPGN use distances in space,
as their papers do; otherwise they use the graph alone, as π-GNN does.

The module of a network is imported when the network is built.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from softperm.lab.baselines.system import DataShape, Kernel, KernelEstimator, System


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


def _wl_kernel(iterations: int = 4, C: float = 1.0) -> KernelEstimator:
    from softperm.lab.baselines.wl import WLKernelClassifier

    return WLKernelClassifier(iterations, C)


def _gcn_edges(
    shape: DataShape, hidden: int = 300, layers: int = 5, dropout: float = 0.5
) -> nn.Module:
    from softperm.lab.baselines.molecular import GCNRound, Molecular

    rounds = [GCNRound(hidden, shape.edge_size) for _ in range(layers)]
    head = nn.Linear(hidden, shape.outputs)
    frame = {"dropout": dropout, "residual": False, "relu_last": False}
    return Molecular(shape.vertex_size, hidden, rounds, head, **frame)


def _gin_edges(
    shape: DataShape, hidden: int = 300, layers: int = 5, dropout: float = 0.5
) -> nn.Module:
    from softperm.lab.baselines.molecular import GINRound, Molecular

    rounds = [GINRound(hidden, shape.edge_size) for _ in range(layers)]
    head = nn.Linear(hidden, shape.outputs)
    frame = {"dropout": dropout, "residual": False, "relu_last": False}
    return Molecular(shape.vertex_size, hidden, rounds, head, **frame)


def _pna(shape: DataShape, hidden: int = 80, layers: int = 4, dropout: float = 0.3) -> nn.Module:
    from softperm.lab.baselines.molecular import Molecular, narrowing_head
    from softperm.lab.baselines.pna import PNARound

    rounds = [PNARound(hidden, shape.edge_size, shape.degree_counts) for _ in range(layers)]
    head = narrowing_head(hidden, shape.outputs)
    return Molecular(shape.vertex_size, hidden, rounds, head, dropout=dropout, residual=True)


def _dgn(shape: DataShape, hidden: int = 70, layers: int = 4, dropout: float = 0.3) -> nn.Module:
    from softperm.lab.baselines.dgn import DGN

    sizes = (shape.vertex_size, shape.edge_size, hidden, layers, shape.outputs)
    return DGN(*sizes, dropout=dropout)


def _phc(
    shape: DataShape, hidden: int = 200, layers: int = 2, components: int = 4, dropout: float = 0.1
) -> nn.Module:
    from softperm.lab.baselines.molecular import Molecular
    from softperm.lab.baselines.phc import AttentionReadout, PHCRound, PHMLinear

    n = components
    rounds = [PHCRound(n, hidden, shape.edge_size) for _ in range(layers)]
    head = nn.Sequential(PHMLinear(n, hidden, hidden), nn.ReLU(), nn.Linear(hidden, shape.outputs))
    readout = AttentionReadout(n, hidden)
    frame = {"dropout": dropout, "residual": True}
    return Molecular(shape.vertex_size, hidden, rounds, head, readout=readout, **frame)


def _dtnn(shape: DataShape, hidden: int = 30, factors: int = 60, rounds: int = 2) -> nn.Module:
    from softperm.lab.baselines.dtnn import DTNN
    from softperm.lab.baselines.pairs import bond_distance, euclidean_distance

    distance = euclidean_distance if shape.positions else bond_distance
    sizes = {"hidden": hidden, "factors": factors, "rounds": rounds}
    return DTNN(shape.vertex_size, shape.outputs, distance, **sizes)


def _mpnn(shape: DataShape, hidden: int = 64, width: int = 128, rounds: int = 3) -> nn.Module:
    from softperm.lab.baselines.mpnn import MPNN

    return MPNN(
        shape.vertex_size,
        shape.edge_size,
        shape.outputs,
        positions=shape.positions,
        hidden=hidden,
        width=width,
        rounds=rounds,
    )


def _one_two(shape: DataShape, hidden: int = 64, rounds: int = 3) -> nn.Module:
    from softperm.lab.baselines.kgnn import HierarchicalGNN

    sizes = {"largest": 2, "hidden": hidden, "rounds": rounds}
    return HierarchicalGNN(shape.vertex_size, shape.edge_size, shape.outputs, **sizes)


def _one_two_three(shape: DataShape, hidden: int = 64, rounds: int = 3) -> nn.Module:
    from softperm.lab.baselines.kgnn import HierarchicalGNN

    sizes = {"largest": 3, "hidden": hidden, "rounds": rounds}
    return HierarchicalGNN(shape.vertex_size, shape.edge_size, shape.outputs, **sizes)


def _ppgn(shape: DataShape, hidden: int = 64, blocks: int = 3) -> nn.Module:
    from softperm.lab.baselines.ppgn import PPGN

    return PPGN(
        shape.vertex_size,
        shape.edge_size,
        shape.outputs,
        positions=shape.positions,
        hidden=hidden,
        blocks=blocks,
    )


_CLASSIFICATION = (
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
        shape_free=("train_eps", "readout", "dropout"),
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

_OGB_TRAINING = {"learning_rate": (1e-3,), "batch_size": (128,)}

_OGB = (
    System(
        "gcn-edges", "GCN with edges", ("ogb",), _gcn_edges, {"dropout": (0.5,), **_OGB_TRAINING}
    ),
    System(
        "gin-edges", "GIN with edges", ("ogb",), _gin_edges, {"dropout": (0.5,), **_OGB_TRAINING}
    ),
    System("pna", "PNA", ("ogb",), _pna, {"dropout": (0.3,), **_OGB_TRAINING}),
    System("dgn", "DGN", ("ogb",), _dgn, {"dropout": (0.3,), **_OGB_TRAINING}),
    System("phc-gnn", "PHC-GNN", ("ogb",), _phc, {"dropout": (0.1,), **_OGB_TRAINING}),
)

_QM9_TRAINING = {"learning_rate": (1e-3,), "batch_size": (64,)}

_QM9 = (
    System("dtnn", "DTNN", ("qm9",), _dtnn, _QM9_TRAINING),
    System("mpnn", "MPNN", ("qm9",), _mpnn, _QM9_TRAINING),
    System("1-2-gnn", "1-2-GNN", ("qm9",), _one_two, _QM9_TRAINING),
    System("1-2-3-gnn", "1-2-3-GNN", ("qm9",), _one_two_three, _QM9_TRAINING),
    System("ppgn", "PPGN", ("qm9",), _ppgn, _QM9_TRAINING),
)

KERNELS: dict[str, Kernel] = {
    "wl-kernel": Kernel(
        "wl-kernel",
        "WL subtree kernel",
        ("classification",),
        _wl_kernel,
        {"iterations": (1, 2, 3, 4, 5, 6), "C": (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)},
    )
}
"""The kernel methods, by name."""

SYSTEMS: dict[str, System] = {s.name: s for s in (*_CLASSIFICATION, *_OGB, *_QM9)}
"""The networks, by name."""


def system(name: str) -> System:
    """The network of a name.

    Raises:
        ValueError: no network has this name; kernels are in ``KERNELS``, π-GNN is
            ``softperm.PiGNN``.

    Example:
        >>> system("gin").title
        'GIN'
    """
    if name in KERNELS:
        raise ValueError(f"{name} is a kernel, not a network: KERNELS[{name!r}].build(settings)")
    if name not in SYSTEMS:
        raise ValueError(f"expected a system, one of {', '.join(SYSTEMS)}; got {name!r}")
    return SYSTEMS[name]
