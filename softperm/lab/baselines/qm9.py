"""The systems of the table of QM9.

Modules are imported when a network is built: a command that needs one system loads one. Where
batches carry positions (:func:`softperm.lab.baselines.inputs.with_positions`), DTNN, MPNN and PPGN
read distances in space, as their papers do; otherwise they see the graph alone, as π-GNN does.
"""

from __future__ import annotations

from torch import nn

from softperm.lab.baselines.shape import DataShape
from softperm.lab.baselines.system import System


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


_TRAINING = {"learning_rate": (1e-3,), "batch_size": (64,)}

SYSTEMS = (
    System("dtnn", "DTNN", ("qm9",), _dtnn, _TRAINING),
    System("mpnn", "MPNN", ("qm9",), _mpnn, _TRAINING),
    System("1-2-gnn", "1-2-GNN", ("qm9",), _one_two, _TRAINING),
    System("1-2-3-gnn", "1-2-3-GNN", ("qm9",), _one_two_three, _TRAINING),
    System("ppgn", "PPGN", ("qm9",), _ppgn, _TRAINING),
)
