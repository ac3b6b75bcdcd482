"""The subtree kernel: against dictionaries, against GraKeL, and as a classifier."""

from collections import Counter

import networkx as nx
import numpy as np
import pytest
import torch
from lab.baselines.cases import shuffled, wl_kernel
from samples import collect, plain_graph, rings_and_cliques

from softperm.data.datasets import load_dataset
from softperm.lab.baselines.classical import WLKernelClassifier, refine_colours
from softperm.lab.systems import CLASSICAL
from softperm.training.tasks import Classification

TWO = Classification(2)
GRAKEL_MUTAG = [
    [393, 210, 206, 399, 131, 402],
    [210, 173, 145, 231, 91, 276],
    [206, 145, 173, 233, 91, 296],
    [399, 231, 233, 489, 143, 472],
    [131, 91, 91, 143, 111, 194],
    [402, 276, 296, 472, 194, 912],
]
"""GraKeL 0.1.11, WeisfeilerLehman(n_iter=4) over VertexHistogram: first six graphs of MUTAG."""


def test_graphs_of_one_class_teach_nothing():
    graphs = collect(rings_and_cliques(4)[0])
    with pytest.raises(ValueError, match=r"all 2 training graphs are of class \[1\]"):
        WLKernelClassifier().fit(graphs, torch.tensor([0, 2]), torch.ones(2).long(), TWO)


def labelled(count: int) -> list[nx.Graph]:
    graphs = [plain_graph(1 + i % 9, seed=i, density=0.4) for i in range(count)]
    for i, graph in enumerate(graphs):
        nx.set_node_attributes(graph, {v: "CNO"[(v * v + i) % 3] for v in graph}, "label")
    return graphs


def slow_kernel(graphs: list[nx.Graph], iterations: int) -> np.ndarray:
    """The kernel with a dictionary from what a vertex sees to its colour."""
    colours = [{v: g.nodes[v].get("label", 0) for v in g} for g in graphs]
    counts = [Counter(("0", c) for c in own.values()) for own in colours]
    for t in range(iterations):
        names: dict = {}
        for i, g in enumerate(graphs):
            sees = {v: (colours[i][v], tuple(sorted(colours[i][u] for u in g[v]))) for v in g}
            colours[i] = {v: names.setdefault(seen, len(names)) for v, seen in sees.items()}
            counts[i].update((str(t + 1), c) for c in colours[i].values())
    return np.array([[sum(a[c] * b[c] for c in a) for b in counts] for a in counts])


@pytest.mark.parametrize("iterations", [0, 1, 3, 5])
@pytest.mark.parametrize("with_labels", [True, False], ids=["labelled", "plain"])
def test_it_equals_a_kernel_with_dictionaries(iterations, with_labels):
    graphs = labelled(40)
    if not with_labels:
        graphs = [nx.Graph(g.edges) if g.number_of_edges() else nx.path_graph(2) for g in graphs]
    np.testing.assert_array_equal(
        wl_kernel(collect(graphs), iterations), slow_kernel(graphs, iterations)
    )


def test_it_equals_grakel_on_mutag(data_root, tmp_path):
    kernel = wl_kernel(load_dataset("MUTAG", data_root, cache=tmp_path).collection, 4)
    np.testing.assert_array_equal(kernel[:6, :6], GRAKEL_MUTAG)
    assert kernel.shape == (188, 188)
    assert kernel.sum() == 10_118_343  # GraKeL's whole matrix
    assert kernel.trace() == 75_129


def test_the_order_of_vertices_does_not_matter():
    graphs = labelled(20)
    np.testing.assert_array_equal(
        wl_kernel(collect(graphs), 3), wl_kernel(collect(shuffled(graphs)), 3)
    )


def test_colours_mean_the_same_in_every_collection():
    graphs = labelled(10)
    whole = refine_colours(collect(graphs), 3)
    part = refine_colours(collect(graphs[4:]), 3)
    np.testing.assert_array_equal(whole[:, -part.shape[1] :], part)


def test_two_triangles_are_a_hexagon_to_it_and_a_path_is_not():
    pair = [nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3)), nx.cycle_graph(6)]
    kernel = wl_kernel(collect([*pair, nx.path_graph(6)]), 5)
    assert kernel[0, 0] == kernel[0, 1] == kernel[1, 1]
    assert kernel[0, 2] < kernel[0, 0]


def test_the_classifier_learns_and_meets_colours_it_has_not_seen():
    graphs, y = rings_and_cliques(40)
    collection = collect(graphs)
    train, test = torch.arange(30), torch.arange(30, 40)
    machine = (
        CLASSICAL["wl-kernel"]
        .build({"iterations": 3, "C": 10.0})
        .fit(collection, train, torch.from_numpy(y[:30]), TWO)
    )
    assert (machine.outputs(collection, test).argmax(1).numpy() == y[30:]).all()
    others = collect([nx.cycle_graph(40), nx.complete_graph(12), nx.star_graph(9)])
    assert machine.outputs(others, torch.tensor([2, 0])).shape == (2, 2)


def test_a_graph_predicted_alone_gets_the_kernel_it_has_among_others():
    graphs = labelled(30)
    collection, y = collect(graphs), torch.arange(30) % 2
    machine = WLKernelClassifier(2, 1.0).fit(collection, torch.arange(20), y[:20], TWO)
    together = machine.outputs(collection, torch.arange(20, 30))
    alone = [machine.outputs(collection, torch.tensor([i])) for i in range(20, 30)]
    assert torch.equal(together, torch.cat(alone))
