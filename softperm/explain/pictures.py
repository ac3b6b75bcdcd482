"""Pictures of explanations: graphs and molecules shaded by contributions."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from softperm.errors import counted
from softperm.nn.attribution import Explanation
from softperm.pyg import Data

COLOURS = "RdBu"
"""Red lowers the output, blue raises it, as on the page; told apart by the colour-blind too."""


def draw_explanation(
    graph: Data,
    explanation: Explanation,
    output: int | None = None,
    title: str = "",
) -> Figure:
    """Draws a graph, vertices and edges shaded by their contributions to one output.

    Edges are shaded by ``edge_totals``: with their shares of the contributions of their vertices.

    Args:
        graph: a canonical graph.
        explanation: of this graph.
        output: number of the output; by default the largest one.
        title: above the picture.
    """
    import networkx as nx

    chosen = _chosen(explanation, output)
    vertices, edges = explanation.vertices[:, chosen], explanation.edge_totals[:, chosen]
    scale = _scale(vertices, edges)
    drawn = nx.empty_graph(len(vertices))
    pairs = [(int(u), int(v)) for u, v in explanation.edge_index.T]
    drawn.add_edges_from(pairs)
    connected = len(drawn) > 0 and nx.is_connected(drawn)
    start = nx.kamada_kawai_layout(drawn) if connected else None
    place = nx.spring_layout(drawn, pos=start, seed=0, iterations=10 if connected else 100)
    figure = Figure(figsize=(6, 4.5), layout="constrained")
    axis = figure.subplots()
    options = {"ax": axis, "edge_vmin": -scale, "edge_vmax": scale}
    colours = matplotlib.colormaps[COLOURS]
    width = 1 + 4 * np.abs(edges) / scale
    nx.draw_networkx_edges(drawn, place, pairs, edge_color="0.6", width=width + 0.6, ax=axis)
    nx.draw_networkx_edges(
        drawn, place, pairs, edge_color=edges, edge_cmap=colours, width=width, **options
    )
    nx.draw_networkx_nodes(
        drawn, place, ax=axis, node_color=vertices, cmap=colours, vmin=-scale, vmax=scale,
        node_size=max(40, int(1500 / max(len(drawn), 1) ** 0.7)), edgecolors="black",
        linewidths=0.5,
    )  # fmt: skip
    labels = graph.get("label")
    if labels is not None and len(drawn) <= 80:
        names = {v: _plain(str(name)) for v, name in enumerate(_column(labels))}
        nx.draw_networkx_labels(drawn, place, names, font_size=7, ax=axis)
    shades = ScalarMappable(Normalize(-scale, scale), colours)
    name = explanation.output_names[chosen] if explanation.output_names else chosen
    figure.colorbar(shades, ax=axis, shrink=0.8, label=_plain(f"contribution to {name}"))
    axis.set_title(_plain(title), fontsize=10)
    axis.set_axis_off()
    return figure


def draw_molecule(smiles: str, explanation: Explanation, output: int | None = None) -> str:
    """Draws a molecule as SVG, atoms and bonds shaded by their contributions to one output.

    Bonds are shaded by ``edge_totals``: with their shares of the contributions of their atoms.

    Args:
        smiles: the molecule whose atoms, in the order of the SMILES, are the graph's vertices.
        explanation: of its graph.
        output: number of the output; by default the largest one.

    Raises:
        ImportError: RDKit is not installed.
        ValueError: the explanation is of a graph with other vertices.
    """
    from softperm.data.molecules import parse_smiles, rdkit_chem

    mol, chosen = parse_smiles(smiles), _chosen(explanation, output)
    vertices, edges = explanation.vertices[:, chosen], explanation.edge_totals[:, chosen]
    if mol.GetNumAtoms() < len(vertices):
        mol = rdkit_chem().AddHs(mol)
    if mol.GetNumAtoms() != len(vertices):
        raise ValueError(
            f"{smiles!r} has {counted(mol.GetNumAtoms(), 'atom')}; the explanation is of a graph "
            f"with {counted(len(vertices), 'vertex')}"
        )
    from rdkit.Chem.Draw import rdMolDraw2D

    name = explanation.output_names[chosen] if explanation.output_names else chosen
    scale = _scale(vertices, edges)
    bonds = [mol.GetBondBetweenAtoms(int(u), int(v)).GetIdx() for u, v in explanation.edge_index.T]
    drawer = rdMolDraw2D.MolDraw2DSVG(500, 400)
    rdMolDraw2D.PrepareAndDrawMolecule(
        drawer,
        mol,
        highlightAtoms=list(range(len(vertices))),
        highlightAtomColors=dict(enumerate(_shades(vertices, scale))),
        highlightBonds=bonds,
        highlightBondColors=dict(zip(bonds, _shades(edges, scale), strict=True)),
        legend=f"blue raises {name}, red lowers it",
    )
    drawer.FinishDrawing()
    return drawer.GetDrawingText()


def _chosen(explanation: Explanation, output: int | None) -> int:
    return int(explanation.outputs.argmax()) if output is None else output


def _scale(vertices: Float[np.ndarray, " N"], edges: Float[np.ndarray, " E"]) -> float:
    """The largest absolute contribution; 1 if all are zero."""
    return float(np.abs(np.concatenate([vertices, edges])).max(initial=0.0)) or 1.0


def _shades(contributions: np.ndarray, scale: float) -> list[tuple[float, ...]]:
    shares = 0.5 + 0.35 * contributions / scale  # not so dark that symbols are hard to read
    return [tuple(map(float, rgb)) for rgb in matplotlib.colormaps[COLOURS](shares)[:, :3]]


def _column(labels: Any) -> list[Any]:
    """The first column of the labels of a graph's vertices."""
    rows = labels if isinstance(labels, list) else labels.tolist()
    return [row[0] if isinstance(row, list | tuple) else row for row in rows]


def _plain(text: str) -> str:
    """Not a formula, though names may have dollar signs."""
    return text.replace("$", r"\$")
