"""Colours of vertices in pictures of soft permutations."""

import networkx as nx
import numpy as np
from matplotlib.collections import PathCollection

from softperm.data.graphs import as_graphs
from softperm.explore import plots


def test_equal_rows_have_equal_colours_and_uniform_rows_the_mean_colour():
    (graph,) = as_graphs([nx.path_graph(5)])
    d = np.array([[1, 0], [0, 1], [0.5, 0.5], [0.5, 0.5], [0, 0]])
    figure = plots.alignment(graph, d)
    figure.canvas.draw()
    (points,) = [c for c in figure.axes[0].collections if isinstance(c, PathCollection)]
    colours = points.get_facecolor()
    assert np.abs(colours[0] - colours[1]).max() > 0.2
    np.testing.assert_allclose(colours[2], (colours[0] + colours[1]) / 2)
    np.testing.assert_array_equal(colours[2], colours[3])
    np.testing.assert_allclose(colours[4], colours[2])  # a vertex without mass
