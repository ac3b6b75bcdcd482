"""Neighbours by learnt vector, and the aligner that learns vectors with graph distances."""

import networkx as nx
import numpy as np
import pytest
import torch
from samples import FAST, plain_graph

from softperm import GraphIndex, PiGNNAligner, PiGNNClassifier
from softperm.data.graphs import as_graphs
from softperm.data.vocabulary import Vocabulary
from softperm.distance import frobenius_matrix
from softperm.estimators import aligner as aligner_module
from softperm.estimators.aligner import Sketch, sample_graphs
from softperm.search import VectorIndex

GRAPHS = [plain_graph(4 + i % 5, seed=i, density=0.3 + 0.1 * (i % 4)) for i in range(60)]
NAMES = [f"g{i}" for i in range(60)]
SETTINGS = {
    **FAST, "epochs": 60, "learning_rate": 1e-2, "batch_size": 30, "validation_fraction": 0.0,
    "dimensions": 8, "sketch": 64, "head_hidden": (32,), "compare": "cosine", "head_norm": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def aligner() -> PiGNNAligner:
    return PiGNNAligner(**SETTINGS, sample=40).fit(GRAPHS)


@pytest.fixture
def index() -> GraphIndex:
    return GraphIndex.build(GRAPHS, NAMES, {"size": [len(g) for g in GRAPHS]})


def test_distances_of_vectors_follow_exact_distances(aligner):
    vectors = aligner.transform(GRAPHS)
    assert vectors.shape == (60, 8 + 64)
    learnt = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    exact = frobenius_matrix(GRAPHS)
    upper = np.triu_indices(60, 1)
    correlation = np.corrcoef(learnt[upper], exact[upper])[0, 1]
    assert correlation > 0.8
    assert aligner.score(GRAPHS) == pytest.approx(correlation, abs=1e-3)
    assert aligner.proven_pairs_ == 1.0
    scale = (learnt[upper] / exact[upper].clip(min=1e-9))[exact[upper] > 0]
    assert 0.7 < np.median(scale) < 1.3  # the distances themselves, not only their order


def test_an_aligner_is_saved_and_repeats_itself(aligner, tmp_path):
    aligner.save(tmp_path / "model")
    back = PiGNNAligner.load(tmp_path / "model")
    np.testing.assert_array_equal(back.transform(GRAPHS), aligner.transform(GRAPHS))
    assert back.get_params()["dimensions"] == 8
    assert len(back.get_feature_names_out()) == 8 + 64
    with pytest.raises(ValueError, match="an aligner predicts nothing"):
        aligner.predict(GRAPHS)
    with pytest.raises(ValueError, match="an aligner predicts nothing"):
        back.decode(back._outputs(GRAPHS[:1]))
    with pytest.raises(ValueError, match="dimensions must be a whole number of at least 1"):
        PiGNNAligner(dimensions=0).fit(GRAPHS)
    with pytest.raises(ValueError, match="needs at least two graphs"):
        PiGNNAligner(**SETTINGS).fit(GRAPHS[:1])


def test_sketches_do_not_depend_on_the_numbering_and_tell_labels_apart():
    rng = np.random.default_rng(0)
    graphs = [nx.gnp_random_graph(7, 0.4, seed=i) for i in range(20)]
    for graph in graphs:
        nx.set_node_attributes(graph, {v: "ab"[v % 2] for v in graph}, "label")
    renumbered = []
    for graph in graphs:
        other = nx.Graph()
        other.add_nodes_from((v, graph.nodes[v]) for v in rng.permutation(7).tolist())
        other.add_edges_from(graph.edges)
        renumbered.append(other)
    vocabulary = Vocabulary.learn(as_graphs(graphs))
    sketch = Sketch(128, (1.0, 0.5, 1.0, 1.0, 0.25), 1.0)
    rows = sketch(vocabulary.encode(as_graphs(graphs)))
    np.testing.assert_array_equal(sketch(vocabulary.encode(as_graphs(renumbered))), rows)
    nx.set_node_attributes(graphs[0], {0: "b"}, "label")
    assert (sketch(vocabulary.encode(as_graphs(graphs[:1]))) != rows[:1]).any()


def test_squared_distances_of_sketches_are_absolute_differences_of_counts():
    """Without collisions, which a large sketch avoids: here of vertices by their degree."""
    graphs = as_graphs([nx.path_graph(5), nx.star_graph(4), nx.cycle_graph(9), nx.path_graph(1)])
    weights = (0.0, 0.0, 3.0, 0.0, 0.0)  # of the colours after one round: the degrees
    rows = Sketch(2**16, weights, 1.0)(Vocabulary.learn(graphs).encode(graphs))
    degrees = [torch.bincount(g.edge_index[0], minlength=g.num_nodes) for g in graphs]
    counts = np.stack([torch.bincount(degree, minlength=8).numpy() for degree in degrees])
    expected = 3 * np.abs(counts[:, None] - counts).sum(2)
    squared = np.square(rows[:, None] - rows).sum(2)
    np.testing.assert_allclose(squared, expected, rtol=1e-4)


def test_weights_of_a_sketch_find_the_nearest_graphs_where_the_network_cannot():
    rng = np.random.default_rng(0)
    graphs = as_graphs([plain_graph(5 + i % 3, seed=i, density=0.4) for i in range(50)])
    collection, table = Vocabulary.learn(graphs).encode(graphs), frobenius_matrix(graphs)
    noise = rng.normal(size=(50, 8)).astype(np.float32)
    fitted = Sketch.fit(64, collection, noise, table)
    alone, exact = fitted(collection), table**2
    assert aligner_module._recall(aligner_module._squared_distances(alone), exact) > (
        aligner_module._recall(aligner_module._squared_distances(noise), exact) + 0.2
    )
    assert fitted.network * np.abs(noise).max() < np.abs(alone).max()


def test_a_sample_has_similar_graphs_and_the_asked_size():
    graphs = as_graphs([nx.path_graph(3 + i // 8) for i in range(160)])
    collection = Vocabulary.learn(graphs).encode(graphs)
    chosen = sample_graphs(collection, 40, seed=0)
    assert len(chosen) == len(set(chosen.tolist())) == 40
    sizes = collection.sizes[chosen].numpy()
    assert np.mean(np.bincount(sizes)[np.bincount(sizes) > 0]) > 4  # not 2, as of random graphs
    assert (sample_graphs(collection, 40, seed=0) == chosen).all()
    assert len(sample_graphs(collection, 1000, seed=0)) == 160


def test_fewer_graphs_are_compared_if_they_are_large_or_difficult():
    affordable = aligner_module.affordable
    assert affordable(np.full(1000, 9), proven=1.0, seconds=120.0) > 400
    assert affordable(np.full(188, 18), proven=1.0, seconds=120.0) > 188
    assert 50 < affordable(np.full(1000, 18), proven=0.0, seconds=120.0) < 100
    assert affordable(np.full(1000, 5000), proven=0.0, seconds=120.0) == 20


def test_a_sample_leaves_out_graphs_too_large_to_prove_anything():
    graphs = as_graphs([nx.path_graph(4 + i % 5) for i in range(30)] + [nx.path_graph(400)] * 30)
    collection = Vocabulary.learn(graphs).encode(graphs)
    chosen = PiGNNAligner(sample=1000)._choose(collection, graphs)
    assert chosen.tolist() == list(range(30))
    chosen = PiGNNAligner(sample=1000, distance_seconds=1e-6)._choose(collection, graphs)
    assert len(chosen) == 20
    assert max(chosen.tolist()) < 30


def test_neighbours_are_those_of_the_vectors(aligner, index):
    pytest.importorskip("faiss")
    found = VectorIndex.build(index, aligner).nearest(GRAPHS[7], k=5)
    vectors = aligner.transform(GRAPHS)
    distance = np.linalg.norm(vectors - vectors[7], axis=1)
    assert [hit.distance for hit in found] == pytest.approx(np.sort(distance)[:5], abs=1e-4)
    assert found.hits[0].distance == pytest.approx(0, abs=1e-4)
    assert not any(hit.proven for hit in found)


def test_exact_distances_rank_the_candidates_again(aligner, index):
    pytest.importorskip("faiss")
    vectors = VectorIndex.build(index, aligner)
    query = plain_graph(7, seed=99)
    everything = vectors.nearest(query, k=4, rerank=60)
    proven = index.nearest(query, k=4)
    assert [h.distance for h in everything] == [h.distance for h in proven]
    assert all(hit.proven for hit in everything)
    small = vectors.nearest(query, k=4, rerank=20, where="size < 6")
    assert {len(GRAPHS[NAMES.index(hit.id)]) for hit in small} <= {4, 5}
    assert vectors.nearest(query, where="size > 99").hits == ()
    with pytest.raises(ValueError, match="rerank is 3; expected at least k, which is 10, or 0"):
        vectors.nearest(query, rerank=3)


def test_vectors_follow_additions_and_removals_and_are_mapped(aligner, index, tmp_path):
    pytest.importorskip("faiss")
    VectorIndex.build(index, aligner).save(tmp_path / "vectors")
    vectors = VectorIndex.open(tmp_path / "vectors", index)
    before = [hit.id for hit in vectors.nearest(GRAPHS[3], k=60)]
    index.remove(["g3"])
    index.add([GRAPHS[3], nx.path_graph(9)], ["again", "g3"], {"size": [len(GRAPHS[3]), 9]})
    vectors.update()
    assert len(vectors) == 61
    assert vectors.nearest(GRAPHS[3], k=60).hits[0].id in {"again", *before[:2]} - {"g3"}
    vectors.save(tmp_path / "vectors")
    again = VectorIndex.open(tmp_path / "vectors", index)
    again.update()  # nothing to do
    names = [hit.id for hit in again.nearest(GRAPHS[3], k=61)]
    assert sorted(names) == sorted(index.ids)
    assert names == [hit.id for hit in vectors.nearest(GRAPHS[3], k=61)]


def test_a_graph_that_returns_under_its_name_with_other_edges_gets_a_new_vector(
    aligner, index, tmp_path
):
    pytest.importorskip("faiss")
    VectorIndex.build(index, aligner).save(tmp_path / "vectors")
    index.remove(["g3", "g4"])
    changed = nx.complete_graph(9)
    index.add([changed, GRAPHS[4]], ["g3", "g4"], {"size": [9, len(GRAPHS[4])]})
    vectors = VectorIndex.open(tmp_path / "vectors", index)
    with pytest.raises(ValueError, match=r"1 of 60 graphs of the index has no vector.*'g3'"):
        vectors.nearest(GRAPHS[3])
    vectors.update()
    hit = vectors.nearest(changed, k=1).hits[0]
    assert (hit.id, hit.distance) == ("g3", pytest.approx(0, abs=1e-3))
    fresh = VectorIndex.build(index, aligner)
    for query in GRAPHS[:5]:
        expected = [hit.distance for hit in fresh.nearest(query, k=60)]
        assert [hit.distance for hit in vectors.nearest(query, k=60)] == pytest.approx(expected)


def test_vectors_of_graphs_that_the_index_lost_are_no_hits(aligner, index):
    pytest.importorskip("faiss")
    vectors = VectorIndex.build(index, aligner)
    index.remove(["g7"])
    found = vectors.nearest(GRAPHS[7], k=60, rerank=60)
    assert sorted(hit.id for hit in found) == sorted(index.ids)
    assert "g7" not in {hit.id for hit in vectors.nearest(GRAPHS[7], k=5)}


def test_checksums_tell_graphs_apart_and_do_not_depend_on_the_index(collection, tmp_path):
    index = GraphIndex.build(collection)
    other = GraphIndex.build(collection[::-1], ids=range(len(collection))[::-1])
    assert other.checksums == index.checksums
    index.save(tmp_path / "index")
    assert GraphIndex.open(tmp_path / "index").checksums == index.checksums
    contents = {name: _content(index.graph(name)) for name in index.ids}
    for a, b in zip(index.ids, [*index.ids[1:], 0], strict=True):
        assert (index.checksums[a] == index.checksums[b]) == (contents[a] == contents[b])
    assert len(set(index.checksums.values())) == len(set(contents.values()))


def _content(graph) -> str:
    weight = graph.get("edge_weight")
    weights = [1.0] * graph.num_edges if weight is None else weight.tolist()
    labels = (graph.get("label"), graph.get("edge_label"))
    return repr((graph.num_nodes, graph.edge_index.tolist(), *labels, weights))


@pytest.mark.parametrize("name", ["vectors.json", "*.faiss", "model/model.safetensors"])
def test_vectors_with_a_changed_or_missing_file_are_refused(aligner, index, tmp_path, name):
    pytest.importorskip("faiss")
    VectorIndex.build(index, aligner).save(tmp_path)
    (file,) = tmp_path.glob(name)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="build them again"):
        VectorIndex.open(tmp_path, index)
    file.unlink()
    with pytest.raises(ValueError, match=r"build the vectors again|index it with a model first"):
        VectorIndex.open(tmp_path, index)


def test_vectors_of_another_model_are_refused(aligner, index, tmp_path):
    pytest.importorskip("faiss")
    VectorIndex.build(index, aligner).save(tmp_path)
    PiGNNClassifier(**{**FAST, "validation_fraction": 0.0}).fit(
        GRAPHS, [len(g) > 6 for g in GRAPHS]
    ).save(tmp_path / "model")
    with pytest.raises(ValueError, match="the model is not the one of the vectors"):
        VectorIndex.open(tmp_path, index)


def test_damaged_vectors_are_refused_in_one_sentence(aligner, index, tmp_path):
    pytest.importorskip("faiss")
    with pytest.raises(ValueError, match="holds no vectors"):
        VectorIndex.open(tmp_path, index)
    VectorIndex.build(index, aligner).save(tmp_path)
    (file,) = tmp_path.glob("*.faiss")
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"cannot be used.*build them again"):
        VectorIndex.open(tmp_path, index)


def test_any_estimator_gives_vectors(index):
    pytest.importorskip("faiss")
    model = PiGNNClassifier(**{**FAST, "validation_fraction": 0.0}).fit(
        GRAPHS, [len(g) > 6 for g in GRAPHS]
    )
    assert VectorIndex.build(index, model).nearest(GRAPHS[0], k=1).hits[0].distance < 1e-3
