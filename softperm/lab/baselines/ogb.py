"""The systems of the table of the Open Graph Benchmark; settings are those of their authors there.

Modules are imported when a network is built: a command that needs one system loads one.
"""

from __future__ import annotations

from torch import nn

from softperm.lab.baselines.shape import DataShape
from softperm.lab.baselines.system import System


def _gcn(shape: DataShape, hidden: int = 300, layers: int = 5, dropout: float = 0.5) -> nn.Module:
    from softperm.lab.baselines.molecular import Molecular
    from softperm.lab.baselines.ogb_rounds import GCNRound

    rounds = [GCNRound(hidden, shape.edge_size) for _ in range(layers)]
    head = nn.Linear(hidden, shape.outputs)
    kept = {"dropout": dropout, "residual": False, "relu_last": False}
    return Molecular(shape.vertex_size, hidden, rounds, head, **kept)


def _gin(shape: DataShape, hidden: int = 300, layers: int = 5, dropout: float = 0.5) -> nn.Module:
    from softperm.lab.baselines.molecular import Molecular
    from softperm.lab.baselines.ogb_rounds import GINRound

    rounds = [GINRound(hidden, shape.edge_size) for _ in range(layers)]
    head = nn.Linear(hidden, shape.outputs)
    kept = {"dropout": dropout, "residual": False, "relu_last": False}
    return Molecular(shape.vertex_size, hidden, rounds, head, **kept)


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
    kept = {"dropout": dropout, "residual": True}
    return Molecular(shape.vertex_size, hidden, rounds, head, readout=readout, **kept)


_TRAINING = {"learning_rate": (1e-3,), "batch_size": (128,)}

SYSTEMS = (
    System("gcn-edges", "GCN with edges", ("ogb",), _gcn, {"dropout": (0.5,), **_TRAINING}),
    System("gin-edges", "GIN with edges", ("ogb",), _gin, {"dropout": (0.5,), **_TRAINING}),
    System("pna", "PNA", ("ogb",), _pna, {"dropout": (0.3,), **_TRAINING}),
    System("dgn", "DGN", ("ogb",), _dgn, {"dropout": (0.3,), **_TRAINING}),
    System("phc-gnn", "PHC-GNN", ("ogb",), _phc, {"dropout": (0.1,), **_TRAINING}),
)
