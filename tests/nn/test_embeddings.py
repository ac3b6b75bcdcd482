"""Embedded labels: OGB's sums of vectors, unknown labels as nothing, bonds through alignment."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from ogb_package import ogb_module
from samples import double, same_weights
from torch import nn

from softperm.data.graphs import as_graphs
from softperm.data.vocabulary import Vocabulary
from softperm.nn.encoders import EmbeddedEdges, LabelEmbedding
from softperm.nn.model import ModelConfig, PiGNN, build
from softperm.nn.permutation import align_adjacency
from softperm.training.data import BatchShape, gather
from softperm.training.stack import predict_stack

SIZES = (5, 2, 7)


def molecules(count: int = 6, x: bool = False) -> nx.Graph:
    """Random graphs with two columns of vertex labels and one of edge labels."""
    rng = np.random.default_rng(0)
    made = []
    for i in range(count):
        graph = nx.gnp_random_graph(4 + i, 0.5, seed=i)
        for v in graph:
            graph.nodes[v]["label"] = "CNO"[rng.integers(3)]
            if x:
                graph.nodes[v]["x"] = rng.normal(size=2).astype(np.float32)
        for edge in graph.edges:
            graph.edges[edge]["label"] = int(rng.integers(4))
            if x:
                graph.edges[edge]["x"] = rng.normal(size=1).astype(np.float32)
        made.append(graph)
    return made


def collection(x: bool = False, codes: bool = True):
    graphs = as_graphs(molecules(x=x))
    return replace(Vocabulary.learn(graphs).encode(graphs), codes=codes)


def config_of(graphs, **choices) -> ModelConfig:
    sizes = (graphs.label_sizes, graphs.edge_label_sizes) if graphs.codes else ((), ())
    return ModelConfig(
        2,
        latent_vertices=4,
        hidden=6,
        attribute_size=graphs.attribute_size,
        edge_attribute_size=graphs.edge_attribute_size,
        label_sizes=sizes[0],
        edge_label_sizes=sizes[1],
        embedding_size=5,
        edge_embedding_size=3,
        **choices,
    )


def random_codes(rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.stack([torch.randint(s, (rows,), generator=generator) for s in SIZES], dim=1)


def test_an_embedding_is_the_sum_of_one_table_per_column():
    embedding, codes = LabelEmbedding(SIZES, 4), random_codes(20)
    tables = embedding.table.split(SIZES)
    expected = sum(nn.functional.embedding(codes[:, c], tables[c]) for c in range(3))
    torch.testing.assert_close(embedding(codes), expected)
    torch.testing.assert_close(embedding.one_hot(codes) @ embedding.table, expected)


@pytest.mark.parametrize(("kind", "features"), [("Atom", "atom"), ("Bond", "bond")])
def test_an_embedding_with_ogbs_tables_is_ogbs_encoder(kind, features):
    encoders = ogb_module("graphproppred/mol_encoder.py")
    sizes = getattr(encoders, f"full_{features}_feature_dims")
    theirs = getattr(encoders, f"{kind}Encoder")(8)
    ours = LabelEmbedding(sizes, 8)
    columns = getattr(theirs, f"{features}_embedding_list")
    with torch.no_grad():
        ours.table.copy_(torch.cat([column.weight for column in columns]))
    codes = torch.stack([torch.randint(s, (30,)) for s in sizes], dim=1)
    torch.testing.assert_close(ours(codes), theirs(codes))
    bounds = [(6 / (s + 8)) ** 0.5 for s in sizes]  # Xavier's, of each column's own table
    for table, bound in zip(LabelEmbedding(sizes, 8).table.split(sizes), bounds, strict=True):
        assert 0.3 * bound < table.abs().max() <= bound


def test_an_unknown_label_adds_nothing():
    embedding, codes = LabelEmbedding(SIZES, 4), random_codes(3)
    codes[0], codes[1, 2] = -1, -1
    tables = embedding.table.split(SIZES)
    assert bool((embedding(codes)[0] == 0).all())
    rest = tables[0][codes[1, 0]] + tables[1][codes[1, 1]]
    torch.testing.assert_close(embedding(codes)[1], rest)
    torch.testing.assert_close(embedding.one_hot(codes) @ embedding.table, embedding(codes))


def test_a_batch_carries_codes_or_one_hot_vectors_of_the_same_labels():
    coded, plain = collection(x=True), collection(x=True, codes=False)
    index = torch.tensor([3, 0, 3])
    codes, hot = coded.batch(index), plain.batch(index)
    assert "label" not in hot
    assert codes.x.shape[1] == 2 == coded.attribute_size
    labels = nn.functional.one_hot(codes.label[:, 0], 3)
    torch.testing.assert_close(torch.cat([labels, codes.x], dim=1).float(), hot.x)
    bonds = nn.functional.one_hot(codes.edge_label[:, 0], 4)
    torch.testing.assert_close(torch.cat([bonds, codes.edge_attr], dim=1).float(), hot.edge_attr)


@pytest.mark.parametrize("x", [False, True])
def test_aligned_embedded_edges_are_each_channels_own_alignment(x):
    graphs = double(collection(x=x))
    batch = graphs.batch(torch.arange(6))
    d = torch.rand(batch.num_nodes, 4, dtype=torch.float64, requires_grad=True)
    view = EmbeddedEdges(LabelEmbedding(graphs.edge_label_sizes, 3).double())
    vectors = view.embedding(batch.edge_label)  # (E, 3)
    if x:
        vectors = torch.cat([vectors, batch.edge_attr.double()], dim=1)
    channels = [
        align_adjacency(d, batch.edge_index, batch.ptr, vectors[:, c], canonical=True)
        for c in range(vectors.shape[1])
    ]
    aligned = view(d, batch)
    torch.testing.assert_close(aligned, torch.stack(channels, dim=-1))
    aligned.square().sum().backward()
    assert bool((view.embedding.table.grad != 0).all())


@pytest.mark.parametrize("encoder", ["linear", "gin"])
@pytest.mark.parametrize("x", [False, True])
def test_every_table_of_a_network_learns_and_is_saved(encoder, x, tmp_path):
    graphs = collection(x=x)
    model = build(config_of(graphs, encoder=encoder, dustbin=True), seed=0)
    batch = graphs.batch(torch.arange(6))
    model(batch).square().sum().backward()
    tables = [p for name, p in model.named_parameters() if name.endswith("table")]
    assert [tuple(t.shape) for t in tables] == [(3, 5), (4, 3)]
    assert all(bool((t.grad.abs().sum(1) > 0).all()) for t in tables)
    model.save(tmp_path)
    back = PiGNN.load(tmp_path)
    same_weights(back, model)
    torch.testing.assert_close(back(batch), model.eval()(batch), rtol=0, atol=0)
    assert model.transform(batch).shape == (6, 4 * (4 + 5 + 2 * x + 4 * (3 + x)))
    assert [d.shape for d in model.permutations(batch)] == [(4 + i, 4) for i in range(6)]


def test_embedded_labels_with_one_hot_tables_are_one_hot_labels():
    """With the identity for a table, an embedded label is its one-hot vector."""
    graphs, plain = collection(), collection(codes=False)
    config = replace(config_of(graphs), embedding_size=3, edge_embedding_size=4)
    embedded, hot = build(config, seed=0), build(config_of(plain), seed=0)
    with torch.no_grad():
        for name, parameter in embedded.named_parameters():
            if name.endswith("table"):
                parameter.copy_(torch.eye(len(parameter)))
    embedded.load_state_dict(hot.state_dict(), strict=False)
    index = torch.arange(6)
    torch.testing.assert_close(embedded(graphs.batch(index)), hot(plain.batch(index)))


def test_stacked_networks_embed_as_each_does_alone():
    graphs = collection(x=True)
    models = [build(config_of(graphs), seed=s).eval() for s in range(2)]
    index = [torch.tensor([0, 5, 2]), torch.tensor([4])]
    stacked = predict_stack(models, graphs, index, batch_size=2)
    for model, i, outputs in zip(models, index, stacked, strict=True):
        torch.testing.assert_close(outputs, model(graphs.batch(i)).detach(), rtol=1e-4, atol=1e-5)
    rows = torch.tensor([[1, -1]])
    made, _ = gather(graphs, rows, BatchShape.for_batches(graphs, rows))
    used = int(made["ptr"][0, -1])
    assert bool((made["label"][0, used:] == -1).all())
    assert bool((made["label"][0, :used] >= 0).all())


def test_a_batch_without_codes_is_refused_with_the_remedy():
    graphs, plain = collection(), collection(codes=False)
    model = build(config_of(graphs), seed=0)
    with pytest.raises(ValueError, match="no codes in label: make it from a Collection with codes"):
        model(plain.batch(torch.arange(2)))
    batch = graphs.batch(torch.arange(2))
    del batch.edge_label
    with pytest.raises(ValueError, match="no codes in edge_label"):
        model(batch)


def test_one_hot_is_the_default_and_adds_no_parameters():
    model = build(config_of(collection(codes=False)), seed=0)
    assert not any("embedding" in name or "view" in name for name in model.state_dict())
