"""Shapes of mini-batches: large enough for each, and not much larger."""

from itertools import pairwise

import pytest
import torch
from samples import collect, random_graph

from softperm.nn.model import ModelConfig, build
from softperm.ops.transport import sinkhorn
from softperm.training.data import BatchShape, batch_sizes, choose_shapes
from softperm.training.stack import capture_worth, predict_stack

GENERATOR = torch.Generator().manual_seed(0)
NEEDS = {
    "alike": (torch.full((9,), 40), torch.full((9,), 80)),
    "one step": (torch.tensor([3]), torch.tensor([0])),
    "no edges": (torch.arange(1, 50), torch.zeros(49, dtype=torch.long)),
    "edges that do not follow vertices": (
        torch.randint(1, 1000, (300,), generator=GENERATOR),
        torch.randint(0, 5000, (300,), generator=GENERATOR),
    ),
    "few large ones": (torch.tensor([10] * 95 + [1000] * 5), torch.tensor([30] * 95 + [9000] * 5)),
}


@pytest.mark.parametrize("levels", [1, 3, 8])
@pytest.mark.parametrize("kind", NEEDS)
def test_every_step_fits_into_its_shape(kind, levels):
    vertices, edges = NEEDS[kind]
    shapes, which = choose_shapes([vertices, edges, vertices], levels)
    assert 1 <= len(shapes) <= levels
    assert set(which.tolist()) == set(range(len(shapes)))
    for v, e, level in zip(vertices.tolist(), edges.tolist(), which.tolist(), strict=True):
        assert v < shapes[level].vertices, "one place stays empty"
        assert e <= shapes[level].edges
    for small, large in pairwise(shapes):
        assert small != large
        assert small.vertices <= large.vertices
        assert small.edges <= large.edges


def test_a_shape_knows_the_largest_graph():
    graphs = collect([random_graph(n, seed=n) for n in (5, 7, 2, 9)])
    batches = torch.tensor([[2, 2, -1], [1, 0, -1]])
    assert BatchShape.for_batches(graphs, batches[0]).graph == 2
    assert BatchShape.for_batches(graphs, batches).graph == 7
    sizes = batch_sizes(graphs, batches)
    shapes, which = choose_shapes(sizes, most=2)
    assert sizes[2].tolist() == [shapes[level].graph for level in which.tolist()] == [2, 7]
    assert BatchShape.largest(shapes).graph == 7


def test_stacked_models_are_told_the_largest_graph(monkeypatch):
    """A GPU is then spared the launches for graphs that cannot come."""
    told = []

    def solve(*inputs, largest=None, **others):
        told.append(largest)
        return sinkhorn(*inputs, largest=largest, **others)

    monkeypatch.setattr("softperm.nn.model.sinkhorn", solve)
    graphs = collect([random_graph(n, seed=n) for n in (5, 7, 2)])
    config = ModelConfig(2, latent_vertices=3, hidden=4, attribute_size=3, edge_attribute_size=2)
    models = [build(config, seed=seed).double() for seed in range(2)]
    outputs = predict_stack(models, graphs, [torch.tensor([0, 2]), torch.tensor([1])], 2)
    assert set(told) == {7}  # of structure and of attributes
    for model, found, index in zip(models, outputs, ([0, 2], [1]), strict=True):
        alone = model.eval()(graphs.batch(torch.tensor(index))).detach()
        torch.testing.assert_close(found, alone.float())


def test_most_steps_do_not_pay_for_a_few_large_ones():
    vertices, edges = NEEDS["few large ones"]
    shapes, which = choose_shapes([vertices, edges, vertices], 3)
    assert len(shapes) == 2
    taken = torch.tensor([shape.edges for shape in shapes])[which]
    assert taken.sum() < 0.09 * 9000 * len(which), "an average step needs 0.053 of the largest"
    assert len(choose_shapes([*NEEDS["alike"], NEEDS["alike"][0]], 8)[0]) == 1


def test_steps_are_divided_where_it_saves_most():
    """Three shapes for sizes as in real collections: near to what each step needs."""
    drawn = torch.randn(2000, generator=GENERATOR).mul(0.4).exp().mul(1000).long()
    shapes, which = choose_shapes([drawn, torch.zeros_like(drawn), drawn], 3)
    assert len(shapes) == 3
    places = torch.tensor([shape.vertices for shape in shapes])[which]
    best = min(
        float(drawn.sort().values[cut - 1] * cut + drawn.max() * (2000 - cut))
        for cut in range(1, 2000, 7)
    )  # with two shapes
    assert places.sum() < best


def test_a_capture_must_save_more_time_than_it_takes():
    """Two million steps of 100 places take two seconds: a capture must save half of that."""
    assert capture_worth(100 * 2e6, torch.device("cuda")) == pytest.approx(0.5)
    assert capture_worth(100 * 2e6, torch.device("cpu")) == 0.0


def test_a_shape_that_saves_too_little_is_not_used():
    vertices, edges = NEEDS["few large ones"]
    assert len(choose_shapes([vertices, edges, vertices], 8, worth=0.93)[0]) == 2
    assert len(choose_shapes([vertices, edges, vertices], 8, worth=0.95)[0]) == 1
