"""Which measured position belongs to which atom of a molecule."""

from __future__ import annotations

import networkx as nx
import numpy as np
from jaxtyping import Float, Int
from rdkit.Chem import Mol

_RADIUS = {1: 0.31, 6: 0.76, 7: 0.71, 8: 0.66, 9: 0.57}  # covalent radii in Å, Cordero 2008
_LONGEST = 1.9  # Å; the longest bond of QM9's elements that lies between its own atoms is 1.79


def match_positions(
    mol: Mol, elements: Int[np.ndarray, " N"], position: Float[np.ndarray, "N 3"]
) -> Int[np.ndarray, " N"]:
    """Find the measured position of every atom.

    Most sources list atoms and positions in the same order, which shows in every bond being
    short. Where they do not, the molecule is sought in the graph of near atoms (nearer than 1.3
    times the sum of their radii; small cages have near atoms without a bond), elements and all.
    A molecule with a bond that its positions do not show keeps the source's order.

    Args:
        mol: a molecule with all its hydrogens.
        elements: atomic numbers of the positions.
        position: where the atoms are, in Å.

    Returns:
        For every atom of ``mol`` the row of ``position`` that is its own.

    Raises:
        ValueError: if the elements differ, or neither the order nor the bonds agree.
    """
    own = np.array([a.GetAtomicNum() for a in mol.GetAtoms()])  # (N,)
    if not np.array_equal(np.sort(own), np.sort(elements)):
        raise ValueError(
            f"expected positions for the atoms {np.sort(own).tolist()}, found them for "
            f"{np.sort(elements).tolist()}"
        )
    bonds = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], int)
    u, v = bonds.reshape(-1, 2).T
    in_order = np.array_equal(own, elements)
    if in_order and (np.linalg.norm(position[u] - position[v], axis=1) <= _LONGEST).all():
        return np.arange(own.size)
    matcher = nx.isomorphism.GraphMatcher(
        _graph(elements, _near(elements, position)),
        _graph(own, bonds.reshape(-1, 2)),
        node_match=lambda a, b: a["element"] == b["element"],
    )
    found = next(matcher.subgraph_monomorphisms_iter(), None)
    if found is not None:
        return np.array(sorted(found, key=found.__getitem__))
    if not in_order:
        raise ValueError("expected positions that show the molecule's bonds, found a bond torn")
    return np.arange(own.size)


def _near(elements: np.ndarray, position: np.ndarray) -> np.ndarray:
    radius = np.array([_RADIUS[e] for e in elements.tolist()])
    distance = np.linalg.norm(position[:, None] - position[None], axis=2)  # (N, N)
    return np.argwhere(np.triu(distance < 1.3 * (radius[:, None] + radius), k=1))


def _graph(elements: np.ndarray, edges: np.ndarray) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from((i, {"element": e}) for i, e in enumerate(elements.tolist()))
    graph.add_edges_from(edges.tolist())
    return graph
